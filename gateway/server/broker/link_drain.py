"""How links that drain become empty: their sessions leave, a few at a time, and a link that is empty closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gateway.server.broker.link import Link

# How many sessions leave at the same time: each has channels closed and opened, and some are held meanwhile.
_LEAVING: Final = 32


class LinkDrain:
    """Drains links of a gateway; ``links`` is a live view. ``spawn`` starts a background task."""

    def __init__(self, links: Iterable[Link], spawn: Callable[..., object]) -> None:
        # Each session takes one while it leaves.
        self.slots = asyncio.Semaphore(_LEAVING)
        self._links = links
        self._spawn = spawn
        self._is_under_way = False

    def sweep(self) -> None:
        """Close the links that are drained, and let sessions leave the others. Called about once a second."""
        draining = [link for link in self._links if link.is_draining and not link.is_closing]
        for link in draining:
            if link.is_idle:
                self._spawn(link.close())
        if draining and not self._is_under_way:
            self._is_under_way = True
            self._spawn(self._round(draining), name="leave draining links")

    async def _round(self, draining: Iterable[Link]) -> None:
        """Ask each session once."""
        remaining = iter([(link, user) for link in draining for user in link.users])

        async def ask_remaining() -> None:
            for link, user in remaining:
                async with self.slots:
                    await user.leave(link)
                # Others have their turn, even if each session only has to say no.
                await asyncio.sleep(0)

        try:
            await asyncio.gather(*(ask_remaining() for _ in range(_LEAVING)))
        finally:
            self._is_under_way = False
