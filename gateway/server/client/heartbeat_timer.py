"""The heart-beats of one client, in both directions (STOMP 1.2, "Heart-beating")."""

from __future__ import annotations

from collections.abc import Callable

from gateway.server.periodic_timer import PeriodicTimer
from gateway.stomp.heartbeat import HeartbeatMonitor, Heartbeats


class HeartbeatTimer:
    """Sends heart-beats, and calls ``timed_out`` with the allowed silence in seconds when the client's do not come.

    ``has_sent_unread`` says whether a client that the gateway does not read now has sent bytes in so many seconds.
    """

    __slots__ = ("_has_sent_unread", "_monitor", "_send", "_timed_out", "_timers", "has_received", "has_sent")

    def __init__(
        self, send: Callable[[], None], has_sent_unread: Callable[[float], bool], timed_out: Callable[[float], None]
    ) -> None:
        # Whether bytes came from the client, and went to it, since the last tick. The connection sets these.
        self.has_received = True
        self.has_sent = False
        self._send = send
        self._has_sent_unread = has_sent_unread
        self._timed_out = timed_out
        self._monitor = HeartbeatMonitor()
        self._timers: list[PeriodicTimer] = []

    def start(self, agreed: Heartbeats, grace: float) -> None:
        """The client has logged in; it may be silent for ``grace`` intervals."""
        if agreed.send:
            # Bytes sent before do not count: the first heart-beat is due half an interval from now.
            self.has_sent = False
            self._timers.append(PeriodicTimer(agreed.send / 2, self._send_unless_busy))
        if agreed.expect:
            silence = agreed.expect * grace
            # The second tick in a row without a byte ends the session: after ``silence`` seconds, or up to half more.
            self._timers.append(PeriodicTimer(silence / 2, lambda: self._check(silence)))

    def stop(self) -> None:
        """Stop sending and expecting heart-beats."""
        for timer in self._timers:
            timer.stop()
        self._timers.clear()

    def _send_unless_busy(self) -> None:
        if not self.has_sent:
            self._send()
        self.has_sent = False

    def _check(self, silence: float) -> None:
        is_silent = self._monitor.tick(heard=self.has_received or self._has_sent_unread(silence / 2))
        self.has_received = False
        if is_silent:
            self._timed_out(silence)
