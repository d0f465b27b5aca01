"""The axis of time: ticks at round moments of the calendar, UTC, from ten seconds to many years apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import MAXYEAR, datetime
from typing import Final

from gateway.pipeline.report.drawing.axis import Reach
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import DAY, EPOCH, HOUR, MINUTE, SECOND, datetime_of, micros_of

_CLOCK_STEPS: Final = tuple(
    [step * SECOND for step in (10, 20, 30)]
    + [step * MINUTE for step in (1, 2, 5, 10, 15, 30)]
    + [step * HOUR for step in (1, 2, 3, 6, 12)]
)
_DAY_STEPS: Final = (DAY, 2 * DAY, 7 * DAY, 14 * DAY)
_MONTH_STEPS: Final = (1, 3, 6, 12, 24, 60, 120, 600)
_MONTH: Final = 30 * DAY
_YEAR: Final = 12
_FIRST_MONDAY: Final = 4 * DAY  # 5 January 1970


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A moment that the axis names: by its clock or date, and under it by what has changed since the tick before."""

    at: int
    name: str
    under: str


class TimeScale:
    """A scale of moments.

    Args:
        span: what it shows.
        reach: where the span begins and ends.
        most: how many ticks there is room for.
    """

    def __init__(self, span: Span, reach: Reach, most: int) -> None:
        self._span = span
        self._reach = reach
        self.ticks = time_ticks(span, max(1, most))

    def place(self, value: float) -> float:
        """Where a moment goes; one outside of the span goes to its end."""
        inside = min(max(value, self._span.start), self._span.end)
        return self._reach.at((inside - self._span.start) / max(1, self._span.length))


def time_ticks(span: Span, most: int) -> list[TimeTick]:
    """Round moments in a span, about so many at most."""
    step = next((step for step in (*_CLOCK_STEPS, *_DAY_STEPS) if span.length <= step * most), None)
    if step is None:
        return _month_ticks(span, most)
    ticks: list[TimeTick] = []
    under = ""
    offset = _FIRST_MONDAY if step > 2 * DAY else 0
    first = -(-(span.start - offset) // step) * step + offset
    for at in range(first, span.end, step):
        when = datetime_of(at)
        now = f"{when.year}" if step >= DAY else _date(when)
        ticks.append(TimeTick(at, _name(when, step), now if now != under else ""))
        under = now
    return ticks


def _name(when: datetime, step: int) -> str:
    if step >= DAY:
        return f"{when.day} {when:%b}"
    return f"{when:%H:%M:%S}" if step < MINUTE else f"{when:%H:%M}"


def _date(when: datetime) -> str:
    return f"{when.day} {when:%b} {when.year}"


def _month_ticks(span: Span, most: int) -> list[TimeTick]:
    step = next((step for step in _MONTH_STEPS if span.length <= step * _MONTH * most), _MONTH_STEPS[-1])
    ticks: list[TimeTick] = []
    year = 0
    for when in _months(span, step):
        by_year = step >= _YEAR
        under = "" if by_year or when.year == year else str(when.year)
        ticks.append(TimeTick(micros_of(when), str(when.year) if by_year else f"{when:%b}", under))
        year = when.year
    return ticks


def _months(span: Span, step: int) -> Iterator[datetime]:
    when = datetime_of(span.start)
    number = -(-(when.year * _YEAR + when.month - 1) // step) * step
    while True:
        if number // _YEAR > MAXYEAR:
            return
        at = EPOCH.replace(year=number // _YEAR, month=number % _YEAR + 1)
        if micros_of(at) >= span.end:
            return
        if micros_of(at) >= span.start:
            yield at
        number += step
