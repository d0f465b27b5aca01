"""A trace: a temporary view of the frames of some clients, as lines that wait for a reader.

It is bounded in time, frames per second, clients and bytes. Lines beyond these bounds are left out and counted. So a
slow reader loses lines, and no client waits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any, Final, NamedTuple, Protocol

from gateway.errors import GatewayError
from gateway.journal.privacy import shown
from gateway.server.client.redaction import shown_command, shown_headers
from gateway.server.client_address import UNIX, address_of, network_of
from gateway.session.session import Session
from gateway.stomp.frame_scanner import ScannedFrame

FRAMES_PER_SECOND: Final = 200
MOST_CLIENTS: Final = 100
"""The most clients of a trace, and the most undecided ones in addition."""

# The most bytes of lines that wait for the reader.
_BUFFER: Final = 1 << 20

# The most lines of one client that are kept until it is known whether the client matches.
_MOST_UNDECIDED: Final = 16

FAULT: Final = "a fault of the gateway; its log has it whole"

_CONNECTS: Final = (b"CONNECT", b"STOMP")


class TraceTargetError(GatewayError):
    """The target of a trace is invalid. The text says why."""


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """The clients of a trace: one session by its id, or those with a login, or from an address or network."""

    session: str | None = None
    login: str | None = None
    address: str | None = None

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.session, self.login, self.address)) != 1:
            raise TraceTargetError("Give one of session, login and address.")
        if self.address is not None and not self.address.startswith(UNIX):
            try:
                _ = ip_network(self.address, strict=False)
            except ValueError:
                sentence = "address must be an IP address, a network, such as 10.1.2.0/24, or unix:uid=1000."
                raise TraceTargetError(sentence) from None

    def __str__(self) -> str:
        kind = "session" if self.session else "login" if self.login else "address"
        return f"{kind} {getattr(self, kind)}"

    def matches(self, session: Session, host: str) -> bool | None:
        """Whether a client matches; None if that is unknown before its login."""
        if self.session is not None:
            return session.identity.decode() == self.session
        if self.login is not None:
            return None if session.login is None else shown(session.login) == self.login
        return _is_in(host, self.address or "")

    def is_asked_for(self, frame: ScannedFrame) -> bool:
        """Whether a frame is a CONNECT with the login of the target."""
        return frame.command in _CONNECTS and shown(frame.headers.get(b"login", b"")) == self.login


def _is_in(host: str, address: str) -> bool:
    if address.startswith(UNIX):
        return host == address
    network = ip_network(address, strict=False)
    if network.num_addresses == 1:
        # Fast, and true for most.
        return host == address or network_of(host) == str(network.network_address)
    found = address_of(host)
    return found is not None and found in network


class TraceLine(NamedTuple):
    """One frame, or another event of a client, as an encoded JSON object. ``time``: microseconds since the epoch."""

    time: int
    encoded: bytes
    is_frame: bool


def line_of(time: int, facts: dict[str, Any], frame: ScannedFrame | None = None) -> TraceLine:
    """Make the line of a frame or another event. ``time``: microseconds since the epoch."""
    if frame is None:
        return TraceLine(time, _encoded(facts), is_frame=False)
    headers = shown_headers(frame.command, frame.headers)
    facts |= {"command": shown_command(frame.command), "headers": headers, "body_bytes": frame.size}
    if left_out := len(frame.headers) - len(headers):
        facts["headers_left_out"] = left_out
    return TraceLine(time, _encoded(facts), is_frame=True)


def _encoded(facts: dict[str, Any]) -> bytes:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


class TracePart(NamedTuple):
    """The lines of a trace since the last call, and the numbers of frames and clients with and without lines.

    ``end``: why the trace has ended; None while it runs.
    """

    lines: list[TraceLine]
    frames: int
    left_out: int
    clients: int
    clients_left_out: int
    end: str | None


class Watch(Protocol):
    """Reads along with one client for some traces."""

    def drop(self, trace: Trace) -> None:
        """Stop reading along for this trace."""


class _Undecided:
    """A client that may or may not match: its first lines, and the number of frames that were left out."""

    def __init__(self) -> None:
        self.lines: list[TraceLine] = []
        self.left_out = 0

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= _MOST_UNDECIDED


class Trace:
    """One trace. ``until``: when it ends. All times are in seconds, on the clock of `Traces`."""

    def __init__(self, target: TraceTarget, until: float) -> None:
        self.target = target
        self.until = until
        self.end: str | None = None
        # The number of matching clients that are watched now, and how often there was no room for one.
        self.clients = self._clients_left_out = 0
        self._lines: list[TraceLine] = []
        self._size = self._frames = self._left_out = 0
        # The present second of a monotonic clock, and the number of frames in it.
        self._second = self._in_second = 0
        # The client that has been silent longest is the first.
        self._undecided: dict[Watch, _Undecided] = {}

    def make_room(self, *, is_decided: bool, is_new: bool = False) -> bool:
        """Whether another client may be watched. If not, it is counted for the reader.

        A new client that is undecided replaces the undecided one that has been silent longest.
        """
        if (self.clients if is_decided else len(self._undecided)) < MOST_CLIENTS:
            return True
        self._clients_left_out += 1
        if is_decided or not is_new:
            return False
        next(iter(self._undecided)).drop(self)
        return True

    def begin_watch(self, client: Watch, *, is_decided: bool) -> None:
        """Note that a client is watched from now on."""
        if is_decided:
            self.clients += 1
        else:
            self._undecided[client] = _Undecided()

    def end_watch(self, client: Watch) -> None:
        """Note that a client is no longer watched."""
        if self._undecided.pop(client, None) is None:
            self.clients -= 1

    def add(self, client: Watch, line: TraceLine, now: float) -> None:
        """Add a line of a client, or leave it out. ``now``: seconds on a monotonic clock."""
        undecided = self._undecided.pop(client, None)
        if undecided is None:
            self._keep(line, now)
            return
        self._undecided[client] = undecided
        if undecided.is_full:
            undecided.left_out += line.is_frame
        else:
            undecided.lines.append(line)

    def decide(self, client: Watch, session: Session, now: float, frame: ScannedFrame | None = None) -> bool:
        """Decide about an undecided client, by its session or by this frame.

        Returns False if it does not match, or if there is no room for it. The frame alone is not enough: if a client
        sends much before its login, some of its frames are not read.
        """
        if client not in self._undecided:
            return True
        is_match = self.target.matches(session, "")
        if is_match is None and (frame is None or not self.target.is_asked_for(frame)):
            return True
        if is_match is False or not self.make_room(is_decided=True):
            return False
        undecided = self._undecided.pop(client)
        self.clients += 1
        self._left_out += undecided.left_out
        for line in undecided.lines:
            self._keep(line, now)
        return True

    def is_full(self, client: Watch, now: float) -> bool:
        """Whether another frame of a client would be left out."""
        undecided = self._undecided.get(client)
        if undecided is not None:
            return undecided.is_full
        return self._lacks_room(now, is_frame=True)

    def _lacks_room(self, now: float, *, is_frame: bool) -> bool:
        is_busy = int(now) == self._second and self._in_second >= FRAMES_PER_SECOND
        return self._size >= _BUFFER or (is_frame and is_busy)

    def leave_out(self, client: Watch, frames: int) -> None:
        """Count frames of a client that were not read."""
        undecided = self._undecided.get(client)
        if undecided is None:
            self._left_out += frames
        else:
            undecided.left_out += frames

    def _keep(self, line: TraceLine, now: float) -> None:
        if self._lacks_room(now, is_frame=line.is_frame):
            self._left_out += line.is_frame
            return
        if int(now) != self._second:
            self._second, self._in_second = int(now), 0
        self._in_second += line.is_frame
        self._frames += line.is_frame
        self._lines.append(line)
        self._size += len(line.encoded)

    def take(self) -> TracePart:
        """Return the lines and counts since the last call."""
        part = TracePart(self._lines, self._frames, self._left_out, self.clients, self._clients_left_out, self.end)
        self._lines, self._size, self._frames, self._left_out, self._clients_left_out = [], 0, 0, 0, 0
        return part
