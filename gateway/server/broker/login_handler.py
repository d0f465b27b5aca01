"""Letting one client in: the broker decides, the gateway's limits too, and the session gets its place and its links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from gateway.server.broker.broker_errors import ACCESS_REFUSED, CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.link import Credentials
from gateway.server.client.session_limits import LimitReachedError, SessionSlot
from gateway.session import ops

if TYPE_CHECKING:
    from gateway.config import VirtualHost
    from gateway.server.broker.link_pool import LinkLease, LinkPool, LoginLinks

log = structlog.get_logger("gateway.session")

# Characters of a login that nobody has accepted yet in the log.
_LOGGED: Final = 100


class LoginHandler:
    """The logins of one client, and what it holds once it is in.

    Args:
        pool: where links come from.
        entrance: where the client's place among all sessions is.
        client: names the client in the broker's list of connections.
        session: the session's identity.
    """

    def __init__(
        self,
        pool: LinkPool,
        slot: SessionSlot,
        client: str,
        session: str,
    ) -> None:
        self._pool = pool
        self._entrance = slot
        self._client = client
        self._session = session
        self._lease: LinkLease | None = None
        self._closed = False

    @property
    def links(self) -> LoginLinks:
        """The links of the login.

        Raises:
            LinkDownError: there are none any more.
        """
        if self._lease is None:
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the session is over")
        return self._lease.links

    async def log_in(self, operation: ops.Login) -> ops.Event:
        """Let the broker decide on a login."""
        self.return_lease()
        virtual_host = operation.settings
        try:
            credentials = Credentials(operation.login.decode(), operation.passcode.decode())
        except UnicodeDecodeError:
            credentials = Credentials("", "")
        if not credentials.login or not credentials.passcode:
            # RabbitMQ refuses both, and the AMQP library would put guest in their place.
            return ops.LoginFailed(ACCESS_REFUSED, "ACCESS_REFUSED")
        try:
            version = await self._let_in(virtual_host, credentials)
        except LimitReachedError as full:
            self.return_lease()
            self._log_refusal(virtual_host, credentials, str(full))
            return ops.SessionRefused(full.whose, full.limit)
        except LinkDownError as down:
            log.warning("upstream unreachable", virtual_host=virtual_host.name, reason=down.detail)
            return ops.BrokerUnreachable()
        except UpstreamError as refusal:
            self._log_refusal(virtual_host, credentials, refusal.text)
            return ops.LoginFailed(refusal.code, refusal.text)
        return ops.LoggedIn(version)

    async def _let_in(self, virtual_host: VirtualHost, credentials: Credentials) -> tuple[int, ...]:
        """Get the client its links and its place; the broker's version."""
        self._entrance.check(virtual_host)
        self._lease = await self._pool.log_in(virtual_host, credentials, self._client, self._session)
        version = self._lease.links.broker_version
        if self._closed:
            self.return_lease()
        else:
            self._entrance.enter(virtual_host, credentials.login)
        return version

    def _log_refusal(self, virtual_host: VirtualHost, credentials: Credentials, reason: str) -> None:
        log.info(
            "login refused",
            peer=self._client,
            virtual_host=virtual_host.name,
            login=credentials.login[:_LOGGED],
            reason=reason,
        )

    def leave(self) -> None:
        """Make room for another: the session did not begin after all."""
        self._entrance.leave()

    def close(self) -> None:
        """The session is over, and whatever login is under way is in vain. The links are given back apart."""
        self._closed = True
        self._entrance.leave()

    def return_lease(self) -> None:
        """Give back the links: at the end, or when a client that was let in has to log in once more."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
