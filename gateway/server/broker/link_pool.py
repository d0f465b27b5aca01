"""The open links of a gateway, and the logins that use them.

Sessions with the same virtual host, login and passcode share links (``links: shared``), or each session has its own
(``links: dedicated``). In both cases ``LinkPool.log_in`` gives a session its `LoginLinks`.

Sharing does not weaken the broker's access control. The pool accepts a login without asking the broker only while a
link for it is open, and if the broker accepted the same credentials less than ``login_cache`` seconds ago. Otherwise it
first asks the broker again, over a new connection. Passcodes are compared by keyed hashes, in constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import math
import secrets
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Final

import structlog

from gateway.config.virtual_host import FindVirtualHost, VirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError, is_shutdown
from gateway.server.broker.broker_state import BrokerAlarms
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import BULK, LoginLinks
from gateway.server.broker.queue_declare import QueueConflictLog
from gateway.server.broker.redial import DialSlots, SharedTask
from gateway.server.descriptors import Descriptors
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import OperationStarts, PacedWork
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts
from gateway.session.connect import expiry_of, grant_the_same

log = structlog.get_logger("gateway.broker")

# How long an unused shared link is kept, in seconds, because clients that connect, send and leave come back.
_IDLE_TIMEOUT: Final = 60.0


# The number of sessions that leave draining links at the same time. Each closes and opens channels, and may be held
# meanwhile.
_LEAVING: Final = 32


class SharedLinksError(Exception):
    """A token cannot be used because other sessions share the links."""


class _SharedLogin:
    """One login with its passcode, and the links that its sessions share."""

    def __init__(self, passcode_hash: bytes, links: LoginLinks) -> None:
        self.passcode_hash = passcode_hash
        self.links = links
        self.accepted_at = -1.0
        self.check = SharedTask[None]()


class LinkDrain:
    """Drains links of a gateway; ``links`` is a live view. ``spawn`` starts a background task."""

    def __init__(self, links: Iterable[Link], spawn: Callable[..., object]) -> None:
        # A session has one while it leaves a link.
        self.slots = asyncio.Semaphore(_LEAVING)
        self._links = links
        self._spawn = spawn
        self._is_under_way = False

    def sweep(self) -> None:
        """Close the links that are drained, and let sessions leave the others. Call it about once a second."""
        draining = [link for link in self._links if link.is_draining and not link.is_closing]
        for link in draining:
            if link.is_idle:
                self._spawn(link.close())
        if draining and not self._is_under_way:
            self._is_under_way = True
            self._spawn(self._round(draining), name="leave draining links")

    async def _round(self, draining: Iterable[Link]) -> None:
        """Ask each session once."""
        remaining = iter([(link, user) for link in draining for user in link.users])

        async def ask_remaining() -> None:
            for link, user in remaining:
                async with self.slots:
                    await user.leave_link(link)
                # Let other work run, even if no session can leave.
                await asyncio.sleep(0)

        try:
            await asyncio.gather(*(ask_remaining() for _ in range(_LEAVING)))
        finally:
            self._is_under_way = False


class LinkPool:
    """All links of a gateway.

    Args:
        clock: monotonic, in seconds.
        spawn: starts a background task and keeps a reference to it.
        journal: its clock is advanced by each read from a broker.
        node: the gateway's name for the broker's management pages.
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
        paced: PacedWork,
    ) -> None:
        # All open links.
        self.links: set[Link] = set()
        self.alarms = BrokerAlarms(log_limits)
        self.drain = LinkDrain(self.links, spawn)
        self.log_limits = log_limits
        self.dialer = Dialer(clock, contexts, log_limits, paced)
        # The file descriptors, which clients and links share.
        self.descriptors = Descriptors(log_limits.of_process())
        self._slots = DialSlots()
        self.queue_conflicts = QueueConflictLog()
        self.starts = OperationStarts()
        self._clock = clock
        self._spawn = spawn
        self._journal = journal
        self._stats = stats
        self._node = node
        self._key = secrets.token_bytes(32)
        self._shared: dict[tuple[str, str], list[_SharedLogin]] = {}
        # The bulk links that were idle at the last call of close_idle.
        self._idle_bulk: set[Link] = set()
        # Those of all sessions, shared or dedicated.
        self._logins: weakref.WeakSet[LoginLinks] = weakref.WeakSet()

    async def _open(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        purpose: str,
        client: str,
        session: str,
        one_by_one: bool,
    ) -> Link:
        client_properties = ClientProperties(purpose, virtual_host.name, credentials.login, self._node, client, session)
        if not self.descriptors.link_begins(is_own=bool(session)):
            raise LinkDownError(CONNECTION_FORCED, "no broker can be asked", "no file descriptor is left for a link")
        try:
            link = await self.dialer.open_link(
                virtual_host, credentials, client_properties, self._journal.clock.tick, one_by_one=one_by_one
            )
        except BaseException:
            self.descriptors.link_gone(is_own=bool(session))
            raise
        link.opened_at = self._journal.clock.time
        self._stats.host(link.virtual_host).links_opened += 1
        if link.closed is None:
            self.links.add(link)
            link.on_closed = self._link_closed
            link.on_alarm = self.alarms.changed
        else:
            self._link_closed(link)
        return link

    def _link_closed(self, link: Link) -> None:
        self.links.discard(link)
        self.alarms.link_closed(link)
        self.descriptors.link_gone(is_own=bool(link.client_properties.session))
        if not link.is_closing:
            self._stats.host(link.virtual_host).links_lost += 1
            if link.was_cut:
                is_last = all(other.broker != link.broker for other in self.links)
                self.dialer.link_cut(link.broker, is_last=is_last)
            elif link.closed is not None and is_shutdown(link.closed):
                self.dialer.broker_stops(link.broker)

    def brokers_changed(self, virtual_host: VirtualHost, within: float = math.inf) -> bool:
        """Whether a broker of a virtual host was lost or answered again in the last seconds.

        ``within``: this many seconds, but at most ``ride_through``.

        If so, a queue that accepts no messages may lack a leader or be missing; otherwise it is full.
        """
        upstream = virtual_host.upstream
        return self._clock() - self.dialer.changed_at(upstream) < min(within, upstream.ride_through)

    def queue_away(self, virtual_host: VirtualHost) -> None:
        """Note that a queue is away, and so its node, although the gateway may have no link to that node."""
        self.dialer.note_change(virtual_host.upstream)

    def log_in_at_once(self, virtual_host: VirtualHost, credentials: Credentials) -> LoginLinks | None:
        """Do the same as ``log_in`` if the login is in the login cache; otherwise return None."""
        if virtual_host.links == "dedicated":
            return None
        shared = self._shared_login(virtual_host, credentials)
        if not self._is_cached(shared, virtual_host.login_cache):
            return None
        shared.links.sessions += 1
        return shared.links

    async def log_in(
        self, virtual_host: VirtualHost, credentials: Credentials, client: str, session: str
    ) -> LoginLinks:
        """Let the broker check a login. The session gives the links back with ``release``.

        ``client`` and ``session`` name the session in the broker's list of connections, if its links are dedicated.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
            LinkDownError: no broker can be reached.
        """
        if virtual_host.links == "dedicated":
            links = self._links_of(virtual_host, credentials, client, session)
            try:
                await self._ask(links)
            except BaseException:
                # The session may end before a broker answers.
                self._spawn(links.close())
                raise
            return links
        shared = self._shared_login(virtual_host, credentials)
        if not self._is_cached(shared, virtual_host.login_cache):
            await shared.check.done(partial(self._check, shared), "check of a login")
        shared.links.sessions += 1
        return shared.links

    async def renew(self, links: LoginLinks, token: str) -> list[Link]:
        """Let the broker check a new token. Returns the open links that need it.

        Sessions that share links use the token that expires last. Each session still ends with its own.

        Raises:
            UpstreamError: the broker refuses it.
            LinkDownError: no broker can be reached.
            SharedLinksError: it does not grant the same as the one before, and other sessions use the links.
        """
        shared, passcode_hash = self._shared_by(links), self._hash(token)
        if shared is None:
            await links.check_passcode(token)
            return links.use_passcode(token)
        is_known = hmac.compare_digest(shared.passcode_hash, passcode_hash)
        if is_known and self._is_cached(shared, links.virtual_host.login_cache):
            return []
        await links.check_passcode(token)
        while shared.check.task is not None:
            # Sessions are logging in with the old token. Wait for the broker's answer about that.
            await asyncio.wait([shared.check.task])
        if links.sessions > 1 or shared.check.waiting:
            before, after = links.passcode.encode(), token.encode()
            # Allowed only if all sessions end with their own tokens, and both tokens grant the same.
            if not (links.renews_tokens and grant_the_same(before, after)):
                raise SharedLinksError
            if not _expires_later(before, after):
                return []
        shared.passcode_hash = passcode_hash
        shared.accepted_at = self._clock()
        return links.use_passcode(token)

    def _shared_by(self, links: LoginLinks) -> _SharedLogin | None:
        if links.is_dedicated:
            return None
        logins = self._shared.get((links.virtual_host.name, links.login), [])
        return next((login for login in logins if login.links is links), None)

    def _hash(self, passcode: str) -> bytes:
        return blake2b(passcode.encode(), key=self._key).digest()

    def distrust(self, links: LoginLinks) -> None:
        """Remove a login from the login cache, because a broker no longer accepts it."""
        for shared in self._shared.get((links.virtual_host.name, links.login), []):
            if shared.links is links:
                shared.accepted_at = -1.0

    def release(self, links: LoginLinks) -> None:
        """A session no longer needs its links."""
        if links.is_dedicated:
            self._spawn(links.close())
        else:
            links.sessions -= 1
            links.idle_since = self._clock()

    def _shared_login(self, virtual_host: VirtualHost, credentials: Credentials) -> _SharedLogin:
        passcode_hash = self._hash(credentials.passcode)
        candidates = self._shared.setdefault((virtual_host.name, credentials.login), [])
        for candidate in candidates:
            links = candidate.links
            is_same_way = _way_to_share(links.virtual_host) == _way_to_share(virtual_host) and links.takes_sessions
            if hmac.compare_digest(candidate.passcode_hash, passcode_hash) and is_same_way:
                return candidate
        candidates.append(created := _SharedLogin(passcode_hash, self._links_of(virtual_host, credentials)))
        return created

    def _links_of(
        self, virtual_host: VirtualHost, credentials: Credentials, client: str = "", session: str = ""
    ) -> LoginLinks:
        links = LoginLinks(virtual_host, credentials, self._open, client, session, self._slots)
        self._logins.add(links)
        return links

    def _is_cached(self, shared: _SharedLogin, seconds: float) -> bool:
        age = self._clock() - shared.accepted_at
        return shared.accepted_at >= 0 and age < seconds and shared.links.is_open

    async def _check(self, shared: _SharedLogin) -> None:
        """Ask the broker, once for all sessions that log in with the same credentials at the same moment."""
        try:
            await self._ask(shared.links)
            shared.accepted_at = shared.links.idle_since = self._clock()
        except BaseException:
            # Wrong passcodes must not accumulate. Sessions that are open keep their links.
            shared.accepted_at = -1.0
            shared.links.idle_since = -_IDLE_TIMEOUT
            raise
        finally:
            if shared.check.task is asyncio.current_task():
                shared.check.task = None
            # Look only at this login: with thousands of them, looking at all after each check would be too slow.
            self._close_if_idle(shared)

    async def _ask(self, links: LoginLinks) -> None:
        """Let a broker check a login. If sessions ride through, this waits until one answers."""
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
        """Drain the links of a virtual host that are not on its preferred broker. Returns their number.

        With ``order: shuffle`` there is no preferred broker, and all links drain, so that they spread again.

        Raises:
            LinkDownError: the preferred broker does not answer. Nothing is drained.
        """
        upstream, preferred = virtual_host.upstream, None
        if upstream.order == "as-written":
            preferred = upstream.urls[0]
            await self.dialer.greeted(preferred, upstream)
        label = self._stats.label(virtual_host.name)
        concerned = [link for link in self.links if self._stats.label(link.virtual_host) == label]
        draining = sum(link.drain() for link in concerned if link.broker != preferred)
        for login in self._logins:
            if self._stats.label(login.virtual_host.name) == label:
                login.replace_again()
        return draining

    def use(self, find_virtual_host: FindVirtualHost) -> None:
        """Use another configuration: new links go to its brokers, and links to other brokers drain.

        Sessions stay in the virtual host of the broker to which they logged in, because it has their queues.
        """
        draining: Counter[str] = Counter()
        for links in self._logins:
            old = links.virtual_host
            new = find_virtual_host(old.name)
            if new is None or (new.name, new.amqp_vhost) != (old.name, old.amqp_vhost):
                continue
            if new.upstream != old.upstream:
                draining[old.name] += links.use_upstream(new.upstream)
        for name, count in draining.items():
            if count:
                log.info("links draining", virtual_host=name, draining=count)

    def close_idle(self) -> None:
        """Close the shared links that no session has used for a while, and drain unused bulk links.

        Call it about once a second.
        """
        for login in [login for logins in self._shared.values() for login in logins if not login.links.sessions]:
            self._close_if_idle(login)
        idle = {link for link in self.links if link.purpose == BULK and link.is_idle}
        for link in idle & self._idle_bulk:
            link.drain()
        self._idle_bulk = idle

    def _close_if_idle(self, login: _SharedLogin) -> None:
        links = login.links
        if links.sessions or login.check.task is not None or self._clock() - links.idle_since <= _IDLE_TIMEOUT:
            return
        key = links.virtual_host.name, links.login
        logins = self._shared.get(key, [])
        if login in logins:
            logins.remove(login)
            if not logins:
                del self._shared[key]
            self._spawn(links.close())

    async def close(self) -> None:
        """Close every shared link."""
        logins = [login for logins in self._shared.values() for login in logins]
        self._shared.clear()
        await asyncio.gather(*(login.links.close() for login in logins), self.dialer.close())


def _expires_later(token: bytes, another: bytes) -> bool:
    """Whether another token expires later, or never."""
    expiry, later = expiry_of(token), expiry_of(another)
    return expiry is not None and (later is None or later > expiry)


def _way_to_share(virtual_host: VirtualHost) -> tuple[object, ...]:
    """The settings that must be equal for sessions to share links. A reload may change them."""
    return virtual_host.amqp_vhost, virtual_host.upstream, virtual_host.token_renewal
