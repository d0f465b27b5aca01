"""What counts toward the delivery-limit of a quorum queue, and what does not, on the release of RabbitMQ that is there.

A message that has come back more often than the limit goes to another queue, whose messages the client gets, too.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest
import pytest_asyncio

from gateway.parity.amqp_broker import AmqpBroker, BrokerMessage
from gateway.parity.steps import Release
from tests.support.deadline import within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import Frame, StompClient

pytestmark = pytest.mark.system

LIMIT: Final = 3
# Messages that the client has at once.
TOGETHER: Final = 3

Connect = Callable[[StompClient], Awaitable[None]]
Return = Callable[[StompClient, list[Frame]], Awaitable[None]]


@pytest_asyncio.fixture
async def poison(amqp: AmqpBroker, queue: str) -> AsyncIterator[str]:
    """The name of a quorum queue with the limit. What exceeds it goes to ``queue``."""
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    name = f"test-{secrets.token_hex(6)}"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    await amqp.declare_queue(
        name,
        durable=True,
        auto_delete=False,
        arguments={"x-queue-type": "quorum", "x-delivery-limit": LIMIT} | arguments,
    )
    yield name
    await amqp.delete_queue(name)


@pytest.fixture
def closing_counts_alone(amqp: AmqpBroker) -> bool:
    """Whether the broker counts what a closing channel returns, and not what basic.nack does."""
    assert amqp.release is not None
    return amqp.release >= Release(4, 3)


async def put(amqp: AmqpBroker, queue: str, count: int = 1) -> None:
    for number in range(count):
        await amqp.publish("", queue, BrokerMessage(body=b"%d" % number))


def wanted(queue: str, ack: str = "client-individual") -> dict[str, str]:
    """The headers of a subscription beside its id."""
    return {"destination": f"/amq/queue/{queue}", "ack": ack, "prefetch_count": str(TOGETHER)}


async def subscribe(client: StompClient, queue: str, ack: str = "client-individual") -> None:
    await client.ask("SUBSCRIBE", id="poison", **wanted(queue, ack))


@asynccontextmanager
async def watching(address: Address, dead: str) -> AsyncIterator[StompClient]:
    """A client that gets the messages that have exceeded the limit."""
    async with StompClient.logged_in(address) as client, within():
        await client.ask("SUBSCRIBE", id="dead", destination=f"/amq/queue/{dead}")
        yield client


async def deliveries(client: StompClient, give_back: Return, count: int = 1) -> int | None:
    """How often messages come until they have exceeded the limit, if each is given back; None if they never do."""
    for delivery in range(LIMIT + 3):
        frames = [await client.receive() for _ in range(count)]
        subscriptions = {frame["subscription"] for frame in frames}
        if subscriptions == {"dead"}:
            return delivery
        assert subscriptions == {"poison"}
        await give_back(client, frames)
    return None


# What a client refuses.


async def refuse(client: StompClient, frames: list[Frame]) -> None:
    client.write("NACK", id=frames[-1]["ack"])


async def refuse_in_transaction(client: StompClient, frames: list[Frame]) -> None:
    client.write("BEGIN", transaction="t")
    client.write("NACK", id=frames[-1]["ack"], requeue="true", transaction="t")
    client.write("COMMIT", transaction="t")


async def test_a_message_that_is_refused_counts_as_with_the_plugin(
    gateway_address: Address,
    plugin_address: Address,
    amqp: AmqpBroker,
    queue: str,
    poison: str,
    closing_counts_alone: bool,
) -> None:
    expected = None if closing_counts_alone else LIMIT + 1
    for address in (plugin_address, gateway_address):
        await put(amqp, poison)
        async with watching(address, queue) as client:
            await subscribe(client, poison)
            assert await deliveries(client, refuse) == expected
            if expected is None:
                client.write("ACK", id=(await client.receive())["ack"])
            # Its subscriptions would take what the next client is to get.
            await client.disconnect()


@pytest.mark.parametrize(
    ("ack", "give_back", "count"),
    [("client-individual", refuse, 1), ("client-individual", refuse_in_transaction, 1), ("client", refuse, TOGETHER)],
    ids=["alone", "in a transaction", "with those before"],
)
async def test_with_nack_counts_what_is_refused_again_and_again_is_dead_lettered_on_every_release(
    broker_url: str, amqp: AmqpBroker, queue: str, poison: str, ack: str, give_back: Return, count: int
) -> None:
    async with gateway_here(parsed(broker_url, {"nack_counts": True})) as gateway:
        async with watching(gateway.addresses[0], queue) as client:
            await put(amqp, poison, count)
            await subscribe(client, poison, ack)
            assert await deliveries(client, give_back, count) == LIMIT + 1
            await client.disconnect()


async def test_a_message_that_is_discarded_is_dead_lettered_at_once(
    broker_url: str, amqp: AmqpBroker, queue: str, poison: str
) -> None:
    async def discard(client: StompClient, frames: list[Frame]) -> None:
        client.write("NACK", id=frames[0]["ack"], requeue="false")

    async with gateway_here(parsed(broker_url, {"nack_counts": True})) as gateway:
        async with watching(gateway.addresses[0], queue) as client:
            await put(amqp, poison)
            await subscribe(client, poison)
            assert await deliveries(client, discard) == 1
            await client.disconnect()


# What the gateway returns.


async def test_unsubscribe_counts_only_where_the_broker_counts_every_return(
    gateway_address: Address, amqp: AmqpBroker, queue: str, poison: str, closing_counts_alone: bool
) -> None:
    async def subscribe_again(client: StompClient, frames: list[Frame]) -> None:
        client.write("UNSUBSCRIBE", id="poison")
        client.write("SUBSCRIBE", id="poison", **wanted(poison))

    await put(amqp, poison, 2)
    async with watching(gateway_address, queue) as client:
        await subscribe(client, poison)
        expected = None if closing_counts_alone else LIMIT + 1
        assert await deliveries(client, subscribe_again, 2) == expected


async def test_sessions_that_the_gateway_ends_count_only_where_the_broker_counts_every_return(
    broker_url: str, amqp: AmqpBroker, queue: str, poison: str, closing_counts_alone: bool
) -> None:
    await put(amqp, poison)
    async with gateway_here(parsed(broker_url)) as gateway:
        for _ in range(LIMIT + 1):
            async with StompClient.logged_in(gateway.addresses[0]) as client, within():
                await subscribe(client, poison)
                await client.expect("MESSAGE", subscription="poison")
                [connection] = gateway.clients
                connection.close_by_operator("")
                await client.expect("ERROR")
        async with watching(gateway.addresses[0], queue) as client:
            client.write("SUBSCRIBE", id="poison", **wanted(poison))
            await client.expect("MESSAGE", subscription="poison" if closing_counts_alone else "dead")


@pytest.mark.parametrize("ends", ["DISCONNECT", "nothing"])
async def test_a_client_that_leaves_a_message_again_and_again_has_it_dead_lettered_as_with_the_plugin(
    gateway_address: Address, plugin_address: Address, amqp: AmqpBroker, queue: str, poison: str, ends: str
) -> None:
    for address in (plugin_address, gateway_address):
        await put(amqp, poison)
        for _ in range(LIMIT + 1):
            async with StompClient.logged_in(address) as client, within():
                await subscribe(client, poison)
                await client.expect("MESSAGE", subscription="poison")
                if ends == "DISCONNECT":
                    await client.disconnect()
        async with watching(address, queue) as client:
            await client.expect("MESSAGE", subscription="dead")
            await client.disconnect()
