"""The traces that run in this process, and what they read along of what clients and the gateway say to each other.

Only a client that is traced has a watch: its decoder and its transport are then replaced by ones that tell what
passes, so that all others pay nothing. The watch hears bytes before they are read or written, and changes none. A fault
of its own ends the traces, and nothing else.
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

log = structlog.get_logger("gateway.trace")

FROM_CLIENT: Final = "from-client"
TO_CLIENT: Final = "to-client"

_LINE_ENDS: Final = (b"\r", b"\n")

# Bytes that were read before, beyond which it is too much work to look where a frame ends.
_MOST_UNREAD: Final = 16 << 10

# Seconds after its time for which a trace that has lines is kept for its reader.
_UNREAD: Final = 60.0

# Seconds between two lines that tell of heart-beats alone.
_HEART_BEATS: Final = 10.0


class WatchedDecoder(Decoder):
    """Goes on where another decoder is, and lets a watch hear what it is fed with."""

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
    """A client's transport, TCP or WebSocket, that tells what is written to it."""

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
        """Let a watch hear what both sides say from now on; None: no more."""


class _Direction:
    """What is heard from one side.

    Without a scanner nothing is, because the traces have no room, until they have.
    """

    def __init__(self, direction: str) -> None:
        self.direction = direction
        self.scanner: FrameScanner | None = None
        self.is_readable = True
        # Bytes to come of a frame whose beginning was not heard.
        self.skip = 0
        # Frames that passed, those included that were not heard; None until the first is.
        self.passed: int | None = None
        self.heart_beats = 0


class FrameWatch:
    """What is known of one client that is traced."""

    def __init__(self, client: WatchedClient, clock: Callable[[], float]) -> None:
        self.client = client
        self.traces: list[Trace] = []
        self._clock = clock
        self._told_at = clock()
        self._client_side, self._gateway_side = _Direction(FROM_CLIENT), _Direction(TO_CLIENT)
        self._gateway_side.passed = self._frames_sent()

    def received(self, data: bytes, decoder: Decoder) -> None:
        """The client has sent bytes, which the decoder is about to get. Raises nothing."""
        if self.traces:
            guarded(self, self._received, data, decoder)

    def sent(self, data: bytes) -> None:
        """Bytes are about to be written to the client, whole frames. Raises nothing."""
        if self.traces:
            guarded(self, self._sent, data)

    def _received(self, data: bytes, decoder: Decoder) -> None:
        side, now = self._client_side, self._clock()
        self._decide(now)
        if side.is_readable and side.scanner is None and not self._is_full(now):
            self._find_place(side, decoder)
        skipped = min(side.skip, len(data))
        side.skip -= skipped
        self._hear(side, data[skipped:], now)

    def _find_place(self, side: _Direction, decoder: Decoder) -> None:
        """Hear from here on: pass over what has come before this read."""
        skip, unread = decoder.unread
        received = self.client.session.traffic.frames_received
        if skip is None:
            # Not before the end of this body is the place known; what comes with that is left out.
            self._count_unheard(side, received + 1)
        if skip is None or len(unread) > _MOST_UNREAD:
            return
        scanner = FrameScanner(from_client=True)
        try:
            waiting = sum(1 for _ in scanner.scan(unread))
        except UnreadableStreamError:
            side.is_readable = False
            return
        side.scanner, side.skip = scanner, skip
        self._count_unheard(side, received + waiting + bool(skip))

    def _sent(self, data: bytes) -> None:
        side, now = self._gateway_side, self._clock()
        self._decide(now)
        was_deaf = side.scanner is None
        if side.is_readable and was_deaf:
            side.scanner = FrameScanner(from_client=False)
        self._hear(side, data, now)
        if was_deaf and side.scanner is not None:
            self._count_unheard(side, self._frames_sent())

    def _frames_sent(self) -> int:
        sums = Stats()
        self.client.stats.add_to(sums)
        return sum(sums.frames_sent.values())

    def _count_unheard(self, side: _Direction, total: int) -> None:
        """So many frames have passed: those that were not heard are left out of the traces."""
        if side.passed is not None and total > side.passed:
            for trace in self.traces:
                trace.leave_out(self, total - side.passed)
        side.passed = total if side.passed is None else max(total, side.passed)

    def _is_full(self, now: float) -> bool:
        return all(trace.is_full(self, now) for trace in self.traces)

    def _hear(self, side: _Direction, data: bytes, now: float) -> None:
        scanner = side.scanner
        if scanner is None or not data:
            return
        if data[:1] in _LINE_ENDS and scanner.unfinished is None:
            # The line's end that may follow a frame comes with it.
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
                    # Whatever follows costs nothing any more.
                    side.scanner = None
                    return
        except UnreadableStreamError as error:
            side.scanner, side.is_readable = None, False
            self.happened("unreadable", direction=side.direction, reason=str(error))

    def _facts(self, stamp: int, **more: object) -> dict[str, Any]:
        stats, session = self.client.stats, self.client.session
        seconds, micros = divmod(stamp, 1_000_000)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return {"time": f"{at}.{micros:06d}Z", "session": session.identity.decode(), "peer": stats.peer, **more}

    def _tell(self, line: TraceLine, now: float, frame: ScannedFrame | None = None) -> None:
        for trace in self.traces:
            trace.add(self, line, now)
        self._decide(now, frame)

    def _decide(self, now: float, frame: ScannedFrame | None = None) -> None:
        """Let traces that do not know yet whether this client is meant look again."""
        for trace in tuple(self.traces):
            if not trace.decide(self, self.client.session, now, frame):
                self.drop(trace)

    def happened(self, event: str, **details: object) -> None:
        """Tell of something that is no frame."""
        stamp = time.time_ns() // 1000
        self._tell(line_of(stamp, self._facts(stamp, event=event, **details)), self._clock())

    def drop(self, trace: Trace) -> None:
        """The client is not meant, or the trace is over. The connection itself is let go later, not amid a read."""
        if trace in self.traces:
            self.traces.remove(trace)
            trace.leave(self)

    def failed(self, error: Exception) -> None:
        """A fault of ours ends the traces of this client, and nothing else."""
        log.error("trace failed", session=self.client.session.identity.decode(), exc_info=error)
        for trace in tuple(self.traces):
            trace.end = trace.end or FAULT
            self.drop(trace)

    def time_passed(self) -> None:
        """Tell of heart-beats, if there were any for some time."""
        self._decide(self._clock())
        if self._clock() - self._told_at >= _HEART_BEATS:
            self._tell_heart_beats()

    def _tell_heart_beats(self) -> None:
        self._told_at = self._clock()
        client, gateway = self._client_side, self._gateway_side
        if client.heart_beats or gateway.heart_beats:
            self.happened("heart-beats", from_client=client.heart_beats, to_client=gateway.heart_beats)
            client.heart_beats = gateway.heart_beats = 0

    def settle(self) -> None:
        """A trace is about to end: tell and count what has not been yet."""
        self._tell_heart_beats()
        if self._client_side.scanner is None:
            self._count_unheard(self._client_side, self.client.session.traffic.frames_received)
        if self._gateway_side.scanner is None:
            self._count_unheard(self._gateway_side, self._frames_sent())

    def ended(self, reason: CloseReason | None) -> None:
        """The session is over. What the client has begun to say is told, too: perhaps it waits for an answer."""
        self.settle()
        scanner = self._client_side.scanner
        if scanner is not None and (begun := scanner.unfinished) is not None:
            stamp = time.time_ns() // 1000
            facts = self._facts(stamp, direction=FROM_CLIENT, incomplete=True)
            self._tell(line_of(stamp, facts, begun), self._clock(), begun)
        self.happened("closed", reason=reason.value if reason else "unknown")


