"""Calls to a worker end, whatever becomes of it."""

from __future__ import annotations

import asyncio
import socket

import pytest

from gateway.server.process.worker_channel import WorkerCalls, WorkerGoneError
from tests.support.deadline import within


async def test_a_call_that_has_no_answer_yet_ends_when_the_channel_is_closed() -> None:
    own, other = socket.socketpair()
    with other:
        calls = await WorkerCalls.over(own)
        asked = asyncio.create_task(calls.call("apply"))
        await asyncio.sleep(0)  # it asks
        await calls.close()
        async with within():
            with pytest.raises(WorkerGoneError):
                await asked
