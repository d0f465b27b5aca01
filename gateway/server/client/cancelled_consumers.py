"""Consumers that the broker has cancelled: their queue was deleted, perhaps with its whole virtual host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from gateway.server.broker.broker_errors import ACCESS_REFUSED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.client.consuming_channels import ChannelsOwner, ConsumingChannels
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.session import Session
from gateway.session.subscription import Subscription

# How long RabbitMQ may take from deleting a virtual host's first queue to closing its connections, in seconds.
_VHOST_DELETION: Final = 30.0


class CancelledConsumers:
    """Tells the session of a cancelled consumer, once it is known that its link is not lost with it.

    A session rides through the loss of its link, and so through the deletion of a virtual host that is made again.
    ``spawn`` starts background work of the session.
    """

    __slots__ = ("_channels", "_owner", "_queues", "_session", "_spawn", "_undecided")

    def __init__(
        self,
        session: Session,
        owner: ChannelsOwner,
        channels: ConsumingChannels,
        queues: SessionQueues,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._session = session
        self._owner = owner
        self._channels = channels
        self._queues = queues
        self._spawn = spawn
        # Each with what is set when its link is lost, or when nobody needs to know any more.
        self._undecided: dict[Subscription, asyncio.Event] = {}

    def add(self, subscription: Subscription) -> None:
        """The broker has cancelled the consumer of a subscription."""
        channel = self._channels.remove(subscription)
        self._queues.exclusive.consumer_cancelled(subscription)
        if channel is None:
            self._owner.handle(ops.ConsumerCancelled(subscription))
            return
        channel.discard(self._owner)
        if self._session.settings.upstream.ride_through:
            self._undecided[subscription] = asyncio.Event()
        else:
            self._owner.handle(ops.ConsumerCancelled(subscription))
        self._spawn(self._clean_up(subscription, channel), "cancelled")

    async def _clean_up(self, subscription: Subscription, channel: LinkChannel) -> None:
        """The queue is gone. If its virtual host goes with it, the link does, too, and the session rides through."""
        link_is_lost = self._undecided.get(subscription)
        try:
            if link_is_lost is not None:
                await self._until_lost(channel.link, subscription, link_is_lost)
                if self._undecided.pop(subscription, None) is not None:
                    self._owner.handle(ops.ConsumerCancelled(subscription))
        finally:
            await self._channels.close(channel)

    @staticmethod
    async def _until_lost(link: Link, subscription: Subscription, link_is_lost: asyncio.Event) -> None:
        """Wait for the loss of the link if the virtual host goes: permissions go first, connections last."""
        try:
            async with LinkChannel.opened(link) as channel:
                await channel.may_consume(subscription.queue)
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED or isinstance(refusal, LinkDownError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(link_is_lost.wait(), _VHOST_DELETION)

    def lose(self) -> tuple[Subscription, ...]:
        """A link is lost: their own, or another one of the same virtual host. They are lost with it."""
        lost = tuple(self._undecided)
        self.give_up()
        self._undecided.clear()
        return lost

    def give_up(self) -> None:
        """The session is over: wait for nothing any more."""
        for link_is_lost in self._undecided.values():
            link_is_lost.set()
