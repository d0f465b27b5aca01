"""Which links there are, and who may use them.

Sessions that log in to the same virtual host with the same login and passcode share links (``links: shared``), or have
links of their own (``links: dedicated``). A ``LinkLease`` is what a session holds on to either way.

Sharing must not weaken the broker's judgement. A login is trusted without asking only when a link for it is open and
the very same credentials were accepted less than ``login_cache`` seconds ago; otherwise the broker is asked again,
over a connection of its own, before the session is let in. Passcodes are compared by keyed digests and in
constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.config import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.link import Credentials, Link
from gateway.server.broker.link_registry import LinkRegistry
from gateway.server.broker.queue_declare import TakenQueues

# A shared link that nobody uses is kept this long, in seconds: clients that connect, send and go come back.
_LINGER: Final = 60.0

OpenLink = Callable[[VirtualHost, Credentials, str, str, str], Awaitable[Link]]
"""Opens a link for a purpose; the last two name client and session, where it is for one only."""

_PUBLISH: Final = "publish"
_CONSUME: Final = "consume"


class LoginLinks:
    """The links of one login to one virtual host.

    Args:
        virtual_host: says where the brokers are.
        credentials: the login's.
        open_link: opens one for a purpose.
    """

    def __init__(self, virtual_host: VirtualHost, credentials: Credentials, open_link: OpenLink) -> None:
        self.virtual_host = virtual_host
        self.users = 0
        self.idle_since = 0.0
        self._credentials = credentials
        self._open_link = open_link
        self._links: dict[str, list[Link]] = {_PUBLISH: [], _CONSUME: []}
        # A connection opened to ask about a login, not yet used for anything.
        self._spare: Link | None = None
        self._opening: dict[str, asyncio.Future[Link]] = {}

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The broker's, as numbers; empty while there is no link."""
        return next((link.broker_version for link in self.all), ())

    @property
    def all(self) -> list[Link]:
        """Every open link."""
        links = [*self._links[_PUBLISH], *self._links[_CONSUME]]
        if self._spare is not None:
            links.append(self._spare)
        return [link for link in links if link.end is None]

    async def ask_broker(self) -> None:
        """Open a connection to learn whether the broker accepts the login; keep it if it is the first.

        Raises:
            UpstreamError: when the broker refuses.
            LinkDownError: when none can be reached.
        """
        link = await self._open("login")
        if self.all:
            await link.close()
        else:
            self._spare = link

    async def ask_about(self, passcode: str) -> None:
        """Open a connection to learn whether the broker accepts another passcode, and close it again.

        Raises:
            UpstreamError: when the broker refuses.
            LinkDownError: when none can be reached.
        """
        credentials = Credentials(self._credentials.login, passcode)
        link = await self._open_link(self.virtual_host, credentials, "login", "", "")
        await link.close()

    async def renew(self, passcode: str) -> None:
        """Use another passcode from now on, on every open link too.

        Raises:
            LinkDownError: a link is gone meanwhile.
        """
        self._credentials = Credentials(self._credentials.login, passcode)
        await asyncio.gather(*(link.update_secret(passcode) for link in self.all))

    async def publishing_channel(self) -> LinkChannel:
        """A channel on a link that serves publishers."""
        return await self._channel(_PUBLISH)

    async def consuming_channel(self) -> LinkChannel:
        """A channel on a link that serves subscriptions."""
        return await self._channel(_CONSUME)

    async def open_pausable(self, client: str, session: str) -> Link:
        """A link that belongs to one session, whose reading may pause for it.

        Args:
            client: names the client.
            session: the session's identity.
        """
        return await self._open("own", client, session)

    async def _channel(self, purpose: str) -> LinkChannel:
        link = await self._with_room(purpose)
        link.reserve()
        return await link.channel()

    async def _with_room(self, purpose: str) -> Link:
        """A link with room for one more channel; many sessions that need a new one wait for the same."""
        links = self._links[purpose]
        links[:] = [link for link in links if link.end is None]
        for link in links:
            if link.has_room:
                return link
        opening = self._opening.get(purpose)
        if opening is not None:
            await asyncio.shield(opening)
            return await self._with_room(purpose)
        spare, self._spare = self._spare, None
        if spare is not None and spare.end is None:
            spare.purpose = purpose
            links.append(spare)
            return spare
        self._opening[purpose] = opening = asyncio.get_running_loop().create_future()
        try:
            link = await self._open(purpose)
            links.append(link)
            opening.set_result(link)
        except BaseException as error:
            opening.set_exception(
                error if isinstance(error, LinkDownError) else LinkDownError(320, "the broker refused a link")
            )
            # Nobody may be waiting; that is no reason for a complaint.
            opening.exception()
            raise
        finally:
            del self._opening[purpose]
        return link

    async def _open(self, purpose: str, client: str = "", session: str = "") -> Link:
        return await self._open_link(self.virtual_host, self._credentials, purpose, client, session)

    async def close(self) -> None:
        """Close every link."""
        links, self._links, spare = self.all, {_PUBLISH: [], _CONSUME: []}, self._spare
        self._spare = None
        if spare is not None and spare not in links:
            links.append(spare)
        await asyncio.gather(*(link.close() for link in links))


