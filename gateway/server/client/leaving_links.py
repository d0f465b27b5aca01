"""How one session leaves links that drain: its channels move at a quiet moment, in which nothing can be lost by it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from gateway.server.broker.broker_errors import CONNECTION_FORCED, UpstreamError
from gateway.server.broker.link import Link
from gateway.server.client.consuming_channels import ConsumingChannels
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.publishing_channel import PublishingChannel
from gateway.server.client.session_queues import SessionQueues
from gateway.session.context import Hold
from gateway.session.session import Session

# How often a session looks for a quiet moment, and the seconds between two looks.
_LOOKS: Final = 50
_BETWEEN_LOOKS: Final = 0.01


class _Leaver(Protocol):
    """The bridge."""

    def lose(self, link: Link, reason: UpstreamError) -> None: ...

    def advance(self) -> None: ...


class LeavingLinks:
    """The draining links that one session is leaving. ``spawn`` starts background work of the session."""

    __slots__ = ("_channels", "_leaver", "_login", "_publishing", "_queues", "_session", "_spawn", "_tasks")

    def __init__(
        self,
        session: Session,
        leaver: _Leaver,
        login: LoginHandler,
        channels: ConsumingChannels,
        publishing: PublishingChannel,
        queues: SessionQueues,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
    ) -> None:
        self._session = session
        self._leaver = leaver
        self._login = login
        self._channels = channels
        self._publishing = publishing
        self._queues = queues
        self._spawn = spawn
        self._tasks: dict[Link, asyncio.Task[None]] = {}

    def leave(self, link: Link) -> None:
        """A link drains: move the session's channels elsewhere, if nothing can be lost by it. Asked again and again."""
        if link not in self._tasks:
            self._tasks[link] = task = self._spawn(self._leave(link), "leave")
            task.add_done_callback(lambda _: self._tasks.pop(link))

    async def done(self) -> None:
        """Wait until what the session has left is closed: only then are all messages back in their queues, in order."""
        if self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _leave(self, link: Link) -> None:
        session, consuming = self._session, self._channels.subscriptions_on(link)
        if self._queues.exclusive.has_any(link) or not session.can_leave(consuming):
            return
        if not self._login.links.is_replaced(link):
            # Nobody leaves a link before a broker has accepted the login again.
            await self._login.links.replace(link)
            return
        if not consuming:
            # Nothing more is published, so all that was is confirmed soon. A consumer needs its client's ACKs.
            session.hold(Hold.LINK_LOST)
        try:
            for _ in range(_LOOKS):
                if session.is_quiet(consuming):
                    await self._leave_now(link)
                    return
                if session.is_recovering:
                    return
                await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            if not consuming and not session.is_recovering:
                session.release(Hold.LINK_LOST)
                self._leaver.advance()

    async def _leave_now(self, link: Link) -> None:
        """To the session this is the loss of a link. Messages on their way from the broker return to their queue."""
        left = [*self._channels.channels_on(link), *self._publishing.channels_on(link)]
        for channel in left:
            channel.discard(self._leaver)
        self._leaver.lose(link, UpstreamError(CONNECTION_FORCED, "CONNECTION_FORCED - the connection is replaced"))
        await asyncio.gather(*map(self._channels.close, left))
