"""Work that is not caused by one message: done a little at a time (`PacedWork`, `OperationStarts`), or repeated.

Paced work takes long, or is caused by many clients at the same moment: logins, ends, much input, costly selectors. The
event loop calls everything that is ready before it looks at the sockets again. Otherwise, when a thousand clients come
or go at once, or fifty send at full speed, the messages of all others would wait for the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from gateway.server.fault_boundary import Arguments, FaultOwner, guarded

PER_ROUND: Final = 0.001
"""The seconds for paced work in one event loop iteration, and the most for one owner at once. With less, the system
calls at the end of each turn would cost more than its work.

Work that begins within this time may take as long again, so an iteration may have almost twice as much.
"""

# The most operations that start in one event loop iteration.
_STARTS_PER_ROUND: Final = 8

# uvloop reads at most 256,000 bytes at once. After a read that size it reads the same socket again, up to 32 times,
# before any other.
FULL_READ: Final = 250_000


class PacedWork:
    """Does work at once while there is time in this event loop iteration, and otherwise in a later one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[tuple[FaultOwner, Callable[[], object]]] = deque()
        self._spent = 0.0
        self._has_next_round = False
        # The owner of the work under way, and when its time is over.
        self._owner: FaultOwner | None = None
        self._ends_at = 0.0

    def do(self, owner: FaultOwner, call: Callable[[], object]) -> bool:
        """Call a function, now or later, in the order of the calls. Returns whether it was called now."""
        work = owner, call
        self._waiting.append(work)
        if self._waiting[0] is not work:
            return False
        self._work()
        return not self._waiting or self._waiting[0] is not work

    def later(self, owner: FaultOwner, call: Callable[[], object]) -> None:
        """Call a function in another iteration, after the others."""
        self._waiting.append((owner, call))
        self._await_next_round()

    def do_each(self, work: Iterator[tuple[FaultOwner, Callable[[], object]]]) -> None:
        """Call many functions of their owners, in order. Each is created just before its call."""
        first = next(work, None)
        if first is not None:
            self.do(first[0], partial(self._do_some, first, work))

    def _do_some(
        self, item: tuple[FaultOwner, Callable[[], object]], work: Iterator[tuple[FaultOwner, Callable[[], object]]]
    ) -> None:
        guarded(*item)
        for each in work:
            if self.time_left <= 0:
                self.later(each[0], partial(self._do_some, each, work))
                return
            guarded(*each)

    def serves(self, owner: FaultOwner) -> bool:
        """Whether work of this owner is under way."""
        return self._owner is owner

    @property
    def has_time(self) -> bool:
        """Whether there is time in this iteration, and nothing waits for it."""
        return self._spent < PER_ROUND and not self._waiting

    def spend(self, call: Callable[Arguments, object], *arguments: Arguments.args, **named: Arguments.kwargs) -> None:
        """Call a function now, and take its time from this iteration's. Its errors are raised."""
        started = self._clock()
        call(*arguments, **named)
        self._spent += self._clock() - started
        self._await_next_round()

    @property
    def time_left(self) -> float:
        """The seconds that are left for the work under way; 0 or less if it should end."""
        return self._ends_at - self._clock()

    def _work(self) -> None:
        # Work that is added meanwhile is for another iteration.
        for _ in range(len(self._waiting)):
            if self._spent >= PER_ROUND:
                break
            started = self._clock()
            # It stays in its place, so that work that it adds waits after it.
            owner, call = self._waiting[0]
            self._owner, self._ends_at = owner, started + PER_ROUND
            guarded(owner, call)
            self._owner = None
            self._waiting.popleft()
            self._spent += self._clock() - started
        self._await_next_round()

    def _await_next_round(self) -> None:
        if not self._has_next_round:
            self._has_next_round = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._has_next_round = False
        self._spent = 0.0
        if self._waiting:
            self._work()

    def finish(self) -> None:
        """Do everything that waits, because the gateway stops."""
        while self._waiting:
            guarded(*self._waiting.popleft())


class OperationStarts:
    """Starts few operations in each event loop iteration, so that a thousand SUBSCRIBEs delay nobody.

    Each start is up to half a millisecond of work: a channel, and five methods for the broker in one write.
    """

    def __init__(self) -> None:
        self._left = _STARTS_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_turn(self) -> bool:
        """Whether one more operation may start in this iteration. If so, it is counted."""
        if self._left == _STARTS_PER_ROUND:
            asyncio.get_running_loop().call_soon(self._next_round)
        if not self._left or self._waiting:
            return False
        self._left -= 1
        return True

    async def turn(self) -> None:
        """Wait until one more may start, in the order of the calls."""
        if not self.take_turn():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _next_round(self) -> None:
        self._left = _STARTS_PER_ROUND
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():
                self._left -= 1
                turn.set_result(None)
        if self._left < _STARTS_PER_ROUND:
            asyncio.get_running_loop().call_soon(self._next_round)


class PeriodicTimer:
    """Calls a function every ``interval`` seconds, first after one interval.

    The next call is scheduled first, so that it is on time and the function may stop the timer.
    """

    __slots__ = ("_call", "_handle", "_interval", "_loop")

    def __init__(self, interval: float, call: Callable[[], None]) -> None:
        self._interval = interval
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_later(interval, self._fire)

    def _fire(self) -> None:
        self._handle = self._loop.call_later(self._interval, self._fire)
        self._call()

    def stop(self) -> None:
        """Make no further call."""
        self._handle.cancel()
