"""Scales: where a value goes, and which values an axis names."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final, Protocol

from gateway.pipeline.report.units import DAY, HOUR, MILLISECOND, MINUTE, SECOND, latency

_ROUND: Final = (1, 2, 5, 10)
_MANY_TICKS: Final = 7


class Scale(Protocol):
    """From values to places along an axis."""

    ticks: list[tuple[float, str]]
    """Values that the axis names, with their names."""

    def place(self, value: float) -> float:
        """Where a value goes, in the units of the drawing."""
        ...


@dataclass(frozen=True, slots=True)
class Reach:
    """Where an axis begins and ends, in the units of the drawing."""

    begin: float
    end: float

    def at(self, part: float) -> float:
        """The place at a part of 1 of it."""
        return self.begin + (self.end - self.begin) * part


class LinearScale:
    """From zero to a round value that is no less than all values.

    Args:
        highest: of the values.
        reach: where zero and the end of the axis are.
        name: of a value.
        ticks: how many at most, without zero.
    """

    def __init__(self, highest: float, reach: Reach, name: Callable[[float], str], ticks: int = 4) -> None:
        step = _round_up(highest / ticks) if highest > 0 else 1 / ticks
        steps = max(1, ceil(round(highest / step, 9))) if highest > 0 else ticks
        self._high = step * steps
        self._reach = reach
        self.ticks = [(step * number, name(step * number)) for number in range(steps + 1)]
        if highest <= 0:
            self.ticks = [(0.0, name(0.0))]

    def place(self, value: float) -> float:
        """Where a value goes."""
        return self._reach.at(value / self._high)


def _round_up(value: float) -> float:
    """The next one of 1, 2, 5, 10, 20, 50 … that is no less."""
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in _ROUND if step * power >= value * (1 - 1e-9)), 10 * power)


# Latencies whose names are short: decades of a unit as long as it is decimal, then what clocks show.
_MAIN: Final[tuple[int, ...]] = (
    1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND, SECOND, 10 * SECOND, MINUTE, 10 * MINUTE,
    HOUR, 10 * HOUR, 4 * DAY, 40 * DAY, 400 * DAY,
)  # fmt: skip
_FINE: Final[tuple[int, ...]] = tuple(
    sorted(
        {step * unit for unit in (1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND) for step in (1, 2, 5)}
        | {step * SECOND for step in (1, 2, 5, 10, 20, 30)}
        | {step * MINUTE for step in (1, 2, 5, 10, 30)}
        | {step * HOUR for step in (1, 3, 10)}
        | {step * DAY for step in (1, 4, 10, 40, 400)}
    )
)


class LatencyScale:
    """A logarithmic scale of latencies, in microseconds, named as people do.

    Args:
        values: all that it must hold.
        reach: where its lowest and highest ends are.
    """

    def __init__(self, values: Sequence[float], reach: Reach) -> None:
        low, high = max(1.0, min(values, default=1.0)), max(1.0, *values, 1.0)
        chosen = _around(_FINE, low, high)
        if len(chosen) > _MANY_TICKS:
            chosen = _around(_MAIN, low, high)
        self._low, self._high = log10(chosen[0]), log10(chosen[-1])
        self._reach = reach
        self.ticks = [(float(value), latency(value)) for value in chosen]

    def place(self, value: float) -> float:
        """Where a latency goes; what is too short to be measured goes to the lowest end."""
        return self._reach.at((log10(max(value, 1.0)) - self._low) / (self._high - self._low))


def _around(ladder: Sequence[int], low: float, high: float) -> Sequence[int]:
    """The part of a ladder from the last step not above ``low`` to the first not below ``high``; two steps at least."""
    first = max(0, bisect_right(ladder, low) - 1)
    last = min(len(ladder) - 1, max(bisect_left(ladder, high), first + 1))
    return ladder[min(first, last - 1) : last + 1]
