"""Dialling again after a loss: one dial at a time for all sessions of a login, with a back-off.

2,000 sessions of one login that lose a link wait for one `Redial`. 2,000 logins have one each, and share `DialSlots`.
"""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from gateway.server.broker.broker_errors import LinkDownError

# The number of slots, and how long a dial may have one, in seconds. A longer dial continues without.
_SLOTS: Final = 8
_LONGEST_TURN: Final = 0.25


class DialSlots:
    """Bounds the dials of all logins of a gateway. Virtual hosts take turns."""

    def __init__(self) -> None:
        self._free = _SLOTS
        # The waiting dials by virtual host. The first one of the first virtual host is next.
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, virtual_host: str) -> AsyncIterator[None]:
        """Wait for a slot, and keep it for the block, but for a quarter of a second at most."""
        await self._take(virtual_host)
        with ExitStack() as stack:
            stack.callback(self._give_back)
            stack.callback(asyncio.get_running_loop().call_later(_LONGEST_TURN, stack.close).cancel)
            yield

    async def _take(self, virtual_host: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(virtual_host, OrderedDict())[turn] = None
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(virtual_host, turn)
            else:
                self._give_back()
            raise

    def _leave(self, virtual_host: str, turn: asyncio.Future[None]) -> None:
        turns = self._waiting.get(virtual_host)
        if turns is not None:
            turns.pop(turn, None)
            if not turns:
                del self._waiting[virtual_host]

    def _give_back(self) -> None:
        while self._waiting:
            virtual_host, turns = self._waiting.popitem(last=False)
            turn, _ = turns.popitem(last=False)
            if turns:
                # To the end: other virtual hosts come first.
                self._waiting[virtual_host] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


# Seconds between two attempts: the first pause, and the longest. The jitter subtracts up to half.
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 3.0

# After this many seconds without an attempt, the pauses start again with the first.
_FORGETS: Final = 5.0

# How long a failed dial keeps its slot, in seconds. Otherwise dials that fail at once would not be bounded.
_SLOT_PAUSE: Final = 0.02


class Backoff:
    """The pauses between attempts, in seconds. Each is about twice as long as the one before."""

    def __init__(self) -> None:
        self._pause = _FIRST_PAUSE
        self._ended_at: float | None = None

    def begin(self, now: float) -> float:
        """Begin a series of attempts. Returns the pause before it: 0, unless the last series ended a moment ago."""
        if self._ended_at is not None and now - self._ended_at < _FORGETS:
            return self.next()
        self._pause = _FIRST_PAUSE
        return 0.0

    def next(self) -> float:
        """Return the next pause in seconds."""
        pause, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def end(self, now: float) -> None:
        """Note the end of the series, successful or not. ``now`` is in seconds."""
        self._ended_at = now


_Result = TypeVar("_Result")


class SharedTask(Generic[_Result]):
    """Work that several callers wait for. If all of them are cancelled, so is the work."""

    def __init__(self) -> None:
        # The work, while it is under way, and until the event loop has told those who wait.
        self.task: asyncio.Task[_Result] | None = None
        # The number of callers that wait.
        self.waiting = 0

    async def done(self, begin: Callable[[], Coroutine[Any, Any, _Result]], name: str) -> _Result:
        """Wait for the work under way, or begin it. Returns its result, and raises its errors."""
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(begin(), name=name)
            self.task.add_done_callback(self._ended)
        task = self.task
        self.waiting += 1
        try:
            return await asyncio.shield(task)
        finally:
            self.waiting -= 1
            if not self.waiting and task.cancel():
                # A later caller begins again.
                self._ended(task)
            # An error refers to this frame: with the task, which has the error, it would be a reference cycle.
            del task

    def _ended(self, task: asyncio.Task[_Result]) -> None:
        if self.task is task:
            self.task = None


class Redial:
    """Dials for one login until a broker answers. ``dial``: opens a link."""

    def __init__(self, dial: Callable[[], Awaitable[None]], slots: DialSlots, virtual_host: str) -> None:
        self._dial = dial
        self._slots = slots
        self._virtual_host = virtual_host
        self._backoff = Backoff()
        self._dialling = SharedTask[None]()

    async def answered(self) -> None:
        """Wait until a dial succeeds. All callers share it.

        Raises:
            UpstreamError: a broker refused.
        """
        await self._dialling.done(self._until_answered, "redial")

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
