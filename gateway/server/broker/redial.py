"""Dialling again after a loss: one dial at a time for all sessions of a login, with pauses that grow.

2,000 sessions that lose one link wait for one `Redial`. 2,000 logins have as many, and share a few slots to dial in, so
that a broker that comes back, and the gateway itself, are not flooded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.server.broker.broker_errors import LinkDownError

# Seconds between two attempts: the first pause, and the longest. The jitter takes up to half of each away.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 3.0

# How many logins dial again at the same time, and how long a failed dial keeps its slot, in seconds.
_SLOTS: Final = 8
_SLOT_PAUSE: Final = 0.02


class Backoff:
    """The pauses between attempts: each about twice as long as the one before."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE

    def next(self) -> float:
        """The next pause in seconds."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


def dial_slots() -> asyncio.Semaphore:
    """The slots that all logins of a gateway share."""
    return asyncio.Semaphore(_SLOTS)


class Redial:
    """Dials for one login until a broker answers. ``dial`` opens a link."""

    def __init__(self, dial: Callable[[], Awaitable[None]], slots: asyncio.Semaphore) -> None:
        self._dial = dial
        self._slots = slots
        self._backoff = Backoff()
        # How long to wait before the next dial: nothing after a success.
        self._pause = 0.0
        self._task: asyncio.Task[None] | None = None
        self._waiting = 0

    async def answered(self) -> None:
        """Wait until a dial has succeeded that had not ended before.

        Raises:
            UpstreamError: a broker answered, and refused.
        """
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._until_answered(), name="redial")
        task = self._task
        self._waiting += 1
        try:
            await asyncio.shield(task)
        finally:
            self._waiting -= 1
            if not self._waiting and not task.done():
                # Nobody is left who wants the link.
                task.cancel()

    async def _until_answered(self) -> None:
        while True:
            await asyncio.sleep(self._pause)
            async with self._slots:
                self._pause = self._backoff.next()
                try:
                    await self._dial()
                except LinkDownError:
                    await asyncio.sleep(_SLOT_PAUSE)
                    continue
            self._pause, self._backoff = 0.0, Backoff()
            return
