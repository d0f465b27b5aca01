"""What a client notices of another one that keeps the gateway busy."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol


class Asking(Protocol):
    """A client that asks and is answered."""

    async def ask(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        """Send a frame and wait for its receipt."""


async def answers_during(busy: Coroutine[None, None, None], other: Asking) -> int:
    """How many pairs of answers one client gets until another has its own.

    Args:
        busy: waits for the other one's answer.
        other: asks all the while.
    """
    done = asyncio.ensure_future(busy)
    answers = 0
    while not done.done():
        await other.ask("BEGIN", transaction=f"t{answers}")
        await other.ask("ABORT", transaction=f"t{answers}")
        answers += 1
    await done
    return answers
