"""How late the event loop is: everything that one session does keeps the others waiting."""

from __future__ import annotations

from collections import deque
from typing import Final

# Looks that are remembered; whoever asks seldom should still learn of the worst.
_REMEMBERED: Final = 15


class Lag:
    """Measured by something that is due at regular intervals.

    Args:
        interval: in seconds.
    """

    def __init__(self, interval: float) -> None:
        self.looks = 0
        self._interval = interval
        self._last = 0.0
        self._late: deque[float] = deque(maxlen=_REMEMBERED)

    def started(self, now: float) -> None:
        """The first look is due an interval from now."""
        self._last = now

    def looked(self, now: float) -> None:
        """Note how late this look is."""
        self.looks += 1
        self._late.append(max(0.0, now - self._last - self._interval))
        self._last = now

    @property
    def seconds(self) -> float:
        """The largest of the last looks."""
        return max(self._late, default=0.0)
