"""The queues that one session declares."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.queue_declare import Declare, ExclusiveQueues, declare_or_accept
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.session.queues import QueueSpec


class SessionQueues:
    """Declares queues. ``exclusive`` has those that belong to the session, and for the broker to one of its links."""

    __slots__ = ("_channels", "_context", "_lost", "exclusive")

    def __init__(self, context: BridgeContext, channels: ConsumingChannels) -> None:
        self._context = context
        self._channels = channels
        self.exclusive = ExclusiveQueues(context.bridge, lambda: context.links)
        # The exclusive queues that were lost with their link.
        self._lost: list[QueueSpec] = []

    async def declare(
        self, queue: QueueSpec, channel: LinkChannel, declare: Declare | None = None
    ) -> tuple[str, QueueSpec | None]:
        """Declare a queue.

        ``declare``: sends the declaration, and methods that may follow it without waiting for the answer.

        Returns:
            The queue's name, and ``queue``; instead of that, None if the queue exists with other properties.

        Raises:
            UpstreamError: the queue belongs to another session, the broker refuses, or the link is lost.
        """
        if not queue.name or not self._context.session.settings.takes_existing_queues:
            return await self._declare_on(channel, queue, declare or channel.declare), queue
        # Only an exclusive queue belongs to the link.
        link = channel.link if queue.exclusive else await self._context.links.with_room(channel.link)
        conflict = await declare_or_accept(queue, link, partial(self._declare_on, queue=queue))
        if conflict is None:
            return queue.name, queue
        self._context.pool.queue_conflicts.write(self._context.session.settings.name, queue.name, conflict.text)
        return queue.name, None

    async def declare_for_publishing(self, queue: QueueSpec, publishing: LinkChannel) -> None:
        """Declare the queue of a message; an exclusive one on a link for consuming.

        If the session survives refused SENDs, this uses another channel, because a refusal closes the channel.
        """
        if queue.exclusive:
            await self.declare(queue, await self._channels.control())
        elif self._context.session.context.keeps_after_send_error:
            async with LinkChannel.opened(await self._context.links.with_room(publishing.link)) as channel:
                await self.declare(queue, channel)
        else:
            await self.declare(queue, publishing)

    async def _declare_on(self, channel: LinkChannel, queue: QueueSpec, declare: Declare | None = None) -> str:
        declare = declare or channel.declare
        if queue.exclusive:
            return await self.exclusive.declare(queue, channel.link, declare)
        return await declare(queue)

    def lose(self, link: Link) -> None:
        """Note that a link is lost, and with it the exclusive queues that it owned for the broker."""
        self._lost += self.exclusive.link_lost(link)

    async def restore(self, declared_otherwise: Collection[str]) -> None:
        """Declare lost exclusive queues again, except those with these names."""
        while self._lost:
            # Removed before the await, during which others may be lost.
            queue = self._lost.pop()
            if queue.name in declared_otherwise:
                continue
            try:
                await self._declare_on(await self._channels.control(), queue)
            except BaseException:
                self._lost.append(queue)
                raise
