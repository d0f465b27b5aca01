"""Moves the channels of one session away from links that drain, when nothing can be lost by it.

For publishing, the session asks for another channel, as for a bulk link. Subscriptions move when all their deliveries
are settled. While the session waits for that, `look` checks it after each batch of its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from gateway.server.broker.broker_errors import CONNECTION_FORCED, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.session_queues import SessionQueues


class LeavingLinks:
    """The draining links that one session is leaving."""

    __slots__ = (
        "_awaited", "_channels", "_closing", "_context", "_is_over", "_publishing", "_queues", "_under_way", "moments",
    )  # fmt: skip

    def __init__(
        self, context: BridgeContext, channels: ConsumingChannels, publishing: PublishingChannel, queues: SessionQueues
    ) -> None:
        self._context = context
        self._channels = channels
        self._publishing = publishing
        self._queues = queues
        # Conditions, and what to do, once, when they are met.
        self.moments: list[tuple[Callable[[], bool], Callable[[], object]]] = []
        # The links with subscriptions that wait for acknowledgements, and those for which ``leave_link`` is running.
        self._awaited: set[Link] = set()
        self._under_way: set[Link] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_over = False

    def look(self) -> None:
        """Check the conditions in ``moments``. HOT while there are any: once per batch."""
        moments, self.moments = self.moments, []
        for moment in moments:
            has_come, act = moment
            if self._is_over or has_come():
                act()
            else:
                self.moments.append(moment)

    def give_up(self) -> None:
        """Stop waiting, at the end of the session."""
        self._is_over = True
        self.look()

    async def done(self) -> None:
        """Wait until the old channels are closed: only then are all messages back in their queues, in order."""
        if self._closing:
            await asyncio.wait(self._closing)

    async def leave_link(self, link: Link) -> None:
        """Leave a link that drains, if nothing can be lost by it. The caller has one of the pool's slots for moves."""
        if link not in self._under_way:
            self._under_way.add(link)
            try:
                await self._leave(link)
            finally:
                self._under_way.discard(link)

    async def _leave(self, link: Link) -> None:
        if not self._may_leave(link):
            return
        links = self._context.links
        if not links.is_replaced(link):
            # A session leaves its link only after a broker has accepted the login again.
            await links.replace(link)
            if not links.is_replaced(link):
                return
        if self._publishing.is_on(link):
            session = self._context.session
            if self._publishing.renew() and (asked := session.operation) is not None:
                # Not longer: the slot is for this operation only, and the client may ask for others.
                await self._until(lambda: session.operation is not asked)
        elif self._is_quiet(link):
            await self._leave_now(link)
        elif link not in self._awaited and self._channels.subscriptions_on(link):
            self._awaited.add(link)
            self.moments.append((partial(self._is_settled, link), partial(self._settled, link)))

    def _may_leave(self, link: Link) -> bool:
        is_here = not self._is_over and link.closed is None
        subscriptions = self._channels.subscriptions_on(link)
        return is_here and not self._queues.exclusive.has_any(link) and self._context.session.can_leave(subscriptions)

    def _is_quiet(self, link: Link) -> bool:
        return self._may_leave(link) and self._context.session.is_quiet(self._channels.subscriptions_on(link))

    def _is_settled(self, link: Link) -> bool:
        return link.closed is not None or self._is_quiet(link)

    def _settled(self, link: Link) -> None:
        """Leave the link now that all deliveries are settled."""
        self._awaited.discard(link)
        _ = self._context.spawn(self._leave_in_turn(link), "leave")

    async def _leave_in_turn(self, link: Link) -> None:
        async with self._context.pool.drain.slots:
            await self.leave_link(link)

    async def _leave_now(self, link: Link) -> None:
        """Treat the link as lost for this session. Messages on their way from the broker return to their queue."""
        left = self._channels.channels_on(link)
        for channel in left:
            channel.discard(self._context.bridge)
        closing = self._context.spawn(self._close(left), "leave")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        replaced = UpstreamError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection is replaced")
        self._context.bridge.lose(link, replaced)
        await self._until(lambda: not self._context.session.is_recovering)

    async def _close(self, channels: list[LinkChannel]) -> None:
        await asyncio.gather(*map(self._channels.close, channels))

    async def _until(self, has_come: Callable[[], bool]) -> None:
        """Wait until a condition is met, or the session ends."""
        came = asyncio.Event()
        moment = has_come, came.set
        if self._is_over or has_come():
            return
        self.moments.append(moment)
        try:
            await came.wait()
        finally:
            self.moments = [each for each in self.moments if each is not moment]
