"""The end of many sessions, spread over a time, so that not all their clients connect elsewhere in the same second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection

# Seconds between two sessions, if there is time for it. So a few sessions end at once, and a thousand take ten seconds.
_STEP: Final = 0.01


async def drain_clients(clients: Iterable[ClientConnection], spread: float) -> None:
    """Drain clients one after the other, over at most ``spread`` seconds; each works as before until its turn.

    Returns when the last one has begun to finish its work. Clients that have gone by themselves take no time.
    """
    waiting = tuple(clients)
    loop = asyncio.get_running_loop()
    start, step, drained = loop.time(), min(_STEP, spread / max(len(waiting), 1)), 0
    for client in waiting:
        if client.is_closed:
            continue
        early = start + drained * step - loop.time()
        if early > 0:
            await asyncio.sleep(early)
        client.drain()
        drained += 1
