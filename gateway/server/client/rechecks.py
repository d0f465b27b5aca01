"""Rechecks: asks brokers periodically what users may do, for virtual hosts with ``recheck``.

RabbitMQ checks permissions when a link is opened and when a consumer begins. A user who loses a permission later
continues to get messages. So the gateway asks about each login from time to time, once for all sessions that share its
links. It uses a new connection, on which the broker has cached no earlier answer.

A refusal may be wrong, for example while the broker cannot reach its user directory, or deletes a virtual host. So it
counts only if the next check, a few seconds later, is refused, too.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

import structlog

from gateway.server.broker.broker_errors import ACCESS_REFUSED, NOT_ALLOWED, LinkDownError, UpstreamError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.bridge import Bridge
from gateway.server.log_limits import LONGEST_TEXT
from gateway.server.paced_work import PacedWork
from gateway.server.stats import GatewayStats
from gateway.session.subscription import Subscription

log = structlog.get_logger("gateway.broker")

# The number of logins that are checked at the same time.
_AT_ONCE: Final = 4

# Seconds from a refusal to the check that has to confirm it, and between two questions about one login.
_CONFIRMED_AFTER: Final = 5.0
_BETWEEN_QUESTIONS: Final = 0.005

# The time for an answer in seconds. RabbitMQ 4.3 does not answer while the node of a queue is away.
_ANSWERED_WITHIN: Final = 10.0

# The number of sessions that are looked at in one slice of paced work.
_SESSIONS_PER_ROUND: Final = 200

# RabbitMQ refuses a connection beyond a limit with the same code as a virtual host that the user may not use. If it is
# the limit, this text follows the quoted names.
_IS_LIMIT: Final = "limit ("

# The prefixes of generated queue names. Permissions are the same for all of them.
_GENERATED: Final = ("stomp-subscription-", "stomp.gen-", "amq.gen-")


class _Consumed(NamedTuple):
    """A queue and its binding. A check asks about it once, for all subscriptions."""

    queue: str
    binding: tuple[str, str] | None


_Consumers = list[tuple[Bridge, Subscription]]


class _Login:
    """The sessions that share the links of a login."""

    __slots__ = ("doubted", "interval", "links", "sessions", "timer")

    def __init__(self, links: LoginLinks, interval: float) -> None:
        self.links = links
        self.interval = interval
        # A dictionary, because it keeps their order.
        self.sessions: dict[Bridge, None] = {}
        self.timer: asyncio.TimerHandle | None = None
        # What was refused at the last check; None stands for the login itself.
        self.doubted: set[_Consumed | None] = set()


class Rechecks:
    """Checks the logins of open sessions. ``spawn`` starts a background task and keeps a reference to it."""

    def __init__(self, pool: LinkPool, spawn: Callable[..., object], paced: PacedWork, stats: GatewayStats) -> None:
        self._pool = pool
        self._spawn = spawn
        self._paced = paced
        self._stats = stats
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._logins: dict[tuple[LoginLinks, float], _Login] = {}
        self._by_session: dict[Bridge, _Login] = {}

    def add(self, session: Bridge, links: LoginLinks, interval: float) -> None:
        """Check the login of a session from now on, every ``interval`` seconds; with 0, never."""
        if not interval:
            return
        login = self._logins.get((links, interval))
        if login is None:
            login = self._logins[links, interval] = _Login(links, interval)
            # Thousands of sessions may log in at the same time. This spreads their checks over the interval.
            self._schedule(login, interval * random.random())  # noqa: S311 - no secret
        login.sessions[session] = None
        self._by_session[session] = login

    def remove(self, session: Bridge) -> None:
        """Stop checking for a session, which has ended. It need not have logged in."""
        login = self._by_session.pop(session, None)
        if login is None:
            return
        del login.sessions[session]
        if not login.sessions:
            del self._logins[login.links, login.interval]
            if login.timer is not None:
                login.timer.cancel()

    def _schedule(self, login: _Login, seconds: float) -> None:
        check = partial(self._check, login)
        login.timer = asyncio.get_running_loop().call_later(seconds, lambda: self._spawn(check(), name="recheck"))

    async def _check(self, login: _Login) -> None:
        result = "unanswered"
        try:
            async with self._slots:
                result = await self._ask(login)
        finally:
            if login.sessions:
                self._schedule(login, min(login.interval, _CONFIRMED_AFTER) if login.doubted else login.interval)
            self._stats.host(login.links.virtual_host.name).rechecks[result] += 1

    async def _ask(self, login: _Login) -> str:
        """Ask about the login and its sessions' subscriptions. Returns the result, a label value of the metric."""
        if not login.sessions:
            return "unanswered"
        try:
            link = await login.links.open_to_ask()
        except UpstreamError as refusal:
            if isinstance(refusal, LinkDownError) or not _is_of_login(refusal):
                return "unanswered"
            if None not in login.doubted:
                login.doubted = {None}
                return "doubted"
            login.doubted = set()
            self._revoke_login(login, refusal.text)
            return "revoked"
        try:
            return await self._ask_about_consumers(login, link)
        except (UpstreamError, TimeoutError):
            # The link was lost, or the node of a queue is away. The next check asks again.
            return "unanswered"
        finally:
            await link.close()

    async def _ask_about_consumers(self, login: _Login, link: Link) -> str:
        has_revoked, doubted = False, set[_Consumed | None]()
        for consumed, consumers in (await _consumed_by(login)).items():
            if not login.sessions:
                break
            example = consumers[0][1].queue
            if not await _refusal(link, example, consumed.binding):
                continue
            if consumed not in login.doubted:
                doubted.add(consumed)
                continue
            for session, subscription in consumers:
                # Ask again for each, because the broker's text names the queue.
                if text := await _refusal(link, subscription.queue, consumed.binding):
                    has_revoked = True
                    self._tell(login, text, sessions=1, destination=subscription.address.decode(errors="replace"))
                    self._paced.do(session, partial(session.revoke, text, subscription))
        login.doubted = doubted
        return "revoked" if has_revoked else "doubted" if doubted else "allowed"

    def _revoke_login(self, login: _Login, text: str) -> None:
        """End all sessions of a login that the broker no longer accepts."""
        self._pool.distrust(login.links)
        self._tell(login, text, sessions=len(login.sessions))
        revoked = tuple(login.sessions)
        self._paced.do_each((session, partial(session.revoke, text)) for session in revoked)

    def _tell(self, login: _Login, text: str, **details: object) -> None:
        links = login.links
        self._pool.log_limits.warn_of_virtual_host(
            log, links.virtual_host.name, "access revoked", login=links.login, reason=text[:LONGEST_TEXT], **details
        )


