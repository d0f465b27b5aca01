"""The figures of a soak: what grows, how sure that is, and what a restart of the broker explains."""

from __future__ import annotations

import random

import pytest

from tests.soak.samples import WINDOW, Latency, Outage, Point, curve, levels, percentile, stretches, trend

_SIGKILL = Outage(600, 610, "SIGKILL")


def points(values: list[float], begun: float = 0.0) -> list[Point]:
    """A value for every half a minute."""
    return [Point(begun + 30.0 * number, value) for number, value in enumerate(values)]


def test_what_grows() -> None:
    found = trend([points([float(number) for number in range(20)])])
    assert found is not None
    assert found.slope == pytest.approx(120)
    assert found.at_most == pytest.approx(120)


def test_noise_makes_a_slope_unsure() -> None:
    chance = random.Random(1)  # noqa: S311 - no secret
    quiet, loud = (trend([points([chance.gauss(50, width) for _ in range(30)])]) for width in (0.1, 10))
    assert quiet is not None
    assert loud is not None
    assert abs(quiet.slope) < 1 < quiet.at_most - quiet.slope + 1 < 3
    assert loud.at_most - loud.slope > 20


def test_a_confidence_of_95_percent() -> None:
    chance = random.Random(2)  # noqa: S311 - no secret
    found = [trend([points([chance.gauss(50, 1) for _ in range(15)])]) for _ in range(1000)]
    assert 30 < sum(each is not None and each.at_most < 0 for each in found) < 70


def test_each_stretch_has_a_level_of_its_own() -> None:
    found = trend([points([5.0] * 10), points([50.0] * 10, 600)])
    assert found is not None
    assert found.slope == 0
    assert levels([points([5.0, 9.0, 5.0]), points([50.0])]) == [5, 50]


def test_too_little_to_tell() -> None:
    assert trend([]) is None
    assert trend([points([5.0] * 11)]) is None
    assert trend([points([5.0] * 12)]) is not None


def test_many_values_of_a_moment_are_one() -> None:
    assert trend([[Point(at / 100, 5.0) for at in range(1000)]]) is None


def test_percentiles() -> None:
    assert percentile([float(each) for each in range(100)], 0.99) == 99
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2


def test_a_percentile_for_each_window() -> None:
    assert curve([Latency(1, 0.001), Latency(2, 0.003), Latency(205, 0.002)], 0.99) == [
        Point(WINDOW / 2, 3.0), Point(205, 2.0)
    ]  # fmt: skip


def test_restarts_part_a_curve_and_explain_what_is_near_them() -> None:
    seen = [Point(at, 1.0) for at in (100.0, 589.0, 591.0, 605.0, 639.0, 641.0, 900.0)]
    assert stretches(seen, [_SIGKILL]) == [seen[:2], seen[-2:]]
    assert stretches(seen, []) == [seen]
