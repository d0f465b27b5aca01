"""A trace: what an operator wants to see of clients for a while, as lines that wait for their reader.

It is bounded in time, in frames per second, in clients and in bytes. What it has no room for is left out and counted:
a slow reader loses lines, and nobody waits for one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final, NamedTuple, Protocol

from gateway.errors import GatewayError
from gateway.journal.privacy import shown
from gateway.server.client.redaction import shown_command, shown_headers
from gateway.server.client_address import UNIX, network_of
from gateway.session.session import Session
from gateway.stomp.frame_scanner import ScannedFrame

FRAMES_PER_SECOND: Final = 200
MOST_CLIENTS: Final = 100
"""So many, and as many again of which it is not known yet whether they have the login that is looked for."""

# Bytes of lines that wait for their reader.
_BUFFER: Final = 1 << 20

# Lines of one client that wait until it is known whether it has the login that is looked for.
_MOST_UNDECIDED: Final = 16

FAULT: Final = "a fault of the gateway; its log has it whole"

_CONNECTS: Final = (b"CONNECT", b"STOMP")


class TraceTargetError(GatewayError):
    """Nothing can be traced by this; the text says why."""


@dataclass(frozen=True, slots=True)
class TraceTarget:
    """Whom a trace looks at: one session by its id, or whoever has a login, or comes from an address or network."""

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
        """Whether a client is meant; None if that is not known before it has logged in."""
        if self.session is not None:
            return session.identity.decode() == self.session
        if self.login is not None:
            return None if session.login is None else shown(session.login) == self.login
        return _is_in(host, self.address or "")

    def is_asked_for(self, frame: ScannedFrame) -> bool:
        """Whether a client asks for the login that is looked for."""
        return frame.command in _CONNECTS and shown(frame.headers.get(b"login", b"")) == self.login


def _is_in(host: str, address: str) -> bool:
    if address.startswith(UNIX):
        return host == address
    network = ip_network(address, strict=False)
    if network.num_addresses == 1:
        # As most are, and this takes no time.
        return host == address or network_of(host) == str(network.network_address)
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found) in network


class TraceLine(NamedTuple):
    """One frame, or something else that happened to a client, as a JSON object."""

    time: int
    encoded: bytes
    is_frame: bool


def line_of(time: int, facts: dict[str, Any], frame: ScannedFrame | None = None) -> TraceLine:
    """The line of a frame, or of something else; ``time`` is in microseconds since the epoch."""
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
    """What a trace has seen since it was asked last, and what is missing."""

    lines: list[TraceLine]
    frames: int
    left_out: int
    clients: int
    clients_left_out: int
    end: str | None
    """Why there will be no more."""


class Watch(Protocol):
    """Hears one client for some traces."""

    def drop(self, trace: Trace) -> None:
        """The client is not heard for this trace any more."""


class _Undecided:
    """A client that may not have the login that is looked for: its first lines, and how many frames are missing."""

    def __init__(self) -> None:
        self.lines: list[TraceLine] = []
        self.left_out = 0

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= _MOST_UNDECIDED


class Trace:
    """One operator's look at some clients."""

    def __init__(self, target: TraceTarget, until: float) -> None:
        self.target = target
        self.until = until
        self.end: str | None = None
        # Clients that are meant and watched now, and times that there were too many.
        self.clients = self._clients_left_out = 0
        self._lines: list[TraceLine] = []
        self._size = self._frames = self._left_out = 0
        # Frames in this second of a monotonic clock.
        self._second = self._in_second = 0
        # The one that has been silent longest is the first.
        self._undecided: dict[Watch, _Undecided] = {}

    def make_room(self, *, is_decided: bool, is_new: bool = False) -> bool:
        """Whether another client may be watched. If there are too many, the reader is told.

        A new one that is not known yet takes the place of the one that has been silent longest.
        """
        if (self.clients if is_decided else len(self._undecided)) < MOST_CLIENTS:
            return True
        self._clients_left_out += 1
        if is_decided or not is_new:
            return False
        next(iter(self._undecided)).drop(self)
        return True

    def join(self, client: Watch, *, is_decided: bool) -> None:
        """A client is watched from now on."""
        if is_decided:
            self.clients += 1
        else:
            self._undecided[client] = _Undecided()

    def leave(self, client: Watch) -> None:
        """It is not any more."""
        if self._undecided.pop(client, None) is None:
            self.clients -= 1

    def add(self, client: Watch, line: TraceLine, now: float) -> None:
        """Something happened to a client."""
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
        """Look whether a client is meant after all, perhaps because of this frame; False if it is not, or one too many.

        Not only what is heard decides: of a client that says much before it has logged in, the end is not heard.
        """
        if client not in self._undecided:
            return True
        is_meant = self.target.matches(session, "")
        if is_meant is None and (frame is None or not self.target.is_asked_for(frame)):
            return True
        if is_meant is False or not self.make_room(is_decided=True):
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
        """So many frames of a client have passed unheard."""
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
        """What there is for the reader."""
        part = TracePart(
            self._lines, self._frames, self._left_out, self.clients, self._clients_left_out, self.end
        )  # fmt: skip
        self._lines, self._size, self._frames, self._left_out, self._clients_left_out = [], 0, 0, 0, 0
        return part
