"""What the API shows of a session, or of a gateway, with very many destinations and subscriptions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from gateway.admin.overview import destinations, in_turns
from gateway.admin.sessions import detail
from gateway.config.loader import parse
from gateway.server.client.connection import ClientConnection
from gateway.server.process.gateway import Gateway
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import DestinationKind
from gateway.session.subscription import Subscription
from gateway.session.traffic import TrafficCounter
from tests.support.deadline import until
from tests.support.gateway import gateway_here


@pytest.fixture
async def gateway() -> AsyncIterator[Gateway]:
    config = parse("listeners: [{tcp: '127.0.0.1:0'}]\ndefaults: {journal: {level: 'off'}}", environment={})
    async with gateway_here(config) as gateway:
        yield gateway


async def _client(gateway: Gateway) -> ClientConnection:
    """The one client, which has only connected so far."""

    async def clients() -> list[ClientConnection]:
        return list(gateway.clients)

    host, port = gateway.addresses[0]
    _, writer = await asyncio.open_connection(host, port)
    (client,) = await until(clients, bool)
    writer.close()
    return client


async def test_a_session_shows_its_busiest_destinations_and_its_first_subscriptions(gateway: Gateway) -> None:
    session = (client := await _client(gateway)).session
    for number in range(250):
        session.traffic.sends.counter(b"/topic/%d" % number, DestinationKind.TOPIC).published = number
    for number in range(1100):
        tag = b"T_%d" % number
        session.subscriptions.add(Subscription(tag, tag[2:], AckMode.AUTO, b"s", destination=b"/queue/q"), "q")
    shown = detail(client)
    assert [each["messages"] for each in shown["sends"]] == list(range(249, 49, -1))
    assert [each["id"] for each in shown["subscriptions_list"]] == [str(number) for number in range(1000)]
    assert shown["subscriptions"] == 1100


async def test_beyond_ten_thousand_destinations_further_ones_share_a_row(gateway: Gateway) -> None:
    session = (await _client(gateway)).session
    for number in range(12_000):
        kind = DestinationKind.QUEUE if number % 2 else DestinationKind.TOPIC
        session.traffic.sends[b"/%d" % number, kind] = TrafficCounter(published=1)
    rows = await destinations(gateway)
    assert len(rows) == 10_002
    assert Counter(row.destination for row in rows).most_common(1) == [("other", 2)]
    assert sum(row.traffic.published for row in rows) == 12_000


async def test_others_have_their_turns_while_thousands_of_sessions_are_counted(gateway: Gateway) -> None:
    client, turns = await _client(gateway), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    assert [each async for each in in_turns((client,) * 2000)] == [client] * 2000
    task.cancel()
    assert turns >= 19
