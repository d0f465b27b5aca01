"""Waiting in tests: for an event or a condition, never for a length of time, and never for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Final, TypeVar

PATIENCE: Final = 20.0
"""Seconds to wait for what should come at once; enough for a busy machine, as only a failing test waits so long."""

_LOOK_AGAIN: Final = 0.05

ValueT = TypeVar("ValueT")


def within(seconds: float = PATIENCE) -> asyncio.Timeout:
    """A bound for a whole test, or for a step of one; exceeding it raises TimeoutError."""
    return asyncio.timeout(seconds)


async def until(
    observe: Callable[[], Awaitable[ValueT]], expected: Callable[[ValueT], bool], seconds: float = PATIENCE
) -> ValueT:
    """Look at something outside the test, such as a queue's length, until it is as expected.

    Args:
        observe: looks once.
        expected: whether the value is the awaited one.
        seconds: how long to go on.

    Returns:
        The value that was expected.

    Raises:
        AssertionError: it did not become so in time; the text holds the last value.
    """
    deadline = time.monotonic() + seconds
    while not expected(value := await observe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} seconds it is still {value!r}")
        await asyncio.sleep(_LOOK_AGAIN)
    return value


def happens(event: Event, seconds: float = PATIENCE) -> None:
    """Wait for another thread's event.

    Raises:
        AssertionError: it was not set in time.
    """
    assert event.wait(seconds), f"nothing happened within {seconds:g} seconds"
