"""The traces that run in this process, and the clients that they watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog

from gateway.errors import CloseReason
from gateway.server.client.frame_watch import FrameWatch, WatchedClient
from gateway.server.client.trace import FAULT, Trace, TracePart, TraceTarget
from gateway.server.fault_boundary import guarded

log = structlog.get_logger("gateway.trace")

# Seconds after its time for which a trace that has lines is kept for its reader.
_UNREAD: Final = 60.0


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
