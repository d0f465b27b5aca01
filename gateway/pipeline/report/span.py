"""What a report is about: a stretch of time, and how it is divided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.units import DAY, HOUR, MINUTE, SECOND

TEN_SECONDS: Final = 10 * SECOND
"""The finest that the tables have."""

# Each one divides the next, so that counts of one width can be added up to another.
WIDTHS: Final = (
    TEN_SECONDS, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
)  # fmt: skip
"""Widths of a bin, in microseconds."""

MOST_POINTS: Final = 180
"""Bins of a line, at most, unless a day is too short for that."""

MOST_BARS: Final = 60
"""Bins of bars, at most, unless a day is too short for that."""

_LONG: Final = 6 * HOUR

# A gateway whose clock was wrong makes a span of centuries, in which days are too many to be drawn, or even counted.
_MOST_BINS: Final = 3000
_WIDER: Final = (DAY, 10 * DAY, 100 * DAY, 1000 * DAY, 10_000 * DAY)
_MOST_HOURS: Final = 10 * 366 * DAY


@dataclass(frozen=True, slots=True)
class Span:
    """From a moment up to, but without, another; microseconds since the epoch."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """In microseconds."""
        return self.end - self.start

    def width(self, most: int) -> int:
        """The smallest width that makes no more than so many bins, a day if possible; microseconds."""
        short = (width for width in WIDTHS if self.length <= most * width)
        wide = (width for width in _WIDER if self.length <= _MOST_BINS * width)
        return next(short, next(wide, _WIDER[-1]))

    @property
    def period(self) -> int:
        """What "the worst hour" is measured in; microseconds.

        An hour, a minute where there are but a few hours, or more where there are decades.
        """
        if self.length > _MOST_HOURS:
            return self.width(_MOST_BINS)
        return HOUR if self.length >= _LONG else MINUTE

    def bins(self, width: int) -> range:
        """The beginnings of all bins."""
        return range(self.start // width * width, self.end, width)

    def seconds_of(self, begin: int, width: int) -> float:
        """For how long a bin lies in the span: the first and the last may be cut."""
        covered = min(begin + width, self.end) - max(begin, self.start)
        return max(covered, TEN_SECONDS) / SECOND

    def touches(self, first: int | None, last: int | None) -> bool:
        """Whether something that lasted from a moment to another has a part in it; None for no bound."""
        return (first is None or first < self.end) and (last is None or last >= self.start)
