"""A call that is repeated until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class PeriodicTimer:
    """Calls a function every ``interval`` seconds, the first time after one interval.

    The next call is scheduled before the function runs, so that it is on time and the function may stop the timer.
    """

    __slots__ = ("_call", "_handle", "_interval", "_loop")

    def __init__(self, interval: float, call: Callable[[], None]) -> None:
        self._interval = interval
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(interval, self._fire)

    def _fire(self) -> None:
        self._handle = self._loop.call_later(self._interval, self._fire)
        self._call()

    def stop(self) -> None:
        """Make no further call."""
        self._handle.cancel()