class Traces:
    """Begins and ends traces. Costs a client one test when it comes, logs in and goes, and nothing in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._running: dict[str, Trace] = {}
        self._watches: dict[WatchedClient, FrameWatch] = {}

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, name: str, target: TraceTarget, seconds: float, clients: Iterable[WatchedClient]) -> int:
        """Trace these clients if they are meant, and others that come; how many are."""
        trace = self._running[name] = Trace(target, self._clock() + seconds)
        for client in clients:
            self._join(client, trace, is_new=False)
        if target.session is not None and not trace.clients:
            del self._running[name]
        return trace.clients

    def take(self, name: str) -> TracePart:
        """What a trace has for its reader."""
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
        is_meant = trace.target.matches(client.session, client.stats.host)
        if is_meant is False or not trace.make_room(is_decided=is_meant is True, is_new=is_new):
            return
        watch = self._watches.get(client)
        if watch is None or not watch.traces:
            # One without a trace has not listened meanwhile.
            watch = self._watches[client] = FrameWatch(client, self._clock)
            client.watch(watch)
        trace.join(watch, is_decided=is_meant is True)
        watch.traces.append(trace)

    def arrived(self, client: WatchedClient) -> None:
        """A client has connected. Raises nothing."""
        if self._running:
            guarded(self, self._arrived, client)

    def _arrived(self, client: WatchedClient) -> None:
        for trace in self._running.values():
            if trace.end is None and trace.target.session is None:
                self._join(client, trace, is_new=True)
        if (watch := self._watches.get(client)) is not None:
            watch.happened("connected", listener=str(client.stats.listener.address))

    def logged_in(self, client: WatchedClient) -> None:
        """A client has logged in. Raises nothing."""
        if self._running:
            guarded(self, self._logged_in, client)

    def _logged_in(self, client: WatchedClient) -> None:
        """Watch it again if it has made room for another one while nobody knew who it is."""
        for trace in self._running.values():
            watch = self._watches.get(client)
            is_watched = watch is not None and trace in watch.traces
            if trace.end is None and trace.target.login is not None and not is_watched:
                self._join(client, trace, is_new=False)

    def left(self, client: WatchedClient, reason: CloseReason | None) -> None:
        """The session of a client is over. Raises nothing."""
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
        """A fault of ours ends all traces, and is felt by no client."""
        log.error("trace failed", exc_info=error)
        for trace in self._running.values():
            trace.end = trace.end or FAULT

    def sweep(self) -> None:
        """Called about once a second: end what is over, and tell of heart-beats."""
        now = self._clock()
        for name, trace in tuple(self._running.items()):
            if trace.end is None and now >= trace.until:
                for watch in self._watches.values():
                    if trace in watch.traces:
                        watch.settle()
                trace.end = "its time was over"
            if trace.end is not None:
                self._let_go(trace)
            if now - trace.until > _UNREAD:
                self.end(name)
        for watch in self._watches.values():
            watch.time_passed()
        self._forget_dropped()
