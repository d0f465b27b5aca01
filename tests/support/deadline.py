"""Waiting in tests: for an event or a condition, with a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from threading import Event
from typing import Final, TypeVar

PATIENCE: Final = 20.0
"""Seconds to wait for something that should come at once. Only a failing test waits so long, even on a busy machine."""

_LOOK_AGAIN: Final = 0.05

ValueT = TypeVar("ValueT")


def within(seconds: float = PATIENCE) -> asyncio.Timeout:
    """A bound for a whole test, or for a step of one; exceeding it raises TimeoutError."""
    return asyncio.timeout(seconds)


async def until(
    observe: Callable[[], Awaitable[ValueT]], expected: Callable[[ValueT], bool], seconds: float = PATIENCE
) -> ValueT:
    """Poll something outside the test, such as the length of a queue, until it is as expected.

    Args:
        observe: reads the value.
        expected: whether the value is the awaited one.
        seconds: the time limit.

    Returns:
        The value that was expected.

    Raises:
        AssertionError: it did not become so in time; the message has the last value.
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
