"""A thousand operations that are asked for at the same moment begin a few in each round of the event loop."""

from __future__ import annotations

import asyncio

from gateway.server.paced_work import OperationStarts


async def test_few_begin_in_each_round_and_all_in_their_order() -> None:
    starts, begun, rounds = OperationStarts(), list[int](), list[int]()

    async def begin(number: int) -> None:
        await starts.turn()
        begun.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(begin(number))
        while len(begun) < 100:
            before = len(begun)
            await asyncio.sleep(0)
            rounds.append(len(begun) - before)
    assert begun == list(range(100))
    assert max(rounds) <= 8
    # Later ones are as free as the first.
    await asyncio.wait_for(begin(100), 1)


async def test_who_is_gone_keeps_nobody_waiting() -> None:
    starts, begun = OperationStarts(), list[int]()

    async def begin(number: int) -> None:
        await starts.turn()
        begun.append(number)

    tasks = [asyncio.create_task(begin(number)) for number in range(40)]
    await asyncio.sleep(0)
    for task in tasks[8:32]:
        task.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert begun == [*range(8), *range(32, 40)]
