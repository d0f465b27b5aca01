"""The traces of this process, and the watches that read along with traced clients.

Only a traced client has a watch. Its decoder and transport are then replaced by ones that pass a copy of the bytes to
the watch, before they are read or written. So traces cost other clients nothing. A fault in a trace ends only the
trace.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

import structlog

from gateway.errors import CloseReason
from gateway.pieces import Piece
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.client.trace import FAULT, Trace, TraceLine, TracePart, TraceTarget, line_of
from gateway.server.fault_boundary import guarded
from gateway.server.stats import Stats
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame_scanner import FrameScanner, ScannedFrame, UnreadableStreamError
from gateway.times import iso

log = structlog.get_logger("gateway.trace")

FROM_CLIENT: Final = "from-client"
TO_CLIENT: Final = "to-client"

_LINE_ENDS: Final = (b"\r", b"\n")

# If more unparsed bytes than this wait in the decoder, finding the end of the last frame would be too much work.
_MOST_UNREAD: Final = 16 << 10

# How long a trace that has ended is kept for its reader, in seconds.
_UNREAD: Final = 60.0

# The least seconds between two lines about heart-beats.
_HEART_BEATS: Final = 10.0


class WatchedDecoder(Decoder):
    """Continues where another decoder stopped, and passes a copy of its input to a watch."""

    __slots__ = ("_watch",)

    def __init__(self, decoder: Decoder, watch: FrameWatch) -> None:
        super().__init__(decoder.limits)
        self.take_over(decoder)
        self._watch = watch

    def feed(self, data: bytes) -> None:
        """See `Decoder`."""
        self._watch.received(data, self)
        super().feed(data)


class WatchedTransport:
    """A client's transport, TCP or WebSocket, that passes a copy of everything written to ``tell``."""

    def __init__(self, transport: asyncio.Transport, tell: Callable[[bytes], None]) -> None:
        self.transport = transport
        self._tell = tell

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - everything else is the transport's own
        return getattr(self.transport, name)

    def write(self, data: bytes) -> None:
        """See `asyncio.Transport`."""
        self._tell(data)
        self.transport.write(data)

    def writelines(self, pieces: Iterable[Piece]) -> None:
        """See `asyncio.Transport`."""
        every = list(pieces)
        self._tell(b"".join(every))
        self.transport.writelines(every)

    def write_messages(self, contents: list[bytes]) -> int:
        """See `WebSocketTransport`."""
        self._tell(b"".join(contents))
        size: int = self.__getattr__("write_messages")(contents)
        return size


class WatchedClient(Protocol):
    """A client's connection."""

    session: Session
    stats: ConnectionStats

    def watch(self, watch: FrameWatch | None) -> None:
        """See `ClientConnection`."""


class _Direction:
    """The state of reading one direction. There is no scanner while the traces have no room for frames."""

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.scanner: FrameScanner | None = None
        self.is_readable = True
        # The bytes still to come of a frame whose beginning was not read.
        self.skip = 0
        # The number of frames that have passed, read or not; None before the first one.
        self.passed: int | None = None
        self.heart_beats = 0


