"""A cluster of three RabbitMQ nodes: one node is killed, then another, and no receipted message is lost."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from itertools import count

import pytest

from deploy.local.node import PrivateNode
from tests.support.admin import AdminClient
from tests.support.deadline import until
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import ConnectionOverError, StompClient

pytestmark = [pytest.mark.system, pytest.mark.slow]

# Seconds: a node that starts again finds its cluster, and the queue elects a leader.
_PATIENCE = 60.0


@pytest.fixture
def gateway(nodes: list[PrivateNode]) -> Iterator[GatewayProcess]:
    urls = [f"amqp://{node.host}:{node.amqp_port}" for node in nodes]
    quorum = {"destination": "/queue/*", "arguments": {"x-queue-type": "quorum"}}
    document = configuration(
        nodes[0].amqp_url, {"queue_arguments": [quorum]}, upstream={"urls": urls}, admin={"address": "127.0.0.1:0"}
    )
    with gateway_process(document, module="tests.support.one_by_one") as process:
        yield process
        process.assert_no_internal_errors()


class Producer:
    """Sends numbers to a queue, and connects again if its connection is lost; knows which are receipted."""

    def __init__(self, gateway: Address, queue: str) -> None:
        self.receipted: list[int] = []
        self.connections = 0
        self._gateway = gateway
        self._queue = queue
        self._numbers = count()
        self._wanted = asyncio.Condition()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            try:
                async with StompClient.logged_in(self._gateway) as client:
                    self.connections += 1
                    await self._send(client)
            except (AssertionError, ConnectionOverError, OSError):
                # The ERROR of a lost connection, or none could be opened.
                await asyncio.sleep(0.1)

    async def _send(self, client: StompClient) -> None:
        for number in self._numbers:
            client.write("SEND", b"%d" % number, destination=self._queue, persistent="true", receipt=str(number))
            answer = await client.receive(_PATIENCE)
            # RabbitMQ rejects messages for a queue that elects its leader; the client hears nothing of that.
            assert answer.command == "RECEIPT", answer
            async with self._wanted:
                self.receipted.append(number)
                self._wanted.notify_all()

    async def more(self, messages: int) -> None:
        """Wait until so many more messages are receipted."""
        wanted = len(self.receipted) + messages
        async with asyncio.timeout(_PATIENCE), self._wanted:
            await self._wanted.wait_for(lambda: len(self.receipted) >= wanted)


async def linked_brokers(admin: AdminClient) -> set[str]:
    return {link["broker"] for link in (await admin.json("/api/links"))["items"]}


async def up(admin: AdminClient) -> list[bool]:
    [host] = (await admin.json("/api/virtual-hosts"))["items"]
    return [broker["up"] for broker in host["brokers"]]


async def kill(node: PrivateNode) -> None:
    await asyncio.to_thread(node.kill)


async def test_no_receipted_message_is_lost_when_one_node_is_killed_and_then_another(
    nodes: list[PrivateNode], gateway: GatewayProcess
) -> None:
    first, second, _ = nodes
    queue, admin = f"/queue/{secrets.token_hex(6)}", AdminClient(gateway.admin)
    producer = Producer(gateway.address, queue)
    producing = asyncio.create_task(producer.run())
    try:
        await producer.more(50)
        assert await up(admin) == [True, True, True]
        assert await linked_brokers(admin) == {f"127.0.0.1:{first.amqp_port}"}

        async with StompClient.logged_in(gateway.address) as client:
            # Its queue is a classic one, on the first node.
            await client.ask("SUBSCRIBE", id="1", destination="/topic/classic", durable="true", auto_delete="false")
            await kill(first)
            line = (await gateway.until_logged("session waits for the broker"))[0]
            assert (line["virtual_host"], line["login"], line["session"]) == ("/", "guest", client.connected["session"])
            assert line["reason"].endswith("is away, and so is its node")
        await producer.more(50)
        assert await linked_brokers(admin) == {f"127.0.0.1:{second.amqp_port}"}
        await until(lambda: up(admin), lambda states: states == [False, True, True])

        await kill(second)
        await until(lambda: up(admin), lambda states: states == [False, False, True])
        # One node of three is no quorum: nothing is receipted for the queue, while the broker answers for a topic.
        receipted = len(producer.receipted)
        async with StompClient.logged_in(gateway.address) as client:
            await client.ask("SEND", b"x", destination="/topic/nobody")
            await client.ask("SEND", b"x", destination="/topic/nobody")
        assert len(producer.receipted) == receipted

        await asyncio.to_thread(first.start)
        await producer.more(50)
        assert producer.connections == 1
        assert producer.receipted == list(range(len(producer.receipted)))
    finally:
        producing.cancel()
        await asyncio.gather(producing, return_exceptions=True)
    assert await drained(gateway.address, queue) >= set(producer.receipted)
    await asyncio.to_thread(second.start)
    await until(lambda: up(admin), lambda states: states == [True, True, True])


async def drained(gateway: Address, queue: str) -> set[int]:
    """The numbers in a queue, up to a message that is sent now."""
    found = set()
    async with StompClient.logged_in(gateway) as client:
        await client.ask("SEND", b"-1", destination=queue)
        client.write("SUBSCRIBE", id="a", destination=queue, ack="auto")
        while -1 not in found:
            found.add(int((await client.expect("MESSAGE")).body))
    return found
