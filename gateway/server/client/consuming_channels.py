"""The channels on which one session consumes and declares queues.

Some of them may be on a pausable link, which serves only this session: only there may the gateway stop reading from the
broker because of a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial

from gateway.amqp.splitter import Sink
from gateway.server.broker.channel import CLOSED_WITHIN, LinkChannel, ignore_confirm
from gateway.server.broker.link import CLOSING_AT_ONCE, Link
from gateway.server.client.bridge_context import BridgeContext
from gateway.session.context import State
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import Subscription


class ConsumingChannels:
    """A channel for each subscription, and one for declarations. ``pausable``: the session's pausable link."""

    __slots__ = ("_by_subscription", "_context", "_control", "_is_dropping", "pausable")

    def __init__(self, context: BridgeContext) -> None:
        self._context = context
        self._by_subscription: dict[Subscription, LinkChannel] = {}
        self._control: LinkChannel | None = None
        self.pausable = PausableLink(context, self._by_subscription.values())
        self._is_dropping = False

    def get(self, subscription: Subscription) -> LinkChannel | None:
        """The channel of a subscription."""
        return self._by_subscription.get(subscription)

    @property
    def has_any(self) -> bool:
        """Whether there is a channel or a pausable link."""
        return bool(self._by_subscription) or self._control is not None or self.pausable.is_open

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._by_subscription

    def add(self, subscription: Subscription, channel: LinkChannel) -> None:
        """Use a channel for a subscription."""
        channel.set_owner(self._context.bridge)
        self._by_subscription[subscription] = channel
        self._set_sink(subscription, channel)
        subscription.set_channel(channel.number)

    def remove(self, subscription: Subscription) -> LinkChannel | None:
        """Remove and return the channel of a subscription; None without one."""
        return self._by_subscription.pop(subscription, None)

    async def control(self) -> LinkChannel:
        """The channel for declarations, on a link for consuming. It is opened anew if the broker has closed it."""
        if self._control is not None and self._control.closed is not None:
            # The broker closed it when it refused a declaration.
            self._control.remove_owner()
            self._control = None
        if self._control is None:
            self._control = await self._context.links.consuming_channel()
            self._control.set_owner(self._context.bridge)
            self._control.on_closed = partial(self._context.bridge.channel_closed, publishing=False)
        return self._control

    def subscriptions_on(self, link: Link) -> list[Subscription]:
        """The subscriptions with a channel on a link."""
        return [subscription for subscription, channel in self._by_subscription.items() if channel.link is link]

    def channels_on(self, link: Link) -> list[LinkChannel]:
        """All channels on a link."""
        channels = [*self._by_subscription.values(), *([] if self._control is None else [self._control])]
        return [channel for channel in channels if channel.link is link]

    def lose(self, link: Link) -> tuple[Subscription, ...]:
        """Forget the channels on a lost link. Returns their subscriptions."""
        lost = self.subscriptions_on(link)
        for subscription in lost:
            del self._by_subscription[subscription]
        if self._control is not None and self._control.link is link:
            self._control = None
        return tuple(lost)

    # Slow clients.

    def client_writable(self, writable: bool) -> None:
        """Note whether the client reads as fast as messages arrive. If not, the pausable link pauses."""
        self.pausable.set_client_writable(writable)
        if writable and self._is_dropping:
            self._resume_deliveries()

    def client_gone(self) -> None:
        """Drop deliveries from now on, so that the broker's answers do not wait for them."""
        for channel in self._by_subscription.values():
            channel.link.drop_data(channel)
        # The pausable link never pauses again.
        self.pausable.set_client_writable(True)

    def drop_deliveries(self) -> None:
        """Drop further messages for requeue until the client is writable again."""
        self._is_dropping = True
        for subscription, channel in self._by_subscription.items():
            self._set_sink(subscription, channel)

    def _set_sink(self, subscription: Subscription, channel: LinkChannel) -> None:
        bridge = self._context.bridge
        if self._is_dropping and not self.pausable.has(channel):
            sink = Sink(subscription.drop_for_requeue, ignore_confirm, bridge)
        else:
            sink = Sink(subscription.deliver, ignore_confirm, bridge, deliver_alike=subscription.deliver_alike)
        channel.set_sink(sink, is_paced=subscription.selects)

    def _resume_deliveries(self) -> None:
        """Requeue the dropped messages, and take deliveries again."""
        self._is_dropping = False
        for subscription, channel in self._by_subscription.items():
            if not self.pausable.has(channel):
                self._set_sink(subscription, channel)
                subscription.ledger.requeue_dropped()
                channel.write(subscription.ledger.take_frames())

    # The end.

    async def close(self, channel: LinkChannel, queue: str = "", *, counts: bool = False) -> None:
        """Close a channel. Messages that are unsettled or on their way from the broker return to their queue.

        ``queue``: an auto-delete queue that would be deleted with the consumer. It is deleted first, because RabbitMQ
        4.3 accepts messages for an auto-delete queue for some milliseconds after its end, and rejects them.
        ``counts``: returned messages count toward the queue's delivery-limit.
        """
        if self.pausable.has(channel):
            # The answer to channel.close must be read; deliveries before it are dropped.
            channel.link.resume_reading()
        if queue:
            channel.discard(self._context.bridge)
            _ = channel.delete_queue(queue)
        elif not counts:
            channel.give_back()
        await channel.close_for(self._context.bridge, within=CLOSED_WITHIN)
        if self.pausable.has(channel):
            self.pausable.read_or_pause()

    async def close_all(self, to_delete_with: Callable[[Subscription], str], *, counts: bool) -> None:
        """Close all channels, a few at a time, because each makes the broker end a consumer and perhaps a queue.

        Frames of other sessions wait meanwhile. So the channels of a session that has ended also wait for those of
        other such sessions.

        Args:
            to_delete_with: returns ``queue`` of ``close`` for a subscription.
            counts: see ``close``. With ack:auto returned messages never count.
        """
        channels: list[tuple[Subscription | None, LinkChannel]] = [*self._by_subscription.items()]
        if self._control is not None:
            channels.append((None, self._control))
        self._control = None
        self._by_subscription.clear()
        remaining = iter(channels)
        session = self._context.session

        async def close_remaining() -> None:
            for subscription, channel in remaining:
                queue, is_counted = "", False
                if subscription is not None:
                    queue = to_delete_with(subscription)
                    is_counted = counts and subscription.mode is not AckMode.AUTO
                async with channel.link.closing if session.state is State.CLOSED else nullcontext():
                    await self.close(channel, queue, counts=is_counted)

        if len(channels) > 1:
            await asyncio.gather(*(close_remaining() for _ in channels[:CLOSING_AT_ONCE]))
        else:
            # Without a task, since most sessions have one channel.
            await close_remaining()


