"""Exclusive and temporary queues belong to a session, though sessions share the connections that AMQP binds them to."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.broker import Broker
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.brokers import until_queue_gone
from tests.support.deadline import within
from tests.support.gateway import Address, configuration, gateway_here, gateway_process, parsed
from tests.support.stomp_client import StompClient, final_error

pytestmark = pytest.mark.system

EXCLUSIVE = {"exclusive": "true", "auto_delete": "true", "durable": "false"}
FRAMES: list[dict[str, Any]] = [
    {**EXCLUSIVE, "destination": "/queue/{}"},
    {**EXCLUSIVE, "destination": "/queue/{}", "ack": "client"},
    {"destination": "/queue/{}"},
    {"destination": "/amq/queue/{}"},
    {"destination": "/amq/queue/{}", "ack": "client"},
    {"destination": "/amq/queue/{}", "ack": "client", "prefetch_count": "10"},
    {"destination": "/reply-queue/{}"},
    {"destination": "/topic/elsewhere", "x_queue_name": "{}"},
    {"destination": "/topic/elsewhere", "x_queue_name": "{}", **EXCLUSIVE},
    {"command": "SEND", "destination": "/queue/{}"},
    {"command": "SEND", "destination": "/queue/{}", **EXCLUSIVE},
    {"command": "UNSUBSCRIBE", "durable": "true", "x_queue_name": "{}"},
]
OWNERS: dict[str, dict[str, str]] = {
    "exclusive and temporary": EXCLUSIVE,
    "exclusive": {"exclusive": "true"},
    "not durable": {"durable": "false"},
}


def filled(headers: dict[str, str], queue: str) -> dict[str, str]:
    return {name: value.format(queue) for name, value in headers.items() if name != "command"}


@pytest.fixture(scope="module")
def dedicated(broker_url: str) -> Iterator[Address]:
    """A gateway whose sessions have links of their own, so that the broker itself refuses."""
    with gateway_process(configuration(broker_url, {"links": "dedicated"})) as process:
        yield process.address


@pytest.mark.parametrize("headers", FRAMES, ids=lambda headers: " ".join(headers.values()))
@pytest.mark.parametrize("own", OWNERS.values(), ids=OWNERS)
async def test_an_exclusive_queue_is_refused_to_another_session_as_the_broker_does_it(
    gateway_address: Address,
    dedicated: Address,
    plugin_address: Address,
    amqp: AmqpBroker,
    queue: str,
    own: dict[str, str],
    headers: dict[str, str],
) -> None:
    errors = []
    for address in (gateway_address, dedicated, plugin_address):
        async with StompClient.logged_in(address) as owner, StompClient.logged_in(address) as other, within():
            await owner.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", **own)
            if headers.get("command") == "UNSUBSCRIBE":
                await other.ask("SUBSCRIBE", id="b", destination="/topic/elsewhere")
            other.write(headers.get("command", "SUBSCRIBE"), id="b", **filled(headers, queue))
            errors.append(await final_error(other))
            # The owner is not disturbed, and neither is its queue.
            owner.write("SEND", b"still mine", destination=f"/amq/queue/{queue}")
            await owner.expect("MESSAGE", b"still mine")
            await owner.disconnect()
            # An auto-delete queue ends some time after its consumer.
            await until_queue_gone(amqp, queue)
    text = f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{queue}' in vhost '/'. "
    assert errors[0].message == "resource_locked"
    assert errors[0].body.startswith(text)
    assert errors == [errors[0]] * 3


@pytest.mark.parametrize("destination", ["/queue/{}", "/amq/queue/{}"])
async def test_sending_to_an_exclusive_queue_of_another_session(
    gateway_address: Address, plugin_address: Address, amqp: AmqpBroker, queue: str, destination: str
) -> None:
    """As with the plugin: only a SEND that declares the queue needs access to it."""
    outcomes = []
    for address in (gateway_address, plugin_address):
        async with StompClient.logged_in(address) as owner, StompClient.logged_in(address) as other, within():
            await owner.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", **EXCLUSIVE)
            other.write("SEND", b"from outside", destination=destination.format(queue), receipt="r")
            frame = await other.receive()
            outcomes.append((frame.command, frame.headers.get("message")))
            owner.write("DISCONNECT", receipt="end")
            while (await owner.receive()).headers.get("receipt-id") != "end":
                pass
            await until_queue_gone(amqp, queue)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("how", ["disconnect", "unsubscribe", "half-close", "abruptly"])
async def test_an_exclusive_queue_is_free_when_its_session_gives_it_up(
    gateway_address: Address, amqp: AmqpBroker, queue: str, how: str
) -> None:
    async with StompClient.logged_in(gateway_address) as owner, StompClient.logged_in(gateway_address) as next_owner:
        async with within():
            await owner.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", **EXCLUSIVE)
            if how == "disconnect":
                await owner.disconnect()
            elif how == "unsubscribe":
                await owner.ask("UNSUBSCRIBE", id="a")
            elif how == "half-close":
                owner.half_close()
                await owner.closed()
            else:
                owner.writer.transport.abort()
            await until_queue_gone(amqp, queue)
            await next_owner.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", **EXCLUSIVE)
            next_owner.write("SEND", b"mine now", destination=f"/amq/queue/{queue}")
            await next_owner.expect("MESSAGE", b"mine now")
            await next_owner.disconnect()


async def test_an_exclusive_queue_that_a_send_declared(gateway_address: Address, amqp: AmqpBroker, queue: str) -> None:
    async with StompClient.logged_in(gateway_address) as owner, StompClient.logged_in(gateway_address) as other:
        async with within():
            await owner.ask("SEND", b"kept", destination=f"/queue/{queue}", exclusive="true")
            other.write("SUBSCRIBE", id="b", destination=f"/amq/queue/{queue}")
            await other.expect("ERROR", message="resource_locked")
            await owner.ask("SUBSCRIBE", id="a", ack="client", destination=f"/queue/{queue}", exclusive="true")
            await owner.expect("MESSAGE", b"kept")
            await owner.disconnect()
            await until_queue_gone(amqp, queue)


@pytest.mark.parametrize("how", ["disconnect", "abruptly"])
async def test_a_temporary_queue_ends_with_its_session(gateway_address: Address, amqp: AmqpBroker, how: str) -> None:
    async with (
        StompClient.logged_in(gateway_address) as asker,
        StompClient.logged_in(gateway_address) as answerer,
        within(),
    ):
        await answerer.ask("SUBSCRIBE", id="q", destination=f"/topic/questions {how}")
        asker.write("SEND", b"why?", destination=f"/topic/questions {how}", reply_to="/temp-queue/answers")
        question = await answerer.expect("MESSAGE", b"why?")
        found = re.fullmatch("/reply-queue/(stomp-subscription-.+)", question["reply-to"])
        assert found is not None
        await answerer.ask("SEND", b"because", destination=question["reply-to"])
        await asker.expect("MESSAGE", b"because", subscription="/temp-queue/answers")
        if how == "disconnect":
            await asker.disconnect()
        else:
            asker.writer.transport.abort()
        await until_queue_gone(amqp, found[1])
        await answerer.disconnect()


async def test_no_other_session_reads_a_temporary_queue(gateway_address: Address) -> None:
    async with (
        StompClient.logged_in(gateway_address) as asker,
        StompClient.logged_in(gateway_address) as thief,
        within(),
    ):
        await thief.ask("SUBSCRIBE", id="q", destination="/topic/secrets")
        asker.write("SEND", b"?", destination="/topic/secrets", reply_to="/temp-queue/answers")
        question = await thief.expect("MESSAGE")
        thief.write("SUBSCRIBE", id="t", destination=question["reply-to"])
        await thief.expect("ERROR", message="resource_locked")
        await asker.disconnect()


async def test_no_queue_is_left_behind(broker_url: str, own_broker: Broker) -> None:
    before = set(own_broker.ctl("list_queues", "name").split())
    async with gateway_here(parsed(broker_url)) as gateway, within(30):
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SUBSCRIBE", id="1", destination="/topic/left.*")
            await client.ask("SUBSCRIBE", id="2", destination="/exchange/amq.fanout")
            await client.ask("SUBSCRIBE", id="3", ack="client", destination="/exchange/amq.direct/left")
            await client.ask("SUBSCRIBE", id="4", destination="/topic/left", **EXCLUSIVE)
            await client.ask("SUBSCRIBE", id="5", destination="/queue/left", durable="false")
            await client.ask("SEND", b"", destination="/topic/nobody", reply_to="/temp-queue/left")
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            # A subscription that fails when its queue is bound: the exchange does not exist.
            client.write("SUBSCRIBE", id="1", destination="/exchange/no-such-exchange/left")
            await client.expect("ERROR", message="not_found")
            await client.closed()
    # Those of earlier tests may end meanwhile.
    assert set(own_broker.ctl("list_queues", "name").split()) <= before


async def test_a_queue_stays_exclusive_while_one_of_two_subscriptions_is_left(
    gateway_address: Address, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as owner, StompClient.logged_in(gateway_address) as other:
        async with within():
            await owner.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", **EXCLUSIVE)
            await owner.ask("SUBSCRIBE", id="b", destination=f"/queue/{queue}", **EXCLUSIVE)
            await owner.ask("UNSUBSCRIBE", id="a")
            other.write("SUBSCRIBE", id="b", destination=f"/amq/queue/{queue}")
            assert (await final_error(other)).message == "resource_locked"
            owner.write("SEND", b"still mine", destination=f"/amq/queue/{queue}")
            await owner.expect("MESSAGE", b"still mine", subscription="b")
            await owner.disconnect()


@pytest.mark.parametrize("consumed", [True, False], ids=["consumed", "not consumed"])
async def test_an_exclusive_queue_that_an_operator_deletes_is_free(
    gateway_address: Address, own_broker: Broker, queue: str, consumed: bool
) -> None:
    exclusive = {"destination": f"/queue/{queue}", "exclusive": "true"}
    async with StompClient.logged_in(gateway_address) as owner, StompClient.logged_in(gateway_address) as next_owner:
        async with within():
            await owner.ask("SEND", b"", **exclusive)
            if consumed:
                await owner.ask("SUBSCRIBE", id="a", ack="client", prefetch_count="1", **exclusive)
                await owner.expect("MESSAGE")
            await asyncio.to_thread(own_broker.ctl, "delete_queue", queue)
            if consumed:
                await owner.expect("ERROR", message="Server cancelled subscription", subscription="a")
            await next_owner.ask("SUBSCRIBE", id="h", **exclusive)
            # The end of the first session does not delete the queue, which has a new owner.
            await owner.disconnect()
            next_owner.write("SEND", b"mine now", destination=f"/amq/queue/{queue}")
            await next_owner.expect("MESSAGE", b"mine now")
            await next_owner.disconnect()


async def test_the_end_of_a_session_deletes_no_queue_that_took_the_name_of_its_own(
    gateway_address: Address, own_broker: Broker, amqp: AmqpBroker, queue: str
) -> None:
    async with StompClient.logged_in(gateway_address) as client, within():
        await client.ask("SEND", b"", destination=f"/queue/{queue}", exclusive="true")
        await asyncio.to_thread(own_broker.ctl, "delete_queue", queue)
        await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
        await client.disconnect()
    assert await amqp.count(queue) == 0


@pytest.mark.parametrize("headers", [{}, {"exclusive": "true"}], ids=["as usual", "exclusive"])
@pytest.mark.parametrize("leave", ["UNSUBSCRIBE", "hang up"])
async def test_no_message_is_rejected_because_a_subscription_of_its_topic_ends(
    gateway_address: Address, queue: str, leave: str, headers: dict[str, str]
) -> None:
    """RabbitMQ 4.3 rejects messages for some milliseconds after an exclusive auto-delete queue has ended by itself.

    3.10 does not, so there the gateway leaves the end of an exclusive queue to the broker.
    """
    topic = f"/topic/{queue}"
    async with StompClient.logged_in(gateway_address) as publisher, within():
        for _ in range(20):
            async with StompClient.logged_in(gateway_address) as subscriber:
                await subscriber.ask("SUBSCRIBE", id="1", destination=topic, **headers)
                if leave == "UNSUBSCRIBE":
                    subscriber.write("UNSUBSCRIBE", id="1")
                else:
                    subscriber.hang_up()
                for _ in range(20):
                    # An ERROR would come in place of the RECEIPT.
                    await publisher.ask("SEND", b"hello", destination=topic)
        await publisher.disconnect()
