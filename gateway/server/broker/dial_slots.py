"""Slots for dialling again: few at a time, so that neither a broker that comes back nor the gateway is flooded.

Virtual hosts take turns, and a slot is for the beginning of a dial. So one whose brokers are silent, with thousands of
logins that dial in vain, costs another one nothing but a turn.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final

# How many slots there are, and how long a dial may have one, in seconds. One that takes longer goes on without.
_SLOTS: Final = 8
_LONGEST_TURN: Final = 0.25


class DialSlots:
    """The slots that all logins of a gateway share."""

    def __init__(self) -> None:
        self._free = _SLOTS
        # Who waits, by virtual host; the first one of the first virtual host is next.
        self._waiting: OrderedDict[str, OrderedDict[asyncio.Future[None], None]] = OrderedDict()

    @asynccontextmanager
    async def slot(self, virtual_host: str) -> AsyncIterator[None]:
        """Wait for a slot, and have it for the block, but not for long."""
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
                # Behind the other virtual hosts.
                self._waiting[virtual_host] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
