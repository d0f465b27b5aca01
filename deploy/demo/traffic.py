"""All scenes, round by round."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from deploy.demo import mistakes
from deploy.demo.client import Reception
from deploy.demo.sensors import Sensors
from deploy.demo.shop import Shop, Subscribers
from deploy.local.errors import LocalError

PAUSES: Final = (6.0, 4.0, 2.0, 0.0, 0.0, 2.0, 4.0, 8.0)
"""A round begins so many seconds after the one before it began, or later: traffic comes in waves, and subscribers need
some time to be missing in. A round itself goes as fast as broker and gateway can."""


async def drive(reception: Reception, rounds: int, size: int, say: Callable[[str], None]) -> None:
    """Play all rounds.

    Args:
        reception: where to connect.
        rounds: how many.
        size: of a round; about 18,000 frames for each unit.
        say: takes a line about the progress.

    Raises:
        LocalError: the gateway did something unexpected.
    """
    try:
        await _drive(reception, rounds, size, say)
    except* LocalError as group:
        raise LocalError(str(_first(group))) from None
    except* OSError as group:
        raise LocalError(f"A connection to the gateway failed: {_first(group)}") from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _drive(reception: Reception, rounds: int, size: int, say: Callable[[str], None]) -> None:
    shop, sensors, subscribers = Shop(reception, size), Sensors(reception, size), Subscribers(reception, rounds)
    end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(subscribers.faithful(end))
        for number in range(rounds):
            began = time.monotonic()
            await subscribers.before(number)
            async with asyncio.TaskGroup() as scenes:
                scenes.create_task(shop.play(number))
                scenes.create_task(sensors.play(number))
                scenes.create_task(mistakes.play(reception))
            frames = sum(tally.frames for tally in reception.tallies.values())
            took = time.monotonic() - began
            say(f"  round {number + 1} of {rounds}: {took:.1f} s, {frames:,} frames so far")
            if number + 1 < rounds:
                await asyncio.sleep(max(0.0, PAUSES[number % len(PAUSES)] - took))
        end.set()
