"""Dialling again: one dial for all who wait, pauses that grow, and nobody who dials for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref

import pytest

from gateway.server.broker.broker_errors import ACCESS_REFUSED, LinkDownError, UpstreamError
from gateway.server.broker.redial import Backoff, DialSlots, Redial, SharedTask
from tests.support.deadline import until, within
from tests.support.virtual_time import run_in_virtual_time


class Broker:
    """Answers each dial with the next outcome, and the last one from then on."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self.outcomes = list(outcomes)
        self.dials = 0

    async def dial(self) -> None:
        self.dials += 1
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if outcome is not None:
            raise outcome


def down() -> LinkDownError:
    return LinkDownError(320, "no broker answers")


async def test_all_who_wait_share_one_dial_that_goes_on_until_a_broker_answers() -> None:
    broker = Broker(down(), down(), None)
    redial = Redial(broker.dial, DialSlots(), "/")
    await asyncio.gather(*(redial.answered() for _ in range(100)))
    assert broker.dials == 3


async def test_the_first_dial_is_at_once_also_after_a_success() -> None:
    broker = Broker(None)
    redial = Redial(broker.dial, DialSlots(), "/")
    for number in range(3):
        waiting = asyncio.ensure_future(redial.answered())
        for _ in range(5):
            # Turns of the event loop, in which no timer fires.
            await asyncio.sleep(0)
        assert broker.dials == number + 1
        await waiting


async def test_a_refusal_is_for_all_who_wait_and_the_next_dial_is_not_at_once() -> None:
    broker = Broker(UpstreamError(403, "ACCESS_REFUSED"), None)
    redial = Redial(broker.dial, DialSlots(), "/")
    outcomes = await asyncio.gather(*(redial.answered() for _ in range(3)), return_exceptions=True)
    assert [str(outcome) for outcome in outcomes] == ["ACCESS_REFUSED"] * 3
    waiting = asyncio.ensure_future(redial.answered())
    for _ in range(5):
        await asyncio.sleep(0)
    assert broker.dials == 1
    await waiting
    assert broker.dials == 2


async def test_nobody_dials_when_nobody_waits() -> None:
    broker = Broker(down())
    redial = Redial(broker.dial, DialSlots(), "/")
    waiting = [asyncio.ensure_future(redial.answered()) for _ in range(2)]
    await until(lambda: asyncio.sleep(0, broker.dials), lambda dials: dials > 1)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    task = redial._dialling.task
    assert task is not None
    assert not task.done()
    waiting[1].cancel()
    await asyncio.wait([waiting[1], task])
    assert task.cancelled()


async def test_who_asks_while_a_dial_is_given_up_has_one_of_its_own() -> None:
    async def dial() -> None:
        await asyncio.sleep(0)

    redial = Redial(dial, DialSlots(), "/")
    first = asyncio.create_task(redial.answered())
    await asyncio.sleep(0)
    first.cancel()
    # Before the first one has learned that it is cancelled.
    second = asyncio.create_task(redial.answered())
    async with within():
        await second


async def test_the_dials_of_many_logins_share_a_few_slots() -> None:
    under_way = most = 0

    async def dial() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    slots = DialSlots()
    await asyncio.gather(*(Redial(dial, slots, str(number % 10)).answered() for number in range(100)))
    assert most <= 8


def silent_dials(slots: DialSlots, virtual_host: str, count: int) -> tuple[list[asyncio.Task[None]], list[str]]:
    """Logins to a virtual host whose brokers accept and never answer; and the dials that have ended."""
    ended: list[str] = []

    async def dial() -> None:
        # The end of connect_timeout.
        await asyncio.sleep(5)
        ended.append(virtual_host)
        raise down()

    return [asyncio.create_task(Redial(dial, slots, virtual_host).answered()) for _ in range(count)], ended


