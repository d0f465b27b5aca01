"""Queues that exist with other properties than a client asks for, where the configuration takes them as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import structlog

from gateway.server.broker.broker_errors import UpstreamError

if TYPE_CHECKING:
    from gateway.server.broker.channel import LinkChannel
    from gateway.server.broker.link import Link
    from gateway.session.queues import QueueSpec

log = structlog.get_logger("gateway.session")

_PRECONDITION_FAILED: Final = 406
_CONFLICT: Final = "inequivalent arg"

# Queues of a gateway that the log tells of, and characters of each text.
_MOST: Final = 1000
_LOGGED: Final = 300


class TakenQueues:
    """Which queues were taken as they are: the log tells of each once, and of so many at the most."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()

    def note(self, virtual_host: str, queue: str, reason: str) -> None:
        """A queue was taken.

        Args:
            virtual_host: its STOMP name.
            queue: its name.
            reason: the broker's text.
        """
        if len(self._known) < _MOST and (virtual_host, queue) not in self._known:
            self._known.add((virtual_host, queue))
            log.info("queue taken as it is", virtual_host=virtual_host, queue=queue, reason=reason[:_LOGGED])


async def declared_or_found(
    queue: QueueSpec, link: Link, declare: Callable[[LinkChannel], Awaitable[str]]
) -> UpstreamError | None:
    """Declare a queue that has a name, or see that it exists.

    The broker closes the channel of a declaration that it refuses, and with it would be lost what else is on that
    channel; so this has one of its own.

    Args:
        queue: what is asked for.
        link: where.
        declare: declares it on a channel.

    Returns:
        None if the queue is as asked for, else in what it is not.

    Raises:
        UpstreamError: the broker refuses for another reason.
    """
    try:
        async with _channel_for_once(link) as channel:
            await declare(channel)
    except UpstreamError as refusal:
        if refusal.code != _PRECONDITION_FAILED or _CONFLICT not in refusal.text:
            raise
        async with _channel_for_once(link) as channel:
            await channel.look_for(queue.name)
        return refusal
    return None


@asynccontextmanager
async def _channel_for_once(link: Link) -> AsyncIterator[LinkChannel]:
    link.reserve()
    channel = await link.channel()
    try:
        yield channel
    finally:
        await channel.close()
