"""The journal's clock: read once per batch of bytes, since what arrives together happened together."""

from __future__ import annotations

from time import monotonic_ns, time_ns


class Clock:
    """Time in microseconds.

    ``now`` is from a clock that only goes forward, as of the last ``tick``; ``now + offset`` is since the epoch, UTC.
    Whoever needs a moment between batches ticks first.
    """

    __slots__ = ("now", "offset")

    def __init__(self) -> None:
        self.now = 0
        self.offset = 0
        self.adjust()

    def tick(self) -> None:
        """Read the clock. HOT: once per read."""
        self.now = monotonic_ns() // 1000

    def adjust(self) -> None:
        """Follow corrections of the machine's time."""
        self.now = monotonic_ns() // 1000
        self.offset = time_ns() // 1000 - self.now

    @property
    def time(self) -> int:
        """Since the epoch, UTC, as of the last ``tick``."""
        return self.now + self.offset