class _SharedLogin:
    """One set of credentials that the broker accepted, and the links that its sessions share."""

    def __init__(self, digest: bytes, links: LoginLinks) -> None:
        self.digest = digest
        self.links = links
        self.accepted = -1.0
        self.asking: asyncio.Task[None] | None = None


class LinkLease:
    """A session's hold on its links. ``release`` it when the session is over."""

    def __init__(self, links: LoginLinks, release: Callable[[LinkLease], None]) -> None:
        self.links = links
        self._release = release

    def release(self) -> None:
        """The session needs the links no longer."""
        self._release(self)


class LinkPool:
    """All links of a gateway.

    Args:
        clock: seconds, only going forward.
        spawn: starts a background task and keeps hold of it.
        batch_begins: called before anything that a broker sent reaches a session.
        inventory: is told of every link.
        node: the gateway's name, for the broker's pages.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        spawn: Callable[..., object],
        batch_begins: Callable[[], None],
        link_registry: LinkRegistry,
        node: str,
    ) -> None:
        self._clock = clock
        self._batch_begins = batch_begins
        self._inventory = link_registry
        self._node = node
        self._spawn = spawn
        self._key = secrets.token_bytes(32)
        self._shared: dict[tuple[str, str], list[_SharedLogin]] = {}
        # Queues of all sessions that are not what they asked for.
        self.taken_queues = TakenQueues()

    async def _open(
        self, virtual_host: VirtualHost, credentials: Credentials, purpose: str, client: str, session: str
    ) -> Link:
        client_properties = ClientProperties(purpose, virtual_host.name, credentials.login, self._node, client, session)
        link = await Link.open(virtual_host, credentials, client_properties, self._batch_begins)
        self._inventory.opened(link)
        return link

    async def log_in(self, virtual_host: VirtualHost, credentials: Credentials, client: str, session: str) -> LinkLease:
        """Let the broker decide on a login, and hand out links.

        Args:
            virtual_host: which the client asked for.
            credentials: the client's own.
            client: names the client, for dedicated links.
            session: its identity, for the same.

        Raises:
            UpstreamError: when the broker refuses the login or the virtual host.
            LinkDownError: when no broker can be reached.
        """
        if virtual_host.links == "dedicated":

            async def open_dedicated(
                virtual_host: VirtualHost, credentials: Credentials, purpose: str, _client: str, _session: str
            ) -> Link:
                return await self._open(virtual_host, credentials, purpose, client, session)

            links = LoginLinks(virtual_host, credentials, open_dedicated)
            await links.ask_broker()
            return LinkLease(links, self._release_dedicated)
        shared = self._find(virtual_host, credentials)
        if not self._is_trusted(shared):
            if shared.asking is None:
                shared.asking = asyncio.ensure_future(self._ask(shared))
            await asyncio.shield(shared.asking)
        shared.links.users += 1
        return LinkLease(shared.links, self._release_shared)

    def _find(self, virtual_host: VirtualHost, credentials: Credentials) -> _SharedLogin:
        digest = hmac.digest(self._key, credentials.passcode.encode(), "sha256")
        candidates = self._shared.setdefault((virtual_host.name, credentials.login), [])
        for candidate in candidates:
            if hmac.compare_digest(candidate.digest, digest):
                return candidate
        links = LoginLinks(virtual_host, credentials, self._open)
        candidates.append(candidate := _SharedLogin(digest, links))
        return candidate

    def _is_trusted(self, shared: _SharedLogin) -> bool:
        age = self._clock() - shared.accepted
        return shared.accepted >= 0 and age < shared.links.virtual_host.login_cache and bool(shared.links.all)

    async def _ask(self, shared: _SharedLogin) -> None:
        """Ask the broker; sessions that log in at the same moment with the same credentials wait for one answer."""
        try:
            await shared.links.ask_broker()
            shared.accepted = shared.links.idle_since = self._clock()
        except BaseException:
            # Wrong passcodes must not pile up; sessions that were let in before keep their links.
            shared.accepted = -1.0
            shared.links.idle_since = -_LINGER
            raise
        finally:
            shared.asking = None
            self.close_idle()

    def _release_shared(self, lease: LinkLease) -> None:
        lease.links.users -= 1
        lease.links.idle_since = self._clock()

    def _release_dedicated(self, lease: LinkLease) -> None:
        self._spawn(lease.links.close())

    def close_idle(self) -> None:
        """Close the shared links that nobody has used for a while."""
        now = self._clock()
        for key, logins in list(self._shared.items()):
            for login in [each for each in logins if self._is_idle(each, now)]:
                logins.remove(login)
                self._spawn(login.links.close())
            if not logins:
                del self._shared[key]

    @staticmethod
    def _is_idle(login: _SharedLogin, now: float) -> bool:
        return not login.links.users and login.asking is None and now - login.links.idle_since > _LINGER

    async def close(self) -> None:
        """Close every shared link."""
        logins = [login for logins in self._shared.values() for login in logins]
        self._shared.clear()
        await asyncio.gather(*(login.links.close() for login in logins))
