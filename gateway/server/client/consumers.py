"""Starts and ends the consumers of one session's subscriptions."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import suppress
from functools import partial

from gateway.amqp.codec import CONSUME
from gateway.server.broker.broker_errors import NOT_FOUND, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.lost_consumers import LostConsumers
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription


class Consumers:
    """Carries out SUBSCRIBE and UNSUBSCRIBE. Each subscription has a consumer, on a channel of its own."""

    __slots__ = ("_channels", "_context", "_queues", "lost")

    def __init__(
        self, context: BridgeContext, channels: ConsumingChannels, queues: SessionQueues, lost: LostConsumers
    ) -> None:
        self._context = context
        self._channels = channels
        self._queues = queues
        self.lost = lost
        lost.restore = self.restore

    async def start(self, operation: ops.Subscribe) -> ops.Subscribed:
        """Open a channel, declare the queue, bind it and consume.

        Raises:
            UpstreamError: the broker refuses, or the link is lost. A new auto-delete queue is deleted again.
        """
        subscription = operation.subscription
        channel = await self._begun_channel(operation)
        self._channels.add(subscription, channel)
        declared = None
        cancelled: list[bool] = []
        channel.on_cancelled = lambda: cancelled.append(True)
        try:
            queue_name = operation.queue_name
            channel.limit(operation.prefetch)
            consumer = operation.arguments, operation.binding
            consuming: Awaitable[object] | None = None

            def declare(queue: QueueSpec) -> Awaitable[str]:
                # All in one write: the broker works in order, and ignores the methods after a refused one.
                nonlocal consuming
                name = channel.declare(queue, nowait=True)
                consuming = channel.consume(queue.name, *consumer)
                return name

            if operation.queue is not None:
                is_named = bool(operation.queue.name)
                queue_name, declared = await self._queues.declare(
                    operation.queue, channel, declare if is_named else None
                )
            if consuming is None:
                await self._queues.exclusive.check(queue_name, channel.link)
                consuming = channel.consume(queue_name, *consumer)
            await consuming
            if (gone := channel.link.closed or channel.closed) is not None:
                raise gone
            if cancelled:
                raise UpstreamError(NOT_FOUND, f"NOT_FOUND - queue '{queue_name}' was deleted", CONSUME)
        except UpstreamError as refusal:
            _ = self._channels.remove(subscription)
            await self._undo(channel, declared, refusal)
            raise
        self._queues.exclusive.consumed(subscription, queue_name)
        channel.on_closed = partial(self.lost.closed, subscription)
        channel.on_cancelled = partial(self.lost.cancelled, subscription)
        self._channels.pausable.read_or_pause()
        return ops.Subscribed(subscription, queue_name)

    async def _begun_channel(self, operation: ops.Subscribe) -> LinkChannel:
        owner = self._queues.exclusive.link_of(operation.queue_name)
        if owner is not None and owner.closed is None:
            return LinkChannel.begun(owner)
        if operation.needs_pausable_link:
            return LinkChannel.begun(await self._channels.pausable.opened())
        return await self._context.links.consuming_channel(selects=operation.subscription.selects)

    async def _undo(self, channel: LinkChannel, declared: QueueSpec | None, refusal: UpstreamError) -> None:
        """Clean up after a SUBSCRIBE that failed half-way: delete its new queue, unless that is in use."""
        await self._channels.close(channel)
        if declared is None or isinstance(refusal, LinkDownError) or declared.durable or not declared.auto_delete:
            return
        with suppress(UpstreamError):
            async with LinkChannel.opened(await self._context.links.consuming_link()) as cleaner:
                await cleaner.delete_queue(declared.name, if_idle=True)

    async def restore(self, operation: ops.Subscribe) -> ops.Subscribed:
        """Start a lost consumer again. Raises as ``start`` does."""
        try:
            return await self.start(operation)
        except UpstreamError:
            # Its new channel is lost, and messages that arrived on it will be delivered again.
            operation.subscription.lost()
            raise

    async def end(self, operation: ops.Unsubscribe) -> ops.Unsubscribed:
        """Close the channel, and delete the queue if one is named. See `ops.Unsubscribe`."""
        await self.lost.forget(operation.subscription)
        if operation.keeps_up_to is not None:
            await self._cancel(operation.subscription)
            return ops.Unsubscribed()
        channel = self._channels.remove(operation.subscription)
        if channel is not None:
            # Closing the channel requeues all unsettled messages and cancels the consumer.
            channel.discard(self._context.bridge)
            queue = self._queues.exclusive.to_delete_with(operation.subscription)
            try:
                if operation.delete_queue is not None:
                    queue = ""
                    await self._queues.exclusive.check(operation.delete_queue, channel.link)
                    await channel.cancel()
                    await channel.delete_queue(operation.delete_queue)
                    self._queues.exclusive.forget(operation.delete_queue)
            finally:
                await self._channels.close(channel, queue)
        elif operation.delete_queue is not None:
            # The subscription has lost its channel, and so the consumer, with its link.
            async with LinkChannel.opened(await self._context.links.consuming_link()) as channel:
                await self._queues.exclusive.check(operation.delete_queue, channel.link)
                await channel.delete_queue(operation.delete_queue)
        self._queues.exclusive.consumer_closed(operation.subscription)
        return ops.Unsubscribed()

    async def _cancel(self, subscription: Subscription) -> None:
        """Cancel the consumer, and keep its channel for messages that the client may still settle."""
        channel = self._channels.get(subscription)
        if channel is None:
            return
        is_pausable = self._channels.pausable.has(channel)
        if is_pausable:
            # The answer must be read.
            channel.link.resume_reading()
        await channel.cancel()
        if is_pausable:
            self._channels.pausable.read_or_pause()
