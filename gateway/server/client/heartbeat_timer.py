"""The heart-beats of one client, in both directions (STOMP 1.2, "Heart-beating")."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.stomp.heartbeat import HeartbeatMonitor, Heartbeats


class HeartbeatTimer:
    """Sends heart-beats, and listens for those of the client.

    ``heard`` and ``spoke`` are set by the owner: something came from the client, something went out to it.

    Args:
        beat: sends a heart-beat.
        is_read: whether the client is read at all; one that is not cannot be heard.
        silent: called when the client has been silent for too long.
    """

    __slots__ = ("_beat", "_is_read", "_monitor", "_silent", "_timers", "heard", "spoke")

    def __init__(self, beat: Callable[[], None], is_read: Callable[[], bool], silent: Callable[[], None]) -> None:
        self.heard = True
        self.spoke = False
        self._beat = beat
        self._is_read = is_read
        self._silent = silent
        self._monitor = HeartbeatMonitor()
        self._timers: list[asyncio.TimerHandle] = []

    def start(self, agreed: Heartbeats, grace: float) -> None:
        """The client has logged in.

        Args:
            agreed: what both promised.
            grace: how many intervals the client may be silent.
        """
        if agreed.send:
            # What was said before does not count: the first beat is due half an interval from now.
            self.spoke = False
            self._every(agreed.send / 2, self._speak)
        if agreed.expect:
            # The second look in a row without an byte ends it: one grace after the last byte, or up to a half more.
            self._every(agreed.expect * grace / 2, self._listen)

    def stop(self) -> None:
        """Neither speak nor listen any more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        place = len(self._timers)

        def fire() -> None:
            self._timers[place] = loop.call_later(seconds, fire)
            action()

        self._timers.append(loop.call_later(seconds, fire))

    def _speak(self) -> None:
        """Send a heart-beat unless something else went out."""
        if not self.spoke:
            self._beat()
        self.spoke = False

    def _listen(self) -> None:
        silent = self._monitor.tick(heard=self.heard or not self._is_read())
        self.heard = False
        if silent:
            self._silent()
