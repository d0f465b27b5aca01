"""Declaring queues on shared links: exclusive queues, and queues that exist with other properties.

In AMQP an exclusive queue belongs to the connection that declared it, but a shared link serves many sessions. So the
gateway records which session owns each queue, refuses other sessions in the broker's words, and deletes the queue when
its session ends, as the broker does at the end of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from gateway.server.broker.broker_errors import (
    NOT_FOUND,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    UpstreamError,
)
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link, LinkUser
from gateway.server.broker.login_links import LoginLinks
from gateway.server.log_limits import LONGEST_TEXT
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription

log = structlog.get_logger("gateway.session")

# The prefix of names that the broker chooses. Clients may not declare such a queue.
_CHOSEN_BY_BROKER: Final = "amq."

# On this release, the broker is left to delete an auto-delete queue: it rejects no messages meanwhile, and that costs
# less than queue.delete. RabbitMQ 4.3.6 rejects messages. No other release was tried.
_REJECTS_NOTHING: Final = (3, 10)

# The most conflicts that a gateway logs.
_MOST_CONFLICTS: Final = 1000

Declare = Callable[[QueueSpec], Awaitable[str]]
"""Sends queue.declare. The answer is the queue's name."""


class ExclusiveQueues:
    """The exclusive queues of one session, on any of its links, and the subscriptions that consume them.

    ``user``: the session's bridge. It is told about the loss of such a link even if it has no channel on it.
    ``links``: returns those of its login.
    """

    def __init__(self, user: LinkUser, links: Callable[[], LoginLinks]) -> None:
        self.user = user
        self._links = links
        self._queues: dict[str, tuple[Link, QueueSpec]] = {}
        self._consumers: dict[Subscription, str] = {}
        # Declarations under way. The broker cannot be asked about these queues.
        self._declaring: dict[str, asyncio.Event] = {}
        self._is_closing = False
        self._deleted = asyncio.Event()

    def link_of(self, queue: str) -> Link | None:
        """The link that owns a queue for the broker, if the queue is one of the session's."""
        link, _ = self._queues.get(queue, (None, None))
        return link

    @property
    def has_queues(self) -> bool:
        """Whether the session has exclusive queues."""
        return bool(self._queues)

    def has_any(self, link: Link) -> bool:
        """Whether a link owns any queue of the session for the broker."""
        return any(owner is link for owner, _ in self._queues.values())

    async def check(self, queue: str, link: Link) -> None:
        """Refuse a queue that belongs to another session of the link.

        Raises:
            UpstreamError: RESOURCE_LOCKED, in the broker's words, or another error of the broker.
        """
        while (owner := link.exclusive_queues.get(queue)) is not None and owner is not self:
            if await owner.settled(queue):
                continue
            # Any connection may ask. The session's channel may have been the last one that the link had room for.
            if await _exists(queue, await self._links().with_room(link)):
                vhost = self._links().virtual_host.amqp_vhost
                raise UpstreamError(
                    RESOURCE_LOCKED,
                    f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost "
                    f"'{vhost}'. It could be originally declared on another connection or the exclusive "
                    "property value does not match that of the original declaration.",
                )
            owner.forget(queue)

    async def settled(self, queue: str) -> bool:
        """Wait for a declaration or deletion of a queue that is under way. Returns whether there was one."""
        if self._is_closing:
            # When a client can know that the owner has ended, the name must be free.
            await self._deleted.wait()
            return True
        declared = self._declaring.get(queue)
        if declared is not None:
            await declared.wait()
        return declared is not None

    async def declare(self, queue: QueueSpec, link: Link, declare: Declare) -> str:
        """Declare an exclusive queue. Returns its name, which the broker chooses if ``queue`` has none.

        The session owns the name before the broker is asked, because the broker only knows the connection.
        ``declare``: sends the declaration on a channel of the link.

        Raises:
            UpstreamError: it belongs to another session, or the broker refuses.
        """
        await self.check(queue.name, link)
        if not queue.name:
            name = await declare(queue)
            self._add(name, link, queue)
            return name
        if queue.name in self._queues:
            return await declare(queue)
        self._add(queue.name, link, queue)
        self._declaring[queue.name] = asyncio.Event()
        try:
            return await declare(queue)
        except Exception:
            # Not after a cancellation: the queue may exist, and ``delete`` must delete it.
            self.forget(queue.name)
            raise
        finally:
            self._declaring.pop(queue.name).set()

    def _add(self, name: str, link: Link, queue: QueueSpec) -> None:
        self._queues[name] = (link, queue)
        link.exclusive_queues[name] = self

    def forget(self, queue: str) -> None:
        """Forget a deleted queue. It need not be one of the session's."""
        link, _ = self._queues.pop(queue, (None, None))
        if link is not None and link.exclusive_queues.get(queue) is self:
            del link.exclusive_queues[queue]

    def link_lost(self, link: Link) -> list[QueueSpec]:
        """Forget the queues that a lost link owned. Returns those that can be declared again under their name."""
        lost = [(name, queue) for name, (owner, queue) in self._queues.items() if owner is link]
        for name, _ in lost:
            self.forget(name)
        return [queue for _, queue in lost if queue.name]

    def consumed(self, subscription: Subscription, queue: str) -> None:
        """Note that a subscription consumes a queue. It need not be one of the session's."""
        if queue in self._queues:
            self._consumers[subscription] = queue

    def to_delete_with(self, subscription: Subscription) -> str:
        """The session's auto-delete queue to delete because its last consumer is about to end; empty without one.

        It is also empty if the broker is left to delete the queue, see `_REJECTS_NOTHING`.
        """
        queue = self._consumers.get(subscription, "")
        link, spec = self._queues.get(queue, (None, None))
        if link is None or spec is None or not spec.auto_delete:
            return ""
        if link.tuning.broker_version[:2] == _REJECTS_NOTHING:
            return ""
        return queue if self._is_closing or list(self._consumers.values()).count(queue) == 1 else ""

    def consumer_closed(self, subscription: Subscription) -> None:
        """Note that a subscription has ended. With its last consumer, an auto-delete queue is deleted."""
        queue = self._consumers.pop(subscription, None)
        if queue is not None and queue not in self._consumers.values():
            self._forget_if_auto_delete(queue)

    def consumer_cancelled(self, subscription: Subscription) -> None:
        """Note that the broker cancelled a consumer, because the queue is gone."""
        queue = self._consumers.pop(subscription, None)
        if queue is not None:
            self.forget(queue)

    def _forget_if_auto_delete(self, queue: str) -> None:
        _, spec = self._queues.get(queue, (None, None))
        if spec is not None and spec.auto_delete:
            self.forget(queue)

    def start_closing(self) -> None:
        """Note that the session has ended: other sessions that use one of its names now wait for ``delete``.

        From now on, the session itself must not wait for other sessions.
        """
        self._is_closing = True

    async def delete(self) -> None:
        """Delete all queues. The session's consumers must have ended."""
        try:
            for queue in self._consumers.values():
                self._forget_if_auto_delete(queue)
            for name, (link, spec) in tuple(self._queues.items()):
                if link.closed is None:
                    await _delete(name, link, spec)
        finally:
            for name in tuple(self._queues):
                self.forget(name)
            self._deleted.set()


