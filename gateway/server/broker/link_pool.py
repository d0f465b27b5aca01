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
import math
import secrets
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
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
from gateway.server.broker.redial import DialSlots
from gateway.server.descriptors import Descriptors
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import OperationStarts, PacedWork
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts
from gateway.session.connect import expiry_of, grant_the_same

log = structlog.get_logger("gateway.broker")

# An unused shared link is kept this long, in seconds: clients that connect, send and leave come back.
_IDLE_TIMEOUT: Final = 60.0


# How many sessions leave draining links at the same time: each has channels closed and opened, and some are held
# meanwhile.
_LEAVING: Final = 32


class SharedLinksError(Exception):
    """A token cannot be used on links that other sessions use, too."""


class _SharedLogin:
    """One set of credentials, and the links that its sessions share."""

    def __init__(self, passcode_hash: bytes, links: LoginLinks) -> None:
        self.passcode_hash = passcode_hash
        self.links = links
        self.accepted_at = -1.0
        # The check that is under way, and how many sessions wait for it.
        self.check: asyncio.Task[None] | None = None
        self.waiting = 0


class LinkDrain:
    """Drains links of a gateway; ``links`` is a live view. ``spawn`` starts a background task."""

    def __init__(self, links: Iterable[Link], spawn: Callable[..., object]) -> None:
        # Each session takes one while it leaves.
        self.slots = asyncio.Semaphore(_LEAVING)
        self._links = links
        self._spawn = spawn
        self._is_under_way = False

    def sweep(self) -> None:
        """Close the links that are drained, and let sessions leave the others. Called about once a second."""
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
                    await user.leave(link)
                # Others have their turn, even if each session only has to say no.
                await asyncio.sleep(0)

        try:
            await asyncio.gather(*(ask_remaining() for _ in range(_LEAVING)))
        finally:
            self._is_under_way = False


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
        paced: PacedWork,
    ) -> None:
        # Every open link.
        self.links: set[Link] = set()
        self.alarms = BrokerAlarms(log_limits)
        self.drain = LinkDrain(self.links, spawn)
        self.log_limits = log_limits
        self.dialer = Dialer(clock, contexts, log_limits, paced)
        # What clients and links share.
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
        # The bulk links that nobody used a moment ago.
        self._idle_bulk: set[Link] = set()
        # Of all sessions, shared or not.
        self._logins: weakref.WeakSet[LoginLinks] = weakref.WeakSet()

    async def _open(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        purpose: str,
        client: str,
        session: str,
        patiently: bool,
    ) -> Link:
        client_properties = ClientProperties(purpose, virtual_host.name, credentials.login, self._node, client, session)
        if not self.descriptors.link_begins(is_own=bool(session)):
            raise LinkDownError(CONNECTION_FORCED, "no broker can be asked", "no file descriptor is left for a link")
        try:
            link = await self.dialer.open_link(
                virtual_host, credentials, client_properties, self._journal.clock.tick, patiently=patiently
            )
        except BaseException:
            self.descriptors.link_gone(is_own=bool(session))
            raise
        link.opened_at = self._journal.clock.time
        self._stats.host(self._stats.label(link.virtual_host)).links_opened += 1
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
            self._stats.host(self._stats.label(link.virtual_host)).links_lost += 1
            if link.was_cut:
                is_last = all(other.broker != link.broker for other in self.links)
                self.dialer.link_cut(link.broker, is_last=is_last)
            elif link.closed is not None and is_shutdown(link.closed):
                self.dialer.broker_stops(link.broker)

    def is_unsettled(self, virtual_host: VirtualHost, within: float = math.inf) -> bool:
        """Whether a broker of a virtual host went or came in the last seconds, and sessions ride through such changes.

        Then a queue may be without a leader, or not there yet. Without a change, one that takes no message is full.
        """
        upstream = virtual_host.upstream
        return self._clock() - self.dialer.changed_at(upstream) < min(within, upstream.ride_through)

    def queue_away(self, virtual_host: VirtualHost) -> None:
        """A queue of a virtual host is away, and so is its node, with which the gateway may have no link."""
        self.dialer.note_change(virtual_host.upstream)

    def log_in_at_once(self, virtual_host: VirtualHost, credentials: Credentials) -> LoginLinks | None:
        """As ``log_in``, if the broker need not be asked; else None."""
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
        """Let the broker decide on a login. The session gives the links back with ``release``.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
            LinkDownError: no broker can be reached.
        """
        if virtual_host.links == "dedicated":
            links = self._links_of(virtual_host, credentials, client, session)
            try:
                await self._ask(links)
            except BaseException:
                # The session may be over while a broker answers.
                self._spawn(links.close())
                raise
            return links
        shared = self._shared_login(virtual_host, credentials)
        if not self._is_cached(shared, virtual_host.login_cache):
            if shared.check is None:
                shared.check = asyncio.ensure_future(self._check(shared))
            await self._wait_for(shared, shared.check)
        shared.links.sessions += 1
        return shared.links

    async def renew(self, links: LoginLinks, token: str) -> list[Link]:
        """Let the broker decide on another token of a session; the open links that must have it from now on.

        Sessions that share links share the token that expires last. Each still ends with its own.

        Raises:
            UpstreamError: the broker refuses it.
            LinkDownError: no broker can be reached.
            SharedLinksError: it grants something else than the one before, and other sessions use the links.
        """
        shared, passcode_hash = self._shared_by(links), self._hash(token)
        if shared is None:
            await links.check_passcode(token)
            return links.use_passcode(token)
        is_known = hmac.compare_digest(shared.passcode_hash, passcode_hash)
        if is_known and self._is_cached(shared, links.virtual_host.login_cache):
            return []
        await links.check_passcode(token)
        while shared.check is not None:
            # Sessions log in with the token before, which is asked about until then.
            await asyncio.wait([shared.check])
        if links.sessions > 1 or shared.waiting:
            before, after = links.passcode.encode(), token.encode()
            # All of them must end with their own tokens.
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
        """A broker does not accept this login any more: the next session must ask, whatever was accepted before."""
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
            # Wrong passcodes must not accumulate; sessions that logged in before keep their links.
            shared.accepted_at = -1.0
            shared.links.idle_since = -_IDLE_TIMEOUT
            raise
        finally:
            if shared.check is asyncio.current_task():
                shared.check = None
            # Not all of them are looked at: each of thousands of logins would cost as much as there are.
            self._close_if_idle(shared)

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
        concerned = [link for link in self.links if self._stats.label(link.virtual_host) == label]
        draining = sum(link.drain() for link in concerned if link.broker != preferred)
        for login in self._logins:
            if self._stats.label(login.virtual_host.name) == label:
                login.replace_again()
        return draining

    def use(self, find_virtual_host: FindVirtualHost) -> None:
        """Use another configuration: links go to the brokers that it names, and those to any other are drained.

        A session stays in the broker's virtual host that it logged in to, which has its queues.
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
        """Close the shared links that no session has used for a while. Called about once a second."""
        for login in [login for logins in self._shared.values() for login in logins if not login.links.sessions]:
            self._close_if_idle(login)
        idle = {link for link in self.links if link.purpose == BULK and link.is_idle}
        for link in idle & self._idle_bulk:
            link.drain()
        self._idle_bulk = idle

    def _close_if_idle(self, login: _SharedLogin) -> None:
        links = login.links
        if links.sessions or login.check is not None or self._clock() - links.idle_since <= _IDLE_TIMEOUT:
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
    """Whether another token is of more use: it expires later, or never."""
    expiry, later = expiry_of(token), expiry_of(another)
    return expiry is not None and (later is None or later > expiry)


def _way_to_share(virtual_host: VirtualHost) -> tuple[object, ...]:
    """What leads to one broker and virtual host, and whether tokens are renewed; a reload may change it."""
    return virtual_host.amqp_vhost, virtual_host.upstream, virtual_host.token_renewal
