"""Clients that leave while messages wait for them: the gateway releases everything, whatever holds the client."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote, urlsplit

import pytest

from gateway.parity import AmqpBroker
from gateway.server.client.connection import ClientConnection
from gateway.server.process.gateway import Gateway
from gateway.session.context import Hold
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

COUNT, SIZE = 30, 1_000_000


async def fill(gateway: Gateway, queue: str) -> None:
    async with StompClient.logged_in(gateway.addresses[0]) as sender:
        for _ in range(COUNT):
            await sender.ask("SEND", b"x" * SIZE, destination=f"/queue/{queue}")
        await sender.disconnect()


async def held(gateway: Gateway, hold: Hold) -> ClientConnection:
    """Wait until the one client takes no messages and is held for a reason."""
    while True:
        for client in gateway.clients:
            if not client.session.client_writable and hold in client.session.holds:
                return client
        await asyncio.sleep(0.01)


async def returned(gateway: Gateway, amqp: AmqpBroker, queue: str) -> None:
    """All messages are back in the queue, and no session is counted."""
    assert await until(lambda: amqp.count(queue), lambda count: count == COUNT) == COUNT
    assert gateway.limits.sessions("/") == 0


async def test_a_client_that_leaves_with_many_messages_waiting(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    """The gateway does not read from such a client, and its messages will never be delivered."""
    async with gateway_here(parsed(broker_url, {"journal": {"level": "off"}})) as gateway, within():
        await fill(gateway, queue)
        async with StompClient.logged_in(gateway.addresses[0], receive_buffer=4096) as slow:
            slow.write("SUBSCRIBE", id="s", destination=f"/queue/{queue}", ack="client", prefetch_count=f"{COUNT}")
            await held(gateway, Hold.CLIENT_WRITE)
        await returned(gateway, amqp, queue)


@pytest.mark.parametrize("ends", ["gone", "closed by an operator"])
async def test_a_client_that_leaves_while_a_token_is_checked(
    broker_url: str, amqp: AmqpBroker, queue: str, ends: str
) -> None:
    """The broker's answer waits behind the messages on the client's own link, from which nothing is read."""
    settings = {"token_renewal": True, "links": "dedicated", "journal": {"level": "off"}}
    passcode = unquote(urlsplit(broker_url).password or "guest")
    async with gateway_here(parsed(broker_url, settings)) as gateway, within():
        await fill(gateway, queue)
        async with StompClient.logged_in(gateway.addresses[0], receive_buffer=4096) as slow:
            slow.write("SUBSCRIBE", id="s", destination=f"/queue/{queue}", ack="client")
            while all(client.session.client_writable for client in gateway.clients):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
            slow.write("TOKEN", token=passcode)
            client = await held(gateway, Hold.OPERATION)
            while not any(link._secret_updates for link in gateway.pool.links):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            if ends != "gone":
                client.close_by_operator("")
                await returned(gateway, amqp, queue)
        await returned(gateway, amqp, queue)
