"""Work that many clients cause at the same moment, such as their logins and their ends: little of it at a time.

The event loop calls everything that is ready before it looks at the sockets again. When a thousand clients come or go
at once, the messages of all others would wait for the last of them.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.server.fault_boundary import FaultOwner, guarded

# The time for such work in one round of the event loop, in seconds.
_PER_ROUND: Final = 0.004


class PacedWork:
    """Does work at once while there is time for it in this round of the event loop, and otherwise in a later round."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: deque[tuple[FaultOwner, Callable[[], object]]] = deque()
        self._spent = 0.0
        self._has_next_round = False

    def do(self, owner: FaultOwner, call: Callable[[], object]) -> None:
        """Call a function, now or later, in the order of the calls."""
        self._waiting.append((owner, call))
        if len(self._waiting) == 1:
            self._work()

    def _work(self) -> None:
        while self._waiting and self._spent < _PER_ROUND:
            started = self._clock()
            # Left in its place meanwhile: what it causes waits behind it.
            guarded(*self._waiting[0])
            self._waiting.popleft()
            self._spent += self._clock() - started
        if not self._has_next_round:
            self._has_next_round = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._has_next_round = False
        self._spent = 0.0
        if self._waiting:
            self._work()

    def finish(self) -> None:
        """Do everything that waits: the gateway stops."""
        while self._waiting:
            guarded(*self._waiting.popleft())
