"""The heart-beats of one client, in both directions (STOMP 1.2, "Heart-beating")."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from gateway.server.fault_boundary import FaultOwner, guarded
from gateway.server.paced_work import PeriodicTimer
from gateway.stomp.heartbeat import HeartbeatMonitor, Heartbeats


class _HeartbeatCallbacks(FaultOwner, Protocol):
    """The client's connection."""

    def send_heartbeat(self) -> None: ...

    def heartbeat_missed(self, silence: float) -> None: ...

    def has_sent_unread(self, seconds: float) -> bool: ...


class HeartbeatTimer:
    """Lets the client's connection send heart-beats, and tells it when the client's do not come."""

    __slots__ = ("_timers", "has_received", "has_sent")

    def __init__(self) -> None:
        # Whether bytes came from the client, and went to it, since the last tick. The connection sets these.
        self.has_received = True
        self.has_sent = False
        self._timers: list[PeriodicTimer] = []

    def start(self, agreed: Heartbeats, grace: float, client: _HeartbeatCallbacks) -> None:
        """The client has logged in; it may be silent for ``grace`` intervals."""
        if agreed.send:
            # Bytes sent before do not count: the first heart-beat is due half an interval from now.
            self.has_sent = False
            self._timers.append(PeriodicTimer(agreed.send / 2, partial(self._send_unless_busy, client)))
        if agreed.expect:
            silence = agreed.expect * grace
            # The second tick in a row without a byte ends the session: after ``silence`` seconds, or up to half more.
            self._timers.append(PeriodicTimer(silence / 2, partial(self._check, client, HeartbeatMonitor(), silence)))

    def stop(self) -> None:
        """Stop sending and expecting heart-beats."""
        for timer in self._timers:
            timer.stop()
        self._timers.clear()

    def _send_unless_busy(self, client: _HeartbeatCallbacks) -> None:
        if not self.has_sent:
            guarded(client, client.send_heartbeat)
        self.has_sent = False

    def _check(self, client: _HeartbeatCallbacks, monitor: HeartbeatMonitor, silence: float) -> None:
        is_silent = monitor.tick(heard=self.has_received or client.has_sent_unread(silence / 2))
        self.has_received = False
        if is_silent:
            guarded(client, client.heartbeat_missed, silence)
