"""Dialling again: one dial for all who wait, pauses that grow, and nobody who dials for nobody."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.redial import Backoff, Redial, dial_slots
from tests.support.deadline import until


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
    redial = Redial(broker.dial, dial_slots())
    await asyncio.gather(*(redial.answered() for _ in range(100)))
    assert broker.dials == 3


async def test_the_first_dial_is_at_once_also_after_a_success() -> None:
    broker = Broker(None)
    redial = Redial(broker.dial, dial_slots())
    for number in range(3):
        waiting = asyncio.ensure_future(redial.answered())
        for _ in range(5):
            # Turns of the event loop, in which no timer fires.
            await asyncio.sleep(0)
        assert broker.dials == number + 1
        await waiting


async def test_a_refusal_is_for_all_who_wait_and_the_next_dial_is_not_at_once() -> None:
    broker = Broker(UpstreamError(403, "ACCESS_REFUSED"), None)
    redial = Redial(broker.dial, dial_slots())
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
    redial = Redial(broker.dial, dial_slots())
    waiting = [asyncio.ensure_future(redial.answered()) for _ in range(2)]
    await until(lambda: asyncio.sleep(0, broker.dials), lambda dials: dials > 1)
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    assert redial._task is not None
    assert not redial._task.done()
    waiting[1].cancel()
    await asyncio.wait([waiting[1], redial._task])
    assert redial._task.cancelled()


async def test_the_dials_of_many_logins_share_a_few_slots() -> None:
    under_way = most = 0

    async def dial() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1

    slots = dial_slots()
    await asyncio.gather(*(Redial(dial, slots).answered() for _ in range(100)))
    assert most <= 8


def test_pauses_double_up_to_three_seconds_less_some_jitter() -> None:
    backoff = Backoff()
    pauses = [backoff.next() for _ in range(10)]
    wanted = [0.1, 0.2, 0.4, 0.8, 1.6, 3, 3, 3, 3, 3]
    assert all(whole / 2 <= pause <= whole for pause, whole in zip(pauses, wanted, strict=True))
    assert len(set(pauses)) == len(pauses)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "pauses" not in request.node.name:
        monkeypatch.setattr("gateway.server.broker.redial._FIRST_PAUSE", 0.02)
