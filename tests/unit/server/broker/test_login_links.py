"""The links of one login: how many are opened when they are lost."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.server.broker.broker_errors import CONNECTION_FORCED, LinkDownError
from gateway.server.broker.channel import LinkChannel
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link import Link
from gateway.server.broker.login_links import LoginLinks
from tests.support.scripted_broker import ScriptedBroker


async def test_who_comes_back_waits_for_the_link_that_is_being_opened() -> None:
    """The publishing link was lost a moment before the other one, so it is already dialled again."""
    broker, answers = ScriptedBroker(), asyncio.Event()
    dialled: list[str] = []

    async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        dialled.append(purpose)
        await answers.wait()
        return await broker.open_link(virtual_host, credentials, purpose, *more)

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)
    publishing = asyncio.create_task(links.publishing_channel())
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(links.come_back()) for _ in range(10)]
    await asyncio.sleep(0)
    answers.set()
    await asyncio.gather(publishing, *waiting)
    await links.consuming_channel()
    assert dialled == ["publish", "consume"]


@pytest.mark.parametrize(("session", "purposes"), [("", ["consume", "select"]), ("session-x", ["consume"])])
async def test_subscriptions_with_selectors_share_no_link_with_others(session: str, purposes: list[str]) -> None:
    """It may pause. A session with links of its own keeps nobody else waiting."""
    broker = ScriptedBroker()
    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), broker.open_link, session, session)
    for selects in (False, True, False, True):
        await links.consuming_channel(selects=selects)
    assert [link.purpose for link in broker.links] == purposes
    assert links.all == broker.links


async def test_a_link_for_selectors_that_drains_is_replaced_by_another_one() -> None:
    broker = ScriptedBroker()
    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), broker.open_link)
    for selects in (False, True):
        await links.consuming_channel(selects=selects)
    draining = broker.links[1]
    draining.drain()
    assert not links.is_replaced(draining)
    await links.replace(draining)
    assert links.is_replaced(draining)
    assert [link.purpose for link in broker.links] == ["consume", "select", "select"]


async def test_a_dial_goes_on_for_the_others_when_the_session_that_began_it_ends() -> None:
    broker = ScriptedBroker()
    broker.link_latency = 0.01
    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), broker.open_link)
    first, other = (asyncio.create_task(links.consuming_channel()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    channel = await other
    assert [channel.link] == broker.links
    assert first.cancelled()


async def test_a_dial_ends_with_the_last_session_that_waits_for_it() -> None:
    cancelled = asyncio.Event()

    async def open_link(*_: object) -> Link:
        try:
            return await asyncio.Future()
        finally:
            cancelled.set()

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)
    dialling = [asyncio.create_task(links.consuming_channel()) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for each in dialling:
        each.cancel()
    await cancelled.wait()


async def test_sessions_that_find_no_room_on_a_link_they_waited_for_get_another_one() -> None:
    broker = ScriptedBroker()
    broker.link_latency, broker.channel_max = 0.01, 2
    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), broker.open_link)
    channels = await asyncio.gather(*(links.consuming_channel() for _ in range(5)))
    assert [sum(channel.link is link for channel in channels) for link in broker.links] == [2, 2, 1]


async def test_a_session_that_asks_in_the_moment_a_full_link_has_opened_gets_another_one() -> None:
    broker, opens = ScriptedBroker(), asyncio.Event()
    broker.channel_max = 2

    async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        if not broker.links:
            await opens.wait()
        return await broker.open_link(virtual_host, credentials, purpose, *more)

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)

    async def channel_at_the_moment() -> LinkChannel:
        await opens.wait()
        return await links.consuming_channel()

    first = asyncio.create_task(links.consuming_channel())
    await asyncio.sleep(0)
    others = [asyncio.create_task(channel_at_the_moment()) for _ in range(4)]
    await asyncio.sleep(0)
    opens.set()
    channels = await asyncio.gather(first, *others)
    assert sorted(sum(channel.link is link for channel in channels) for link in broker.links) == [1, 2, 2]


async def test_sessions_do_not_use_a_link_to_a_broker_that_a_reload_has_removed_meanwhile() -> None:
    broker, dials, opens = ScriptedBroker(), asyncio.Event(), asyncio.Event()

    async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        dials.set()
        await opens.wait()
        return await broker.open_link(virtual_host, credentials, purpose, *more)

    old, new = (Upstream.model_validate({"urls": [f"amqp://{name}"]}) for name in ("old", "new"))
    links = LoginLinks(VirtualHost(name="/", upstream=old), Credentials("guest", "guest"), open_link)
    waiting = [asyncio.create_task(links.consuming_channel()) for _ in range(3)]
    await dials.wait()
    links.use_upstream(new)
    opens.set()
    channels = await asyncio.gather(*waiting)
    assert {channel.link.broker.host for channel in channels} == {"new"}


async def test_a_fault_in_a_dial_is_a_lost_link_for_those_who_wait() -> None:
    async def open_link(*_: object) -> Link:
        raise KeyError("ours")

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)
    with capture_logs() as logged:
        failed = await asyncio.gather(*(links.consuming_channel() for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [LinkDownError] * 3
    assert [line["event"] for line in logged] == ["internal error"]


async def test_who_comes_back_goes_on_when_the_dial_it_waited_for_fails() -> None:
    broker, fails = ScriptedBroker(), asyncio.Event()

    async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        if not fails.is_set():
            await fails.wait()
            raise LinkDownError(CONNECTION_FORCED, "CONNECTION_FORCED - no broker answers")
        return await broker.open_link(virtual_host, credentials, purpose, *more)

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)
    publishing = asyncio.create_task(links.publishing_channel())
    await asyncio.sleep(0)
    waiting = asyncio.create_task(links.come_back())
    await asyncio.sleep(0)
    fails.set()
    await waiting
    assert links.all == broker.links
    with pytest.raises(LinkDownError):
        await publishing


async def test_a_fault_in_a_dial_after_a_loss_ends_none_of_those_who_wait() -> None:
    broker, dials = ScriptedBroker(), 0

    async def open_link(virtual_host: VirtualHost, credentials: Credentials, purpose: str, *more: object) -> Link:
        nonlocal dials
        dials += 1
        if dials == 1:
            raise KeyError("ours")
        return await broker.open_link(virtual_host, credentials, purpose, *more)

    links = LoginLinks(VirtualHost(name="/"), Credentials("guest", "guest"), open_link)
    with capture_logs() as logged:
        await asyncio.gather(*(links.come_back() for _ in range(3)))
    assert links.all == broker.links
    assert [line["event"] for line in logged] == ["internal error", "link opened"]
