"""Exclusive queues of sessions that share links.

To AMQP an exclusive queue belongs to the connection that declared it, and here that connection serves many sessions. So
the gateway keeps the account of which session a queue belongs to, refuses the others in the broker's own words, and
deletes the queue when its session ends, as the broker would at the end of a connection.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.session.queues import QueueSpec

_NOT_FOUND: Final = 404
_RESOURCE_LOCKED: Final = 405

# How the names begin that the broker chooses; nobody may declare one.
_CHOSEN_BY_BROKER: Final = "amq."


class ExclusiveQueues:
    """The exclusive queues of one session, on whichever links they are."""

    def __init__(self) -> None:
        self._queues: dict[str, tuple[Link, QueueSpec]] = {}
        # Those whose declaration is on its way: the broker cannot be asked about them yet.
        self._declaring: dict[str, asyncio.Event] = {}
        self._is_ending = False
        self._ended = asyncio.Event()

    def link_of(self, queue: str) -> Link | None:
        """The link that owns a queue for the broker, if it is one of the session's."""
        link, _ = self._queues.get(queue, (None, None))
        return link

    def __contains__(self, queue: str) -> bool:
        return queue in self._queues

    async def check(self, queue: str, link: Link, vhost: str) -> None:
        """Refuse a queue that belongs to another session of the link.

        Args:
            queue: its name.
            link: where it is about to be used.
            vhost: the broker's virtual host, for the text.

        Raises:
            UpstreamError: RESOURCE_LOCKED, worded as by the broker; or what the broker says when it is asked.
        """
        while (owner := link.exclusive_queues.get(queue)) is not None and owner is not self:
            if owner._is_ending:
                # Once the client sees that the owner is gone, the name must be free.
                await owner._ended.wait()
            elif queue in owner._declaring:
                await owner._declaring[queue].wait()
            elif await _exists(queue, link):
                raise UpstreamError(
                    _RESOURCE_LOCKED,
                    f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '{vhost}'. "
                    "It could be originally declared on another connection or the exclusive property value does not "
                    "match that of the original declaration.",
                )
            else:
                owner.forget(queue)

    async def declare(self, queue: QueueSpec, channel: LinkChannel, vhost: str) -> str:
        """Declare an exclusive queue; the name is taken before the broker is asked, to whom all sessions are one.

        Returns:
            Its name, which the broker chose if the one asked for is empty.

        Raises:
            UpstreamError: it belongs to another session, or the broker refuses.
        """
        link = channel.link
        await self.check(queue.name, link, vhost)
        if not queue.name:
            name = await channel.declare(queue)
            self._take(name, link, queue)
            return name
        if queue.name in self._queues:
            return await channel.declare(queue)
        self._take(queue.name, link, queue)
        self._declaring[queue.name] = asyncio.Event()
        try:
            return await channel.declare(queue)
        except BaseException:
            self.forget(queue.name)
            raise
        finally:
            self._declaring.pop(queue.name).set()

    def _take(self, name: str, link: Link, queue: QueueSpec) -> None:
        self._queues[name] = (link, queue)
        link.exclusive_queues[name] = self

    def forget(self, queue: str) -> None:
        """A queue is gone, if it was the session's."""
        link, _ = self._queues.pop(queue, (None, None))
        if link is not None and link.exclusive_queues.get(queue) is self:
            del link.exclusive_queues[queue]

    def unused(self, queue: str) -> None:
        """The last consumer of a queue is gone, and with it the queue if it is to be deleted then."""
        _, spec = self._queues.get(queue, (None, None))
        if spec is not None and spec.auto_delete:
            self.forget(queue)

    def end(self) -> None:
        """The session gives its queues up: whoever wants one of them waits until ``delete`` is done.

        To be called when nothing is left but closing and deleting: one who waits must not be waited for.
        """
        self._is_ending = True

    async def delete(self) -> None:
        """Delete all of them; the session's consumers are gone already."""
        try:
            for name, (link, queue) in tuple(self._queues.items()):
                if link.end is None:
                    await _delete(name, link, queue)
        finally:
            for name in tuple(self._queues):
                self.forget(name)
            self._ended.set()


async def _exists(queue: str, link: Link) -> bool:
    """Ask the broker, since queues also end without a word: deleted by somebody, or expired."""
    link.reserve()
    channel = await link.channel()
    try:
        await channel.look_for(queue)
    except LinkDownError:
        raise
    except UpstreamError as refusal:
        return refusal.code != _NOT_FOUND
    finally:
        await channel.close()
    return True


async def _delete(name: str, link: Link, queue: QueueSpec) -> None:
    """Delete a queue if it is still the exclusive one.

    It may have been deleted, and another one may have its name now. Declaring it once more tells: the broker refuses if
    it is somebody else's, and what that creates otherwise is gone in the next moment.
    """
    try:
        link.reserve()
        channel = await link.channel()
        try:
            if not name.startswith(_CHOSEN_BY_BROKER):
                await channel.declare(queue)
            await channel.delete_queue(name)
        finally:
            await channel.close()
    except UpstreamError:
        pass
