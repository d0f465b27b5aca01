"""Consumers that the broker has cancelled, or that do not come back with their link: their queue is deleted or away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final

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

# How long RabbitMQ may take from deleting a virtual host's first queue to closing its connections, in seconds.
_VHOST_DELETION: Final = 30.0

# RabbitMQ deletes what a lost node had, by name: also a queue that was declared again since, and its consumer is not
# told. Release 4.3 does so when the node is back, whenever that is. So a queue that must keep its name is looked for
# after so many seconds, each counted from the look before: for ten minutes together.
_LOOKS: Final = (1.0, 4.0, 15.0, 40.0, 120.0, 420.0)

Restore = Callable[[ops.Subscribe], Coroutine[Any, Any, ops.Subscribed]]
"""`Consumers.restore`. It is handed over with each call, since whoever has it refers to this, too."""


class LostConsumers:
    """Finds out why a consumer is lost, and brings it back alone if its queue is away, while its session goes on.

    Where a queue is deleted the session is told, once it is known that its link is not lost with it: a session rides
    through the loss of its link, and so through the deletion of a virtual host that is made again.
    """

    __slots__ = ("_channels", "_context", "_queues", "_undecided", "_waiting", "_watched")

    def __init__(self, context: BridgeContext, channels: ConsumingChannels, queues: SessionQueues) -> None:
        self._context = context
        self._channels = channels
        self._queues = queues
        # Each with what is set when its link is lost, or when nobody needs to know any more.
        self._undecided: dict[Subscription, asyncio.Event] = {}
        # Those that wait for their queue.
        self._waiting: dict[Subscription, asyncio.Task[None]] = {}
        # Those that are back, and whose queue may still be deleted with those of a lost node.
        self._watched: dict[Subscription, asyncio.Task[None]] = {}

    def cancelled(self, subscription: Subscription, restore: Restore) -> None:
        """The broker has cancelled the consumer of a subscription."""
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
        _ = self._context.spawn(self._decide(subscription, channel, restore), "cancelled")

    def closed(self, subscription: Subscription, restore: Restore, refusal: UpstreamError) -> None:
        """The broker has closed the channel of a subscription.

        It misses the subscription's own queue if it deletes what a lost node had, by its name, while that is declared
        again.
        """
        context = self._context
        if refusal.code == NOT_FOUND and context.ride_through and rename_queue(context.session.context, subscription):
            _ = self._missing(subscription, restore)
        else:
            context.bridge.channel_closed(refusal, publishing=False)

    def _missing(self, subscription: Subscription, restore: Restore) -> LinkChannel | None:
        """The broker has deleted the queue of a subscription, which is to come back; the channel that it had."""
        if (channel := self._channels.remove(subscription)) is not None:
            channel.discard(self._context.bridge)
        self._queues.exclusive.consumer_cancelled(subscription)
        self.wait_for(subscription, restore)
        return channel

    async def _decide(self, subscription: Subscription, channel: LinkChannel, restore: Restore) -> None:
        """The queue is gone, or its node. If its virtual host goes with it, the link does, too."""
        link_is_lost = self._undecided.get(subscription)
        state = QueueState.DELETED
        try:
            if link_is_lost is not None:
                with contextlib.suppress(UpstreamError):
                    state = await self._context.links.queue_watch.state(_queue_of(subscription))
                if state is not QueueState.AWAY:
                    await self._until_lost(channel.link, subscription, link_is_lost)
                if self._undecided.pop(subscription, None) is None:
                    # Lost with its link.
                    pass
                elif state is not QueueState.DELETED:
                    self._begin(subscription, restore, may_be_made=False)
                else:
                    self._context.bridge.handle(ops.ConsumerCancelled(subscription))
        finally:
            await self._channels.close(channel)

    @staticmethod
    async def _until_lost(link: Link, subscription: Subscription, link_is_lost: asyncio.Event) -> None:
        """Wait for the loss of the link if the virtual host goes: permissions go first, connections last."""
        try:
            async with asyncio.timeout(PROMPT), LinkChannel.opened(link) as channel:
                await channel.may_consume(_queue_of(subscription))
        except TimeoutError:
            # The node of the queue went just now.
            pass
        except UpstreamError as refusal:
            if refusal.code == ACCESS_REFUSED or isinstance(refusal, LinkDownError):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(link_is_lost.wait(), _VHOST_DELETION)

    # A queue that is away.

    def wait_for(self, subscription: Subscription, restore: Restore) -> None:
        """A subscription does not come back with its link: bring it back when its queue is there.

        If the queue is deleted somebody may make it again, as after the loss of a virtual host.
        """
        self._begin(subscription, restore, may_be_made=True)
        self._tell_lost(subscription)

    def _tell_lost(self, subscription: Subscription) -> None:
        # Now, though the session may take the event later: another channel may be there by then.
        subscription.lost()
        self._context.bridge.handle(ops.QueueAway(subscription))

    def _begin(self, subscription: Subscription, restore: Restore, *, may_be_made: bool) -> None:
        if subscription not in self._waiting:
            work = self._bring_back(subscription, restore, may_be_made)
            self._waiting[subscription] = self._context.spawn(work, "queue")

    async def _bring_back(self, subscription: Subscription, restore: Restore, may_be_made: bool) -> None:
        event: ops.Event = ops.ConsumerCancelled(subscription)
        try:
            async with asyncio.timeout(self._context.ride_through):
                if (subscribed := await self._until_back(subscription, restore, may_be_made)) is not None:
                    event = ops.QueueBack(subscribed)
        except TimeoutError:
            pass
        except UpstreamError as refusal:
            self._context.log_wait(refusal.text)
        finally:
            if self._waiting.get(subscription) is asyncio.current_task():
                del self._waiting[subscription]
        self._context.bridge.handle(event)

    async def _until_back(
        self, subscription: Subscription, restore: Restore, may_be_made: bool
    ) -> ops.Subscribed | None:
        """Try until the consumer runs; None if the broker has deleted the queue.

        Raises:
            UpstreamError: the broker refuses, and will not change its mind.
        """
        backoff = Backoff()
        while (request := request_of(subscription)) is not None:
            try:
                links, queue = self._context.links, _queue_of(subscription)
                state = await links.queue_watch.state(queue)
                if state is QueueState.AWAY:
                    self._context.note_away()
                    if rename_queue(self._context.session.context, subscription):
                        continue
                    self._context.log_wait(f"queue '{queue}' is away, and so is its node")
                    state = await links.queue_watch.settled(queue)
                if state is QueueState.DELETED:
                    # Of a stream that is made again the client has read nothing.
                    subscription.queue_gone()
                    if request.queue is None and not may_be_made:
                        return None
                    request = request_of(subscription) or request
                async with links.restoring:
                    if (subscribed := await self.try_once(request, restore)) is not None:
                        return subscribed
            except LinkDownError as down:
                down.__traceback__ = None
                await self._context.links.come_back()
            except UpstreamError as refusal:
                if not passes(refusal):
                    raise
            await asyncio.sleep(backoff.next())
        return None

    async def try_once(self, request: ops.Subscribe, restore: Restore) -> ops.Subscribed | None:
        """Start a consumer again; None if its queue is away. The others of the login do not wait for that.

        Raises:
            UpstreamError: see `Consumers.restore`.
        """
        subscription = request.subscription
        if self._context.links.queue_watch.is_away(_queue_of(subscription)):
            return None
        try:
            async with asyncio.timeout(PROMPT):
                subscribed = await restore(request)
            if request.queue is not None and request.queue.exclusive:
                self._watch(subscription, restore)
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

    def _watch(self, subscription: Subscription, restore: Restore) -> None:
        if (earlier := self._watched.pop(subscription, None)) is not None:
            earlier.cancel()
        self._watched[subscription] = self._context.spawn(self._look_for(subscription, restore), "watch")

    async def _look_for(self, subscription: Subscription, restore: Restore) -> None:
        """Look for a queue a few times, through the link that may use it; bring the consumer back if it is missing.

        On another channel, whose consumer perhaps only begins, it is looked for anew.
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
                    self._missing(subscription, restore)
                    await self._channels.close(channel)
                return

    # The end.

    async def forget(self, subscription: Subscription) -> None:
        """A subscription ends: bring it back no more."""
        for task in (self._waiting.pop(subscription, None), self._watched.pop(subscription, None)):
            if task is not None:
                task.cancel()
                await asyncio.wait((task,))

    def hand_over(self, subscriptions: Iterable[Subscription]) -> None:
        """These had a channel again, and have lost it with its link: the session's recovery brings them back."""
        for subscription in subscriptions:
            if (task := self._waiting.pop(subscription, None)) is not None:
                task.cancel()

    def lose(self) -> tuple[Subscription, ...]:
        """A link is lost: their own, or another one of the same virtual host. They are lost with it."""
        lost = tuple(self._undecided)
        for link_is_lost in self._undecided.values():
            link_is_lost.set()
        self._undecided.clear()
        return lost

    def give_up(self) -> None:
        """The session is over: wait for nothing any more."""
        for link_is_lost in self._undecided.values():
            link_is_lost.set()
        self._undecided.clear()
        for task in (*self._waiting.values(), *self._watched.values()):
            task.cancel()


def _queue_of(subscription: Subscription) -> str:
    """The queue of a subscription, perhaps before the answer to its SUBSCRIBE has had its turn."""
    request = subscription.request
    named = "" if request is None else request.queue_name
    return named or subscription.queue
