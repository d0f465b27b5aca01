"""Whose links are opened, replaced and closed, at moments that real brokers rarely give."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.config.model import GatewayConfig, Logging
from gateway.config.scalars import BrokerUrl
from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
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
        self.answering = asyncio.Event()
        self.answering.set()
        # The answers to the next dials; then each succeeds.
        self.answers: list[UpstreamError] = []
        self.on_dial: Callable[[], object] = lambda: None
        setup = self

        async def open_link(
            dialer: Dialer,
            virtual_host: VirtualHost,
            whose: Credentials,
            properties: ClientProperties,
            _: object,
            *,
            patiently: bool,
        ) -> Link:
            setup.dials += 1
            await asyncio.sleep(0)
            await setup.answering.wait()
            if setup.answers:
                raise setup.answers.pop(0)
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
