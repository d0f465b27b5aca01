"""Consumers that the broker cancelled, or that a recovery could not restore: their queue is deleted or away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from gateway.server.broker.broker_errors import ACCESS_REFUSED, NOT_FOUND, LinkDownError, UpstreamError, passes
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.queue_watch import PROMPT, QueueState
from gateway.server.broker.redial import Backoff
from gateway.server.client.bridge_context import BridgeContext
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.ride_through import rename_queue, request_of
from gateway.session.subscription import Subscription

# The longest time between RabbitMQ's deletion of a virtual host's first queue and of its connections, in seconds.
_VHOST_DELETION: Final = 30.0

# RabbitMQ deletes the queues of a lost node by name. This may hit a queue that was declared again, and its consumer is
# not told. Release 4.3 does so when the node is back. So the gateway looks for a queue that must keep its name after
# each of these pauses in seconds: for ten minutes in total.
_LOOKS: Final = (1.0, 4.0, 15.0, 40.0, 120.0, 420.0)


class LostConsumers:
    """Finds out why a consumer is lost. If its queue is away, restores it alone, while its session continues.

    If the queue is deleted, the session is told, but only when it is known that the link is not lost, too. A session
    rides through the loss of its link, and so survives the deletion of a virtual host that is made again.

    ``restore``: `Consumers.restore`. `BridgeParts.forget` deletes it, because it forms a reference cycle.
    """

    __slots__ = ("_channels", "_context", "_queues", "_undecided", "_waiting", "_watched", "restore")

    restore: Callable[[ops.Subscribe], Awaitable[ops.Subscribed]]

    def __init__(self, context: BridgeContext, channels: ConsumingChannels, queues: SessionQueues) -> None:
        self._context = context
        self._channels = channels
        self._queues = queues
        # The reason is not known yet. The event is set when the link is lost, or the reason no longer matters.
        self._undecided: dict[Subscription, asyncio.Event] = {}
        # Subscriptions that wait for their queue.
        self._waiting: dict[Subscription, asyncio.Task[None]] = {}
        # Restored subscriptions whose queue may still be deleted with those of a lost node.
        self._watched: dict[Subscription, asyncio.Task[None]] = {}

    def cancelled(self, subscription: Subscription) -> None:
        """Handle basic.cancel from the broker."""
        channel = self._channels.remove(subscription)
        self._queues.exclusive.consumer_cancelled(subscription)
        if channel is None:
            self._context.bridge.handle(ops.ConsumerCancelled(subscription))
            return
        channel.discard(self._context.bridge)
        if self._context.ride_through:
            self._undecided[subscription] = asyncio.Event()
            self._tell_lost(subscription)
        else:
            self._context.bridge.handle(ops.ConsumerCancelled(subscription))
        _ = self._context.spawn(self._decide(subscription, channel), "cancelled")

    def closed(self, subscription: Subscription, refusal: UpstreamError) -> None:
        """Handle channel.close from the broker.

        The code 404 means that it has just deleted the queue, which the subscription had declared again: RabbitMQ
        deletes the queues of a lost node by name.
        """
        context = self._context
        if refusal.code == NOT_FOUND and context.ride_through and rename_queue(context.session.context, subscription):
            self._missing(subscription)
        else:
            context.bridge.channel_closed(refusal, publishing=False)

    def _missing(self, subscription: Subscription) -> None:
        """Restore a subscription whose queue the broker has deleted."""
        if (channel := self._channels.remove(subscription)) is not None:
            channel.discard(self._context.bridge)
        self._queues.exclusive.consumer_cancelled(subscription)
        self.wait_for(subscription)

    async def _decide(self, subscription: Subscription, channel: LinkChannel) -> None:
        """Find out whether the queue is deleted or away, and whether the link is lost, too, with the virtual host."""
        link_is_lost = self._undecided.get(subscription)
        state = QueueState.DELETED
        try:
            if link_is_lost is not None:
                with contextlib.suppress(UpstreamError):
                    state = await self._context.links.queue_watch.state(_queue_of(subscription))
                if state is not QueueState.AWAY:
                    await self._until_lost(channel.link, subscription, link_is_lost)
                if self._undecided.pop(subscription, None) is None:
                    # Its link is lost, and the recovery restores it.
                    pass
                elif state is not QueueState.DELETED:
                    self._begin(subscription, may_be_made=False)
                else:
                    self._context.bridge.handle(ops.ConsumerCancelled(subscription))
        finally:
            await self._channels.close(channel)

    @staticmethod
    async def _until_lost(link: Link, subscription: Subscription, link_is_lost: asyncio.Event) -> None:
        """Wait for the loss of the link if the virtual host is being deleted: permissions first, connections last."""
        try:
            async with asyncio.timeout(PROMPT), LinkChannel.opened(link) as channel:
                await channel.may_consume(_queue_of(subscription))
        except TimeoutError:
            # The node of the queue was lost just now.
            pass
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED or isinstance(refusal, LinkDownError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(link_is_lost.wait(), _VHOST_DELETION)

    # A queue that is away.

    def wait_for(self, subscription: Subscription) -> None:
        """Restore a subscription later, when its queue exists, because the recovery could not.

        A deleted queue may be made again, as with a virtual host.
        """
        self._begin(subscription, may_be_made=True)
        self._tell_lost(subscription)

    def _tell_lost(self, subscription: Subscription) -> None:
        # Now, because the session may handle the event only after the subscription has another channel.
        subscription.lost()
        self._context.bridge.handle(ops.QueueAway(subscription))

    def _begin(self, subscription: Subscription, *, may_be_made: bool) -> None:
        if subscription not in self._waiting:
            work = self._bring_back(subscription, may_be_made)
            self._waiting[subscription] = self._context.spawn(work, "queue")

    async def _bring_back(self, subscription: Subscription, may_be_made: bool) -> None:
        event: ops.Event = ops.ConsumerCancelled(subscription)
        try:
            async with asyncio.timeout(self._context.ride_through):
                if (subscribed := await self._until_back(subscription, may_be_made)) is not None:
                    event = ops.QueueBack(subscribed)
        except TimeoutError:
            pass
        except UpstreamError as refusal:
            self._context.log_wait(refusal.text)
        finally:
            if self._waiting.get(subscription) is asyncio.current_task():
                del self._waiting[subscription]
        self._context.bridge.handle(event)

    async def _until_back(self, subscription: Subscription, may_be_made: bool) -> ops.Subscribed | None:
        """Try until the consumer runs. Returns None if the queue is deleted.

        Raises:
            UpstreamError: the broker refuses permanently.
        """
        backoff = Backoff()
        while (request := request_of(subscription)) is not None:
            try:
                links, queue = self._context.links, _queue_of(subscription)
                await links.come_back()
                state = await links.queue_watch.state(queue)
                if state is QueueState.AWAY:
                    self._context.note_away()
                    if rename_queue(self._context.session.context, subscription):
                        continue
                    self._context.log_wait(f"queue '{queue}' is away, and so is its node")
                    state = await links.queue_watch.settled(queue)
                if state is QueueState.DELETED:
                    # A stream that is made again begins with messages that the client has not read.
                    subscription.queue_gone()
                    if request.queue is None and not may_be_made:
                        return None
                    request = request_of(subscription) or request
                async with links.restoring:
                    if (subscribed := await self.try_once(request)) is not None:
                        return subscribed
            except LinkDownError as down:
                down.__traceback__ = None
            except UpstreamError as refusal:
                if not passes(refusal):
                    raise
            await asyncio.sleep(backoff.next())
        return None

    async def try_once(self, request: ops.Subscribe) -> ops.Subscribed | None:
        """Start a consumer again, within a short time, for which other sessions wait. None if its queue is away.

        Raises:
            UpstreamError: see `Consumers.restore`.
        """
        subscription = request.subscription
        if self._context.links.queue_watch.is_away(_queue_of(subscription)):
            return None
        try:
            async with asyncio.timeout(PROMPT):
                subscribed = await self.restore(request)
            if request.queue is not None and request.queue.exclusive:
                self._watch(subscription)
            return subscribed
        except TimeoutError:
            channel = self._channels.remove(subscription)
            if channel is not None:
                channel.abandon(self._context.bridge)
        except UpstreamError as refusal:
            if refusal.code != NOT_FOUND:
                raise
        return None

    # A queue that must keep its name.

    def _watch(self, subscription: Subscription) -> None:
        if (earlier := self._watched.pop(subscription, None)) is not None:
            earlier.cancel()
        self._watched[subscription] = self._context.spawn(self._look_for(subscription), "watch")

    async def _look_for(self, subscription: Subscription) -> None:
        """Look for a queue a few times, on the link that may use it. If it is missing, restore the consumer.

        This ends when the subscription gets another channel, for which `_watch` is called again.
        """
        channel = self._channels.get(subscription)
        for pause in _LOOKS:
            await asyncio.sleep(pause)
            if channel is None or self._channels.get(subscription) is not channel:
                return
            try:
                async with LinkChannel.opened(channel.link) as asking:
                    await asking.declare_passive(_queue_of(subscription))
            except UpstreamError as refusal:
                if refusal.code == NOT_FOUND and self._channels.get(subscription) is channel:
                    self._missing(subscription)
                    await self._channels.close(channel)
                return

    # The end.

    async def forget(self, subscription: Subscription) -> None:
        """Stop restoring a subscription, which is about to end."""
        for task in (self._waiting.pop(subscription, None), self._watched.pop(subscription, None)):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    def hand_over(self, subscriptions: Iterable[Subscription]) -> None:
        """Leave subscriptions to the session's recovery: they had a channel again, and lost it with its link."""
        for subscription in subscriptions:
            if (task := self._waiting.pop(subscription, None)) is not None:
                task.cancel()

    def lose(self) -> tuple[Subscription, ...]:
        """Note that a link of the session is lost. Returns the undecided subscriptions, which are lost with it."""
        lost = tuple(self._undecided)
        for link_is_lost in self._undecided.values():
            link_is_lost.set()
        self._undecided.clear()
        return lost

    def give_up(self) -> None:
        """Stop all waiting, at the end of the session."""
        for link_is_lost in self._undecided.values():
            link_is_lost.set()
        self._undecided.clear()
        for task in (*self._waiting.values(), *self._watched.values()):
            task.cancel()


def _queue_of(subscription: Subscription) -> str:
    """The queue of a subscription, also before the answer to its SUBSCRIBE is handled."""
    request = subscription.request
    named = "" if request is None else request.queue_name
    return named or subscription.queue
