"""Restores what one session has lost with a link, piece by piece, as its recovery asks for it."""

from __future__ import annotations

import asyncio

from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.consumers import Consumers
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.leaving_links import LeavingLinks
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.lost_consumers import RecoveryLog
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.session_queues import SessionQueues
from gateway.session import ops
from gateway.session.session import Session
from gateway.session.subscription import Subscription


class Restorer:
    """Queues, consumers and the publishing channel of one session; each piece stays back once it is back."""

    __slots__ = ("_channels", "_consumers", "_leaving", "_login", "_publishing", "_queues", "_session", "log")

    def __init__(
        self,
        session: Session,
        login: LoginHandler,
        channels: ConsumingChannels,
        queues: SessionQueues,
        consumers: Consumers,
        publishing: PublishingChannel,
        leaving: LeavingLinks,
        log: RecoveryLog,
    ) -> None:
        self._session = session
        self._login = login
        self._channels = channels
        self._queues = queues
        self._consumers = consumers
        self._publishing = publishing
        self._leaving = leaving
        self.log = log

    @property
    def links(self) -> LoginLinks:
        """The session's links."""
        return self._login.links

    def what_is_lost(self) -> ops.Recover:
        """What is to be brought back now."""
        return self._session.what_is_lost()

    def lacks_consumer(self, subscription: Subscription) -> bool:
        """Whether a subscription has no channel, and has not ended meanwhile."""
        return subscription not in self._channels and self._session.subscriptions.is_current(subscription)

    @property
    def lacks_publisher(self) -> bool:
        """Whether the session has no publishing channel."""
        return not self._publishing.is_open

    async def find_away(self) -> None:
        """Leave out the subscriptions whose queues are away, and begin to wait for those of messages."""
        lost, watch = self._session.what_is_lost(), self._login.links.queue_watch
        lasting = [each for each in lost.subscriptions if each.queue is None or each.queue.durable]
        names = {each.queue_name for each in lasting} | {queue.name for queue in lost.queues}
        await asyncio.gather(*map(watch.state, names), return_exceptions=True)
        for request in lasting:
            if watch.is_away(request.queue_name) and self.lacks_consumer(request.subscription):
                self._consumers.lost.wait_for(request.subscription, self._consumers.restore)
        for queue in lost.queues:
            if watch.is_away(queue.name):
                self._publishing.wait_for(queue.name)

    async def restore_queues(self, operation: ops.Recover) -> None:
        """Take the session's exclusive queues again, apart from those that subscriptions declare.

        Those have to be on the link of their subscription. What the session has left must be closed first.
        """
        await self._leaving.done()
        await self._queues.restore({each.queue.name for each in operation.subscriptions if each.queue is not None})

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed | None:
        """Subscribe again; None if the queue is away, so that the subscription comes back later and by itself."""
        consumers = self._consumers
        restore, lost = consumers.restore, consumers.lost
        subscribed = await lost.try_once(operation, restore)
        if subscribed is None:
            lost.wait_for(operation.subscription, restore)
        return subscribed

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared:
        """Open a publishing channel, and declare the queues of the messages that will be published again."""
        return await self._publishing.restore(operation)
