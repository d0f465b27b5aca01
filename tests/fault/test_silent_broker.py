"""A broker that takes what is sent and does not answer: nothing is claimed, nobody waits for ever, nobody is harmed."""

from __future__ import annotations

import pytest

from deploy.local.broker import Broker
from gateway.server.process.gateway import Gateway
from tests.support.chaos import ChaosProxy, Direction
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed, upstream
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


async def test_disconnect_has_no_receipt_while_the_broker_is_silent(
    broker: Broker, proxy: ChaosProxy, queue: str
) -> None:
    """Not even longer than the heart-beat interval; then it comes, and the link has suffered no harm."""
    destination = f"/queue/{queue}"
    # RabbitMQ closes the link after two intervals or more, gateways that are late or not.
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, heartbeat=4))
    async with gateway_here(config) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.logged_in(address) as client, StompClient.logged_in(address) as neighbour:
            # Without a receipt, so that no confirm is waited for, but only the answer to channel.close.
            client.write("SEND", b"before", destination=destination)
            await client.ask("BEGIN", transaction="behind")
            await neighbour.ask("SEND", b"before", destination=destination)
            links = set(gateway.pool.links)
            proxy.stall(Direction.UP)
            client.write("SEND", b"during", destination=destination)
            client.write("DISCONNECT", receipt="bye")
            with pytest.raises(TimeoutError):
                await client.receive(seconds=5)
            proxy.release(Direction.UP)
            await client.expect("RECEIPT", **{"receipt-id": "bye"})
            await neighbour.ask("SEND", b"after", destination=destination)
            assert gateway.pool.links == links


@pytest.mark.parametrize("what", ["SUBSCRIBE", "UNSUBSCRIBE", "SEND", "DISCONNECT", "DISCONNECT with confirms"])
async def test_an_operation_has_a_deadline(broker: Broker, proxy: ChaosProxy, queue: str, what: str) -> None:
    """The ERROR says what was asked of the broker. When the broker answers later, nothing of the session is left."""
    destination = f"/queue/{queue}"
    # A queue may be away for as long as sessions ride through.
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, operation_timeout="3s", ride_through="1s"))
    async with gateway_here(config) as gateway, within():
        address = gateway.addresses[0]
        async with StompClient.logged_in(address) as client, StompClient.logged_in(address) as neighbour:
            await neighbour.ask("SEND", b"before", destination=destination)
            await neighbour.ask("SUBSCRIBE", id="n", destination="/topic/of-the-neighbour")
            links, channels = set(gateway.pool.links), open_channels(gateway)
            asked = await begin(client, what, destination)
            proxy.stall(Direction.UP)
            finish(client, what, destination)
            error = await client.expect("ERROR", message="Broker timeout")
            assert error.body.decode() == f"The broker did not answer within 3 seconds. The gateway asked it {asked}.\n"
            await client.closed()
            proxy.release(Direction.UP)
            await neighbour.ask("SEND", b"after", destination=destination)
            await until(lambda: as_coroutine(open_channels(gateway)), lambda count: count == channels)
            assert gateway.pool.links == links
            await neighbour.disconnect()


async def begin(client: StompClient, what: str, destination: str) -> str:
    """Do what comes before the frame; what the gateway is going to ask the broker for."""
    if what == "SUBSCRIBE":
        return f"to start a subscription to '{destination}'"
    if what == "UNSUBSCRIBE":
        await client.ask("SUBSCRIBE", id="a", destination="/topic/nothing")
        return "to end the subscription to '/topic/nothing'"
    if what == "SEND":
        return "to confirm a message"
    confirms = {"receipt": "r"} if "confirms" in what else {}
    client.write("SEND", b"", destination="/topic/nothing", **confirms)
    if confirms:
        await client.expect("RECEIPT")
    await client.ask("BEGIN", transaction="behind")
    return "to confirm 2 messages" if confirms else "to close the session's channels"


def finish(client: StompClient, what: str, destination: str) -> None:
    """Send the frame."""
    if "confirms" in what:
        for number in range(2):
            client.write("SEND", b"", destination="/topic/nothing", receipt=f"late {number}")
    name = what.split(maxsplit=1)[0]
    client.write(name, b"", **({"id": "a"} if "SUBSCRIBE" in what else {}), destination=destination, receipt="never")


def open_channels(gateway: Gateway) -> int:
    return sum(link.channels for link in gateway.pool.links)


async def as_coroutine(value: int) -> int:
    return value


async def test_heart_beats_go_on_while_the_broker_is_silent(broker: Broker, proxy: ChaosProxy, queue: str) -> None:
    """The gateway sends its own, sees the client's without reading them, and finds a client that has died."""
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address), defaults={"heart_beat_grace": 2})
    async with gateway_here(config) as gateway, StompClient.dialled(gateway.addresses[0]) as client, within():
        await client.connect(**{"heart-beat": "1000,1000"})
        proxy.stall(Direction.UP)
        client.write("SUBSCRIBE", id="a", destination=f"/queue/{queue}")
        for _ in range(8):
            # Every half a second: all of them take longer than the client may be silent.
            assert await client.reader.readexactly(1) == b"\n"
            client.writer.write(b"\n")
        await client.expect("ERROR", message="Heart-beat timeout")
        await client.closed()
        proxy.release(Direction.UP)
