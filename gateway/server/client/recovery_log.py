"""Log lines about a session that cannot go on although its broker is there again."""

from __future__ import annotations

from typing import Final

import structlog

from gateway.server.client.login_handler import LoginHandler
from gateway.server.log_limits import LogLimits

log = structlog.get_logger("gateway.session")

# Characters of the broker's text, which may hold names that a client has chosen.
_LONGEST_TEXT: Final = 300


class RecoveryLog:
    """Says what a session waits for: once for each reason in a recovery, within the limits.

    Many sessions may wait for the same, so the limit is that of their virtual host.
    """

    __slots__ = ("_client", "_limits", "_login", "_said", "_session")

    def __init__(self, login: LoginHandler, client: str, session: str, limits: LogLimits) -> None:
        self._login = login
        self._client = client
        self._session = session
        self._limits = limits
        self._said = ""

    def begin(self) -> None:
        """A recovery begins."""
        self._said = ""

    def waits(self, reason: str) -> None:
        """The broker refuses for a while what is to come back."""
        links = self._login.links
        if reason == self._said or (left_out := self._limits.for_virtual_host(links.virtual_host.name)) is None:
            return
        self._said = reason
        log.warning(
            "session waits for the broker",
            virtual_host=links.virtual_host.name,
            login=links.login,
            session=self._session,
            peer=self._client,
            reason=reason[:_LONGEST_TEXT],
            left_out=left_out,
        )

    def waits_for(self, queue: str) -> None:
        """A subscription waits for its queue, while its session goes on."""
        self.waits(f"queue '{queue}' is away, and so is its node")
