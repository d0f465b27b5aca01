"""What a soak measures, and whether it stays flat. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

WINDOW: Final = 10.0
"""Seconds whose latencies make one percentile."""

_SETTLING: Final = 30.0
"""Seconds after a restart of the broker in which latencies are not those of every day."""


class Latency(NamedTuple):
    """One message: when it was sent, and how long its way through the broker took, in seconds since the soak began."""

    at: float
    seconds: float


class Point(NamedTuple):
    """One value of a curve."""

    at: float
    value: float


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


def curve(latencies: Iterable[Latency], share: float, outages: Sequence[Outage]) -> list[Point]:
    """A percentile for each window without an outage, in milliseconds."""
    windows: dict[int, list[float]] = {}
    for each in latencies:
        if not any(outage.covers(each.at) for outage in outages):
            windows.setdefault(int(each.at / WINDOW), []).append(each.seconds)
    return [Point((n + 0.5) * WINDOW, percentile(found, share) * 1000) for n, found in sorted(windows.items())]


def slope(points: Sequence[Point]) -> float:
    """The growth per hour by least squares; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    mean_at = sum(point.at for point in points) / len(points)
    mean = sum(point.value for point in points) / len(points)
    spread = sum((point.at - mean_at) ** 2 for point in points)
    return 3600 * sum((point.at - mean_at) * (point.value - mean) for point in points) / spread


def growth(points: Sequence[Point]) -> float:
    """How much the later half is above the earlier one, by their medians; 0 for fewer than two points."""
    if len(points) < 2:
        return 0.0
    middle = len(points) // 2
    earlier, later = points[:middle], points[middle:]
    return percentile([p.value for p in later], 0.5) - percentile([p.value for p in earlier], 0.5)
