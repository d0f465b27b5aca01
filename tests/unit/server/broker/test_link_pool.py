"""Whose links are opened, replaced and closed, at moments that real brokers rarely give."""

from __future__ import annotations

import asyncio
import gc
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.config.addresses import BrokerUrl
from gateway.config.model import GatewayConfig, Logging
from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool, SharedLinksError
from gateway.server.broker.login_links import LoginLinks
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import PacedWork
from gateway.server.stats import GatewayStats
from gateway.server.tls_contexts import TlsContexts
from tests.support.scripted_broker import ScriptedBroker
from tests.support.virtual_time import run_in_virtual_time

GUEST = Credentials("guest", "guest")


class Setup:
    """A pool, and a broker whose answers to dials are set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = ScriptedBroker()
        self.dials = 0
        self.asked_about: list[str] = []
        self.answering = asyncio.Event()
        self.answering.set()
        # The answers to the next dials, None for one that succeeds; then each succeeds.
        self.answers: list[UpstreamError | None] = []
        self.on_dial: Callable[[], object] = lambda: None
        setup = self

        async def open_link(
            dialer: Dialer,
            virtual_host: VirtualHost,
            whose: Credentials,
            properties: ClientProperties,
            _: object,
            *,
            one_by_one: bool,
        ) -> Link:
            setup.dials += 1
            setup.asked_about.append(whose.passcode)
            await asyncio.sleep(0)
            await setup.answering.wait()
            answer = setup.answers.pop(0) if setup.answers else None
            if answer is not None:
                raise answer
            setup.on_dial()
            return await setup.broker.open_link(virtual_host, whose, properties.purpose)

        monkeypatch.setattr(Dialer, "open_link", open_link)
        self.pool = LinkPool(
            asyncio.get_running_loop().time, self._spawn, Journal(GatewayConfig()), GatewayStats(("/",)), "node",
            TlsContexts(), LogLimits(Logging(), lambda: 0.0), PacedWork(),
        )  # fmt: skip
        self._tasks: set[asyncio.Task[None]] = set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._tasks.add(task := asyncio.ensure_future(work))
        return task

    async def background(self) -> None:
        """Wait for what goes on in the background."""
        await asyncio.gather(*self._tasks)

    @property
    def open_links(self) -> list[Link]:
        return [link for link in self.broker.links if link.closed is None]


@pytest.fixture
async def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(monkeypatch)


def virtual_host(*, port: int = 5672, **settings: object) -> VirtualHost:
    upstream = Upstream(urls=(BrokerUrl("amqp", "127.0.0.1", port),), order="shuffle")
    return VirtualHost.model_validate({"name": "/", "upstream": upstream, **settings})


async def test_a_dedicated_login_that_ends_while_a_broker_answers_leaves_no_link(setup: Setup) -> None:
    setup.answers = [LinkDownError(320, "no broker answers")]
    login = asyncio.ensure_future(setup.pool.log_in(virtual_host(links="dedicated"), GUEST, "client", "session"))
    # The link is open, and nobody has learnt it yet.
    setup.on_dial = lambda: asyncio.get_running_loop().call_soon(login.cancel)
    with pytest.raises(asyncio.CancelledError):
        await login
    await setup.background()
    assert setup.dials == 2
    assert setup.open_links == []


async def test_a_link_that_a_broker_opens_for_a_session_that_is_over_is_closed(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(links="dedicated"), GUEST, "client", "session")
    await links.consuming_link()
    opening = asyncio.ensure_future(links.publishing_channel())
    setup.answering.clear()
    setup.pool.release(links)
    await setup.background()
    setup.answering.set()
    with pytest.raises(LinkDownError):
        await opening
    assert len(setup.broker.links) == 2
    assert setup.open_links == []


async def test_who_was_refused_at_a_fail_back_is_asked_about_again_at_the_next_one(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    [old] = [await links.consuming_link()]
    assert await setup.pool.fail_back(virtual_host()) == 1
    setup.answers = [UpstreamError(403, "ACCESS_REFUSED")]
    for _ in range(3):
        await links.replace(old)
    assert (setup.dials, links.is_replaced(old)) == (2, False)
    assert await setup.pool.fail_back(virtual_host()) == 0
    await links.replace(old)
    assert (setup.dials, links.is_replaced(old)) == (3, True)


async def test_sessions_that_leave_share_a_dial_and_do_not_dial_at_once_after_a_failure(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    [old] = [await links.consuming_link()]
    await setup.pool.fail_back(virtual_host())
    setup.answers = [LinkDownError(320, "no broker answers")] * 100
    for _ in range(3):
        await asyncio.gather(*(links.replace(old) for _ in range(32)))
    assert setup.dials == 2


async def test_only_links_to_brokers_that_the_configuration_has_no_longer_are_drained(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    old = await links.consuming_link()
    own = await links.open_pausable("client", "session")
    elsewhere = await setup.pool.log_in(virtual_host(amqp_vhost="other"), GUEST, "client", "")
    stays = await elsewhere.consuming_link()
    setup.pool.use(lambda host: virtual_host())
    assert not [link for link in setup.open_links if link.is_draining]
    setup.pool.use(lambda host: None)
    assert not [link for link in setup.open_links if link.is_draining]
    setup.pool.use(lambda host: virtual_host(port=5673))
    assert [link.is_draining for link in (old, own, stays)] == [True, True, False]
    new = await links.consuming_link()
    assert (str(new.broker), new.is_draining) == ("amqp://127.0.0.1:5673", False)


async def test_a_new_broker_is_asked_about_a_login_that_another_one_has_accepted(setup: Setup) -> None:
    await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    assert setup.dials == 1
    setup.pool.use(lambda host: virtual_host(port=5673))
    setup.answers = [UpstreamError(403, "ACCESS_REFUSED")]
    with pytest.raises(UpstreamError, match="ACCESS_REFUSED"):
        await setup.pool.log_in(virtual_host(port=5673), GUEST, "client", "")


async def test_a_link_to_a_broker_that_is_gone_when_it_answers_drains(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(), GUEST, "client", "")
    await links.consuming_link()
    old_settings = links.virtual_host
    setup.on_dial = lambda: setup.pool.use(lambda host: virtual_host(port=5673))
    link = await links.open_pausable("client", "session")
    assert link.broker == old_settings.upstream.urls[0]
    assert link.is_draining


def test_a_link_that_nobody_uses_is_closed_after_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_after(*pauses: float) -> list[int]:
        setup = Setup(monkeypatch)
        links = await setup.pool.log_in(virtual_host(), GUEST, "client", "")
        await links.consuming_link()
        setup.pool.release(links)
        found = []
        for pause in pauses:
            await asyncio.sleep(pause)
            setup.pool.close_idle()
            await setup.background()
            found.append(len(setup.open_links))
        return found

    assert run_in_virtual_time(open_after(59, 2)) == [1, 0]


async def test_logins_that_are_refused_leave_nothing_behind(setup: Setup) -> None:
    count = 20
    setup.answers = [UpstreamError(403, "ACCESS_REFUSED") for _ in range(count)]
    for number in range(count):
        with pytest.raises(UpstreamError, match="ACCESS_REFUSED"):
            await setup.pool.log_in(virtual_host(), Credentials("guest", f"guess {number}"), "client", "")
    await setup.background()
    await asyncio.sleep(0)  # the loop holds the future that woke this task, and its exception, until the next turn
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Credentials) and "guess" in each.passcode] == []


# Tokens.


def token(expires: float, **claims: object) -> Credentials:
    """An unsigned token of a user, as passcode."""
    said = urlsafe_b64encode(json.dumps({"sub": "app", "exp": expires, **claims}).encode()).rstrip(b"=").decode()
    return Credentials("app", f"e30.{said}.")


async def renewed(setup: Setup, links: LoginLinks, another: Credentials) -> int:
    """How many open links must have another token, which the broker accepts."""
    return len(await setup.pool.renew(links, another.passcode))


async def test_sessions_that_share_links_share_the_token_that_expires_last(setup: Setup) -> None:
    host = virtual_host(token_renewal=True)
    one, two = [await setup.pool.log_in(host, token(1000), "", "") for _ in range(2)]
    assert one is two
    assert [await renewed(setup, one, token(expiry)) for expiry in (900, 1000, 2000, 1500)] == [0, 0, 1, 0]
    assert one.passcode == token(2000).passcode
    # The latest is known now, and the first is that of somebody else.
    assert await setup.pool.log_in(host, token(2000), "", "") is one
    assert await setup.pool.log_in(host, token(1000), "", "") is not one


async def test_a_token_that_the_links_have_is_asked_about_as_seldom_as_a_login(setup: Setup) -> None:
    host = virtual_host(token_renewal=True, login_cache=60)
    links = await setup.pool.log_in(host, token(1000), "", "")
    before = setup.dials
    assert await renewed(setup, links, token(1000)) == 0
    assert setup.dials == before
    setup.pool._shared["/", "app"][0].accepted_at -= 61
    await renewed(setup, links, token(1000))
    assert setup.dials == before + 1


@pytest.mark.parametrize(
    ("token_renewal", "another"),
    [
        (True, token(2000, scope="more")),
        (True, Credentials("app", "plain")),
        # Then sessions do not end with their own tokens. The broker's release is unknown.
        (None, token(2000)),
    ],
)
async def test_what_would_be_felt_by_others_is_refused_unless_there_are_none(
    setup: Setup, token_renewal: bool | None, another: Credentials
) -> None:
    host = virtual_host(token_renewal=token_renewal)
    links, other = [await setup.pool.log_in(host, token(1000), "", "") for _ in range(2)]
    with pytest.raises(SharedLinksError):
        await setup.pool.renew(links, another.passcode)
    assert links.passcode == token(1000).passcode
    setup.pool.release(other)
    assert await renewed(setup, links, another) == 1
    assert links.passcode == another.passcode


async def test_a_token_is_renewed_also_while_no_link_is_open(setup: Setup) -> None:
    """With RabbitMQ 4.3 a session that shares its links may renew, and this is known before one is opened again."""
    setup.broker.version = (4, 3, 6)
    one, _ = [await setup.pool.log_in(virtual_host(), token(1000), "", "") for _ in range(2)]
    setup.broker.lose()
    assert (one.is_open, one.broker_version) == (False, (4, 3, 6))
    assert await renewed(setup, one, token(2000)) == 0
    assert one.passcode == token(2000).passcode


async def test_who_came_before_an_upgrade_does_not_share_with_who_may_renew_since(setup: Setup) -> None:
    """The first goes on after the end of its token, as sessions did: it must not have that of a neighbour."""
    setup.broker.version = (4, 2, 1)
    one, two = [await setup.pool.log_in(virtual_host(), token(1000), "", "") for _ in range(2)]
    setup.broker.lose()
    setup.broker.version = (4, 3, 6)
    await one.consuming_link()
    assert (one.broker_version, one.renews_tokens) == ((4, 3, 6), False)
    with pytest.raises(SharedLinksError):
        await setup.pool.renew(two, token(2000).passcode)
    new = await setup.pool.log_in(virtual_host(), token(1000), "", "")
    assert (new is one, new.renews_tokens) == (False, True)
    assert await setup.pool.log_in(virtual_host(), token(1000), "", "") is new


async def test_a_session_that_is_about_to_share_the_links_counts(setup: Setup) -> None:
    host = virtual_host(token_renewal=True, login_cache=0)
    links = await setup.pool.log_in(host, token(1000), "", "")
    setup.answering.clear()
    coming = asyncio.ensure_future(setup.pool.log_in(host, token(1000), "", ""))
    renewing = asyncio.ensure_future(setup.pool.renew(links, token(2000, scope="more").passcode))
    while setup.dials < 3:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    setup.answering.set()
    with pytest.raises(SharedLinksError):
        await renewing
    assert await coming is links


async def test_a_login_that_is_under_way_is_asked_about_with_its_own_token(setup: Setup) -> None:
    host = virtual_host(token_renewal=True, login_cache=0)
    links = await setup.pool.log_in(host, token(1000), "", "")
    setup.answering.clear()
    coming = asyncio.ensure_future(setup.pool.log_in(host, token(1000), "", ""))
    while setup.dials < 2:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    renewing = asyncio.ensure_future(setup.pool.renew(links, token(2000).passcode))
    while setup.dials < 3:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    # Both wait now, in this order.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    # The broker goes for a moment, and the login is asked about again.
    down = LinkDownError(320, "no broker answers")
    setup.answers = [down, None, down]
    setup.answering.set()
    assert await coming is links
    assert len(await renewing) == 1
    assert setup.asked_about == [token(expiry).passcode for expiry in (1000, 1000, 2000, 1000, 1000)]


async def test_a_link_that_opens_meanwhile_gets_the_new_token(setup: Setup) -> None:
    links = await setup.pool.log_in(virtual_host(token_renewal=True), token(1000), "", "")
    await links.consuming_link()
    setup.answering.clear()
    opening = asyncio.ensure_future(links.publishing_channel())
    while setup.dials < 2:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    links.use_passcode("another")
    setup.answering.set()
    updated: list[str] = []

    async def update_secret(_: Link, passcode: str) -> None:
        updated.append(passcode)
        if passcode == "another":
            links.use_passcode("one more")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "update_secret", update_secret)
        await opening
    assert updated == ["another", "one more"]


async def test_a_link_is_closed_if_who_opens_it_goes_while_it_gets_the_new_token(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = await setup.pool.log_in(virtual_host(token_renewal=True), token(1000), "", "")
    setup.on_dial = lambda: links.use_passcode("another")
    updating = asyncio.Event()

    async def update_secret(*_: object) -> None:
        updating.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Link, "update_secret", update_secret)
    before = setup.open_links
    opening = asyncio.ensure_future(links.open_pausable("client", "session"))
    await updating.wait()
    assert len(setup.open_links) == len(before) + 1
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert setup.open_links == before