class PausableLink:
    """A link of one session, opened when a subscription first needs it, and read only as fast as the client reads.

    While it drains, further subscriptions get another one, and the earlier ones stay until they move. ``consuming`` is
    a live view of the session's channels for subscriptions, some of which may be on this link.
    """

    def __init__(self, context: BridgeContext, consuming: Iterable[LinkChannel]) -> None:
        # The present one last, after any that drain.
        self._links: list[Link] = []
        self._opening = asyncio.Lock()
        self._client_writable = True
        self._context = context
        self._consuming = consuming

    async def opened(self) -> Link:
        """Return the link. It is opened anew if it is closed or drains. Reading resumes, for the broker's answers."""
        async with self._opening:
            self._links = [link for link in self._links if link.closed is None]
            if not self._links or self._links[-1].is_draining:
                session = self._context.session.identity.decode()
                self._links.append(await self._context.links.open_pausable(self._context.client, session))
            link = self._links[-1]
        link.resume_reading()
        return link

    @property
    def is_open(self) -> bool:
        """Whether the session has needed such a link."""
        return bool(self._links)

    def has(self, channel: LinkChannel) -> bool:
        """Whether a channel is on this link."""
        return channel.link in self._links

    def set_client_writable(self, writable: bool) -> None:
        """Note whether the client reads as fast as messages arrive."""
        self._client_writable = writable
        self.read_or_pause()

    def read_or_pause(self) -> None:
        """Pause if the client is slow and one of its subscriptions is on this link; otherwise read."""
        for link in self._links:
            is_used = any(channel.link is link for channel in self._consuming)
            if self._client_writable or not is_used:
                link.resume_reading()
            else:
                link.pause_reading()

    def time_passed(self) -> None:
        """Keep the AMQP library from closing a paused link as dead. Call it about once a second."""
        if not self._client_writable:
            for link in self._links:
                link.feed_heartbeat()

    async def update_secret(self, passcode: str) -> None:
        """Send another passcode. On a paused link, this waits until the client has caught up or is gone."""
        await asyncio.gather(*(link.update_secret(passcode) for link in self._links if link.closed is None))

    async def close(self) -> None:
        """Close the link."""
        await asyncio.gather(*(link.close() for link in self._links))
