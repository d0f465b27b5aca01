"""Counts by cause, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gateway.server.counts import Counts, RecentCounts, Recently
from gateway.server.shared_counts import SharedCounts, SharedMemory


def shared_counts() -> Counts:
    return SharedCounts(SharedMemory.made(2), 1, lambda: 0.0)


@pytest.mark.parametrize("counts_of", [Counts, shared_counts])
def test_a_window_begins_with_the_first_event_of_its_cause(counts_of: Callable[[], Counts]) -> None:
    now = 100.0
    counts = counts_of().recent(Recently.REFUSED_OF_LOGIN, lambda: now, 60)
    assert counts.count("a") == counts.seconds_left("a") == 0
    assert [counts.add("a"), counts.add("b"), counts.add("a")] == [1, 1, 2]
    now += 40
    assert counts.add("c") == 1
    assert [counts.count("a"), counts.seconds_left("a"), counts.seconds_left("c")] == [2, 20, 60]
    now += 21
    assert [counts.count("a"), counts.seconds_left("a"), counts.count("c")] == [0, 0, 1]
    assert [counts.add("a"), counts.add("c")] == [1, 2]
    now += 50
    counts.renew("c")
    assert [counts.count("c"), counts.seconds_left("c"), counts.seconds_left("a")] == [1, 60, 10]
    counts.seconds = 5
    assert counts.seconds_left("c") == 5
    counts.forget("c")
    counts.forget("unknown")
    assert [counts.count("c"), counts.seconds_left("c"), counts.add("c"), counts.add("c")] == [0, 0, 1, 2]


def test_the_oldest_window_is_forgotten_when_there_are_too_many() -> None:
    now = 100.0
    counts = RecentCounts(lambda: now, 60)
    counts.add("first")
    counts.add("second")
    now += 61
    counts.add("first")  # its second window is younger than that of "second"
    for number in range(9_999):
        counts.add(number)
    assert len(counts) == 10_000
    assert counts.add("first") == 2
    counts.add("one more")
    assert len(counts) == 10_000
    assert counts.count("first") == 0
