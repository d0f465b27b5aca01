"""Declaring queues on links that sessions share: exclusive queues, and queues that exist with other properties.

To AMQP an exclusive queue belongs to the connection that declared it, and here that connection serves many sessions. So
the gateway keeps a list of the session that owns each queue, refuses the other sessions in the broker's own words, and
deletes the queue when its session ends, as the broker would at the end of a connection.
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
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription

log = structlog.get_logger("gateway.session")

# The names that the broker chooses begin with this; clients may not declare such a queue.
_CHOSEN_BY_BROKER: Final = "amq."

# RabbitMQ 3.10 ends an auto-delete queue by itself: no message is rejected, and it costs less than a queue.delete.
# 4.3.6 rejects messages then. No other release was tried.
_REJECTS_NOTHING: Final = (3, 10)

# How many conflicts a gateway logs, and how many characters of the broker's text.
_MOST_CONFLICTS: Final = 1000
_LONGEST_REASON: Final = 300


Declare = Callable[[QueueSpec], Awaitable[str]]
"""Sends queue.declare at the call; its answer is the queue's name."""


class ExclusiveQueues:
    """The exclusive queues of one session, on any of its links, and the subscriptions that consume them.

    ``user`` is told when such a link is lost, also if it has no channel there.
    """

    def __init__(self, user: LinkUser) -> None:
        self.user = user
        self._queues: dict[str, tuple[Link, QueueSpec]] = {}
        self._consumers: dict[Subscription, str] = {}
        # Until the broker has answered a declaration, it cannot be asked about the queue.
        self._declaring: dict[str, asyncio.Event] = {}
        self._is_closing = False
        self._deleted = asyncio.Event()

    def link_of(self, queue: str) -> Link | None:
        """The link that owns a queue for the broker, if it is one of the session's."""
        link, _ = self._queues.get(queue, (None, None))
        return link

    @property
    def has_queues(self) -> bool:
        """Whether the session has any."""
        return bool(self._queues)

    def has_any(self, link: Link) -> bool:
        """Whether a queue of the session lives and dies with a link."""
        return any(owner is link for owner, _ in self._queues.values())

    async def check(self, queue: str, link: Link, vhost: str) -> None:
        """Refuse a queue that belongs to another session of the link.

        Raises:
            UpstreamError: RESOURCE_LOCKED, in the broker's words, or another error of the broker.
        """
        while (owner := link.exclusive_queues.get(queue)) is not None and owner is not self:
            if await owner.settled(queue):
                continue
            if await _exists(queue, link):
                raise UpstreamError(
                    RESOURCE_LOCKED,
                    f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. "
                    "It could be originally declared on another connection or the exclusive property value does not "
                    "match that of the original declaration.",
                )
            owner.forget(queue)

    async def settled(self, queue: str) -> bool:
        """Wait for a declaration or a deletion that is under way; whether there was one."""
        if self._is_closing:
            # Once a client can see that the owner is gone, the name must be free.
            await self._deleted.wait()
            return True
        declared = self._declaring.get(queue)
        if declared is not None:
            await declared.wait()
        return declared is not None

    async def declare(self, queue: QueueSpec, link: Link, vhost: str, declare: Declare) -> str:
        """Declare an exclusive queue; its name, which the broker chooses if ``queue`` has none.

        The session takes the name before the broker is asked, because the broker sees one connection only.
        ``declare`` sends the declaration on a channel of the link.

        Raises:
            UpstreamError: it belongs to another session, or the broker refuses.
        """
        await self.check(queue.name, link, vhost)
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
            # Not if it was cancelled: the broker may have the queue, and ``delete`` has to delete it.
            self.forget(queue.name)
            raise
        finally:
            self._declaring.pop(queue.name).set()

    def _add(self, name: str, link: Link, queue: QueueSpec) -> None:
        self._queues[name] = (link, queue)
        link.exclusive_queues[name] = self

    def forget(self, queue: str) -> None:
        """A queue is gone; it need not be the session's."""
        link, _ = self._queues.pop(queue, (None, None))
        if link is not None and link.exclusive_queues.get(queue) is self:
            del link.exclusive_queues[queue]

    def link_lost(self, link: Link) -> list[QueueSpec]:
        """A link is gone, and the queues that it owned for the broker; those that have a name may be declared again."""
        lost = [(name, queue) for name, (owner, queue) in self._queues.items() if owner is link]
        for name, _ in lost:
            self.forget(name)
        return [queue for _, queue in lost if queue.name]

    def consumed(self, subscription: Subscription, queue: str) -> None:
        """A subscription consumes a queue; it need not be the session's."""
        if queue in self._queues:
            self._consumers[subscription] = queue

    def to_delete_with(self, subscription: Subscription) -> str:
        """The queue of the session to delete because its last consumer ends now; no name if there is none.

        A broker of a release that rejects no messages meanwhile is left to end the queue.
        """
        queue = self._consumers.get(subscription, "")
        link, spec = self._queues.get(queue, (None, None))
        if link is None or spec is None or not spec.auto_delete:
            return ""
        if link.tuning.broker_version[:2] == _REJECTS_NOTHING:
            return ""
        return queue if self._is_closing or list(self._consumers.values()).count(queue) == 1 else ""

    def consumer_closed(self, subscription: Subscription) -> None:
        """A subscription is over; with its last consumer the broker deletes an auto-delete queue."""
        queue = self._consumers.pop(subscription, None)
        if queue is not None and queue not in self._consumers.values():
            self._forget_if_auto_delete(queue)

    def consumer_cancelled(self, subscription: Subscription) -> None:
        """The broker cancelled the consumer, because the queue is gone."""
        queue = self._consumers.pop(subscription, None)
        if queue is not None:
            self.forget(queue)

    def _forget_if_auto_delete(self, queue: str) -> None:
        _, spec = self._queues.get(queue, (None, None))
        if spec is not None and spec.auto_delete:
            self.forget(queue)

    def start_closing(self) -> None:
        """The session is over: other sessions that want one of its queues wait for ``delete``.

        From here on the session itself must wait for no other session.
        """
        self._is_closing = True

    async def delete(self) -> None:
        """Delete all queues; the session's consumers are gone already."""
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
    """Ask the broker: a queue may be gone without notice, deleted or expired."""
    refusal = await LinkChannel.refusal(link, lambda channel: channel.declare_passive(queue))
    return refusal is None or refusal.code != NOT_FOUND