class FrameWatch:
    """Reads along with one traced client."""

    def __init__(self, client: WatchedClient, clock: Callable[[], float]) -> None:
        self.client = client
        self.traces: list[Trace] = []
        self._clock = clock
        self._told_at = clock()
        self._client_side, self._gateway_side = _Direction(FROM_CLIENT), _Direction(TO_CLIENT)
        self._gateway_side.passed = self._frames_sent()

    def received(self, data: bytes, decoder: Decoder) -> None:
        """Take bytes from the client before the decoder gets them. Raises nothing."""
        if self.traces:
            guarded(self, self._received, data, decoder)

    def sent(self, data: bytes) -> None:
        """Take bytes, whole frames, before they are written to the client. Raises nothing."""
        if self.traces:
            guarded(self, self._sent, data)

    def _received(self, data: bytes, decoder: Decoder) -> None:
        side, now = self._client_side, self._clock()
        self._decide(now)
        if side.is_readable and side.scanner is None and not self._is_full(now):
            self._synchronise(side, decoder)
        skipped = min(side.skip, len(data))
        side.skip -= skipped
        self._scan(side, data[skipped:], now)

    def _synchronise(self, side: _Direction, decoder: Decoder) -> None:
        """Begin to read at the next frame, after everything that arrived before this read."""
        skip, unread = decoder.unread
        received = self.client.session.traffic.frames_received
        if skip is None:
            # The next frame begins after a body of unknown length. Try again at the next read.
            self._count_missed(side, received + 1)
        if skip is None or len(unread) > _MOST_UNREAD:
            return
        scanner = FrameScanner(from_client=True)
        try:
            waiting = sum(1 for _ in scanner.scan(unread))
        except UnreadableStreamError:
            side.is_readable = False
            return
        side.scanner, side.skip = scanner, skip
        self._count_missed(side, received + waiting + bool(skip))

    def _sent(self, data: bytes) -> None:
        side, now = self._gateway_side, self._clock()
        self._decide(now)
        was_off = side.scanner is None
        if side.is_readable and was_off:
            side.scanner = FrameScanner(from_client=False)
        self._scan(side, data, now)
        if was_off and side.scanner is not None:
            self._count_missed(side, self._frames_sent())

    def _frames_sent(self) -> int:
        sums = Stats()
        self.client.stats.add_to(sums)
        return sum(sums.frames_sent.values())

    def _count_missed(self, side: _Direction, total: int) -> None:
        """Count frames that were not read as left out. ``total``: all frames so far in this direction."""
        if side.passed is not None and total > side.passed:
            for trace in self.traces:
                trace.leave_out(self, total - side.passed)
        side.passed = total if side.passed is None else max(total, side.passed)

    def _is_full(self, now: float) -> bool:
        return all(trace.is_full(self, now) for trace in self.traces)

    def _scan(self, side: _Direction, data: bytes, now: float) -> None:
        scanner = side.scanner
        if scanner is None or not data:
            return
        if data[:1] in _LINE_ENDS and scanner.unfinished is None:
            # These are heart-beats: the line end that may follow a frame arrives with the frame.
            rest = data.lstrip(b"\r\n")
            side.heart_beats += data.count(b"\n", 0, len(data) - len(rest))
            data = rest
        stamp = time.time_ns() // 1000
        try:
            if self._is_full(now):
                side.scanner = None
                return
            for frame in scanner.scan(data):
                side.passed = (side.passed or 0) + 1
                self._tell(line_of(stamp, self._facts(stamp, direction=side.direction), frame), now, frame)
                if self._is_full(now):
                    # Stop reading, so that the rest costs nothing.
                    side.scanner = None
                    return
        except UnreadableStreamError as error:
            side.scanner, side.is_readable = None, False
            self.happened("unreadable", direction=side.direction, reason=str(error))

    def _facts(self, stamp: int, **more: object) -> dict[str, Any]:
        stats, session = self.client.stats, self.client.session
        at = iso(stamp, "microseconds")
        return {"time": at, "session": session.identity.decode(), "peer": stats.peer, **more}

    def _tell(self, line: TraceLine, now: float, frame: ScannedFrame | None = None) -> None:
        for trace in self.traces:
            trace.add(self, line, now)
        self._decide(now, frame)

    def _decide(self, now: float, frame: ScannedFrame | None = None) -> None:
        """Let traces for which this client is undecided decide."""
        for trace in tuple(self.traces):
            if not trace.decide(self, self.client.session, now, frame):
                self.drop(trace)

    def happened(self, event: str, **details: object) -> None:
        """Add a line about an event that is not a frame."""
        stamp = time.time_ns() // 1000
        self._tell(line_of(stamp, self._facts(stamp, event=event, **details)), self._clock())

    def drop(self, trace: Trace) -> None:
        """End one trace of this client. The connection keeps the watch until `Traces` removes it between two reads."""
        if trace in self.traces:
            self.traces.remove(trace)
            trace.end_watch(self)

    def failed(self, error: Exception) -> None:
        """End all traces of this client, because of a fault of the gateway."""
        log.error("trace failed", session=self.client.session.identity.decode(), exc_info=error)
        for trace in tuple(self.traces):
            trace.end = trace.end or FAULT
            self.drop(trace)

    def time_passed(self) -> None:
        """Add a line about heart-beats from time to time. Call it about once a second."""
        self._decide(self._clock())
        if self._clock() - self._told_at >= _HEART_BEATS:
            self._tell_heart_beats()

    def _tell_heart_beats(self) -> None:
        self._told_at = self._clock()
        client, gateway = self._client_side, self._gateway_side
        if client.heart_beats or gateway.heart_beats:
            self.happened("heart-beats", from_client=client.heart_beats, to_client=gateway.heart_beats)
            client.heart_beats = gateway.heart_beats = 0

    def flush(self) -> None:
        """Report heart-beats and frames that are not reported yet, before a trace ends."""
        self._tell_heart_beats()
        if self._client_side.scanner is None:
            self._count_missed(self._client_side, self.client.session.traffic.frames_received)
        if self._gateway_side.scanner is None:
            self._count_missed(self._gateway_side, self._frames_sent())

    def ended(self, reason: CloseReason | None) -> None:
        """Report the end of the session, and an incomplete frame of the client, which may explain what it waits for."""
        self.flush()
        scanner = self._client_side.scanner
        if scanner is not None and (begun := scanner.unfinished) is not None:
            stamp = time.time_ns() // 1000
            facts = self._facts(stamp, direction=FROM_CLIENT, incomplete=True)
            self._tell(line_of(stamp, facts, begun), self._clock(), begun)
        self.happened("closed", reason=reason.value if reason else "unknown")


