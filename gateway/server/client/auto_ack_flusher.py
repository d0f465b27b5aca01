"""Automatic acknowledgements, settled for all clients together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection

# Automatic acknowledgements wait for the settler's next round, in seconds: a write to the broker for each message would
# cost more than the message.
_SETTLE_WITHIN: Final = 0.01


class AutoAckFlusher:
    """Settles automatic acknowledgements of all clients in rounds, so that no message needs a timer of its own.

    Args:
        loop: whose clock is used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[ClientConnection] = set()

    def soon(self, client: ClientConnection) -> None:
        """Settle for a client in the next round."""
        if not self._waiting:
            self._loop.call_later(_SETTLE_WITHIN, self._round)
        self._waiting.add(client)

    def _round(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for client in waiting:
            client.settle()
