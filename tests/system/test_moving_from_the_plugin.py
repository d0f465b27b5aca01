"""Clients move between RabbitMQ's own plugin and the gateway, in both directions, and find their messages."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from gateway.parity.amqp_broker import AmqpBroker
from gateway.parity.steps import Release
from tests.support.deadline import within
from tests.support.gateway import Address
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

SUBSCRIPTIONS = {
    "topic": ("/topic/{}", {}),
    "escaped": ("/topic/{}%2Fä", {}),
    "exchange": ("/exchange/amq.direct/{}", {}),
    "named": ("/topic/{}", {"x_queue_name": "{}"}),
    "odd id": ("/topic/{}", {}),
}
IDS = {"odd id": "an id: with \\ and\nmore"}


@pytest.fixture
def name() -> str:
    return f"move-{secrets.token_hex(6)}"


@pytest_asyncio.fixture(params=list(SUBSCRIPTIONS))
async def subscription(request: pytest.FixtureRequest, name: str, amqp: AmqpBroker) -> AsyncIterator[dict[str, str]]:
    """The headers of a durable SUBSCRIBE."""
    if request.param == "exchange" and (amqp.release or Release(3)) >= Release(3, 11, 8):
        pytest.skip("durable subscriptions of exchanges end with their connection at this plugin")
    destination, more = SUBSCRIPTIONS[request.param]
    headers = {"destination": destination.format(name), "id": IDS.get(request.param, f"id of {name}")}
    headers |= {key: value.format(name) for key, value in more.items()}
    yield headers | {"durable": "true", "auto_delete": "false"}
    await amqp.delete_queue(name)


@pytest.fixture(params=["plugin to gateway", "gateway to plugin"])
def addresses(
    request: pytest.FixtureRequest, plugin_address: Address, gateway_address: Address
) -> tuple[Address, Address]:
    """Where a client comes from, and where it goes."""
    both = plugin_address, gateway_address
    return both if request.param == "plugin to gateway" else (both[1], both[0])


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2"])
async def test_a_durable_subscription_is_found_on_the_other_side(
    addresses: tuple[Address, Address], subscription: dict[str, str], version: str
) -> None:
    old, new = addresses
    if version == "1.0" and "\n" in subscription["id"]:
        subscription["id"] = subscription["id"].replace("\n", " ")
    async with within(30):
        async with StompClient.logged_in(old, version=version) as client:
            await client.ask("SUBSCRIBE", **subscription)
            await client.disconnect()
        async with StompClient.logged_in(old) as sender:
            for body in (b"one", b"two"):
                await sender.ask("SEND", body, destination=subscription["destination"], persistent="true")
            await sender.disconnect()
        async with StompClient.logged_in(new, version=version) as client:
            client.write("SUBSCRIBE", **subscription)
            assert [message.body for message in await client.messages(2)] == [b"one", b"two"]
            durable = {key: value for key, value in subscription.items() if key not in ("auto_delete", "destination")}
            await client.ask("UNSUBSCRIBE", **durable)
            await client.disconnect()


async def test_a_queue_with_arguments_declared_on_one_side_is_used_on_the_other(
    addresses: tuple[Address, Address], queue: str
) -> None:
    headers = {
        "destination": f"/queue/{queue}",
        "x_message_ttl": "600000",
        "x_max_length": "100",
        "auto_delete": "true",
    }
    old, new = addresses
    async with StompClient.logged_in(old) as sender, StompClient.logged_in(new) as receiver, within():
        await sender.ask("SEND", b"hello", priority="3", colour="red", persistent="true", **headers)
        receiver.write("SUBSCRIBE", id="a", **headers)
        message = await receiver.expect("MESSAGE", b"hello", priority="3", colour="red", persistent="true")
        assert message["destination"] == f"/queue/{queue}"
        await receiver.disconnect()


async def test_a_question_asked_on_one_side_is_answered_on_the_other(
    addresses: tuple[Address, Address], queue: str
) -> None:
    old, new = addresses
    async with StompClient.logged_in(old) as asker, StompClient.logged_in(new) as answerer, within():
        await answerer.ask("SUBSCRIBE", id="q", destination=f"/topic/{queue}")
        asker.write("SEND", b"?", destination=f"/topic/{queue}", reply_to="/temp-queue/a")
        question = await answerer.expect("MESSAGE", b"?")
        await answerer.ask("SEND", b"!", destination=question["reply-to"])
        await asker.expect("MESSAGE", b"!", subscription="/temp-queue/a")
        await answerer.disconnect()
