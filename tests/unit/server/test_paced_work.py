"""Work that many clients cause at once is done in several rounds of the event loop, in order."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from gateway.server.paced_work import PacedWork


class _Owner:
    """Notes its faults."""

    def __init__(self) -> None:
        self.faults: list[Exception] = []

    def failed(self, error: Exception) -> None:
        self.faults.append(error)


class _Clock:
    """A quarter of a millisecond passes with each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.00025
        return self.now


async def test_a_little_work_is_done_at_once() -> None:
    work, done = PacedWork(_Clock()), list[int]()
    for number in range(3):
        work.do(_Owner(), partial(done.append, number))
    assert done == [0, 1, 2]


async def test_much_work_leaves_others_their_rounds_and_keeps_its_order() -> None:
    work, done = PacedWork(_Clock()), list[int]()
    for number in range(100):
        was_called = work.do(_Owner(), partial(done.append, number))
        assert was_called == (number in done)
    rounds = 0
    while len(done) < 100:
        before = len(done)
        await asyncio.sleep(0)
        rounds += 1
        assert len(done) - before < 10
    assert done == list(range(100))
    assert rounds > 10


async def test_work_for_each_of_many_is_done_in_as_many_rounds_as_it_takes() -> None:
    work, done = PacedWork(_Clock()), list[int]()
    work.do_each((_Owner(), partial(done.append, number)) for number in range(100))
    rounds = 0
    while len(done) < 100:
        before = len(done)
        await asyncio.sleep(0)
        rounds += 1
        assert 0 < len(done) - before < 10
    assert done == list(range(100))
    assert rounds > 10


async def test_what_work_causes_waits_behind_the_rest() -> None:
    work, done = PacedWork(_Clock()), list[str]()

    def first() -> None:
        work.do(_Owner(), partial(done.append, "caused"))
        done.append("first")

    work.do(_Owner(), first)
    work.do(_Owner(), partial(done.append, "second"))
    await asyncio.sleep(0)
    assert done == ["first", "caused", "second"]


async def test_what_is_for_later_waits_for_another_round_though_there_is_time() -> None:
    work, done = PacedWork(lambda: 0.0), list[int]()
    work.later(_Owner(), partial(done.append, 0))
    assert done == []
    await asyncio.sleep(0)
    assert done.pop() == 0

    def first() -> None:
        done.append(1)
        work.later(owner, partial(done.append, 2))

    owner = _Owner()
    work.do(owner, first)
    assert done == [1]
    work.later(owner, partial(done.append, 3))
    assert done == [1]
    await asyncio.sleep(0)
    assert done == [1, 2, 3]


@pytest.mark.parametrize("waiting", [1, 2, 50])
async def test_each_of_those_that_wait_gets_a_millisecond(waiting: int) -> None:
    now = 0.0
    work, owner, shares = PacedWork(lambda: now), _Owner(), list[float]()
    for _ in range(waiting):
        work.later(owner, lambda: shares.append(work.time_left))
    await asyncio.sleep(0)
    assert shares[0] == 0.001


async def test_it_is_known_whose_work_is_under_way() -> None:
    work, owner, other, served = PacedWork(), _Owner(), _Owner(), list[bool]()
    work.do(owner, lambda: served.extend((work.serves(owner), work.serves(other))))
    assert [*served, work.serves(owner)] == [True, False, False]


async def test_a_fault_belongs_to_its_owner_and_the_rest_is_done() -> None:
    work, owner, done = PacedWork(_Clock()), _Owner(), list[str]()

    def fail() -> None:
        raise ValueError("a fault")

    work.do(owner, fail)
    work.do(_Owner(), partial(done.append, "next"))
    assert [str(fault) for fault in owner.faults] == ["a fault"]
    assert done == ["next"]


async def test_nothing_waits_when_the_gateway_stops() -> None:
    work, done = PacedWork(_Clock()), list[int]()
    for number in range(100):
        work.do(_Owner(), partial(done.append, number))
    work.finish()
    assert done == list(range(100))
