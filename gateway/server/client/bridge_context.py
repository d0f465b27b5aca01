"""What all parts of one session's bridge share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog

from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.link import Link, LinkUser
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.login_handler import LoginHandler
from gateway.session import ops
from gateway.session.session import Session

log = structlog.get_logger("gateway.session")

# Characters of the broker's text, which may hold names that a client has chosen.
_LONGEST_TEXT: Final = 300


class BridgeOwner(LinkUser, Protocol):
    """The bridge: it uses the links, and tells the session what happens on a channel."""

    def advance(self) -> None:
        """The session may go on."""

    def handle(self, event: ops.Event) -> None:
        """Something happened at the broker."""

    def channel_closed(self, refusal: UpstreamError, *, publishing: bool) -> None:
        """The broker closed a channel without being asked."""

    def lose(self, link: Link, reason: UpstreamError) -> None:
        """The session's channels on a link are gone."""


@dataclass(slots=True)
class BridgeContext:
    """The session, its bridge, and how it uses the broker.

    ``client`` names the session in the broker's list of connections. ``spawn`` starts work of the session that is no
    operation.
    """

    session: Session
    bridge: BridgeOwner
    login: LoginHandler
    pool: LinkPool
    client: str
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    # What the log says already of this recovery.
    _said: str = field(default="", init=False)

    @property
    def links(self) -> LoginLinks:
        """The session's links; raises `LinkDownError` if the session is over."""
        return self.login.links

    @property
    def ride_through(self) -> float:
        """For how many seconds the session waits for what is lost."""
        return self.session.settings.upstream.ride_through

    def note_away(self) -> None:
        """A node of the broker is away, and a queue with it."""
        self.pool.queue_away(self.session.settings)

    def recovery_begins(self) -> None:
        """Log the reasons to wait once more."""
        self._said = ""

    def log_wait(self, reason: str) -> None:
        """Log that the broker refuses for a while what is to come back: once for each reason in a recovery.

        Many sessions may wait for the same, so the limit is that of their virtual host.
        """
        links = self.links
        name = links.virtual_host.name
        if reason == self._said or (left_out := self.pool.log_limits.for_virtual_host(name)) is None:
            return
        self._said = reason
        log.warning(
            "session waits for the broker",
            virtual_host=name,
            login=links.login,
            session=self.session.identity.decode(),
            peer=self.client,
            reason=reason[:_LONGEST_TEXT],
            left_out=left_out,
        )