class Traces:
    """Begins and ends traces. A client costs one test when it connects, logs in and goes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, Trace] = {}
        self._watches: dict[WatchedClient, FrameWatch] = {}

    def begin(self, name: str, target: TraceTarget, seconds: float, clients: Iterable[WatchedClient]) -> int:
        """Trace those of these clients that match, and later ones, for ``seconds``. Returns how many match now."""
        trace = self._running[name] = Trace(target, self._clock() + seconds)
        for client in clients:
            self._join(client, trace, is_new=False)
        if target.session is not None and not trace.clients:
            del self._running[name]
        return trace.clients

    def take(self, name: str) -> TracePart:
        """Return what a trace has for its reader."""
        return self._running[name].take()

    def end(self, name: str) -> None:
        """End a trace."""
        trace = self._running.pop(name, None)
        if trace is not None:
            self._let_go(trace)

    def _let_go(self, trace: Trace) -> None:
        for watch in self._watches.values():
            watch.drop(trace)
        self._forget_dropped()

    def _forget_dropped(self) -> None:
        for client in [client for client, watch in self._watches.items() if not watch.traces]:
            del self._watches[client]
            client.watch(None)

    def _join(self, client: WatchedClient, trace: Trace, *, is_new: bool) -> None:
        is_match = trace.target.matches(client.session, client.stats.host)
        if is_match is False or not trace.make_room(is_decided=is_match is True, is_new=is_new):
            return
        watch = self._watches.get(client)
        if watch is None or not watch.traces:
            # Not an old watch without traces, because that has not read along.
            watch = self._watches[client] = FrameWatch(client, self._clock)
            client.watch(watch)
        trace.begin_watch(watch, is_decided=is_match is True)
        watch.traces.append(trace)

    def arrived(self, client: WatchedClient) -> None:
        """Note that a client has connected. Raises nothing."""
        if self._running:
            guarded(self, self._arrived, client)

    def _arrived(self, client: WatchedClient) -> None:
        for trace in self._running.values():
            if trace.end is None and trace.target.session is None:
                self._join(client, trace, is_new=True)
        if (watch := self._watches.get(client)) is not None:
            watch.happened("connected", listener=str(client.stats.listener.address))

    def logged_in(self, client: WatchedClient) -> None:
        """Note that a client has logged in. Raises nothing."""
        if self._running:
            guarded(self, self._logged_in, client)

    def _logged_in(self, client: WatchedClient) -> None:
        """Watch a client again that was dropped for lack of room before it could be identified."""
        for trace in self._running.values():
            watch = self._watches.get(client)
            is_watched = watch is not None and trace in watch.traces
            if trace.end is None and trace.target.login is not None and not is_watched:
                self._join(client, trace, is_new=False)

    def left(self, client: WatchedClient, reason: CloseReason | None) -> None:
        """Note that the session of a client has ended. Raises nothing."""
        if (watch := self._watches.pop(client, None)) is not None:
            guarded(self, self._left, client, watch, reason)

    def _left(self, client: WatchedClient, watch: FrameWatch, reason: CloseReason | None) -> None:
        client.watch(None)
        watch.ended(reason)
        for trace in tuple(watch.traces):
            watch.drop(trace)
            if trace.target.session is not None:
                trace.end = "the session has ended"

    def failed(self, error: Exception) -> None:
        """End all traces, because of a fault of the gateway."""
        log.error("trace failed", exc_info=error)
        for trace in self._running.values():
            trace.end = trace.end or FAULT

    def sweep(self) -> None:
        """End traces whose time is over, and report heart-beats. Call it about once a second."""
        now = self._clock()
        for name, trace in tuple(self._running.items()):
            if trace.end is None and now >= trace.until:
                for watch in self._watches.values():
                    if trace in watch.traces:
                        watch.flush()
                trace.end = "its time was over"
            if trace.end is not None:
                self._let_go(trace)
            if now - trace.until > _UNREAD:
                self.end(name)
        for watch in self._watches.values():
            watch.time_passed()
        self._forget_dropped()
