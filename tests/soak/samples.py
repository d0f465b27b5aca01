"""What a soak measures, and how fast it grows. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Final, NamedTuple

WINDOW: Final = 10.0
"""Seconds whose latencies make one percentile."""

_SMOOTHED: Final = 30.0
"""Seconds whose values make one point of a trend: the values of a moment depend on each other."""
_SETTLING: Final = 30.0
"""Seconds after a restart of the broker in which latencies are not those of every day."""
_CONFIDENCE: Final = 0.95
_FREE: Final = 10
"""Points that a trend needs beyond those that fix its line."""


class Latency(NamedTuple):
    """One message: when it was sent, and how long its way through the broker took, in seconds since the soak began."""

    at: float
    seconds: float


class Point(NamedTuple):
    """One value of a curve."""

    at: float
    value: float


class Trend(NamedTuple):
    """How fast a curve grows per hour, and the most that it may grow in truth, with a confidence of 95 %."""

    slope: float
    at_most: float


@dataclass(frozen=True)
class Outage:
    """The time in which the broker was restarted."""

    begun: float
    ended: float
    how: str

    def covers(self, at: float) -> bool:
        """Whether the broker was away then, or just before or after."""
        return self.begun - WINDOW <= at <= self.ended + _SETTLING


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies.

    Args:
        values: at least one.
        share: from 0 to 1.
    """
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def curve(latencies: Iterable[Latency], share: float) -> list[Point]:
    """A percentile for each window, in milliseconds."""
    windows: dict[int, list[float]] = {}
    for each in latencies:
        windows.setdefault(int(each.at / WINDOW), []).append(each.seconds)
    return [Point((n + 0.5) * WINDOW, percentile(found, share) * 1000) for n, found in sorted(windows.items())]


def stretches(points: Sequence[Point], outages: Sequence[Outage]) -> list[list[Point]]:
    """The points between restarts of the broker; those that a restart explains are left out."""
    found: dict[int, list[Point]] = {}
    for point in points:
        if not any(outage.covers(point.at) for outage in outages):
            found.setdefault(sum(outage.ended < point.at for outage in outages), []).append(point)
    return [found[number] for number in sorted(found)]


def levels(parts: Sequence[Sequence[Point]]) -> list[float]:
    """The median of each stretch."""
    return [median(point.value for point in part) for part in parts]


def trend(parts: Sequence[Sequence[Point]]) -> Trend | None:
    """The growth within stretches, by least squares: one slope for all, while each has a level of its own.

    Returns:
        Nothing, if there are too few points to tell.
    """
    smooth = [_smooth(part) for part in parts]
    free = sum(map(len, smooth)) - len(smooth) - 1
    if free < _FREE:
        return None
    spread = product = square = 0.0
    for part in smooth:
        at = sum(point.at for point in part) / len(part)
        value = sum(point.value for point in part) / len(part)
        spread += sum((point.at - at) ** 2 for point in part)
        product += sum((point.at - at) * (point.value - value) for point in part)
        square += sum((point.value - value) ** 2 for point in part)
    slope = product / spread
    error = math.sqrt(max(square - slope * product, 0.0) / free / spread)
    return Trend(3600 * slope, 3600 * (slope + _quantile(free) * error))


def _smooth(points: Iterable[Point]) -> list[Point]:
    windows: dict[int, list[Point]] = {}
    for point in points:
        windows.setdefault(int(point.at / _SMOOTHED), []).append(point)
    return [Point(median(p.at for p in each), median(p.value for p in each)) for each in windows.values()]


def _quantile(free: int) -> float:
    """Of Student's distribution, by the first term of its expansion; good to 1 % from ten degrees of freedom on."""
    normal = NormalDist().inv_cdf(_CONFIDENCE)
    return normal + (normal**3 + normal) / (4 * free)
