"""Plays all scenes, round by round."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from deploy.demo import mistakes
from deploy.demo.client import ClientFactory
from deploy.demo.sensors import Sensors
from deploy.demo.shop import Shop, Subscribers
from deploy.local.errors import LocalError

PAUSES: Final = (6.0, 4.0, 2.0, 0.0, 0.0, 2.0, 4.0, 8.0)
"""The least number of seconds between the beginnings of two rounds: traffic comes in waves, and durable subscribers
need some time to be away. A round itself goes as fast as broker and gateway can."""


async def drive(clients: ClientFactory, rounds: int, size: int, say: Callable[[str], None]) -> None:
    """Play all rounds.

    Args:
        clients: connects to the gateway.
        rounds: how many.
        size: of a round; about 18,000 frames for each unit.
        say: receives a line about each round.

    Raises:
        LocalError: the gateway did something unexpected.
    """
    try:
        await _drive(clients, rounds, size, say)
    except* LocalError as group:
        raise LocalError(str(_first(group))) from None
    except* OSError as group:
        raise LocalError(f"A connection to the gateway failed: {_first(group)}") from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


async def _drive(clients: ClientFactory, rounds: int, size: int, say: Callable[[str], None]) -> None:
    shop, sensors, subscribers = Shop(clients, size), Sensors(clients, size), Subscribers(clients, rounds)
    end = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(subscribers.stay_connected(end))
        for number in range(rounds):
            began = time.monotonic()
            await subscribers.before(number)
            async with asyncio.TaskGroup() as scenes:
                scenes.create_task(shop.play(number))
                scenes.create_task(sensors.play(number))
                scenes.create_task(mistakes.play(clients))
            frames = sum(tally.frames for tally in clients.tallies.values())
            took = time.monotonic() - began
            say(f"  round {number + 1} of {rounds}: {took:.1f} s, {frames:,} frames so far")
            if number + 1 < rounds:
                await asyncio.sleep(max(0.0, PAUSES[number % len(PAUSES)] - took))
        end.set()
