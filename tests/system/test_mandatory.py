"""`mandatory: true`: a message that reaches no queue is an ERROR and has no RECEIPT."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest

from gateway.parity.amqp_broker import AmqpBroker
from tests.support.deadline import within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import Frame, StompClient, encoded

pytestmark = pytest.mark.system


def unroutable(frame: Frame) -> str:
    """The destination that an ERROR names."""
    assert (frame.command, frame["message"]) == ("ERROR", "Unroutable message")
    text = frame.body.decode()
    assert text.startswith("No queue received the message for '")
    assert text.endswith("': NO_ROUTE\n")
    return text.split("'")[1]


async def declare(amqp: AmqpBroker, queue: str) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
async def test_a_message_that_reaches_no_queue(
    gateway_address: Address, amqp: AmqpBroker, queue: str, size: int
) -> None:
    await declare(amqp, queue)
    nowhere = (f"/amq/queue/{queue}-gone", f"/topic/{queue}", f"/exchange/amq.direct/{queue}")
    body = b"\xce" * size
    async with StompClient.logged_in(gateway_address) as client, within():
        for destination in nowhere:
            client.write("SEND", body, destination=destination, mandatory="true", receipt=destination)
            frame = await client.receive()
            assert (unroutable(frame), frame["receipt-id"]) == (destination, destination)
            # Without the header there is a RECEIPT: the broker has confirmed the message.
            await client.ask("SEND", body, destination=destination)
            # Without a receipt header there is an ERROR too.
            client.write("SEND", body, destination=destination, mandatory="true")
            frame = await client.receive()
            assert unroutable(frame) == destination
            assert "receipt-id" not in frame.headers
            await client.ask("SEND", body, destination=f"/amq/queue/{queue}", mandatory="true")
        await client.disconnect()
    # Only the messages to the queue have arrived.
    for _ in nowhere:
        message = await amqp.take(queue)
        assert message is not None
        assert message.body == body
    assert await amqp.take(queue) is None


async def test_each_of_many_messages_is_answered_once(gateway_address: Address, amqp: AmqpBroker, queue: str) -> None:
    """Two clients on one link send all kinds alternately, as fast as they can: each SEND has a RECEIPT or an ERROR."""
    await declare(amqp, queue)
    there, gone = f"/amq/queue/{queue}", f"/amq/queue/{queue}-gone"
    kinds = list(product((there, gone), ("true", "false")))
    frames = b"".join(
        encoded("SEND", b"x" * (number % 300), destination=destination, mandatory=mandatory, receipt=f"{number}")
        for number, (destination, mandatory) in enumerate(kinds * 1500)
    )

    async def send_all(address: Address) -> None:
        async with StompClient.logged_in(address) as client:
            client.writer.write(frames)
            answers = [await client.receive() for _ in range(1500 * len(kinds))]
            await client.disconnect()
        kept = {int(each["receipt-id"]) for each in answers if each.command == "RECEIPT"}
        refused = {int(each["receipt-id"]) for each in answers if each.command == "ERROR"}
        assert {unroutable(each) for each in answers if each.command == "ERROR"} == {gone}
        assert refused == {number for number in range(len(answers)) if kinds[number % 4] == (gone, "true")}
        assert kept == set(range(len(answers))) - refused

    async with within():
        await asyncio.gather(send_all(gateway_address), send_all(gateway_address))
    assert await amqp.count(queue) == 2 * 2 * 1500


async def test_a_queue_that_is_deleted_while_its_messages_are_confirmed(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    """Persistent messages are confirmed late, and messages are returned in between."""
    async with StompClient.logged_in(gateway_address) as client, within():
        for round_ in range(2):
            await declare(amqp, queue)
            sent = 0
            deleting = asyncio.ensure_future(amqp.delete_queue(queue))
            while not deleting.done():
                for _ in range(20):
                    headers = {"persistent": "true", "mandatory": "true", "receipt": f"{round_}-{sent}"}
                    client.write("SEND", b"", destination=f"/amq/queue/{queue}", **headers)
                    sent += 1
                await client.writer.drain()
                await asyncio.sleep(0)
            answers = {}
            for _ in range(sent):
                frame = await client.receive()
                answers[frame["receipt-id"]] = frame.command
            # All messages before the deletion were confirmed, and all after it returned.
            in_order = [answers[f"{round_}-{number}"] for number in range(sent)]
            assert in_order == sorted(in_order, reverse=True)
        await client.disconnect()


async def test_a_transaction_with_a_message_that_reaches_no_queue(
    gateway_address: Address, amqp: AmqpBroker, queue: str
) -> None:
    await declare(amqp, queue)
    there, gone = f"/amq/queue/{queue}", f"/amq/queue/{queue}-gone"
    async with StompClient.logged_in(gateway_address) as client, within():
        await client.ask("BEGIN", transaction="t")
        client.write("SEND", b"taken", destination=there, transaction="t", mandatory="true")
        client.write("SEND", b"lost", destination=gone, transaction="t", mandatory="true")
        client.write("COMMIT", transaction="t", receipt="c")
        assert unroutable(await client.receive()) == gone
        refusal = await client.expect("ERROR", message="Unroutable message", receipt_id="c")
        assert refusal.body == b"A message of the transaction reached no queue; nothing was acknowledged.\n"
        await client.ask("SEND", b"next", destination=there)
        await client.disconnect()
    assert await amqp.count(queue) == 2


async def test_a_destination_rule_makes_messages_mandatory(broker_url: str, queue: str) -> None:
    rules = [
        {"action": "rewrite", "destination": "/topic/old.*", "to": f"/amq/queue/{queue}-*", "mandatory": True},
        {"action": "allow", "destination": "/exchange/amq.direct/*", "on": "send", "mandatory": True},
    ]
    config = parsed(broker_url, {"destination_rules": rules, "journal": {"level": "off"}})
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        # The ERROR has the destination that the client sent.
        for destination in ("/topic/old.x", f"/exchange/amq.direct/{queue}"):
            client.write("SEND", destination=destination, receipt=destination)
            frame = await client.receive()
            assert (unroutable(frame), frame["receipt-id"]) == (destination, destination)
        await client.ask("SEND", destination="/topic/new.x")
        await client.disconnect()


async def test_a_receiver_sees_the_header(gateway_address: Address, queue: str) -> None:
    """As with RabbitMQ's plugin, which treats it like any other header."""
    async with StompClient.logged_in(gateway_address) as client, within():
        await client.ask("SUBSCRIBE", id="s", destination=f"/queue/{queue}")
        client.write("SEND", b"x", destination=f"/queue/{queue}", mandatory="true")
        await client.expect("MESSAGE", b"x", mandatory="true")
        await client.disconnect()
