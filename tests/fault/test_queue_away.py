"""A queue whose node is away: its subscription comes back by itself, and nothing with a receipt is lost.

The gateway knows one node of the cluster; the queue is on another one, which is killed.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.node import PrivateNode
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.admin import AdminClient
from tests.support.deadline import until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient, checked

pytestmark = [pytest.mark.system, pytest.mark.slow]

# Seconds: a node that starts again finds its cluster. On a busy machine this takes longer than the usual ride_through.
_PATIENCE = 90.0
_WHOLE_TEST = 240.0


@pytest.fixture(scope="module")
def gateway(nodes: list[PrivateNode]) -> Iterator[GatewayProcess]:
    upstream = {"urls": [f"amqp://{nodes[0].host}:{nodes[0].amqp_port}"], "ride_through": _WHOLE_TEST}
    document = configuration(nodes[0].amqp_url, upstream=upstream, admin={"address": "127.0.0.1:0"})
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


async def durable_queue(node: PrivateNode) -> str:
    """A new durable classic queue whose node is this one."""
    name = secrets.token_hex(6)
    async with AmqpBroker.connected(node.amqp_url) as amqp:
        await amqp.declare_queue(name, durable=True, auto_delete=False, arguments={})
    return name


async def session_of(admin: AdminClient, client: StompClient) -> dict[str, Any]:
    found: dict[str, Any] = await admin.json(f"/api/sessions/{client.connected['session']}")
    return found


async def test_a_session_waits_for_a_queue_and_loses_nothing(nodes: list[PrivateNode], gateway: GatewayProcess) -> None:
    _, second, _ = nodes
    admin = AdminClient(gateway.admin)
    queue = await durable_queue(second)
    async with within(_WHOLE_TEST):
        async with StompClient.logged_in(gateway.address) as client, StompClient.logged_in(gateway.address) as other:
            await client.ask("SUBSCRIBE", id="q", destination=f"/queue/{queue}", ack="client-individual")
            await client.ask("SUBSCRIBE", id="t", destination="/topic/neighbour")
            await other.ask("SEND", b"first", destination=f"/queue/{queue}", persistent="true")
            first = await client.expect("MESSAGE")

            await asyncio.to_thread(second.kill)
            await gateway.until_logged("session waits for the broker")
            shown = await until(lambda: session_of(admin, client), lambda found: bool(found["awaited_queues"]))
            assert shown["awaited_queues"] == [queue]
            assert shown["holds"] == []
            # The rest of the session goes on, and an acknowledgement of what was lost does nothing.
            await client.ask("ACK", id=first["ack"])
            client.write("SEND", b"hello", destination="/topic/neighbour", receipt="hello")
            # The message may overtake the confirm, which comes on another link.
            answers = {frame.command: frame for frame in (await client.receive(), await client.receive())}
            assert answers.keys() == {"RECEIPT", "MESSAGE"}
            assert answers["MESSAGE"]["subscription"] == "t"

            numbers = range(30)
            for number in numbers:
                other.write(
                    "SEND", b"%d" % number, destination=f"/queue/{queue}", persistent="true", receipt=str(number)
                )
            shown = await until(lambda: session_of(admin, other), lambda found: bool(found["awaited_queues"]))
            assert shown["holds"] == ["queue-away"]

            await asyncio.to_thread(second.start)
            receipts = [checked(await other.receive(_PATIENCE), "RECEIPT", None, {})["receipt-id"] for _ in numbers]
            assert receipts == [str(number) for number in numbers]
            bodies: list[bytes] = []
            while len(set(bodies)) < len(numbers) + 1:
                # An ERROR may have this subscription, too.
                message = checked(await client.receive(_PATIENCE), "MESSAGE", None, {"subscription": "q"})
                bodies.append(message.body)
                client.write("ACK", id=message["ack"])
            assert list(dict.fromkeys(bodies)) == [b"first", *(b"%d" % number for number in numbers)]
            shown = await session_of(admin, client)
            assert shown["awaited_queues"] == []
            await client.disconnect()


async def test_what_waits_for_a_queue_can_be_given_up(nodes: list[PrivateNode], gateway: GatewayProcess) -> None:
    """UNSUBSCRIBE of such a subscription takes effect at once, and a client that leaves is not kept."""
    _, second, _ = nodes
    queue = await durable_queue(second)
    async with within(_WHOLE_TEST):
        async with StompClient.logged_in(gateway.address) as client:
            await client.ask("SUBSCRIBE", id="q", destination=f"/queue/{queue}")
            await client.ask("SUBSCRIBE", id="r", destination=f"/amq/queue/{queue}")
            admin = AdminClient(gateway.admin)
            await asyncio.to_thread(second.kill)
            try:
                await until(lambda: session_of(admin, client), lambda found: bool(found["awaited_queues"]))
                await client.ask("UNSUBSCRIBE", id="q")
                await client.disconnect()
            finally:
                await asyncio.to_thread(second.start)


async def test_a_queue_that_somebody_deletes_is_declared_again_for_what_is_sent_to_it(
    nodes: list[PrivateNode], gateway: GatewayProcess
) -> None:
    name = secrets.token_hex(6)
    async with (
        AmqpBroker.connected(nodes[0].amqp_url) as amqp,
        StompClient.logged_in(gateway.address) as client,
        within(60),
    ):
        await client.ask("SEND", b"before", destination=f"/queue/{name}", persistent="true")
        await amqp.delete_queue(name)
        for number in range(5):
            client.write("SEND", b"%d" % number, destination=f"/queue/{name}", receipt=str(number))
        assert [(await client.expect("RECEIPT"))["receipt-id"] for _ in range(5)] == list("01234")
        await client.ask("SUBSCRIBE", id="q", destination=f"/queue/{name}")
        assert [each.body for each in await client.messages(5)] == [b"%d" % number for number in range(5)]
        await amqp.delete_queue(name)
        assert (await client.expect("ERROR"))["message"] == "Server cancelled subscription"
