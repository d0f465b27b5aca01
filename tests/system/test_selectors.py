"""Selectors with a real broker: what they do not select is settled, whatever the ack mode and the prefetch."""

from __future__ import annotations

import pytest

from gateway.admin.metrics import families_of
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.process.gateway import Gateway
from gateway.server.process.readiness import Readiness
from gateway.session.destinations import durable_queue_name
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system

SELECTORS = {"selectors": True}


async def filtered(gateway: Gateway) -> int:
    """Messages that selectors have kept from clients, as the metric has it."""
    families = {family.name: family for family in await families_of(gateway, Readiness())}
    return int(sum(sample.value for sample in families["stomp_gateway_messages_filtered"].samples))


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
async def test_a_client_gets_what_it_selects_and_the_broker_keeps_nothing_else(
    broker_url: str, amqp: AmqpBroker, queue: str, ack: str
) -> None:
    topic = f"/topic/{queue}"
    subscription = {"id": queue, "destination": topic, "durable": "true", "auto_delete": "false"}
    durable_queue = durable_queue_name(queue.encode(), queue.encode()).decode()
    async with gateway_here(parsed(broker_url, SELECTORS)) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            # With room for two messages in the prefetch the third comes only if those before it are settled.
            await client.ask(
                "SUBSCRIBE", **subscription, ack=ack, prefetch_count="2", selector="n % 3 = 0 AND kind LIKE 'even%'"
            )
            for n in range(60):
                client.write("SEND", str(n).encode(), destination=topic, n=str(n), kind=("even", "odd")[n % 2])
            selected = list(range(0, 60, 6))
            for n in selected:
                message = await client.expect("MESSAGE", str(n).encode(), subscription=queue)
                if ack != "auto" and n != selected[-1]:
                    client.write("ACK", id=message["ack"])
            await until(lambda: filtered(gateway), lambda count: count == 50)
            await client.disconnect()
        assert await amqp.count(durable_queue) == (0 if ack == "auto" else 1)
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SUBSCRIBE", **subscription)
            if ack != "auto":
                await client.expect("MESSAGE", b"54", redelivered="true")
            await client.ask("UNSUBSCRIBE", id=queue, durable="true")
            await client.disconnect()


@pytest.mark.parametrize("per_round", [0.004, 1e-9])
async def test_a_flood_is_filtered_in_order(
    broker_url: str, queue: str, per_round: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that are alike come in runs, with and without those of the other kind between them.

    However little time there is for selectors in a round of the event loop.
    """
    monkeypatch.setattr("gateway.server.paced_work.PER_ROUND", per_round)
    destination, count = f"/exchange/amq.direct/{queue}", 6000
    async with gateway_here(parsed(broker_url, SELECTORS)) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SUBSCRIBE", id="odd", destination=destination, selector="run = 'odd'")
            await client.ask("SUBSCRIBE", id="all", destination=destination, ack="client")
            runs = ["odd" if (n // 100 if n < count // 2 else n) % 2 else "even" for n in range(count)]
            client.writer.write(
                b"".join(encoded("SEND", b"%05d" % n, destination=destination, run=run) for n, run in enumerate(runs))
            )
            got: dict[str, list[int]] = {"odd": [], "all": []}
            for message in await client.messages(count + runs.count("odd")):
                got[message["subscription"]].append(int(message.body))
            await client.disconnect()
        assert got["odd"] == [n for n, run in enumerate(runs) if run == "odd"]
        assert got["all"] == list(range(count))
        assert await filtered(gateway) == runs.count("even")
        assert "select" in {link.purpose for link in gateway.pool.links}


async def test_a_selector_on_a_queue_is_refused_and_the_session_goes_on(broker_url: str, queue: str) -> None:
    async with gateway_here(parsed(broker_url, SELECTORS)) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", selector="a = 1", receipt="r")
            frame = await client.expect("ERROR", message="Invalid selector", receipt_id="r")
            assert b"a queue may have other consumers" in frame.body
            await client.disconnect()
