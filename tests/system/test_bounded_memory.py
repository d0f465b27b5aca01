"""Slow readers and fast writers: memory stays bounded, other clients do not wait, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import pytest_asyncio

from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.chaos import ChaosProxy, Direction
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process, upstream
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system

MIB = 1 << 20
BODY = b"x" * 4096
BACKLOG = 25_000
"""Messages: 100 MiB of bodies, several times more than the gateway may hold."""
SMALL = 32 * 1024
"""Receive buffer, in bytes, of a client that does not read."""
MAY_GROW = 40 * MIB


@pytest.fixture(scope="module")
def process(broker_url: str) -> Iterator[GatewayProcess]:
    with gateway_process(configuration(broker_url), from_nothing=True) as process:
        yield process


@pytest_asyncio.fixture
async def backlog(process: GatewayProcess, queue: str) -> str:
    """A queue with more messages than the gateway may hold. Filling it also warms up the gateway's memory."""
    destination = f"/queue/{queue}"
    frame = encoded("SEND", BODY, destination=destination)
    async with StompClient.logged_in(process.address) as client, within(60):
        for _ in range(BACKLOG // 100):
            client.writer.write(frame * 100)
            await client.writer.drain()
        await client.ask("SEND", b"last", destination=destination)
        await client.ask("DISCONNECT")
    return destination


async def talk(process: GatewayProcess, destination: str) -> None:
    """Another client exchanges 500 messages, each sent when the previous one has arrived."""
    async with StompClient.logged_in(process.address) as client:
        await client.ask("SUBSCRIBE", id="t", destination=destination)
        for number in range(500):
            client.write("SEND", b"%d" % number, destination=destination)
            await client.expect("MESSAGE", b"%d" % number)
        await client.disconnect()


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_a_slow_reader_uses_bounded_memory_and_delays_no_other_client(
    process: GatewayProcess, backlog: str, ack: str
) -> None:
    before = process.memory
    async with StompClient.logged_in(process.address, receive_buffer=SMALL) as slow, within(90):
        slow.write("SUBSCRIBE", id="s", ack=ack, destination=backlog)
        first = await slow.expect("MESSAGE")
        for _ in range(3):
            await talk(process, f"/topic/{backlog[7:]}")
            assert process.memory - before < MAY_GROW
        # Every message arrives, late and in order.
        assert first["redelivered"] == "false"
        for _ in range(BACKLOG - 1):
            last = await slow.expect("MESSAGE", BODY)
        last = await slow.expect("MESSAGE", b"last")
        if ack == "client":
            await slow.ask("ACK", id=last["ack"])
        assert process.memory - before < MAY_GROW


async def test_a_slow_reader_of_several_subscriptions_uses_bounded_memory(
    process: GatewayProcess, backlog: str
) -> None:
    """The second subscription finds the client's buffer full already."""
    before = process.memory
    async with StompClient.logged_in(process.address, receive_buffer=SMALL) as slow, within(60):
        slow.write("SUBSCRIBE", id="a", ack="auto", destination=backlog)
        await slow.expect("MESSAGE")
        await talk(process, f"/topic/{backlog[7:]}")
        slow.write("SUBSCRIBE", id="b", ack="client", destination=backlog)
        for _ in range(5):
            await talk(process, f"/topic/{backlog[7:]}")
            assert process.memory - before < MAY_GROW


@pytest.mark.parametrize("ack", ["auto", "client"])
async def test_a_slow_consumer_is_closed_and_nothing_is_lost(
    broker_url: str, amqp: AmqpBroker, backlog: str, ack: str
) -> None:
    settings = {"slow_consumer_timeout": 1, "client_buffer": "256KiB"}
    with gateway_process(configuration(broker_url, settings), from_nothing=True) as impatient:
        async with StompClient.logged_in(impatient.address, receive_buffer=SMALL) as slow, within(60):
            slow.write("SUBSCRIBE", id="s", ack=ack, destination=backlog)
            await slow.expect("MESSAGE")
            await until(lambda: reasons(impatient), lambda found: found == ["slow-consumer"])
            received = 1
            while (frame := await slow.receive()).command == "MESSAGE":
                received += 1
            assert frame["message"] == "Slow consumer"
            await slow.closed()
            lost = received if ack == "auto" else 0
            await until(lambda: amqp.count(backlog[7:]), lambda count: (count or 0) >= BACKLOG + 1 - lost)


@pytest.mark.parametrize("ack", ["auto", "client"])
async def test_messages_of_a_slow_reader_that_leaves_are_requeued(
    process: GatewayProcess, amqp: AmqpBroker, backlog: str, ack: str
) -> None:
    async with StompClient.logged_in(process.address, receive_buffer=SMALL) as slow, within(60):
        slow.write("SUBSCRIBE", id="s", ack=ack, destination=backlog)
        await slow.expect("MESSAGE")
        await talk(process, f"/topic/{backlog[7:]}")
    # With ack:auto, messages that were written to the socket count as delivered.
    delivered = 2500 if ack == "auto" else 0
    await until(lambda: amqp.count(backlog[7:]), lambda count: (count or 0) >= BACKLOG + 1 - delivered)


async def reasons(process: GatewayProcess) -> list[str]:
    return [record["reason"] for record in process.logged("session ended")]


@pytest.mark.parametrize("how", ["abruptly", "slow-consumer"])
async def test_a_slow_reader_that_left_does_not_delay_the_shutdown(broker_url: str, backlog: str, how: str) -> None:
    """The gateway does not read the client's own link any more. The shutdown closes it without waiting."""
    settings = {"slow_consumer_timeout": 1 if how == "slow-consumer" else 60}
    document = configuration(broker_url, settings, drain_timeout=600)
    with gateway_process(document, module="tests.support.waits_long") as process:
        async with StompClient.logged_in(process.address, receive_buffer=SMALL) as slow, within(60):
            slow.write("SUBSCRIBE", id="s", ack="client", destination=backlog)
            await slow.expect("MESSAGE")
            await talk(process, f"/topic/{backlog[7:]}")
            if how == "slow-consumer":
                await until(lambda: reasons(process), lambda found: "slow-consumer" in found)
        await until(lambda: reasons(process), lambda found: len(found) == 2)
        process.terminate()
        assert await process.exit_code(PATIENCE) == ExitCode.OK


# A fast writer.


async def write_until_held(client: StompClient, frame: bytes, most: int) -> int:
    """Send until the gateway reads no more for a second, and return the number of frames that were written."""
    client.writer.transport.set_write_buffer_limits(high=0)
    for written in range(0, most, 10):
        client.writer.write(frame * 10)
        try:
            async with asyncio.timeout(1):
                await client.writer.drain()
        except TimeoutError:
            return written + 10
    raise AssertionError(f"the gateway took {most} frames and did not hold the client")


@pytest.mark.parametrize("receipts", [False, True], ids=["plain", "with receipts"])
async def test_a_fast_writer_is_held_while_the_broker_takes_nothing(
    broker_url: str, proxy: ChaosProxy, amqp: AmqpBroker, queue: str, receipts: bool
) -> None:
    destination = f"/queue/{queue}"
    # The window of unconfirmed messages is so large that it does not hold the client here.
    window = {"confirm_window": {"messages": 1_000_000, "bytes": "1GiB"}}
    with gateway_process(
        configuration(broker_url, window, upstream=upstream(proxy.address)), from_nothing=True
    ) as process:
        async with StompClient.logged_in(process.address) as client, within(90):
            await client.ask("SEND", b"first", destination=destination)
            before = process.memory
            proxy.stall(Direction.UP)
            # All frames have the same receipt: so the gateway tracks the confirm of each.
            headers = {"receipt": "shared"} if receipts else {}
            frame = encoded("SEND", BODY, destination=destination, **headers)
            written = await write_until_held(client, frame, 40_000)
            assert process.memory - before < MAY_GROW
            proxy.release(Direction.UP)
            for _ in range(written if receipts else 0):
                await client.expect("RECEIPT", receipt_id="shared")
            await client.ask("SEND", b"last", destination=destination)
            assert process.memory - before < MAY_GROW
            assert await amqp.count(queue) == 2 + written
            await client.disconnect()


async def test_unconfirmed_messages_are_bounded(
    broker_url: str, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    """The broker takes every byte and confirms nothing.

    The messages are small: it answers no marker either, and their bytes must not fill the publish window of 1 MiB
    before the confirm window is full.
    """
    destination = f"/queue/{queue}"
    window = {"confirm_window": {"messages": 500, "bytes": "64MiB"}}
    with gateway_process(
        configuration(broker_url, window, upstream=upstream(proxy.address)), from_nothing=True
    ) as process:
        async with StompClient.logged_in(process.address) as client, within(60):
            await client.ask("SEND", b"first", destination=destination)
            proxy.stall(Direction.DOWN)
            written = await write_until_held(client, encoded("SEND", b"x" * 1024, destination=destination), 40_000)
            # A batch that is already read is processed to its end.
            published = await until(lambda: amqp.count(queue), lambda count: (count or 0) >= 501)
            assert (published or 0) < 600
            proxy.release(Direction.DOWN)
            await client.ask("SEND", b"last", destination=destination)
            assert await amqp.count(queue) == 2 + written
            await client.disconnect()


async def test_each_message_is_published_once_though_the_link_is_full(
    broker_url: str, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    destination = f"/queue/{queue}"
    with gateway_process(configuration(broker_url, upstream=upstream(proxy.address)), from_nothing=True) as process:
        async with StompClient.logged_in(process.address) as client, within(60):
            await client.ask("SEND", b"first", destination=destination)
            proxy.stall(Direction.UP)
            for _ in range(5):
                client.write("SEND", b"x" * (3 * MIB), destination=destination)
            client.write("SEND", b"last", destination=destination, receipt="end")
            proxy.release(Direction.UP)
            await client.expect("RECEIPT", receipt_id="end")
            assert await amqp.count(queue) == 7
            await client.disconnect()
