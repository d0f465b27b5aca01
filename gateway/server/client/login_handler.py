"""The login of one client: limits, the broker's decision, and the session's links."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import partial

import structlog

from gateway.config.base_models import fits_short_string
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import ACCESS_REFUSED, CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.broker_state import UNREACHABLE_HINT
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.client_log import ClientLog
from gateway.server.client.failed_logins import Answer, TooManyFailedLoginsError
from gateway.server.client.session_limits import LimitReachedError, SessionLimits, SessionRates
from gateway.server.listen.accepted_connection import Peer
from gateway.session import error_frames, ops
from gateway.session.connect import claims_of

log = structlog.get_logger("gateway.session")


class LoginHandler:
    """Logs one client in, and owns the links and rates of its session.

    Args:
        session: the session's identity in the broker's list of connections.
        deadline: when the login must be complete, in seconds on the event loop's clock.
    """

    __slots__ = (
        "_deadline", "_is_closed", "_limits", "_links", "_log", "_peer", "_pool", "_session", "_timeout",
        "is_kept_back", "rates",
    )  # fmt: skip

    def __init__(
        self,
        pool: LinkPool,
        limits: SessionLimits,
        client_log: ClientLog,
        peer: Peer,
        session: str,
        deadline: float,
    ) -> None:
        # Set while the session counts toward the limits.
        self.rates: SessionRates | None = None
        self._pool = pool
        self._limits = limits
        self._log = client_log
        self._peer = peer
        self._session = session
        self._links: LoginLinks | None = None
        self._deadline = deadline
        # Bounds a login that is under way.
        self._timeout: asyncio.Timeout | None = None
        # True while the refusal of a passcode is delayed.
        self.is_kept_back = False
        self._is_closed = False

    @property
    def links(self) -> LoginLinks:
        """The links of the session's login.

        Raises:
            LinkDownError: the session has ended.
        """
        if self._links is None:
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the session is over")
        return self._links

    def log_in_at_once(self, operation: ops.Login) -> ops.LoggedIn | None:
        """Log in by the login cache, if no limit is reached. Returns None if ``log_in`` must decide."""
        self.release_links()
        virtual_host, credentials = operation.settings, _credentials(operation)
        if credentials is None:
            return None
        return self._limits.failed_logins.at_once(
            self._peer.host, virtual_host, credentials, lambda: self._accept_at_once(virtual_host, credentials)
        )

    def _accept_at_once(self, virtual_host: VirtualHost, credentials: Credentials) -> ops.LoggedIn | None:
        self._links = links = self._pool.log_in_at_once(virtual_host, credentials)
        if links is None:
            return None
        try:
            self.rates = self._limits.add(virtual_host, credentials.login, self._peer.host)
        except LimitReachedError:
            self.release_links()
            return None
        return _logged_in(links)

    async def log_in(self, operation: ops.Login) -> ops.Event:
        """Let the broker check a login, and count the session. Returns LoggedIn, LoginFailed or LoginNotTried."""
        self.release_links()
        virtual_host, credentials = operation.settings, _credentials(operation)
        name = virtual_host.name
        if credentials is None:
            self._log.login_refused(
                name, operation.login.decode(errors="replace"), "login or passcode is empty or not UTF-8"
            )
            return ops.LoginFailed(ACCESS_REFUSED, "ACCESS_REFUSED")
        try:
            logged_in = await self._guard(
                virtual_host,
                credentials,
                lambda: self._accept(virtual_host, credentials),
                partial(self._bounded, virtual_host),
                is_from_file=operation.is_from_file,
            )
        except TooManyFailedLoginsError as failed:
            self._log.login_refused(name, credentials.login, str(failed))
            return ops.LoginNotTried(error_frames.too_many_failed_logins(failed.seconds))
        except LimitReachedError as full:
            self.release_links()
            self._log.login_refused(name, credentials.login, str(full))
            return ops.LoginNotTried(error_frames.too_many_sessions(full.scope, full.limit))
        except LinkDownError as down:
            if not self._is_closed:
                self._pool.log_limits.warn_of_virtual_host(
                    log, name, "upstream unreachable", reason=down.detail, hint=UNREACHABLE_HINT
                )
            return ops.LoginNotTried(error_frames.broker_unreachable(), is_logged=False)
        except UpstreamError as refusal:
            # The AMQP library keeps the exception, whose traceback would keep the session in memory.
            refusal.__traceback__ = None
            self._log.login_refused(name, credentials.login, refusal.text)
            return ops.LoginFailed(refusal.code, refusal.text)
        return logged_in

    async def renew(self, token: str) -> list[Link]:
        """Let the broker check a new token, see `LinkPool.renew`. A refusal counts like that of a login.

        Returns:
            The links that need the new token.

        Raises:
            TooManyFailedLoginsError: the broker was not asked.
            UpstreamError: the broker refused it, or cannot be reached.
            SharedLinksError: it cannot be used on shared links.
        """
        links = self.links
        if token.count("\0"):
            # PLAIN uses NUL as separator, so the broker cannot be asked.
            raise UpstreamError(ACCESS_REFUSED, "ACCESS_REFUSED")
        credentials = Credentials(links.login, token)
        return await self._guard(links.virtual_host, credentials, lambda: self._pool.renew(links, token))

    async def _guard(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        ask: Callable[[], Awaitable[Answer]],
        time_limit: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        *,
        is_from_file: bool = False,
    ) -> Answer:
        """See `FailedLogins.guard`. A failure counts toward a lock-out, too, except for the operator's passcode."""

        async def failed(delay: float) -> None:
            # Behind a proxy that does not name its clients, the address is that of all of them.
            if not is_from_file and not self._peer.is_proxy:
                self._limits.lock_outs.login_failed(self._peer.host)
            self.is_kept_back = True
            try:
                await asyncio.sleep(delay)
            finally:
                self.is_kept_back = False

        guard = self._limits.failed_logins.guard
        return await guard(self._peer.host, virtual_host, credentials, ask, failed, time_limit)

    async def _accept(self, virtual_host: VirtualHost, credentials: Credentials) -> ops.LoggedIn:
        """Get the links, and count the session."""
        self._limits.check(virtual_host, self._peer.host)
        self._links = await self._pool.log_in(virtual_host, credentials, str(self._peer), self._session)
        logged_in = _logged_in(self._links)
        if self._is_closed:
            self.release_links()
        else:
            self.rates = self._limits.add(virtual_host, credentials.login, self._peer.host)
        return logged_in

    @asynccontextmanager
    async def _bounded(self, virtual_host: VirtualHost) -> AsyncIterator[None]:
        """Bound the time for an answer: by the end of the session, and if sessions ride through, by the deadline.

        Raises:
            LinkDownError: there was no answer in time.
        """
        try:
            async with asyncio.timeout_at(self._deadline if virtual_host.upstream.ride_through else None) as time_limit:
                self._timeout = time_limit
                yield
        except TimeoutError:
            raise self._pool.dialer.unanswered(virtual_host.upstream) from None
        finally:
            self._timeout = None

    def log_out(self) -> None:
        """Stop counting the session, which has ended, or did not begin after the login."""
        rates, self.rates = self.rates, None
        if rates is not None:
            rates.release()

    def close(self) -> None:
        """End a login under way, and stop counting the session, at its end. ``release_links`` follows."""
        self._is_closed = True
        self.log_out()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(0)

    def release_links(self) -> None:
        """Give the links back, at the end or before another login."""
        links, self._links = self._links, None
        if links is not None:
            self._pool.release(links)


def _logged_in(links: LoginLinks) -> ops.LoggedIn:
    return ops.LoggedIn(links.broker_version, renews_tokens=bool(links.renews_tokens))


def _credentials(operation: ops.Login) -> Credentials | None:
    """The credentials for the broker; None if it would refuse them."""
    try:
        credentials = Credentials(operation.login.decode(), operation.passcode.decode())
    except UnicodeDecodeError:
        return None
    if not credentials.login and (claims := claims_of(operation.passcode)) is not None:
        # RabbitMQ takes the user from the token, whatever the login.
        return Credentials(_user_of(claims), credentials.passcode)
    # RabbitMQ refuses an empty login or passcode, but the AMQP library would replace it by "guest".
    return credentials if credentials.login and credentials.passcode else None


def _user_of(claims: dict[str, object]) -> str:
    """The user whom an unverified token names; "token" if the name does not suit PLAIN or the log."""
    user = claims.get("sub")
    return user if isinstance(user, str) and user and "\0" not in user and fits_short_string(user) else "token"
