"""Sessions that stay are put aside from Python's search for garbage; those that have ended are found."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.server.process.garbage_rounds import GarbageRounds


@pytest.fixture(autouse=True)
def everything_searched_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()


class Part:
    """Refers to itself, as the parts of a session do to each other."""

    def __init__(self) -> None:
        self.whole = self


class Gateway:
    """Counts sessions, on a clock that is set by hand."""

    def __init__(self) -> None:
        self.opened = self.ended = 0
        self.now = 0.0
        self.rounds = GarbageRounds(lambda: self.opened, lambda: self.ended, lambda: self.now)


def _ended_part() -> weakref.ref[Part]:
    return weakref.ref(Part())


def test_new_sessions_are_put_aside_once_there_are_many() -> None:
    gateway = Gateway()
    gc.unfreeze()
    gateway.opened = 99
    gateway.rounds.sweep()
    counts = [gc.get_freeze_count()]
    gateway.opened = 100
    part = Part()
    gateway.rounds.sweep()
    counts.append(gc.get_freeze_count())
    assert counts[0] == 0 < counts[1]
    found = weakref.ref(part)
    del part
    gc.collect()
    assert found() is not None


def test_what_is_garbage_already_is_not_put_aside() -> None:
    gateway = Gateway()
    gateway.opened = 100
    part = _ended_part()
    gateway.rounds.sweep()
    assert part() is None


@pytest.mark.parametrize(
    ("opened", "ended", "is_found"),
    [(400, 199, False), (1000, 199, False), (1000, 200, True), (2000, 399, False), (2000, 400, True)],
)
def test_sessions_that_have_ended_are_found_once_they_are_many_or_a_quarter(
    opened: int, ended: int, is_found: bool
) -> None:
    gateway, part = Gateway(), Part()
    gateway.opened = opened
    gateway.rounds.sweep()
    found = weakref.ref(part)
    del part
    gateway.ended = ended
    gateway.rounds.sweep()
    assert (found() is None) is is_found


def test_whatever_ends_is_found_after_ten_minutes() -> None:
    gateway, part = Gateway(), Part()
    gateway.opened = 100
    gateway.rounds.sweep()
    found = weakref.ref(part)
    del part
    gateway.now = 599.0
    gateway.rounds.sweep()
    assert found() is not None
    gateway.now = 601.0
    gateway.rounds.sweep()
    assert found() is None
