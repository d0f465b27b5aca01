"""Operations begin a few in each round of the event loop, so that a thousand clients that subscribe delay nobody else.

Each begins with up to half a millisecond of work: a channel, and five methods for the broker in one write.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

# How many begin in one round.
_PER_ROUND: Final = 8


class OperationStarts:
    """The beginnings of the operations of all sessions of a gateway."""

    def __init__(self) -> None:
        self._left = _PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take_turn(self) -> bool:
        """Begin one more in this round, if it may; whether it may."""
        if self._left == _PER_ROUND:
            asyncio.get_running_loop().call_soon(self._next_round)
        if not self._left or self._waiting:
            return False
        self._left -= 1
        return True

    async def turn(self) -> None:
        """Wait until one more may begin; in their order."""
        if not self.take_turn():
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def _next_round(self) -> None:
        self._left = _PER_ROUND
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            if not turn.done():
                self._left -= 1
                turn.set_result(None)
        if self._left < _PER_ROUND:
            asyncio.get_running_loop().call_soon(self._next_round)
