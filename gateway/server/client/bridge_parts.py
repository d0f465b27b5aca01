"""The parts of one session's bridge that work on channels, made when the session first needs a channel.

Many sessions connect, do nothing for long, and go. Without the parts such a session costs less memory and less time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.consumers import Consumers
from gateway.server.client.consuming_channels import ChannelsOwner, ConsumingChannels
from gateway.server.client.leaving_links import LeavingLinks
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.lost_consumers import LostConsumers, RecoveryLog
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.recovery import Recovery
from gateway.server.client.restorer import Restorer
from gateway.server.client.session_queues import SessionQueues
from gateway.session.session import Session


class PartsOwner(ChannelsOwner, Protocol):
    """The bridge."""

    def lose(self, link: Link, reason: UpstreamError) -> None:
        """The session's channels on a link are gone."""


class BridgeParts:
    """See `Bridge`. ``background`` starts work of the session that is no operation."""

    __slots__ = ("channels", "consumers", "leaving", "lost", "publishing", "queues", "recovery", "restorer")

    def __init__(
        self,
        session: Session,
        owner: PartsOwner,
        login: LoginHandler,
        pool: LinkPool,
        client: str,
        background: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        channels = self.channels = ConsumingChannels(owner, login, client, session.identity.decode())
        queues = self.queues = SessionQueues(session, owner, login, channels, pool.queue_conflicts)
        publishing = self.publishing = PublishingChannel(session, owner, login, queues, background)
        log = RecoveryLog(login, client, session.identity.decode(), pool.log_limits)

        def note_away() -> None:
            pool.queue_away(session.settings)

        lost = self.lost = LostConsumers(session, owner, login, channels, queues, log, note_away, background)
        consumers = self.consumers = Consumers(owner, login, channels, queues, lost)
        leaving = self.leaving = LeavingLinks(
            session, owner, login, channels, publishing, queues, pool.drain.slots, background
        )
        self.restorer = Restorer(session, login, channels, queues, consumers, publishing, leaving, log)
        self.recovery = Recovery(self.restorer)

    @property
    def use_links(self) -> bool:
        """Whether the session has anything on its links."""
        return self.publishing.is_open or self.channels.has_any or self.queues.exclusive.has_queues

    def give_up(self) -> None:
        """The session is over: nothing waits any more."""
        self.recovery.stop()
        self.lost.give_up()
        self.publishing.give_up()
        self.leaving.give_up()

    async def close_channels(self, *, counts: bool) -> None:
        """Close all channels in order. When this returns, the broker has handled all publishes.

        ``counts`` is as for `ConsumingChannels.close`.

        Raises:
            UpstreamError: the link or the channel is lost, and perhaps publishes too.
        """
        self.queues.exclusive.start_closing()
        publishing = self.publishing.take()
        if publishing is not None:
            # Its answer may come meanwhile.
            _ = publishing.start_closing()
        try:
            await self.channels.close_all(self.queues.exclusive.to_delete_with, counts=counts)
        finally:
            await self.queues.exclusive.delete()
        # Last, because during an alarm the broker does not answer here.
        await self.publishing.close(publishing)
