"""The open links of a gateway, and the sessions that may use them.

Sessions that log in to the same virtual host with the same login and passcode share links (``links: shared``), or each
has links of its own (``links: dedicated``). ``LinkPool.log_in`` gives a session its ``LoginLinks`` either way.

Sharing must not weaken the broker's access control. The pool accepts a login without asking the broker only while a
link for it is open and the broker accepted the same credentials less than ``login_cache`` seconds ago. Otherwise it
asks the broker again, over a new connection, before the session may begin. Passcodes are compared by keyed hashes and
in constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.config.virtual_host import VirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import ClientProperties, Link
from gateway.server.broker.publish_window import PublishWindow
from gateway.server.broker.queue_declare import QueueConflictLog
from gateway.server.broker.redial import Redial, dial_slots
from gateway.server.fault_boundary import guarded
from gateway.server.log_limits import LogLimits
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts

# An unused shared link is kept this long, in seconds: clients that connect, send and leave come back.
_IDLE_TIMEOUT: Final = 60.0

# How many sessions of one login have their channels restored at the same time after a loss.
_RESTORING: Final = 32

_PUBLISH: Final = "publish"
_CONSUME: Final = "consume"

OpenLink = Callable[[VirtualHost, Credentials, str, str, str], Awaitable[Link]]
"""Opens a link for a purpose; the last two name client and session of a link that serves only one session."""


class LoginLinks:
    """The links of one login to one virtual host; ``client`` and ``session`` name the user of dedicated links."""

    def __init__(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        open_link: OpenLink,
        client: str = "",
        session: str = "",
        slots: asyncio.Semaphore | None = None,
    ) -> None:
        self.virtual_host = virtual_host
        self.is_dedicated = bool(session)
        # How many sessions use shared links, and the time when the last one left.
        self.sessions = 0
        self.idle_since = 0.0
        self._credentials = credentials
        self._open_link = open_link
        self._client = client
        self._session = session
        self._links: dict[str, list[Link]] = {_PUBLISH: [], _CONSUME: []}
        # A link that was opened to check the login and has no purpose yet.
        self._unused: Link | None = None
        self._opening: dict[str, asyncio.Future[Link]] = {}
        # Whether a broker refused the login when a draining link was to be replaced.
        self._is_refused = False
        self._redial = Redial(self.check_login, slots or dial_slots())
        # How many of its sessions have their channels restored at the same time.
        self.restoring = asyncio.Semaphore(_RESTORING)

    @property
    def login(self) -> str:
        """Whose links these are."""
        return self._credentials.login

    @property
    def broker_version(self) -> tuple[int, ...]:
        """As numbers; empty without a link."""
        return next((link.tuning.broker_version for link in self.all), ())

    @property
    def all(self) -> list[Link]:
        """Every open link."""
        links = [*self._links[_PUBLISH], *self._links[_CONSUME]]
        if self._unused is not None:
            links.append(self._unused)
        return [link for link in links if link.closed is None]

    async def check_login(self) -> None:
        """Open a connection to learn whether the broker accepts the login; keep it if it is the first.

        Raises:
            UpstreamError: the broker refuses.
            LinkDownError: no broker can be reached.
        """
        link = await self._open("login", self._client, self._session)
        if any(open_link.has_room for open_link in self.all):
            await link.close()
        else:
            self._unused = link

    async def come_back(self) -> None:
        """Wait until a link is open. All sessions that wait share one dial.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
        """
        if not self.all:
            await self._redial.answered()

    async def wait_for_login(self) -> None:
        """Ask the broker about the login as ``check_login`` does, and wait until there is a broker to ask."""
        await self._redial.answered()

    async def check_passcode(self, passcode: str) -> None:
        """Ask the broker about another passcode, over a new connection, with the errors of ``check_login``."""
        credentials = Credentials(self._credentials.login, passcode)
        link = await self._open_link(self.virtual_host, credentials, "login", self._client, self._session)
        await link.close()

    async def update_secret(self, passcode: str) -> None:
        """Use another passcode from now on, on every open link too. For dedicated links only.

        Raises:
            LinkDownError: a link was lost meanwhile.
        """
        self._credentials = Credentials(self._credentials.login, passcode)
        await asyncio.gather(*(link.update_secret(passcode) for link in self.all))

    async def publishing_channel(self) -> LinkChannel:
        """A channel on a link that serves publishers."""
        link = await self._link_with_room(_PUBLISH)
        if link.window is None and not self.is_dedicated:
            link.window = PublishWindow(link, asyncio.get_running_loop().time)
        return await LinkChannel.open(link)

    async def consuming_channel(self) -> LinkChannel:
        """A channel on a link that serves subscriptions; the broker has not answered its opening."""
        return LinkChannel.begun(await self.consuming_link())

    async def consuming_link(self) -> Link:
        """A link that serves subscriptions, with room for a channel."""
        return await self._link_with_room(_CONSUME)

    async def open_pausable(self, client: str, session: str) -> Link:
        """A link for one session only."""
        return await self._open("own", client, session)

    async def _link_with_room(self, purpose: str) -> Link:
        """A link with room for one more channel. Sessions that need a new link at the same time share one."""
        links = self._links[purpose]
        links[:] = [link for link in links if link.closed is None]
        for link in links:
            if link.has_room:
                return link
        opening = self._opening.get(purpose)
        if opening is not None:
            await asyncio.shield(opening)
            return await self._link_with_room(purpose)
        unused, self._unused = self._unused, None
        if unused is not None and unused.has_room:
            unused.purpose = purpose
            links.append(unused)
            return unused
        self._opening[purpose] = opening = asyncio.get_running_loop().create_future()
        try:
            link = await self._open(purpose, self._client, self._session)
            links.append(link)
            opening.set_result(link)
        except BaseException as error:
            opening.set_exception(_for_others(error))
            # If no other session waits, asyncio would log that the exception was never retrieved.
            opening.exception()
            raise
        finally:
            del self._opening[purpose]
        return link

    async def _open(self, purpose: str, client: str, session: str) -> Link:
        return await self._open_link(self.virtual_host, self._credentials, purpose, client, session)

    def is_replaced(self, draining: Link) -> bool:
        """Whether another link has room for the channels of one that drains."""
        return any(link.has_room for link in self._links[self._purpose_of(draining)])

    async def replace(self, draining: Link) -> None:
        """Open a link that takes the place of one that drains, unless a broker has refused the login before."""
        purpose = self._purpose_of(draining)
        if purpose in self._opening or self._is_refused:
            return
        try:
            await self._link_with_room(purpose)
        except UpstreamError as error:
            # A broker that does not answer is asked again.
            self._is_refused = not isinstance(error, LinkDownError)

    @staticmethod
    def _purpose_of(link: Link) -> str:
        return _PUBLISH if link.purpose == _PUBLISH else _CONSUME

    async def close(self) -> None:
        """Close every link, also an unused one that has ended: its socket may still be open."""
        links = [*self.all, *([] if self._unused is None or self._unused in self.all else [self._unused])]
        self._links, self._unused = {_PUBLISH: [], _CONSUME: []}, None
        await asyncio.gather(*(link.close() for link in links))


def _for_others(error: BaseException) -> UpstreamError:
    """What a failed dial means to the sessions that waited for it, too."""
    if isinstance(error, LinkDownError):
        return LinkDownError(error.code, error.text, error.detail)
    if isinstance(error, UpstreamError):
        return UpstreamError(error.code, error.text)
    return LinkDownError(CONNECTION_FORCED, "the link was not opened")


class _SharedLogin:
    """One set of credentials, and the links that its sessions share."""

    def __init__(self, passcode_hash: bytes, links: LoginLinks) -> None:
        self.passcode_hash = passcode_hash
        self.links = links
        self.accepted_at = -1.0
        # The check that is under way, and how many sessions wait for it.
        self.check: asyncio.Task[None] | None = None
        self.waiting = 0


class LinkPool:
    """All links of a gateway.

    ``node`` is the gateway's name for the broker's management pages. ``clock`` is monotonic, in seconds. ``spawn``
    starts a background task and keeps a reference to it. Each read from a broker advances the journal's clock.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        spawn: Callable[..., object],
        journal: Journal,
        stats: GatewayStats,
        node: str,
        contexts: TlsContexts,
        log_limits: LogLimits,
    ) -> None:
        # Every open link.
        self.links: set[Link] = set()
        self.dialer = Dialer(clock, contexts, log_limits)
        self._slots = dial_slots()
        self.queue_conflicts = QueueConflictLog()
        self._clock = clock
        self._spawn = spawn
        self._journal = journal
        self._stats = stats
        self._node = node
        self._key = secrets.token_bytes(32)
        self._shared: dict[tuple[str, str], list[_SharedLogin]] = {}

    async def _open(
        self, virtual_host: VirtualHost, credentials: Credentials, purpose: str, client: str, session: str
    ) -> Link:
        client_properties = ClientProperties(purpose, virtual_host.name, credentials.login, self._node, client, session)
        link = await self.dialer.open_link(virtual_host, credentials, client_properties, self._journal.clock.tick)
        link.opened_at = self._journal.clock.time
        self._stats.host(self._stats.label(link.virtual_host)).links_opened += 1
        if link.closed is None:
            self.links.add(link)
            link.on_closed = self._link_closed
        else:
            self._link_closed(link)
        return link

    def _link_closed(self, link: Link) -> None:
        self.links.discard(link)
        if not link.is_closing:
            self._stats.host(self._stats.label(link.virtual_host)).links_lost += 1

    async def log_in(
        self, virtual_host: VirtualHost, credentials: Credentials, client: str, session: str
    ) -> LoginLinks:
        """Let the broker decide on a login. The session gives the links back with ``release``.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
            LinkDownError: no broker can be reached.
        """
        if virtual_host.links == "dedicated":
            links = LoginLinks(virtual_host, credentials, self._open, client, session, self._slots)
            await self._ask(links)
            return links
        shared = self._shared_login(virtual_host, credentials)
        if not self._is_cached(shared, virtual_host.login_cache):
            if shared.check is None:
                shared.check = asyncio.ensure_future(self._check(shared))
            await self._wait_for(shared, shared.check)
        shared.links.sessions += 1
        return shared.links

    def release(self, links: LoginLinks) -> None:
        """A session no longer needs its links."""
        if links.is_dedicated:
            self._spawn(links.close())
        else:
            links.sessions -= 1
            links.idle_since = self._clock()

    def _shared_login(self, virtual_host: VirtualHost, credentials: Credentials) -> _SharedLogin:
        passcode_hash = hmac.digest(self._key, credentials.passcode.encode(), "sha256")
        candidates = self._shared.setdefault((virtual_host.name, credentials.login), [])
        for candidate in candidates:
            is_same_broker = _way_to_broker(candidate.links.virtual_host) == _way_to_broker(virtual_host)
            if hmac.compare_digest(candidate.passcode_hash, passcode_hash) and is_same_broker:
                return candidate
        links = LoginLinks(virtual_host, credentials, self._open, slots=self._slots)
        candidates.append(created := _SharedLogin(passcode_hash, links))
        return created

    def _is_cached(self, shared: _SharedLogin, seconds: float) -> bool:
        age = self._clock() - shared.accepted_at
        return shared.accepted_at >= 0 and age < seconds and bool(shared.links.all)

    async def _check(self, shared: _SharedLogin) -> None:
        """Ask the broker, once for all sessions that log in with the same credentials at the same moment."""
        try:
            await self._ask(shared.links)
            shared.accepted_at = shared.links.idle_since = self._clock()
        except BaseException:
            # Wrong passcodes must not accumulate; sessions that logged in before keep their links.
            shared.accepted_at = -1.0
            shared.links.idle_since = -_IDLE_TIMEOUT
            raise
        finally:
            if shared.check is asyncio.current_task():
                shared.check = None
            self.close_idle()

    @staticmethod
    async def _wait_for(shared: _SharedLogin, check: asyncio.Task[None]) -> None:
        """Wait for a check. With the last session that waits, the check itself is given up."""
        shared.waiting += 1
        try:
            await asyncio.shield(check)
        finally:
            shared.waiting -= 1
            if not shared.waiting and shared.check is check and not check.done():
                shared.check = None
                check.cancel()

    async def _ask(self, links: LoginLinks) -> None:
        """Let a broker decide on a login. Where sessions ride through, this waits until one answers."""
        try:
            await links.check_login()
        except LinkDownError:
            ride_through = links.virtual_host.upstream.ride_through
            if not ride_through:
                raise
            try:
                async with asyncio.timeout(ride_through):
                    await links.wait_for_login()
            except TimeoutError:
                raise self.dialer.unanswered(links.virtual_host.upstream) from None

    async def fail_back(self, virtual_host: VirtualHost) -> int:
        """Drain the links of a virtual host that are not on its preferred broker; how many there are.

        New channels go to new links, and those are dialled as always: to the first broker, or to any if the order is
        ``shuffle``. Then all links are drained, so that they spread over the brokers again.

        Raises:
            LinkDownError: the preferred broker does not answer; nothing has changed.
        """
        upstream, preferred = virtual_host.upstream, None
        if upstream.order == "as-written":
            preferred = upstream.urls[0]
            await self.dialer.greeted(preferred, upstream)
        label = self._stats.label(virtual_host.name)
        draining = [
            link
            for link in self.links
            if self._stats.label(link.virtual_host) == label and not link.is_draining and link.broker != preferred
        ]
        for link in draining:
            link.is_draining = True
        return len(draining)

    def drain_links(self) -> None:
        """Let sessions leave the links that drain, and close those that are drained. Called about once a second."""
        for link in [link for link in self.links if link.is_draining and not link.is_closing]:
            for user in tuple(link.users):
                guarded(user, user.leave, link)
            if link.is_idle:
                self._spawn(link.close())

    def close_idle(self) -> None:
        """Close the shared links that no session has used for a while."""
        now = self._clock()
        for key, logins in list(self._shared.items()):
            for login in [login for login in logins if self._is_idle(login, now)]:
                logins.remove(login)
                self._spawn(login.links.close())
            if not logins:
                del self._shared[key]

    @staticmethod
    def _is_idle(login: _SharedLogin, now: float) -> bool:
        return not login.links.sessions and login.check is None and now - login.links.idle_since > _IDLE_TIMEOUT

    async def close(self) -> None:
        """Close every shared link."""
        logins = [login for logins in self._shared.values() for login in logins]
        self._shared.clear()
        await asyncio.gather(*(login.links.close() for login in logins), self.dialer.close())


def _way_to_broker(virtual_host: VirtualHost) -> tuple[object, ...]:
    """What leads to one broker and virtual host; a reload of the configuration may change it."""
    return virtual_host.amqp_vhost, virtual_host.upstream