async def settle(*waiting: asyncio.Task[None]) -> None:
    for each in waiting:
        each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def test_a_broker_that_answers_is_dialled_while_many_silent_ones_are() -> None:
    async def work() -> None:
        slots = DialSlots()
        waiting, ended = silent_dials(slots, "dead", 100)
        await asyncio.sleep(0.05)
        await Redial(Broker(None).dial, slots, "alive").answered()
        assert not ended
        await settle(*waiting)

    run_in_virtual_time(work())


def test_virtual_hosts_take_turns_however_many_logins_wait() -> None:
    async def work() -> None:
        slots, order = DialSlots(), list[str]()

        async def dial(virtual_host: str) -> None:
            async with slots.slot(virtual_host):
                order.append(virtual_host)
                await asyncio.sleep(0)

        await asyncio.gather(*(dial(each) for each in ["many"] * 100 + ["few"] * 2 + ["one"]))
        assert order[:13] == ["many"] * 8 + ["many", "few", "one", "many", "few"]
        assert len(order) == 103

    run_in_virtual_time(work())


def test_a_slot_that_nobody_waits_for_any_more_goes_to_the_next() -> None:
    async def work() -> None:
        slots = DialSlots()
        silent, _ = silent_dials(slots, "dead", 8)
        await asyncio.sleep(0.05)
        given_up, _ = silent_dials(slots, "given up", 20)
        await asyncio.sleep(0.05)
        assert slots._waiting
        await settle(*given_up)
        await asyncio.sleep(0.05)
        assert not slots._waiting
        # All of them are free again when the silent ones have had theirs for long enough.
        await asyncio.sleep(1)
        assert slots._free == 8
        await settle(*silent)
        assert slots._free == 8

    run_in_virtual_time(work())


async def test_a_slot_that_comes_when_its_dial_is_given_up_is_not_lost() -> None:
    slots = DialSlots()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            await stack.enter_async_context(slots.slot("a"))
        waiting = asyncio.create_task(slots.slot("b").__aenter__())
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert slots._free == 8


def test_pauses_double_up_to_three_seconds_less_some_jitter() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(10)]
    wanted = [0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3, 3, 3]
    assert all(whole / 2 <= pause <= whole for pause, whole in zip(pauses, wanted, strict=True))
    assert len(set(pauses)) == len(pauses)


def test_pauses_begin_anew_after_a_while_without_attempts() -> None:
    backoff = Backoff()
    assert backoff.begin(0) == 0
    for _ in range(10):
        backoff.next()
    backoff.end(100)
    assert backoff.begin(104) > 1
    backoff.end(104)
    assert backoff.begin(110) == 0
    assert backoff.next() <= 0.1


def test_pauses_of_a_redial_that_was_given_up_are_forgotten() -> None:
    async def work() -> None:
        broker = Broker(down())
        redial = Redial(broker.dial, DialSlots(), "/")
        waiting = asyncio.create_task(redial.answered())
        await asyncio.sleep(60)
        await settle(waiting)
        await asyncio.sleep(60)
        broker.dials = 0
        waiting = asyncio.create_task(redial.answered())
        for _ in range(5):
            # No timer fires.
            await asyncio.sleep(0)
        assert broker.dials == 1
        await settle(waiting)

    run_in_virtual_time(work())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "pauses" not in request.node.name:
        monkeypatch.setattr("gateway.server.broker.redial._FIRST_PAUSE", 0.02)


async def test_an_error_keeps_none_of_those_who_waited_in_memory() -> None:
    """An error refers to the frames that it came through, and only a garbage collection would free a cycle."""
    shared, gone = SharedTask[None](), list[weakref.ref[Backoff]]()

    async def work() -> None:
        await asyncio.sleep(0)
        raise UpstreamError(ACCESS_REFUSED, "refused")

    async def wait() -> None:
        mine = Backoff()
        gone.append(weakref.ref(mine))
        with contextlib.suppress(UpstreamError):
            await shared.done(work, "work")

    gc.disable()
    try:
        await asyncio.gather(wait(), wait(), wait())
        assert [each() for each in gone] == [None] * 3
    finally:
        gc.enable()