def _is_of_login(refusal: UpstreamError) -> bool:
    """Whether the broker refuses the login or the virtual host, and not a connection beyond a limit."""
    _, _, behind_names = refusal.text.rpartition("'")
    return refusal.code == ACCESS_REFUSED or (refusal.code == NOT_ALLOWED and _IS_LIMIT not in behind_names)


async def _consumed_by(login: _Login) -> dict[_Consumed, _Consumers]:
    """What the sessions of a login consume, with the sessions and subscriptions."""
    found: dict[_Consumed, _Consumers] = {}
    for count, session in enumerate(tuple(login.sessions), start=1):
        for subscription, consumed in _consumed(session.subscriptions):
            found.setdefault(consumed, []).append((session, subscription))
        if count % _SESSIONS_PER_ROUND == 0:
            await asyncio.sleep(0)
    return found


def _consumed(subscriptions: Iterable[Subscription]) -> Iterator[tuple[Subscription, _Consumed]]:
    for subscription in subscriptions:
        if subscription.request is not None and subscription.has_channel:
            queue = next((prefix for prefix in _GENERATED if subscription.queue.startswith(prefix)), subscription.queue)
            yield subscription, _Consumed(queue, subscription.request.binding)


async def _refusal(link: Link, queue: str, binding: tuple[str, str] | None) -> str:
    """The broker's text if the user may not consume a queue or bind it in this way; empty if nothing is refused.

    Raises:
        LinkDownError: the link is lost.
        TimeoutError: there was no answer.
    """
    return await _refused(link, lambda channel: channel.may_consume(queue)) or (
        "" if binding is None else await _refused(link, lambda channel: channel.may_bind(queue, *binding))
    )


async def _refused(link: Link, ask: Callable[[LinkChannel], Awaitable[object]]) -> str:
    await asyncio.sleep(_BETWEEN_QUESTIONS)
    async with asyncio.timeout(_ANSWERED_WITHIN):
        refusal = await LinkChannel.refusal(link, ask)
    # After any other refusal, the user has the permission, but the queue is deleted, or another session's.
    return refusal.text if refusal is not None and refusal.code == ACCESS_REFUSED else ""
