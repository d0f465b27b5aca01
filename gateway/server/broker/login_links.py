"""The links of one login: opened when needed, reopened after a loss, replaced when they drain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Final

import structlog

from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.publish_window import PublishWindow
from gateway.server.broker.queue_watch import QueueWatch
from gateway.server.broker.redial import DialSlots, Redial, SharedTask
from gateway.session.connect import renews_tokens

log = structlog.get_logger("gateway.broker")

# After a loss, the number of sessions of one login that restore their channels at the same time.
_RESTORING: Final = 32

# If no broker answers, the seconds until the next dial for a link to which sessions may move.
_BETWEEN_REPLACEMENTS: Final = 1.0

# The same if a broker has refused it.
_BETWEEN_REFUSALS: Final = 60.0

_PUBLISH: Final = "publish"
_CONSUME: Final = "consume"
# Links for subscriptions with selectors. They may pause, and so serve no other subscriptions.
_SELECT: Final = "select"

BULK: Final = "bulk"
"""The purpose of bulk links."""

_PURPOSES: Final = (_PUBLISH, BULK, _CONSUME, _SELECT)

OpenLink = Callable[[VirtualHost, Credentials, str, str, str, bool], Awaitable[Link]]
"""Opens a link. Takes virtual host, credentials, purpose, the names of client and session (empty for a shared link),
and ``one_by_one`` of `Dialer.open_link`."""


class LoginLinks:
    """The links of one login to one virtual host.

    ``client`` and ``session`` name the session of dedicated links; both are empty for shared links.
    """

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
        # For shared links, the number of sessions, and when the last one left.
        self.sessions = 0
        self.idle_since = 0.0
        # Whether the sessions renew their tokens and end with them. The first broker decides it for all of them.
        self.renews_tokens: bool | None = None
        self._broker_version: tuple[int, ...] = ()
        self._credentials = credentials
        self._open_link = open_link
        self._client = client
        self._session = session
        self._links: dict[str, list[Link]] = {purpose: [] for purpose in _PURPOSES}
        # A link that was opened to check the login, and has no channels yet.
        self._unused: Link | None = None
        self._pausable: list[Link] = []
        # By purpose.
        self._dials: dict[str, SharedTask[Link]] = {}
        # When a draining link may next be replaced, on the event loop's clock; infinite if a broker refused the login.
        self._replace_at = 0.0
        # When a link to which publishers may move may next be dialled, on the same clock.
        self._move_at = 0.0
        self._is_closed = False
        self._redial = Redial(self._check_again, slots or DialSlots(), virtual_host.name)
        # See `RecoveryTurn`.
        self.turn = asyncio.Lock()
        # For sessions that restore their channels.
        self.restoring = asyncio.Semaphore(_RESTORING)
        self._queue_watch: QueueWatch | None = None

    @property
    def login(self) -> str:
        """The user's name."""
        return self._credentials.login

    @property
    def queue_watch(self) -> QueueWatch:
        """Knows whether queues are away. Created at the first use, since it forms a reference cycle with this."""
        if self._queue_watch is None:
            self._queue_watch = QueueWatch(self.consuming_link, self.come_back)
        return self._queue_watch

    @property
    def broker_version(self) -> tuple[int, ...]:
        """The version of the broker; while no link is open, that of the last one. Empty if unknown."""
        link = self._any
        return self._broker_version if link is None else link.tuning.broker_version

    @property
    def takes_sessions(self) -> bool:
        """Whether further sessions may share these links. False if an upgrade of the broker changed token renewal."""
        settled, now = self.renews_tokens, renews_tokens(self.virtual_host, self.broker_version)
        return settled in {None, now}

    @property
    def is_open(self) -> bool:
        """Whether a link is open that does not drain. The configuration may no longer have the brokers of others."""
        link = self._any
        return link is not None and (not link.is_draining or any(not each.is_draining for each in self.all))

    @property
    def _any(self) -> Link | None:
        """An open link. It is found quickly, because each login needs it."""
        for links in self._links.values():
            for link in links:
                if link.closed is None:
                    return link
        unused = self._unused
        return unused if unused is not None and unused.closed is None else None

    @property
    def all(self) -> list[Link]:
        """All open links, except pausable ones."""
        links = list(chain.from_iterable(self._links.values()))
        if self._unused is not None:
            links.append(self._unused)
        return [link for link in links if link.closed is None]

    async def check_login(self) -> None:
        """Open a link to ask the broker about the login. It is kept if no other link has room.

        Raises:
            UpstreamError: the broker refuses.
            LinkDownError: no broker can be reached.
        """
        link = await self._open("login", self._client, self._session)
        if any(open_link.has_room for open_link in self.all):
            await link.close()
        else:
            self._unused = link

    async def _check_again(self) -> None:
        with _fault_as_loss():
            await self.check_login()

    async def come_back(self) -> None:
        """Wait until a link is open. All sessions share one dial.

        Raises:
            UpstreamError: the broker refuses the login or the virtual host.
        """
        if self.all:
            return
        under_way = next((purpose for purpose, dial in self._dials.items() if dial.task is not None), None)
        if under_way is not None:
            # The link of another dial would only be closed again.
            with suppress(LinkDownError):
                await self._dialled(under_way)
        if not self.all:
            await self._redial.answered()

    async def wait_for_login(self) -> None:
        """Do the same as ``check_login``, but wait until a broker answers."""
        await self._redial.answered()

    async def open_to_ask(self) -> Link:
        """Open a link to ask about permissions, on which the broker has cached no answers. The caller closes it.

        Raises as ``check_login`` does.
        """
        return await self._open("login", self._client, self._session)

    async def check_passcode(self, passcode: str) -> None:
        """Ask the broker about another passcode, over a new connection. Raises as ``check_login`` does."""
        credentials = Credentials(self._credentials.login, passcode)
        link = await self._open_link(self.virtual_host, credentials, "login", self._client, self._session, False)
        await link.close()

    @property
    def passcode(self) -> str:
        """The passcode for further links."""
        return self._credentials.passcode

    def use_passcode(self, passcode: str) -> list[Link]:
        """Use another passcode for further links. Returns the open links, which do not have it yet."""
        self._credentials = Credentials(self._credentials.login, passcode)
        return self.all

    async def publishing_channel(self, *, is_bulk: bool = False) -> LinkChannel:
        """Begin to open a channel on a link for publishing; with ``is_bulk`` on a bulk link, if one can be opened."""
        is_bulk = is_bulk and await self.has_publishing_link(is_bulk=True)
        return self._publishing_channel_on(await self._link_with_room(BULK if is_bulk else _PUBLISH))

    def publishing_channel_at_once(self) -> LinkChannel | None:
        """Do the same on a link that is open, is not a bulk link, and has room. Returns None without one."""
        links = (link for link in self._links[_PUBLISH] if link.has_room)
        link = next(links, None)
        return None if link is None else self._publishing_channel_on(link)

    def _publishing_channel_on(self, link: Link) -> LinkChannel:
        if link.window is None and not self.is_dedicated:
            link.window = PublishWindow(link, asyncio.get_running_loop().time)
        return LinkChannel.begun(link)

    async def has_publishing_link(self, *, is_bulk: bool) -> bool:
        """Whether there is a link of this kind to which a publisher may move. If not, it is dialled.

        After a failure this returns False for a while, for both kinds of links.
        """
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
        """Begin to open a channel on a link for subscriptions.

        ``selects``: for one with a selector. On shared links, these have links apart from all others.
        """
        is_apart = selects and not self.is_dedicated
        return LinkChannel.begun(await self._link_with_room(_SELECT if is_apart else _CONSUME))

    async def consuming_link(self) -> Link:
        """Return a link for subscriptions with room for a channel. It is opened if needed."""
        return await self._link_with_room(_CONSUME)

    async def with_room(self, link: Link) -> Link:
        """Return a link for one more channel: this one, or one for subscriptions if it is full.

        One to a broker that a reload has removed stays: others are to other brokers, without the session's queues.
        """
        is_kept = not link.is_full or link.broker not in self.virtual_host.upstream.urls
        return link if is_kept else await self.consuming_link()

    async def open_pausable(self, client: str, session: str) -> Link:
        """Open a link for one session."""
        link = await self._open("own", client, session)
        self._pausable = [each for each in (*self._pausable, link) if each.closed is None]
        return link

    async def _link_with_room(self, purpose: str, *, one_by_one: bool = False) -> Link:
        """Return a link with room for another channel. Sessions that need a new link at the same time share a dial."""
        while True:
            links = self._links[purpose]
            links[:] = [link for link in links if link.closed is None]
            for link in links:
                if link.has_room:
                    return link
            unused, self._unused = self._unused, None
            if unused is not None and unused.has_room:
                unused.purpose = purpose
                links.append(unused)
                return unused
            link = await self._dialled(purpose, one_by_one=one_by_one)
            # So many sessions may have waited for it that it has no number left for another channel, or a reload has
            # taken its broker away meanwhile.
            if not (link.is_full or link.is_draining):
                return link

    async def _dialled(self, purpose: str, *, one_by_one: bool = False) -> Link:
        """Dial, or wait for the dial under way, and return the link."""
        dial = self._dials.setdefault(purpose, SharedTask())
        return await dial.done(partial(self._dial, purpose, one_by_one), f"dial to {purpose}")

    async def _dial(self, purpose: str, one_by_one: bool) -> Link:
        with _fault_as_loss():
            link = await self._open(purpose, self._client, self._session, one_by_one=one_by_one)
        self._links[purpose].append(link)
        return link

    async def _open(self, purpose: str, client: str, session: str, *, one_by_one: bool = False) -> Link:
        credentials = self._credentials
        link = await self._open_link(self.virtual_host, credentials, purpose, client, session, one_by_one)
        self._broker_version = link.tuning.broker_version
        if self.renews_tokens is None:
            self.renews_tokens = renews_tokens(self.virtual_host, self._broker_version)
        try:
            while credentials is not self._credentials:
                # The passcode has changed meanwhile.
                credentials = self._credentials
                await link.update_secret(credentials.passcode)
        except BaseException:
            await link.close()
            raise
        if self._is_closed:
            # ``close`` is over, and would not close this one.
            await link.close()
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the session is over")
        self.replace_again()
        if link.broker not in self.virtual_host.upstream.urls:
            # The configuration has changed meanwhile.
            link.drain()
        return link

    def use_upstream(self, upstream: Upstream) -> int:
        """Open links to these brokers from now on, and drain links to others. Returns how many began to drain."""
        self.virtual_host = self.virtual_host.model_copy(update={"upstream": upstream})
        self.replace_again()
        links = (*self.all, *self._pausable)
        return sum(link.drain() for link in links if link.closed is None and link.broker not in upstream.urls)

    def is_replaced(self, draining: Link) -> bool:
        """Whether another link has room for the channels of one that drains."""
        return any(link.has_room for link in self._links[self._purpose_of(draining)])

    async def replace(self, draining: Link) -> None:
        """Open a link in place of one that drains, unless a broker refused the login before.

        All sessions share one dial, and after a failure there is a pause before the next one.
        """
        clock = asyncio.get_running_loop().time
        if clock() < self._replace_at:
            return
        try:
            await self._link_with_room(self._purpose_of(draining), one_by_one=True)
        except UpstreamError as error:
            self._replace_at = clock() + _BETWEEN_REPLACEMENTS if isinstance(error, LinkDownError) else math.inf

    def replace_again(self) -> None:
        """Let ``replace`` try again, even if a broker refused the login before, because something has changed."""
        self._replace_at = 0.0

    @staticmethod
    def _purpose_of(link: Link) -> str:
        return link.purpose if link.purpose in _PURPOSES else _CONSUME

    async def close(self) -> None:
        """Close all links, including an unused one that has ended but whose socket may be open. Open no others."""
        self._is_closed = True
        self._queue_watch = None
        links = [*self.all, *([] if self._unused is None or self._unused in self.all else [self._unused])]
        self._links, self._unused = {purpose: [] for purpose in _PURPOSES}, None
        await asyncio.gather(*(link.close() for link in links))


@contextmanager
def _fault_as_loss() -> Iterator[None]:
    """For a dial that several sessions wait for: a fault of ours would end all of them."""
    try:
        yield
    except UpstreamError:
        raise
    except Exception as fault:
        log.error("internal error", exc_info=fault)
        raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - the link was not opened") from None
