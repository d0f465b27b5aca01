"""The connection to the broker is lost, and sessions outlive it: the client sees silence, and then traffic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from deploy.local.broker import Broker
from gateway.server.process.gateway import Gateway
from tests.support.brokers import private_broker
from tests.support.chaos import ChaosProxy, Direction
from tests.support.deadline import until, within
from tests.support.gateway import configuration, gateway_here, gateway_process, parsed, upstream
from tests.support.stomp_client import Frame, StompClient

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def mortal() -> Iterator[Broker]:
    """A broker that a test may kill."""
    with private_broker() as broker:
        yield broker


async def held(gateway: Gateway, hold: str = "link-lost") -> None:
    """Wait until every session of a gateway has a hold."""

    async def holds() -> list[set[str]]:
        return [{each.value for each in client.session.holds} for client in gateway.clients]

    await until(holds, lambda found: bool(found) and all(hold in each for each in found))


async def frames(client: StompClient, count: int) -> list[Frame]:
    """The next frames, in whatever order the server has for receipts and messages."""
    return [await client.receive() for _ in range(count)]


async def test_a_session_outlives_a_broker_that_is_killed_and_restarted(mortal: Broker) -> None:
    """Every kind of thing that a session has is there again, under the same names."""
    with gateway_process(configuration(mortal.amqp_url)) as process:
        async with StompClient.logged_in(process.address) as client, within(120):
            await client.ask("SUBSCRIBE", id="d", destination="/queue/durable", ack="client-individual")
            await client.ask("SUBSCRIBE", id="t", destination="/topic/ticker")
            await client.ask("SUBSCRIBE", id="x", destination="/queue/mine", exclusive="true", durable="false")
            for number in range(3):
                client.write("SEND", b"%d" % number, destination="/queue/durable", persistent="true")
            first = await client.messages(3)
            await client.ask("ACK", id=first[0]["ack"])
            # RabbitMQ writes a new queue to disk up to two seconds later, and would forget it when it is killed.
            await asyncio.to_thread(mortal.ctl, "eval", "mnesia:sync_log().")
            await asyncio.to_thread(mortal.kill)
            # Nobody reads this before the broker is back.
            client.write("ACK", id=first[1]["ack"], receipt="late ack")
            client.write("SEND", b"t", destination="/topic/ticker", receipt="late topic")
            client.write("SEND", b"x", destination="/queue/mine", exclusive="true", durable="false", receipt="late")
            await asyncio.to_thread(mortal.start)
            found = await frames(client, 7)
            receipts = [each["receipt-id"] for each in found if each.command == "RECEIPT"]
            assert sorted(receipts) == ["late", "late ack", "late topic"]
            messages = {each.body: each for each in found if each.command == "MESSAGE"}
            # The second acknowledgement was for a delivery of the lost link, so the message comes again.
            assert {body: each["subscription"] for body, each in messages.items()} == {
                b"1": "d", b"2": "d", b"t": "t", b"x": "x",
            }  # fmt: skip
            assert [messages[body]["redelivered"] for body in (b"1", b"2")] == ["true", "true"]
            assert messages[b"1"]["ack"] != first[1]["ack"]
            await client.ask("ACK", id=messages[b"1"]["ack"])
            await client.disconnect()
        process.assert_no_internal_errors()


@pytest.mark.parametrize("way", ["reset", "half-closed"])
async def test_what_was_not_confirmed_is_published_again_in_order(
    broker: Broker, proxy: ChaosProxy, queue: str, way: str
) -> None:
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address))
    destination = f"/queue/{queue}"
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        await client.ask("SEND", b"first", destination=destination)
        proxy.stall(Direction.UP)
        for number in range(5):
            client.write("SEND", b"%d" % number, destination=destination, receipt=f"r{number}")
        client.write("SEND", b"without a receipt", destination=destination)
        await until(lambda: unconfirmed(gateway), lambda count: count == 6)
        if way == "reset":
            proxy.reset()
        else:
            proxy.half_close(Direction.DOWN)
        proxy.release(Direction.UP)
        client.write("SEND", b"last", destination=destination, receipt="last")
        receipts = [frame["receipt-id"] for frame in await frames(client, 6)]
        assert receipts == ["r0", "r1", "r2", "r3", "r4", "last"]
        await client.ask("SUBSCRIBE", id="a", destination=destination)
        bodies: dict[bytes, None] = {}
        while len(bodies) < 8:
            # What the broker had got before, but not confirmed, is there twice.
            bodies[(await client.receive()).body] = None
        assert list(bodies) == [b"first", b"0", b"1", b"2", b"3", b"4", b"without a receipt", b"last"]
        client.hang_up()


async def unconfirmed(gateway: Gateway) -> int:
    return sum(len(client.session.confirms) for client in gateway.clients)
