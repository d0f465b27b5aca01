"""Axes: where a value or a moment goes, and which of them an axis names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, datetime
from math import ceil, floor, log10
from typing import Final, Protocol

from gateway.pipeline.report.markup import Canvas, Markup, PlotArea, rule, width_of, words
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import DAY, EPOCH, HOUR, MILLISECOND, MINUTE, SECOND, datetime_of, latency, micros_of

_ROUND: Final = (1, 2, 5, 10)
_MANY_TICKS: Final = 7
# Latencies with short labels: powers of ten up to a second, then round numbers of seconds, minutes, hours and days.
_COARSE_TICKS: Final[tuple[int, ...]] = (
    1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE,
    HOUR, 10 * HOUR, 4 * DAY, 40 * DAY, 400 * DAY,
)  # fmt: skip
_FINE_TICKS: Final[tuple[int, ...]] = tuple(
    sorted(
        {step * unit for unit in (1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND) for step in (1, 2, 5)}
        | {step * SECOND for step in (1, 2, 5, 10, 20, 30)}
        | {step * MINUTE for step in (1, 2, 5, 10, 30)}
        | {step * HOUR for step in (1, 3, 10)}
        | {step * DAY for step in (1, 4, 10, 40, 400)}
    )
)
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
_TICK_ROOM: Final = 92
_NARROW_TICK_ROOM: Final = 76
_LINE_HEIGHT: Final = 15
_MARGIN: Final = 10


class Scale(Protocol):
    """Maps values to positions along an axis."""

    ticks: list[tuple[float, str]]
    """The values that the axis labels, with their labels."""

    def place(self, value: float) -> float:
        """The position of a value, in the units of the drawing."""
        ...


@dataclass(frozen=True, slots=True)
class AxisRange:
    """The beginning and the end of an axis, in the units of the drawing."""

    begin: float
    end: float

    def at(self, part: float) -> float:
        """The position at a part (0 to 1) of the axis."""
        return self.begin + (self.end - self.begin) * part


class LinearScale:
    """From zero to a round number that is at least the highest value.

    ``name`` makes the label of a value. There are at most ``ticks`` labels besides zero.
    """

    def __init__(self, highest: float, extent: AxisRange, name: Callable[[float], str], ticks: int = 4) -> None:
        step = _round_up(highest / ticks) if highest > 0 else 1 / ticks
        steps = max(1, ceil(round(highest / step, 9))) if highest > 0 else ticks
        self._high = step * steps
        self._extent = extent
        self.ticks = [(step * number, name(step * number)) for number in range(steps + 1)]
        if highest <= 0:
            self.ticks = [(0.0, name(0.0))]

    def place(self, value: float) -> float:
        """The position of a value."""
        return self._extent.at(value / self._high)


def _round_up(value: float) -> float:
    """The smallest of 1, 2, 5, 10, 20, 50 … that is at least the value."""
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in _ROUND if step * power >= value * (1 - 1e-9)), 10 * power)


class LatencyScale:
    """A logarithmic scale for all values, which are latencies in microseconds, with labels such as 10 ms."""

    def __init__(self, values: Sequence[float], extent: AxisRange) -> None:
        low, high = max(1.0, min(values, default=1.0)), max(1.0, *values, 1.0)
        chosen = _ticks_around(_FINE_TICKS, low, high)
        if len(chosen) > _MANY_TICKS:
            chosen = _ticks_around(_COARSE_TICKS, low, high)
        self._low, self._high = log10(chosen[0]), log10(chosen[-1])
        self._extent = extent
        self.ticks = [(float(value), latency(value)) for value in chosen]

    def place(self, value: float) -> float:
        """The position of a latency; one below a microsecond goes to the lowest end."""
        return self._extent.at((log10(max(value, 1.0)) - self._low) / (self._high - self._low))


def _ticks_around(steps: Sequence[int], low: float, high: float) -> Sequence[int]:
    """From the last step not above ``low`` to the first not below ``high``; at least two steps."""
    first = max(0, bisect_right(steps, low) - 1)
    last = min(len(steps) - 1, max(bisect_left(steps, high), first + 1))
    return steps[min(first, last - 1) : last + 1]


@dataclass(frozen=True, slots=True)
class TimeTick:
    """A labelled moment: its clock time or date, and below it what has changed since the tick before."""

    at: int
    name: str
    under: str


class TimeScale:
    """A scale of time that covers a span, with at most ``most`` ticks."""

    def __init__(self, span: Span, extent: AxisRange, most: int) -> None:
        self._span = span
        self._extent = extent
        self.ticks = time_ticks(span, max(1, most))

    def place(self, value: float) -> float:
        """The position of a moment; one outside the span goes to the nearer end."""
        inside = min(max(value, self._span.start), self._span.end)
        return self._extent.at((inside - self._span.start) / max(1, self._span.length))


def time_ticks(span: Span, most: int) -> list[TimeTick]:
    """Ticks at round times of the calendar, UTC, about so many at most."""
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


def time_scale(span: Span, area: PlotArea, canvas: Canvas) -> TimeScale:
    """The scale of time along the bottom of an area."""
    room = _TICK_ROOM if canvas.wide else _NARROW_TICK_ROOM
    return TimeScale(span, AxisRange(area.left, area.right), int(area.width // room))


def value_axis(area: PlotArea, scale: Scale) -> Iterator[Markup]:
    """Grid lines across an area, with labels at its left."""
    for number, (value, name) in enumerate(scale.ticks):
        y = scale.place(value)
        yield rule(area.left, y, area.right, y, "grid" if number else "axis")
        yield words(area.left - 8, y + 4, name, "tick end")


def time_axis(area: PlotArea, scale: TimeScale) -> Iterator[Markup]:
    """Ticks below an area, with their labels."""
    for tick in scale.ticks:
        x = scale.place(tick.at)
        yield rule(x, area.bottom, x, area.bottom + 5, "axis")
        yield _label(area, x, area.bottom + 5 + _LINE_HEIGHT, tick.name, "tick")
        if tick.under:
            yield _label(area, x, area.bottom + 5 + 2 * _LINE_HEIGHT, tick.under, "tick strong")


def _label(area: PlotArea, x: float, y: float, text: str, class_: str) -> Markup:
    """A tick's label, centred below it unless it would leave the drawing."""
    edge = area.right + _MARGIN
    if x + width_of(text) / 2 > edge:
        return words(edge, y, text, f"{class_} end")
    return words(x, y, text, f"{class_} middle")
