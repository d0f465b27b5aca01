"""Dialling again after a loss: one dial at a time for all sessions of a login, with pauses that grow.

2,000 sessions that lose one link wait for one `Redial`. 2,000 logins have as many, and share `DialSlots`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.dial_slots import DialSlots

# Seconds between two attempts: the first pause, and the longest. The jitter takes up to half of each away.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 3.0

# After so many seconds without an attempt the pauses begin anew.
_FORGETS: Final = 5.0

# How long a failed dial keeps its slot, in seconds: one that fails at once would not bound the dials.
_SLOT_PAUSE: Final = 0.02


class Backoff:
    """The pauses between attempts: each about twice as long as the one before."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._ended_at: float | None = None

    def begin(self, now: float) -> float:
        """Begin a series of attempts; the pause before it: nothing, unless the last series ended a moment ago."""
        if self._ended_at is not None and now - self._ended_at < _FORGETS:
            return self.next()
        self._pause = _FIRST_PAUSE
        return 0.0

    def next(self) -> float:
        """The next pause in seconds."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def end(self, now: float) -> None:
        """End the series, though it may have led to nothing."""
        self._ended_at = now


class Redial:
    """Dials for one login to a virtual host until a broker answers. ``dial`` opens a link."""

    def __init__(self, dial: Callable[[], Awaitable[None]], slots: DialSlots, virtual_host: str) -> None:
        self._dial = dial
        self._slots = slots
        self._virtual_host = virtual_host
        self._backoff = Backoff()
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
                # Nobody is left who wants the link. Who asks from now on begins another dial.
                task.cancel()
                if self._task is task:
                    self._task = None

    async def _until_answered(self) -> None:
        clock = asyncio.get_running_loop().time
        pause = self._backoff.begin(clock())
        try:
            while not await self._has_answered(pause):
                pause = self._backoff.next()
        except BaseException:
            self._backoff.end(clock())
            raise
        self._backoff = Backoff()

    async def _has_answered(self, pause: float) -> bool:
        await asyncio.sleep(pause)
        async with self._slots.slot(self._virtual_host):
            try:
                await self._dial()
            except LinkDownError:
                await asyncio.sleep(_SLOT_PAUSE)
                return False
        return True
