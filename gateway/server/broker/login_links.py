"""The links of one login: opened when they are needed, opened again after a loss, replaced when they drain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from itertools import chain
from typing import Final

from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.publish_window import PublishWindow
from gateway.server.broker.queue_watch import QueueWatch
from gateway.server.broker.redial import DialSlots, Redial
from gateway.session.connect import renews_tokens

# How many sessions of one login have their channels restored at the same time after a loss.
_RESTORING: Final = 32

# Seconds from one dial for a link that replaces another one to the next, if the first has failed.
_BETWEEN_REPLACEMENTS: Final = 1.0

# Seconds to the next dial for a link that sessions might move to, if a broker has refused one.
_BETWEEN_REFUSALS: Final = 60.0

_PUBLISH: Final = "publish"
_CONSUME: Final = "consume"
# Subscriptions with selectors, for which the link may pause: no other has to wait for them.
_SELECT: Final = "select"

BULK: Final = "bulk"
"""The purpose of the link on which sessions of a login publish while they send much, so that others need not wait."""

_PURPOSES: Final = (_PUBLISH, BULK, _CONSUME, _SELECT)

OpenLink = Callable[[VirtualHost, Credentials, str, str, str, bool], Awaitable[Link]]
"""Opens a link for a purpose; two names are of client and session of a link that serves only one session. The last says
whether nobody waits for the link, so that the first broker may take its time."""


class LoginLinks:
    """The links of one login to one virtual host; ``client`` and ``session`` name the user of dedicated links."""

    def __init__(
        self,
        virtual_host: VirtualHost,
        credentials: Credentials,
        open_link: OpenLink,
        client: str = "",
        session: str = "",
        slots: DialSlots | None = None,
    ) -> None:
        self.virtual_host = virtual_host
        self.is_dedicated = bool(session)
        # How many sessions use shared links, and the time when the last one left.
        self.sessions = 0
        self.idle_since = 0.0
        # Whether the sessions renew their tokens and end with them. The first broker settles it for all of them.
        self.renews_tokens: bool | None = None
        self._broker_version: tuple[int, ...] = ()
        self._credentials = credentials
        self._open_link = open_link
        self._client = client
        self._session = session
        self._links: dict[str, list[Link]] = {purpose: [] for purpose in _PURPOSES}
        # A link that was opened to check the login and has no purpose yet.
        self._unused: Link | None = None
        self._pausable: list[Link] = []
        self._opening: dict[str, asyncio.Future[Link]] = {}
        # When a draining link may be replaced, on the event loop's clock: never if a broker has refused the login.
        self._replace_at = 0.0
        # When a link for publishers to move to may be dialled, on the same clock.
        self._move_at = 0.0
        self._is_closed = False
        self._redial = Redial(self.check_login, slots or DialSlots(), virtual_host.name)
        # Held by the one session that comes back after the broker has blamed one of them for the end of a link.
        self.turn = asyncio.Lock()
        # How many of its sessions have their channels restored at the same time.
        self.restoring = asyncio.Semaphore(_RESTORING)
        self._queue_watch: QueueWatch | None = None

    @property
    def login(self) -> str:
        """Whose links these are."""
        return self._credentials.login

    @property
    def queue_watch(self) -> QueueWatch:
        """Tells whether queues are away. Made when it is needed, since it refers back to this."""
        if self._queue_watch is None:
            self._queue_watch = QueueWatch(self.consuming_link, self.come_back)
        return self._queue_watch

    @property
    def broker_version(self) -> tuple[int, ...]:
        """As numbers; while no link is open, that of the broker that was opened last."""
        link = self._any
        return self._broker_version if link is None else link.tuning.broker_version

    @property
    def takes_sessions(self) -> bool:
        """Whether a session that comes now is one like the others. An upgrade of the broker may be between them."""
        settled, now = self.renews_tokens, renews_tokens(self.virtual_host, self.broker_version)
        return settled in {None, now}

    @property
    def is_open(self) -> bool:
        """Whether a link is open that does not drain: brokers of the others may not be asked any more."""
        link = self._any
        return link is not None and (not link.is_draining or any(not each.is_draining for each in self.all))

    @property
    def _any(self) -> Link | None:
        """An open link, found quickly: each login asks."""
        for links in self._links.values():
            for link in links:
                if link.closed is None:
                    return link
        unused = self._unused
        return unused if unused is not None and unused.closed is None else None

    @property
    def all(self) -> list[Link]:
        """Every open link."""
        links = list(chain.from_iterable(self._links.values()))
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
        """Wait until a link is open, or a dial for one that is under way has ended. All who wait share one dial.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
        """
        if self.all:
            return
        if self._opening:
            # Another dial would be one too many: what it brings would be closed, since there is a link already.
            await asyncio.shield(next(iter(self._opening.values())))
        else:
            await self._redial.answered()

    async def wait_for_login(self) -> None:
        """Ask the broker about the login as ``check_login`` does, and wait until there is a broker to ask."""
        await self._redial.answered()

    async def open_to_ask(self) -> Link:
        """A link for questions about the login's permissions, with the errors of ``check_login``; the caller closes it.

        On a new connection the broker remembers no earlier answer.
        """
        return await self._open("login", self._client, self._session)

    async def check_passcode(self, passcode: str) -> None:
        """Ask the broker about another passcode, over a new connection, with the errors of ``check_login``."""
        credentials = Credentials(self._credentials.login, passcode)
        link = await self._open_link(self.virtual_host, credentials, "login", self._client, self._session, False)
        await link.close()

    @property
    def passcode(self) -> str:
        """What further links are opened with."""
        return self._credentials.passcode

    def use_passcode(self, passcode: str) -> list[Link]:
        """Use another passcode for links that are opened from now on; the open ones, which do not have it yet."""
        self._credentials = Credentials(self._credentials.login, passcode)
        return self.all

    async def publishing_channel(self, *, is_bulk: bool = False) -> LinkChannel:
        """A channel on a link that serves publishers; the broker has not answered its opening.

        With ``is_bulk`` it is a bulk link, unless the broker opens none.
        """
        is_bulk = is_bulk and await self.has_publishing_link(is_bulk=True)
        return self._publishing_channel_on(await self._link_with_room(BULK if is_bulk else _PUBLISH))

    def publishing_channel_at_once(self) -> LinkChannel | None:
        """The same if there is a link that is open, has room, and is no bulk link."""
        links = (link for link in self._links[_PUBLISH] if link.has_room)
        link = next(links, None)
        return None if link is None else self._publishing_channel_on(link)

    def _publishing_channel_on(self, link: Link) -> LinkChannel:
        if link.window is None and not self.is_dedicated:
            link.window = PublishWindow(link, asyncio.get_running_loop().time)
        return LinkChannel.begun(link)

    async def has_publishing_link(self, *, is_bulk: bool) -> bool:
        """Whether there is a link of this kind that a publisher may move to. If not it is dialled, but not often."""
        clock = asyncio.get_running_loop().time
        if clock() < self._move_at:
            return False
        try:
            await self._link_with_room(BULK if is_bulk else _PUBLISH)
        except UpstreamError as error:
            is_down = isinstance(error, LinkDownError)
            self._move_at = clock() + (_BETWEEN_REPLACEMENTS if is_down else _BETWEEN_REFUSALS)
            return False
        return True

    async def consuming_channel(self, *, selects: bool = False) -> LinkChannel:
        """A channel on a link that serves subscriptions; the broker has not answered its opening.

        ``selects``: for one with a selector. On links of its own a session keeps nobody else waiting.
        """
        is_apart = selects and not self.is_dedicated
        return LinkChannel.begun(await self._link_with_room(_SELECT if is_apart else _CONSUME))

    async def consuming_link(self) -> Link:
        """A link that serves subscriptions, with room for a channel."""
        return await self._link_with_room(_CONSUME)

    async def open_pausable(self, client: str, session: str) -> Link:
        """A link for one session only."""
        link = await self._open("own", client, session)
        self._pausable = [each for each in (*self._pausable, link) if each.closed is None]
        return link

    async def _link_with_room(self, purpose: str, *, patiently: bool = False) -> Link:
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
            link = await self._open(purpose, self._client, self._session, patiently=patiently)
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

    async def _open(self, purpose: str, client: str, session: str, *, patiently: bool = False) -> Link:
        credentials = self._credentials
        link = await self._open_link(self.virtual_host, credentials, purpose, client, session, patiently)
        self._broker_version = link.tuning.broker_version
        if self.renews_tokens is None:
            self.renews_tokens = renews_tokens(self.virtual_host, self._broker_version)
        try:
            while credentials is not self._credentials:
                # Renewed meanwhile.
                credentials = self._credentials
                await link.update_secret(credentials.passcode)
        except BaseException:
            await link.close()
            raise
        if self._is_closed:
            # Nobody would ever close it.
            await link.close()
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the session is over")
        self.replace_again()
        if link.broker not in self.virtual_host.upstream.urls:
            # The configuration has changed meanwhile.
            link.drain()
        return link

    def use_upstream(self, upstream: Upstream) -> int:
        """Open links to these brokers from now on, and drain those to any other; how many drain now."""
        self.virtual_host = self.virtual_host.model_copy(update={"upstream": upstream})
        self.replace_again()
        links = (*self.all, *self._pausable)
        return sum(link.drain() for link in links if link.closed is None and link.broker not in upstream.urls)

    def is_replaced(self, draining: Link) -> bool:
        """Whether another link has room for the channels of one that drains."""
        return any(link.has_room for link in self._links[self._purpose_of(draining)])

    async def replace(self, draining: Link) -> None:
        """Open a link that takes the place of one that drains, unless a broker has refused the login before.

        All sessions that ask share one dial, and the next dial after a failure is not at once.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._replace_at:
            return
        try:
            await self._link_with_room(self._purpose_of(draining), patiently=True)
        except UpstreamError as error:
            self._replace_at = clock() + _BETWEEN_REPLACEMENTS if isinstance(error, LinkDownError) else math.inf

    def replace_again(self) -> None:
        """Something has changed: a broker that has refused the login before may be asked again."""
        self._replace_at = 0.0

    @staticmethod
    def _purpose_of(link: Link) -> str:
        return link.purpose if link.purpose in _PURPOSES else _CONSUME

    async def close(self) -> None:
        """Close every link, also an unused one that has ended, whose socket may still be open. No other is opened."""
        self._is_closed = True
        self._queue_watch = None
        links = [*self.all, *([] if self._unused is None or self._unused in self.all else [self._unused])]
        self._links, self._unused = {purpose: [] for purpose in _PURPOSES}, None
        await asyncio.gather(*(link.close() for link in links))


def _for_others(error: BaseException) -> UpstreamError:
    """What a failed dial means to the sessions that waited for it, too."""
    if isinstance(error, LinkDownError):
        return LinkDownError(error.code, error.text, error.detail)
    if isinstance(error, UpstreamError):
        return UpstreamError(error.code, error.text)
    return LinkDownError(CONNECTION_FORCED, "the link was not opened")