async def _exists(queue: str, link: Link) -> bool:
    """Ask the broker whether a queue exists, because it may be deleted or expired without notice."""
    refusal = await LinkChannel.refusal(link, lambda channel: channel.declare_passive(queue))
    return refusal is None or refusal.code != NOT_FOUND


async def _delete(name: str, link: Link, queue: QueueSpec) -> None:
    """Delete a queue if it is still the session's.

    The name may belong to another queue by now. So the queue is declared again: the broker refuses if another
    connection owns it, and a queue that this creates is deleted at once.
    """
    try:
        async with LinkChannel.opened(link) as channel:
            if not name.startswith(_CHOSEN_BY_BROKER):
                await channel.declare(queue)
            await channel.delete_queue(name)
    except UpstreamError:
        pass


# Queues that exist with other properties (`on_queue_conflict: use_existing`).


async def declare_or_accept(
    queue: QueueSpec, link: Link, declare: Callable[[LinkChannel], Awaitable[object]]
) -> UpstreamError | None:
    """Declare a queue that has a name, or accept an existing one with other properties.

    ``declare`` gets a new channel, because the broker closes the channel of a declaration that it refuses.

    Returns:
        The broker's refusal, which says how the existing queue differs; None if it does not differ.

    Raises:
        UpstreamError: the broker refuses for another reason.
    """
    try:
        async with LinkChannel.opened(link) as channel:
            await declare(channel)
    except UpstreamError as refusal:
        # The code is the same for an invalid argument, but then the queue does not exist.
        if refusal.code != PRECONDITION_FAILED or not await _exists(queue.name, link):
            raise
        return refusal
    return None


class QueueConflictLog:
    """Logs each existing queue with other properties once, up to a limit."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def write(self, virtual_host: str, queue: str, reason: str) -> None:
        """Log a queue, unless it was logged before. ``reason``: the broker's text."""
        if len(self._logged) < _MOST_CONFLICTS and (virtual_host, queue) not in self._logged:
            self._logged.add((virtual_host, queue))
            log.info("existing queue used", virtual_host=virtual_host, queue=queue, reason=reason[:LONGEST_TEXT])
