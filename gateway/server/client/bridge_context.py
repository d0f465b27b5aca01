"""The objects that the parts of one session's bridge share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.link import Link, LinkUser
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.login_handler import LoginHandler
from gateway.server.log_limits import LONGEST_TEXT
from gateway.session import ops
from gateway.session.session import Session

log = structlog.get_logger("gateway.session")


class BridgeOwner(LinkUser, Protocol):
    """The bridge, as its parts see it."""

    def advance(self) -> None:
        """See `Bridge`."""

    def handle(self, event: ops.Event) -> None:
        """See `Bridge`."""

    def channel_closed(self, refusal: UpstreamError, *, publishing: bool) -> None:
        """See `Bridge`."""

    def lose(self, link: Link, reason: UpstreamError) -> None:
        """See `Bridge`."""


@dataclass(slots=True)
class BridgeContext:
    """The session, its bridge, and what they need of the broker.

    ``client``: the session's name in the broker's list of connections. ``spawn``: starts work that is not an operation.
    """

    session: Session
    bridge: BridgeOwner
    login: LoginHandler
    pool: LinkPool
    client: str
    spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
    # The reason that is already logged for this recovery.
    _said: str = field(default="", init=False)

    @property
    def links(self) -> LoginLinks:
        """The session's links; raises `LinkDownError` if the session is over."""
        return self.login.links

    @property
    def ride_through(self) -> float:
        """The time for a recovery in seconds; 0 if the session does not outlive a link."""
        return self.session.settings.upstream.ride_through

    def note_away(self, reason: str = "") -> None:
        """Note that a node of the broker is away, and a queue with it. ``reason``: for `log_wait`, unless empty."""
        self.pool.queue_away(self.session.settings)
        if reason:
            self.log_wait(reason)

    def recovery_begins(self) -> None:
        """Let ``log_wait`` log each reason again."""
        self._said = ""

    def log_wait(self, reason: str) -> None:
        """Log once per recovery and reason that the session waits because the broker refuses something.

        Many sessions may wait for the same reason, so the log limit of their virtual host applies.
        """
        if reason != self._said and self.pool.log_limits.warn_of_virtual_host(
            log,
            self.links.virtual_host.name,
            "session waits for the broker",
            login=self.links.login,
            session=self.session.identity.decode(),
            peer=self.client,
            reason=reason[:LONGEST_TEXT],
        ):
            self._said = reason
