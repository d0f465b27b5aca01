"""Clients that leave while messages wait for them: the gateway releases everything, whatever holds the client."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from websockets.server import ServerProtocol

from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.client.bridge import Bridge
from gateway.server.client.connection import ClientConnection
from gateway.server.listen.websocket import WebSocketConnection
from gateway.server.process.gateway import Gateway
from gateway.session.context import Hold
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from tests.support.deadline import until, within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import StompClient, final_error
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

COUNT, SIZE = 30, 1_000_000

_OF_A_SESSION = (ClientConnection, Bridge, Session, Subscription, WebSocketConnection, ServerProtocol)


async def fill(gateway: Gateway, queue: str) -> None:
    async with StompClient.logged_in(gateway.addresses[0]) as sender:
        for _ in range(COUNT):
            await sender.ask("SEND", b"x" * SIZE, destination=f"/queue/{queue}")
        await sender.disconnect()


async def held(gateway: Gateway, hold: Hold) -> ClientConnection:
    """Wait until the one client takes no messages and is held for a reason."""
    while True:
        for client in gateway.clients:
            if not client.session.context.client_writable and hold in client.session.holds:
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
            while all(client.session.context.client_writable for client in gateway.clients):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
            slow.write("TOKEN", token=passcode)
            client = await held(gateway, Hold.OPERATION)
            while not any(link._secret_updates for link in gateway.pool.links):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            if ends != "gone":
                client.close_by_operator("")
                await returned(gateway, amqp, queue)
        await returned(gateway, amqp, queue)


async def _busy(client: StompClient | WebSocketClient, queue: str) -> None:
    """Leave something of everything a session may have."""
    await client.ask("SUBSCRIBE", id="a", destination=f"/topic/{queue}.auto")
    client.write("SEND", b"1", destination=f"/topic/{queue}.auto", reply_to="/temp-queue/r", expires="0")
    await client.expect("MESSAGE")
    await client.ask("SUBSCRIBE", id="c", ack="client", destination=f"/queue/{queue}", prefetch_count="5")
    client.write("SEND", b"1", destination=f"/queue/{queue}")
    await client.expect("MESSAGE")
    await client.ask("SUBSCRIBE", id="u", destination=f"/topic/{queue}.gone")
    await client.ask("UNSUBSCRIBE", id="u")
    await client.ask("BEGIN", transaction="t")
    client.write("SEND", b"1", destination=f"/topic/{queue}", transaction="t")


async def _says_goodbye(address: Address, queue: str) -> None:
    async with StompClient.logged_in(address, heart_beat="60000,60000") as client:
        await _busy(client, queue)
        await client.disconnect()


async def _vanishes(address: Address, queue: str) -> None:
    async with StompClient.logged_in(address) as client:
        await _busy(client, queue)


async def _gets_an_error(address: Address, queue: str) -> None:
    async with StompClient.logged_in(address) as client:
        await _busy(client, queue)
        client.writer.write(b"SEND\nno colon\n\n\0")
        await final_error(client)


async def _is_refused(address: Address, _queue: str) -> None:
    async with StompClient.dialled(address) as client:
        client.write("CONNECT", accept_version="1.2", login="nobody", passcode="wrong")
        await client.expect("ERROR")


async def _sends_no_frame(address: Address, _queue: str) -> None:
    async with StompClient.dialled(address) as client:
        client.writer.write(b"what is this\n\n\0")
        await client.expect("ERROR")


async def _leaves_a_web_page(address: Address, queue: str) -> None:
    async with WebSocketClient.logged_in(address) as client:
        await _busy(client, queue)


@pytest.mark.parametrize(
    "come_and_go",
    [_says_goodbye, _vanishes, _gets_an_error, _is_refused, _sends_no_frame, _leaves_a_web_page],
)
async def test_a_client_that_has_gone_leaves_nothing_for_the_garbage_collector(
    broker_url: str, tmp_path: Path, queue: str, come_and_go: Callable[[Address, str], Awaitable[None]]
) -> None:
    """A collection stops all other clients."""
    websocket = come_and_go is _leaves_a_web_page
    listeners = [{"websocket" if websocket else "tcp": "127.0.0.1:0"}]
    journal = {"level": "message", "directory": str(tmp_path)}
    settings = {"limits": {"user": {"bytes_per_second": 1_000_000}}}
    config = parsed(broker_url, {"journal": journal, **settings}, listeners=listeners)
    async with gateway_here(config) as gateway, within():
        gc.collect()
        gc.disable()
        try:
            await come_and_go(gateway.addresses[0], queue)
            assert await until(lambda: asyncio.to_thread(_left_of_sessions), lambda left: not left) == []
        finally:
            gc.enable()


def _left_of_sessions() -> list[str]:
    return sorted(type(each).__name__ for each in gc.get_objects() if isinstance(each, _OF_A_SESSION))
