"""The figures of a soak: what is flat looks flat, and what grows does not."""

from __future__ import annotations

import pytest

from tests.soak import __main__ as soak
from tests.soak.samples import WINDOW, Latency, Outage, Point, curve, growth, percentile, slope


def points(*values: float) -> list[Point]:
    """A value for each minute."""
    return [Point(60.0 * minute, value) for minute, value in enumerate(values)]


def test_what_grows() -> None:
    assert slope(points(1, 2, 3, 4)) == pytest.approx(60)
    assert growth(points(1, 2, 3, 4)) == 2


def test_what_is_flat() -> None:
    assert slope(points(5, 5, 5, 5)) == 0
    assert growth(points(5, 9, 5, 5, 9, 5)) == 0


def test_too_little_to_say() -> None:
    assert slope(points(7)) == growth(points(7)) == 0


def test_a_soak_that_saw_nothing_is_not_flat() -> None:
    late, seen = 10 * soak._WARM_UP, soak._Observations(0.0)
    assert not soak._is_flat(seen, "", True)
    seen.memory.append(Point(late, 100.0))
    assert not soak._is_flat(seen, "", True)
    seen.latencies.append(Latency(late, 0.001))
    assert soak._is_flat(seen, "", True)
    seen.memory.clear()
    assert not soak._is_flat(seen, "", True)


def test_percentiles() -> None:
    assert percentile([float(each) for each in range(100)], 0.99) == 99
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2


def test_a_curve_leaves_out_what_an_outage_explains() -> None:
    slow = [Latency(at, 9.0) for at in (100, 105, 120)]
    usual = [Latency(at, 0.001) for at in (1, 2, 200)]
    found = curve(slow + usual, 0.99, [Outage(100, 110, "SIGKILL")])
    assert found == [Point(WINDOW / 2, 1.0), Point(205, 1.0)]
    assert len(curve(slow, 0.99, [])) == 2
