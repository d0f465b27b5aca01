"""`conformance` and `compatibility` in the configuration reach the client."""

from __future__ import annotations

from functools import partial

import pytest

from gateway.parity.amqp_broker import AmqpBroker, poll
from tests.support.deadline import within
from tests.support.gateway import gateway_here, parsed
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


async def test_strict_closes_after_every_error(broker_url: str) -> None:
    async with gateway_here(parsed(broker_url, {"conformance": "strict"})) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.logged_in(address) as client:
            client.write("NONSENSE", receipt="r1")
            await client.expect("ERROR", message="Bad command", receipt_id="r1")
            await client.closed()
        async with StompClient.dialled(address) as stranger:
            stranger.write("CONNECT", accept_version="1.2", login="guest", passcode="wrong")
            await stranger.expect("ERROR", message="Bad CONNECT")
            await stranger.closed()


async def test_strict_may_be_a_matter_of_one_virtual_host(broker_url: str) -> None:
    hosts = {"/": {"conformance": "strict"}, "lenient": {"amqp_vhost": "/"}}
    async with gateway_here(parsed(broker_url, virtual_hosts=hosts)) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, host="lenient") as lenient:
            lenient.write("NONSENSE")
            await lenient.expect("ERROR", message="Bad command")
            await lenient.disconnect()
        async with StompClient.logged_in(address, host="/") as strict:
            strict.write("NONSENSE")
            await strict.expect("ERROR", message="Bad command")
            await strict.closed()


async def test_the_names_and_texts_of_the_plugins_next_version(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    name = "stomp-subscription-mN8EtNJgeewoAWGIePSs-A"
    async with gateway_here(parsed(broker_url, {"compatibility": "next"})) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.dialled(address) as client:
            client.write("CONNECT", accept_version="1.2", login="guest", passcode="wrong")
            await client.expect("ERROR", b"Access refused for user 'guest'", message="Bad CONNECT")
            await client.connect(login="guest", passcode="guest")
            await client.ask("SUBSCRIBE", id="test.subscription", destination="/topic/durable", durable="true")
            assert await amqp.count(name) == 0
            # The queue of another client, which UNSUBSCRIBE names.
            await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
            await client.ask("UNSUBSCRIBE", id="test.subscription", durable="true", x_queue_name=queue)
            assert await amqp.count(queue) == 0
            assert await amqp.count(name) is None
            for header in ("priority", "timestamp"):
                await client.ask("SEND", destination=f"/amq/queue/{queue}", **{header: "none"})
            client.write("SEND", destination=f"/amq/queue/{queue}", expiration="soon", receipt="r")
            await client.expect("ERROR", message="Processing error", receipt_id="r")
            await client.ask(
                "SUBSCRIBE", id="1", destination=f"/amq/queue/{queue}", ack="client", prefetch_count="many"
            )
            first, _ = await client.messages(2)
            await client.ask("ACK", id=first["ack"])
            client.write("ACK", id=first["ack"], receipt="r")
            await client.expect("ERROR", b"unknown delivery tag 1\n", message="Message not found", receipt_id="r")
            # What it has not settled when it unsubscribes is still its own.
            client.write("SEND", b"3", destination=f"/amq/queue/{queue}", receipt="sent")
            # The message may overtake the confirm, which comes on another link.
            answers = {frame.command: frame for frame in (await client.receive(), await client.receive())}
            third = answers["MESSAGE"]
            assert answers.keys() == {"RECEIPT", "MESSAGE"}
            await client.ask("UNSUBSCRIBE", id="1")
            assert await amqp.count(queue) == 0
            await client.ask("NACK", id=third["ack"])
            assert await poll(partial(amqp.count, queue), lambda count: count == 2) == 2
            client.write("SEND", destination=f"/amq/queue/{queue}", user_id="boss")
            await client.expect("ERROR", message="access_refused")
            await client.closed()
            await amqp.delete_queue(queue)
        async with StompClient.logged_in(address) as client:
            client.write("SUBSCRIBE", id="2", destination=f"/amq/queue/{queue}")
            await client.expect("ERROR", f"no queue '{queue}' in vhost '/'".encode(), message="not_found")
            await client.closed()