async def _delete(name: str, link: Link, queue: QueueSpec) -> None:
    """Delete a queue if it is still the session's.

    The name may belong to another queue by now. So the queue is declared once more: the broker refuses if another
    connection owns it, and a queue that this creates is deleted in the next moment.
    """
    try:
        async with LinkChannel.opened(link) as channel:
            if not name.startswith(_CHOSEN_BY_BROKER):
                await channel.declare(queue)
            await channel.delete_queue(name)
    except UpstreamError:
        pass


# Queues that exist with other properties than a client asks for (`on_queue_conflict: use_existing`).


async def declare_or_accept(
    queue: QueueSpec, link: Link, declare: Callable[[LinkChannel], Awaitable[object]]
) -> UpstreamError | None:
    """Declare a queue that has a name, or accept an existing one with other properties.

    The broker closes the channel of a declaration that it refuses, so the declaration has a channel of its own.

    Returns:
        How the existing queue differs, in the broker's words; None if it does not.

    Raises:
        UpstreamError: the broker refuses for another reason.
    """
    try:
        async with LinkChannel.opened(link) as channel:
            await declare(channel)
    except UpstreamError as refusal:
        # The broker has the same code for an argument that no queue may have: then there is no queue.
        if refusal.code != PRECONDITION_FAILED or not await _exists(queue.name, link):
            raise
        return refusal
    return None


class QueueConflictLog:
    """Logs each accepted queue with other properties once, up to a limit."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()

    def write(self, virtual_host: str, queue: str, reason: str) -> None:
        """Log a queue; ``reason`` is the broker's text."""
        if len(self._logged) < _MOST_CONFLICTS and (virtual_host, queue) not in self._logged:
            self._logged.add((virtual_host, queue))
            log.info("queue taken as it is", virtual_host=virtual_host, queue=queue, reason=reason[:_LONGEST_REASON])
