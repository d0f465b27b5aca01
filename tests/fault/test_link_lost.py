"""The link is lost: with `ride_through: 0` sessions end with an ERROR, and the gateway connects again."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest
import structlog
from structlog.typing import EventDict

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.process.gateway import Gateway
from tests.support.chaos import ChaosProxy, Direction, chaos
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_here, gateway_process, parsed, upstream
from tests.support.stomp_client import ConnectionOverError, StompClient

pytestmark = pytest.mark.system


def ending(broker: Broker) -> dict[str, Any]:
    """The configuration of a gateway whose sessions end with their link."""
    return configuration(broker.amqp_url, upstream=upstream((broker.host, broker.amqp_port), ride_through=0))


async def end_of(client: StompClient) -> str:
    """The message of the ERROR that ends a session."""
    frame = await client.expect("ERROR")
    await client.closed()
    return frame["message"]


async def comes_back(process: GatewayProcess) -> None:
    async def try_to_log_in() -> str:
        async with StompClient.dialled(process.address) as client:
            client.write("CONNECT", accept_version="1.2")
            return (await client.receive()).command

    await until(try_to_log_in, lambda answer: answer == "CONNECTED", seconds=60)


async def test_a_killed_broker_ends_sessions_and_not_the_gateway(mortal: Broker) -> None:
    with gateway_process(ending(mortal)) as process:
        async with (
            StompClient.logged_in(process.address) as sender,
            StompClient.logged_in(process.address) as reader,
            StompClient.logged_in(process.address) as idle,
            within(120),
        ):
            await reader.ask("SUBSCRIBE", id="a", ack="client", destination="/queue/survivor")
            for number in range(3):
                await sender.ask("SEND", b"%d" % number, destination="/queue/survivor", persistent="true")
            await reader.messages(3)
            # RabbitMQ writes a new queue to disk up to two seconds later, and would forget it when it is killed.
            await asyncio.to_thread(mortal.ctl, "eval", "mnesia:sync_log().")
            await asyncio.to_thread(mortal.kill)
            for client in (sender, reader):
                assert await end_of(client) == "connection_forced"
            async with StompClient.dialled(process.address) as early:
                early.write("CONNECT", accept_version="1.2")
                await early.expect("ERROR", message="Upstream unavailable")
                await early.closed()
            await asyncio.to_thread(mortal.start)
            await comes_back(process)
            # Messages that were confirmed and not acknowledged are delivered again.
            async with StompClient.logged_in(process.address) as client:
                client.write("SUBSCRIBE", id="a", destination="/queue/survivor")
                assert [each.body for each in await client.messages(3)] == [b"0", b"1", b"2"]
                await client.disconnect()
            # A session without a channel may go on or end with an ERROR, but must not hang.
            idle.write("SEND", b"", destination="/queue/survivor", receipt="r")
            assert (await idle.receive()).command in ("RECEIPT", "ERROR")
        assert process.child.poll() is None
        process.assert_no_internal_errors()


async def test_an_administrator_closes_the_connections(own_broker: Broker) -> None:
    with gateway_process(ending(own_broker)) as process:
        async with StompClient.logged_in(process.address) as client, within(60):
            await client.ask("SUBSCRIBE", id="a", destination="/topic/maintained")
            await asyncio.to_thread(own_broker.ctl, "close_all_connections", "maintenance at noon")
            error = await client.expect("ERROR", message="connection_forced")
            assert b"maintenance at noon" in error.body
            await client.closed()
        await comes_back(process)
        process.assert_no_internal_errors()


@pytest.mark.parametrize("what", ["subscribed", "sent", "sending", "in a transaction"])
async def test_a_reset_link_ends_a_session_in_every_state(
    broker: Broker, proxy: ChaosProxy, queue: str, what: str
) -> None:
    destination = f"/queue/{queue}"
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, ride_through=0))
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        if what == "subscribed":
            await client.ask("SUBSCRIBE", id="a", destination=destination)
        else:
            await client.ask("SEND", b"x", destination=destination)
        if what == "in a transaction":
            client.write("BEGIN", transaction="t")
            client.write("SEND", b"x", destination=destination, transaction="t")
            await client.ask("BEGIN", transaction="behind")
        proxy.stall(Direction.DOWN)
        if what == "sending":
            client.write("SEND", b"x", destination=destination, receipt="r")
            client.write("SUBSCRIBE", id="b", destination=destination)
        proxy.reset()
        proxy.release(Direction.DOWN)
        assert await end_of(client) == "connection_forced"
        async with StompClient.logged_in(gateway.addresses[0]) as next_client:
            await next_client.ask("SEND", b"x", destination=destination)
            await next_client.disconnect()


@pytest.mark.parametrize("confirmed", [False, True], ids=["plain", "with receipts"])
async def test_disconnect_has_no_receipt_when_messages_before_it_are_lost(
    broker: Broker, proxy: ChaosProxy, amqp: AmqpBroker, queue: str, confirmed: bool
) -> None:
    """The receipt of DISCONNECT says that everything before it was carried out."""
    destination = f"/queue/{queue}"
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, ride_through=0))
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        client.write("SEND", b"first", destination=destination, **({"receipt": "r"} if confirmed else {}))
        await until(lambda: amqp.count(queue), lambda count: count == 1)
        proxy.stall(Direction.UP)
        client.write("SEND", b"second", destination=destination)
        client.write("DISCONNECT", receipt="bye")
        await until(lambda: states(gateway), lambda found: "draining" in found)
        proxy.reset()
        frames = [await client.receive()]
        while frames[-1].command == "RECEIPT" and frames[-1]["receipt-id"] == "r":
            frames.append(await client.receive())
        assert frames[-1].command == "ERROR", frames
        assert await amqp.count(queue) == 1


async def states(gateway: Gateway) -> set[str]:
    return {client.session.state.value for client in gateway.clients}


@pytest.mark.parametrize("cut", [0, 5, 100, 400])
async def test_a_broker_that_fails_during_the_login(broker: Broker, proxy: ChaosProxy, cut: int) -> None:
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, connect_timeout=3, ride_through=0))
    async with gateway_here(config) as gateway, within():
        async with StompClient.dialled(gateway.addresses[0]) as client:
            proxy.cut_after(cut, Direction.DOWN) if cut else proxy.stall(Direction.DOWN)
            client.write("CONNECT", accept_version="1.2")
            await client.expect("ERROR", message="Upstream unavailable")
            await client.closed()
        proxy.release(Direction.DOWN)
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.disconnect()


async def test_a_half_closed_link_is_a_lost_link(broker: Broker, proxy: ChaosProxy, queue: str) -> None:
    """Sessions write while the link closes."""
    with gateway_process(configuration(broker.amqp_url, upstream=upstream(proxy.address))) as process:
        async with StompClient.logged_in(process.address) as client, within(6 * PATIENCE):
            for number in range(10):
                await client.ask("SEND", b"x", destination=f"/queue/{queue}")
                proxy.half_close(Direction.DOWN)
                for _ in range(200):
                    client.write("SEND", b"y", destination=f"/queue/{queue}")
                    await asyncio.sleep(0)
                client.write("SEND", b"z", destination=f"/queue/{queue}", receipt=str(number))
                await client.expect("RECEIPT", receipt_id=str(number))
            await client.disconnect()
        process.assert_no_internal_errors()


async def test_a_broker_that_accepts_and_closes(broker: Broker) -> None:
    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as closing:
        document = configuration(
            broker.amqp_url, upstream=upstream(closing.sockets[0].getsockname()[:2], ride_through=0)
        )
        with gateway_process(document) as process:
            for _ in range(20):  # the end of the stream comes before, or while, the handshake waits for it
                async with StompClient.dialled(process.address) as client:
                    client.write("CONNECT", accept_version="1.2")
                    await client.expect("ERROR", message="Upstream unavailable")
                    await client.closed()
            process.assert_no_internal_errors()


async def test_the_second_broker_is_used_when_the_first_is_down(broker: Broker, queue: str) -> None:
    [nobody] = free_ports(1)
    urls = [f"amqp://127.0.0.1:{nobody}", f"amqp://{broker.host}:{broker.amqp_port}"]
    async with gateway_here(parsed(broker.amqp_url, upstream={"urls": urls})) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SEND", b"x", destination=f"/queue/{queue}")
            await client.disconnect()


async def test_the_second_broker_is_used_when_the_first_does_not_answer(broker: Broker, queue: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        urls = [f"amqp://127.0.0.1:{silent.getsockname()[1]}", f"amqp://{broker.host}:{broker.amqp_port}"]
        config = parsed(broker.amqp_url, upstream={"urls": urls, "connect_timeout": "500ms"})
        async with gateway_here(config) as gateway, within():
            async with StompClient.logged_in(gateway.addresses[0]) as client:
                await client.ask("SEND", b"x", destination=f"/queue/{queue}")
                await client.disconnect()


async def test_a_client_that_disconnects_in_the_middle_of_a_frame(broker: Broker, amqp: AmqpBroker, queue: str) -> None:
    async with gateway_here(parsed(broker.amqp_url)) as gateway, chaos(gateway.addresses[0]) as proxy, within():
        async with StompClient.logged_in(proxy.address) as client:
            await client.ask("SEND", b"whole", destination=f"/queue/{queue}")
            proxy.cut_after(60)
            client.write("SEND", b"x" * 1000, destination=f"/queue/{queue}")
            with pytest.raises(ConnectionOverError):
                await client.receive()
        assert await amqp.count(queue) == 1
        await until(lambda: asyncio.sleep(0, len(gateway.clients)), lambda count: count == 0)


async def test_the_log_tells_of_every_link_when_and_why(broker: Broker, proxy: ChaosProxy) -> None:
    config = parsed(broker.amqp_url, upstream=upstream(proxy.address, ride_through=0))
    with structlog.testing.capture_logs() as log:
        async with gateway_here(config) as gateway, within():
            async with StompClient.logged_in(gateway.addresses[0]) as lost:
                await lost.ask("SUBSCRIBE", id="a", ack="client", destination="/topic/a")
                proxy.reset()
                await end_of(lost)
            async with StompClient.logged_in(gateway.addresses[0]) as client:
                await client.disconnect()
    lines = [line for line in log if line["event"].startswith("link ")]
    assert Counter(map(brief, lines)) == {
        ("link opened", "info", "login", None): 2,
        ("link opened", "info", "own", None): 1,
        ("link closed", "warning", "login", "[Errno 104] Connection reset by peer"): 1,
        ("link closed", "warning", "own", "[Errno 104] Connection reset by peer"): 1,
        ("link closed", "info", "login", "closed by the gateway"): 1,
    }
    facts = {(line["broker"], line["login"], line["virtual_host"]) for line in lines}
    assert facts == {(f"amqp://127.0.0.1:{proxy.address[1]}", "guest", "/")}


def brief(line: EventDict) -> tuple[str, str, str, str | None]:
    return line["event"], line["log_level"], line["purpose"], line.get("cause")
