"""How late an event loop is."""

from __future__ import annotations

from collections import deque


class LoopLag:
    """How late the event loop is. ``tick`` should be called every ``interval`` seconds."""

    def __init__(self, interval: float) -> None:
        self.ticks = 0
        self._interval = interval
        self._last = 0.0
        # The last few are kept, so that a monitor that asks seldom still sees the worst.
        self._delays: deque[float] = deque(maxlen=15)

    def start(self, now: float) -> None:
        """Measure from now on."""
        self._last = now

    def tick(self, now: float) -> None:
        """The interval is over, or should be."""
        self.ticks += 1
        self._delays.append(max(0.0, now - self._last - self._interval))
        self._last = now

    @property
    def seconds(self) -> float:
        """The largest of the last delays."""
        return max(self._delays, default=0.0)
