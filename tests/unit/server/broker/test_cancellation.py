"""The AMQP library cancels a call whose answer can no longer come. A cancelled task is something else."""

from __future__ import annotations

import asyncio

import pytest

from gateway.server.broker.broker_errors import LinkDownError, UpstreamError, cause_of

CLOSED = UpstreamError(404, "NOT_FOUND")


async def call(future: asyncio.Future[None], *known: UpstreamError | None) -> None:
    """Await as the link does."""
    try:
        await future
    except asyncio.CancelledError as error:
        raise cause_of(error, *known) from error


async def test_a_call_that_the_library_cancels_is_a_lost_link() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    with pytest.raises(LinkDownError, match="did not answer"):
        await call(future, None)
    with pytest.raises(UpstreamError, match="NOT_FOUND"):
        await call(future, None, CLOSED)


@pytest.mark.parametrize("known", [None, CLOSED])
async def test_a_cancelled_task_stays_cancelled_whatever_is_known(known: UpstreamError | None) -> None:
    task = asyncio.ensure_future(call(asyncio.get_running_loop().create_future(), known))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
