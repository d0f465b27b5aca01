"""The cut of a COMMIT, which a fault asks a producer for."""

from __future__ import annotations

import asyncio
import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.chaos.client import Scene
from tests.chaos.producer import Producer
from tests.chaos.recording import Recording
from tests.chaos.schedule import ProducerPlan, Receipts, Schedule, Transport, Variant


@pytest.mark.parametrize("is_given_up", [False, True])
async def test_a_cut_that_was_given_up_while_the_gateway_did_not_answer_is_not_made(is_given_up: bool) -> None:
    plan = ProducerPlan("p", Transport.TCP, (), 1, 1, Receipts.NONE, 1.0, (0, 9), 1, 1, 0.0)
    schedule = Schedule(1, Variant.SHARED, (), (plan,), (), ())
    scene = Scene(schedule, Recording(), {}, ssl.create_default_context(), lambda: 0.0)
    cuts: list[str] = []
    scene.at_commit["p"] = lambda: cuts.append("p")
    answer = asyncio.get_running_loop().create_future()

    async def ask(*_: object) -> asyncio.Future[None]:
        return answer

    talk = cast(Any, SimpleNamespace(ask=ask))
    cutting = asyncio.create_task(Producer(scene, plan)._cut_if_planned(talk, 0))
    await asyncio.sleep(0)
    if is_given_up:
        scene.at_commit.pop("p", None)
    answer.set_result(None)
    await cutting
    assert cuts == ([] if is_given_up else ["p"])
