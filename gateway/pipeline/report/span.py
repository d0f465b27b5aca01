"""The time that a report covers, and how it is divided into bins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.units import DAY, HOUR, MINUTE, SECOND, datetime_of

TEN_SECONDS: Final = 10 * SECOND
"""The resolution of the tables."""

# Each divides the next, so that the counts of narrow bins add up to those of wider ones.
WIDTHS: Final = (
    TEN_SECONDS, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
)  # fmt: skip
"""Widths of a bin, in microseconds."""

MOST_POINTS: Final = 180
"""Bins of a line, at most, unless bins would have to be wider than a day."""

MOST_BARS: Final = 60
"""The same for bars."""

_LONG: Final = 6 * HOUR

# A gateway with a wrong clock makes a span of centuries, which has too many days to draw or even count them.
_MOST_BINS: Final = 3000
_WIDER: Final = (DAY, 10 * DAY, 100 * DAY, 1000 * DAY, 10_000 * DAY)
_MOST_HOURS: Final = 10 * 366 * DAY


@dataclass(frozen=True, slots=True)
class Span:
    """From ``start`` to ``end``, exclusive; microseconds since the epoch."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """In microseconds."""
        return self.end - self.start

    def width(self, most: int) -> int:
        """The smallest width with at most so many bins, a day at most if possible; microseconds."""
        short = (width for width in WIDTHS if self.length <= most * width)
        wide = (width for width in _WIDER if self.length <= _MOST_BINS * width)
        return next(short, next(wide, _WIDER[-1]))

    @property
    def period(self) -> int:
        """The width of the periods that findings compare, in microseconds.

        An hour; a minute if there are only a few hours; more if there are decades.
        """
        if self.length > _MOST_HOURS:
            return self.width(_MOST_BINS)
        return HOUR if self.length >= _LONG else MINUTE

    def bins(self, width: int) -> range:
        """The beginnings of all bins."""
        return range(self.start // width * width, self.end, width)

    def seconds_of(self, begin: int, width: int) -> float:
        """How many seconds of a bin lie in the span; less than its width for the first and last one."""
        covered = min(begin + width, self.end) - max(begin, self.start)
        return max(covered, TEN_SECONDS) / SECOND

    @property
    def days_in_sql(self) -> str:
        """SQL for the partitions of the days that overlap with the span."""
        return f"d BETWEEN '{datetime_of(self.start):%Y-%m-%d}' AND '{datetime_of(self.end - 1):%Y-%m-%d}'"

    def in_sql(self, column: str, length: int = TEN_SECONDS) -> str:
        """SQL for the rows whose time, which is the beginning of so many microseconds, overlaps with the span."""
        at = f"cast({column} AS bigint)"
        return f"{self.days_in_sql} AND {at} > {self.start - length} AND {at} < {self.end}"
