"""The connection to the broker is lost, and sessions outlive it: the client sees silence, and then traffic.

Where a broker must stay away for a while, it is behind a proxy that lets nothing through.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.config.model import GatewayConfig
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.process.gateway import Gateway
from tests.support.brokers import raise_memory_alarm
from tests.support.chaos import ChaosProxy, Direction, chaos
from tests.support.deadline import until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_here, gateway_process, parsed, upstream
from tests.support.stomp_client import Frame, StompClient

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def process(mortal: Broker) -> Iterator[GatewayProcess]:
    """A gateway in front of that broker."""
    with gateway_process(configuration(mortal.amqp_url)) as process:
        yield process
        process.assert_no_internal_errors()


async def holds(gateway: Gateway) -> set[str]:
    """The holds that all sessions of a gateway have in common."""
    found = [{each.value for each in client.session.holds} for client in gateway.clients]
    return set.intersection(*found) if found else set()


async def any_holds(gateway: Gateway) -> set[str]:
    """The holds that any session has."""
    return {hold.value for client in gateway.clients for hold in client.session.holds}


async def until_held(gateway: Gateway) -> None:
    """Wait until every session is held for the loss of its link."""
    await until(lambda: holds(gateway), lambda found: "link-lost" in found)


async def unconfirmed(gateway: Gateway) -> int:
    return sum(len(client.session.confirms) for client in gateway.clients)


async def frames(client: StompClient, count: int) -> list[Frame]:
    """The next frames, in whatever order the server has for receipts and messages."""
    return [await client.receive() for _ in range(count)]


@contextlib.asynccontextmanager
async def away(gateway: Gateway, proxy: ChaosProxy) -> AsyncIterator[None]:
    """The links of a gateway are cut, and its broker does not answer before the end of the block."""
    proxy.stall(Direction.DOWN)
    proxy.reset()
    await until_held(gateway)
    yield
    proxy.release(Direction.DOWN)


def behind(proxy: ChaosProxy, broker: Broker, *others: str, **more: Any) -> GatewayConfig:  # noqa: ANN401 - YAML
    """A gateway whose broker is behind a proxy; others come behind it."""
    urls = [f"amqp://{proxy.address[0]}:{proxy.address[1]}", *others]
    return parsed(broker.amqp_url, upstream={"urls": urls, "connect_timeout": "500ms", **more})


def direct(broker: Broker) -> str:
    return f"amqp://{broker.host}:{broker.amqp_port}"


async def test_a_session_outlives_a_broker_that_is_killed_and_restarted(
    mortal: Broker, process: GatewayProcess
) -> None:
    """Every kind of thing that a session has is there again, under the same names."""
    async with StompClient.logged_in(process.address) as client, within(120):
        await client.ask("SUBSCRIBE", id="d", destination="/queue/durable", ack="client-individual")
        await client.ask("SUBSCRIBE", id="t", destination="/topic/ticker")
        await client.ask("SUBSCRIBE", id="x", destination="/queue/mine", exclusive="true", durable="false")
        # With receipts, because a message that RabbitMQ has not confirmed is published again after the kill.
        for number in range(3):
            client.write("SEND", b"%d" % number, destination="/queue/durable", persistent="true", receipt=str(number))
        first = [each for each in await frames(client, 6) if each.command == "MESSAGE"]
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
        # RabbitMQ may not have written the first acknowledgement to disk when it is killed.
        if any(each.body == b"0" for each in found):
            found += await frames(client, 1)
        receipts = [each["receipt-id"] for each in found if each.command == "RECEIPT"]
        assert sorted(receipts) == ["late", "late ack", "late topic"]
        messages = {each.body: each for each in found if each.command == "MESSAGE"}
        messages.pop(b"0", None)
        # The second acknowledgement was for a delivery of the lost link, so the message comes again.
        assert {body: each["subscription"] for body, each in messages.items()} == {
            b"1": "d", b"2": "d", b"t": "t", b"x": "x",
        }  # fmt: skip
        assert [messages[body]["redelivered"] for body in (b"1", b"2")] == ["true", "true"]
        assert messages[b"1"]["ack"] != first[1]["ack"]
        await client.ask("ACK", id=messages[b"1"]["ack"])
        await client.disconnect()


@pytest.mark.parametrize("way", ["reset", "half-closed"])
async def test_what_was_not_confirmed_is_published_again_in_order(
    broker: Broker, proxy: ChaosProxy, queue: str, way: str
) -> None:
    config = behind(proxy, broker)
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


async def test_a_queue_that_takes_nothing_is_full_unless_the_broker_has_changed_lately(
    broker: Broker, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    """RabbitMQ rejects messages for a full queue as it does for one that elects its leader."""
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments=full)
    destination = f"/amq/queue/{queue}"
    config = behind(proxy, broker)
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        await client.ask("SEND", b"1", destination=destination)
        client.write("SEND", b"2", destination=destination, receipt="r2")
        await client.expect("ERROR", message="Message rejected", receipt_id="r2")
        proxy.reset()
        await until(lambda: asyncio.sleep(0, gateway.stats.host("/").links_lost), lambda lost: lost > 0)
        client.write("SEND", b"3", destination=destination, receipt="r3")
        [connection] = gateway.clients
        await until(lambda: asyncio.sleep(0, connection.session.confirms.has_refused), bool)
        client.write("SEND", b"4", destination="/topic/nobody", receipt="r4")
        assert await amqp.take(queue) is not None
        # The fourth may have been on its way with the third one when that was rejected once more.
        assert {each["receipt-id"] for each in await frames(client, 2)} == {"r3", "r4"}
        await client.disconnect()


async def test_a_session_outlives_an_orderly_stop_and_start(mortal: Broker, process: GatewayProcess) -> None:
    async with StompClient.logged_in(process.address, heart_beat="0,1000") as client, within(120):
        await client.ask("SUBSCRIBE", id="a", destination="/topic/stopped", ack="client")
        client.write("SEND", b"before", destination="/topic/stopped", receipt="r")
        assert {each.command for each in await frames(client, 2)} == {"RECEIPT", "MESSAGE"}
        await asyncio.to_thread(mortal.ctl, "stop_app")
        # The gateway's heart-beats go on.
        assert await client.reader.readexactly(3) == b"\n\n\n"
        await asyncio.to_thread(mortal.ctl, "start_app")
        client.write("SEND", b"after", destination="/topic/stopped", receipt="r")
        assert {each.command for each in await frames(client, 2)} == {"RECEIPT", "MESSAGE"}
        await client.disconnect()


async def test_a_session_outlives_a_broker_that_is_killed_under_an_alarm(
    mortal: Broker, process: GatewayProcess
) -> None:
    async with StompClient.logged_in(process.address) as client, within(120):
        await client.ask("SEND", b"before", destination="/queue/alarmed", persistent="true")
        await asyncio.to_thread(mortal.ctl, "eval", "mnesia:sync_log().")
        await raise_memory_alarm(mortal)
        client.write("SEND", b"during", destination="/queue/alarmed", persistent="true", receipt="r1")
        client.write("SEND", b"behind", destination="/queue/alarmed", persistent="true", receipt="r2")
        await asyncio.to_thread(mortal.kill)
        await asyncio.to_thread(mortal.start)
        assert [each["receipt-id"] for each in await frames(client, 2)] == ["r1", "r2"]
        client.write("SUBSCRIBE", id="a", destination="/queue/alarmed")
        bodies: list[bytes] = []
        while b"behind" not in bodies:
            bodies.append((await client.expect("MESSAGE")).body)
        # What the broker had on disk when it was killed, but had not confirmed, may be there twice.
        assert bodies[:2] + bodies[-1:] == [b"before", b"during", b"behind"]
        assert bodies[2:-1] in ([], [b"during"])
        await client.disconnect()


async def test_a_frozen_link_is_found_by_its_heart_beats(broker: Broker, proxy: ChaosProxy, queue: str) -> None:
    """The broker has not noticed the dead connection either, and gives its exclusive queue away only when it has."""
    config = behind(proxy, broker, direct(broker), heartbeat=1)
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        await client.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}", exclusive="true", durable="false")
        client.write("SEND", b"before", destination=f"/queue/{queue}", exclusive="true", durable="false")
        await client.expect("MESSAGE", b"before")
        for direction in Direction:
            proxy.stall(direction)
        client.write("SEND", b"frozen", destination=f"/queue/{queue}", exclusive="true", durable="false", receipt="r")
        # The first broker still accepts TCP, and says nothing; the second one is taken.
        assert {each.command for each in await frames(client, 2)} == {"RECEIPT", "MESSAGE"}
        await client.disconnect()


async def test_replies_durable_subscriptions_and_streams_go_on(broker: Broker, proxy: ChaosProxy, queue: str) -> None:
    stream = {"x_queue_type": "stream", "durable": "true"}
    async with (
        gateway_here(behind(proxy, broker)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        StompClient.logged_in(gateway.addresses[0]) as other,
        within(),
    ):
        await other.ask("SUBSCRIBE", id="q", destination=f"/topic/{queue}.question")
        durable = {"destination": f"/topic/{queue}.kept", "durable": "true", "auto_delete": "false"}
        await client.ask("SUBSCRIBE", id="d", ack="client", **durable)
        more = {"ack": "client", "prefetch_count": "10", "x_stream_offset": "first", **stream}
        await client.ask("SUBSCRIBE", id="s", destination=f"/queue/{queue}", **more)
        client.write("SEND", b"why?", destination=f"/topic/{queue}.question", reply_to="/temp-queue/answer")
        reply_to = (await other.expect("MESSAGE", b"why?"))["reply-to"]
        for number in range(3):
            client.write("SEND", b"%d" % number, destination=f"/queue/{queue}", **stream)
            assert (await client.expect("MESSAGE")).body == b"%d" % number
        async with away(gateway, proxy):
            pass
        await until(lambda: any_holds(gateway), lambda found: not found)
        # The request was sent before the loss, and its answer finds the queue.
        other.write("SEND", b"because", destination=reply_to)
        await client.expect("MESSAGE", b"because", subscription="/temp-queue/answer")
        other.write("SEND", b"kept", destination=durable["destination"])
        await client.expect("MESSAGE", b"kept", subscription="d")
        client.write("SEND", b"3", destination=f"/queue/{queue}", **stream)
        # From behind the last message that the client has, not from the first one.
        assert (await client.expect("MESSAGE", subscription="s")).body == b"3"
        await client.ask("UNSUBSCRIBE", id="d", durable="true")
        await client.disconnect()


async def test_one_of_two_brokers_is_gone_for_good(broker: Broker, queue: str) -> None:
    async with chaos((broker.host, broker.amqp_port)) as proxy, contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_here(behind(proxy, broker, direct(broker))))
        client = await stack.enter_async_context(StompClient.logged_in(gateway.addresses[0]))
        await client.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}")
        await proxy.close()
        client.write("SEND", b"x", destination=f"/queue/{queue}", receipt="r")
        async with within():
            assert {each.command for each in await frames(client, 2)} == {"RECEIPT", "MESSAGE"}
        await client.disconnect()


async def test_an_operator_closes_the_connections_and_no_client_notices(own_broker: Broker) -> None:
    topic = f"/topic/{secrets.token_hex(6)}"
    async with (
        gateway_here(parsed(own_broker.amqp_url)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        within(60),
    ):
        await client.ask("SUBSCRIBE", id="a", destination=topic)
        await asyncio.to_thread(own_broker.ctl, "close_all_connections", "maintenance at noon")
        client.write("SEND", b"x", destination=topic, receipt="r")
        assert {each.command for each in await frames(client, 2)} == {"RECEIPT", "MESSAGE"}
        await client.disconnect()


@pytest.mark.parametrize("purpose", ["publish", "consume"])
async def test_an_administrator_closes_one_connection_and_the_others_stay(own_broker: Broker, purpose: str) -> None:
    queues = [f"/queue/{secrets.token_hex(6)}" for _ in range(2)]
    async with (
        gateway_here(parsed(own_broker.amqp_url)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        StompClient.logged_in(gateway.addresses[0]) as other,
        within(60),
    ):
        for each, queue in zip((client, other), queues, strict=True):
            await each.ask("SUBSCRIBE", id="a", destination=queue)
        await client.ask("SEND", b"x", destination="/topic/elsewhere")
        [closed] = [link for link in gateway.pool.links if link.purpose == purpose]
        [stays] = [link for link in gateway.pool.links if link is not closed]
        assert closed._tap is not None
        port = closed._tap.transport.get_extra_info("sockname")[1]
        listed = await asyncio.to_thread(own_broker.ctl, "list_connections", "pid", "peer_port", "-q")
        [pid] = [line.split()[0] for line in listed.splitlines() if line.split()[1:] == [str(port)]]
        await asyncio.to_thread(own_broker.ctl, "close_connection", pid, "maintenance at noon")
        for queue in queues:
            client.write("SEND", b"x", destination=queue, receipt=queue)
        assert sorted(each.command for each in await frames(client, 3)) == ["MESSAGE", "RECEIPT", "RECEIPT"]
        await other.expect("MESSAGE", b"x")
        assert closed not in gateway.pool.links
        assert stays in gateway.pool.links
        await other.disconnect()
        await client.disconnect()


async def test_an_exchange_that_does_not_exist_is_refused_at_once_when_only_another_user_was_disconnected(
    own_broker: Broker,
) -> None:
    """One closed link is no broker that went, after which such a refusal might pass."""
    user = f"user-{secrets.token_hex(4)}"
    await asyncio.to_thread(own_broker.ctl, "add_user", user, "correct")
    await asyncio.to_thread(own_broker.ctl, "set_permissions", user, ".*", ".*", ".*")
    async with (
        gateway_here(parsed(own_broker.amqp_url)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        StompClient.logged_in(gateway.addresses[0], login=user, passcode="correct") as other,
        within(60),
    ):
        await other.ask("SUBSCRIBE", id="a", destination="/topic/t")
        await asyncio.to_thread(own_broker.ctl, "delete_user", user)
        await until(lambda: asyncio.sleep(0, gateway.stats.host("/").links_lost), lambda lost: lost > 0)
        [settings] = gateway.config.resolved_virtual_hosts()
        assert not gateway.pool.brokers_changed(settings)
        client.write("SUBSCRIBE", id="b", destination="/exchange/nobody/key", receipt="r")
        await client.expect("ERROR", message="not_found", receipt_id="r")


@pytest.fixture
def vhost(own_broker: Broker) -> Iterator[str]:
    name = f"ride-{secrets.token_hex(4)}"
    make_vhost(own_broker, name)
    yield name
    with contextlib.suppress(Exception):
        own_broker.ctl("delete_vhost", name)


def make_vhost(broker: Broker, name: str) -> None:
    broker.ctl("add_vhost", name)
    broker.ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")


async def test_a_virtual_host_is_deleted_and_made_again(own_broker: Broker, vhost: str) -> None:
    config = parsed(own_broker.amqp_url, virtual_hosts={"/": {}, vhost: {}})
    async with (
        gateway_here(config) as gateway,
        StompClient.logged_in(gateway.addresses[0], host=vhost) as client,
        within(60),
    ):
        await client.ask("SUBSCRIBE", id="q", destination="/queue/durable")
        await client.ask("SUBSCRIBE", id="t", destination="/topic/t")
        await client.ask("SEND", b"x", destination="/topic/elsewhere")
        await asyncio.to_thread(own_broker.ctl, "delete_vhost", vhost)
        await until_held(gateway)
        await asyncio.to_thread(make_vhost, own_broker, vhost)
        client.write("SEND", b"q", destination="/queue/durable")
        client.write("SEND", b"t", destination="/topic/t")
        assert {each["subscription"]: each.body for each in await client.messages(2)} == {"q": b"q", "t": b"t"}
        await client.disconnect()


async def test_a_virtual_host_that_stays_away_ends_its_sessions(own_broker: Broker, vhost: str) -> None:
    upstream_ = upstream((own_broker.host, own_broker.amqp_port), ride_through=1)
    config = parsed(own_broker.amqp_url, virtual_hosts={"/": {}, vhost: {}}, upstream=upstream_)
    async with (
        gateway_here(config) as gateway,
        StompClient.logged_in(gateway.addresses[0], host=vhost) as client,
        within(60),
    ):
        await client.ask("SEND", b"x", destination="/topic/t")
        await asyncio.to_thread(own_broker.ctl, "delete_vhost", vhost)
        error = await client.expect("ERROR", message="connection_forced")
        # RabbitMQ says what it saw first of the deletion.
        assert any(words in error.body for words in (b"is deleted", b"was deleted", b"is down")), error
        await client.closed()


# What ends it.


async def test_past_the_deadline_the_session_ends_with_the_error_of_the_loss(broker: Broker, proxy: ChaosProxy) -> None:
    # Longer than it may take to look at the hold.
    config = behind(proxy, broker, ride_through="3s")
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as client, within():
        await client.ask("SEND", b"x", destination="/topic/t")
        async with away(gateway, proxy):
            error = await client.expect("ERROR", message="connection_forced")
            assert error.body == b"CONNECTION_FORCED - the connection to the broker was lost"
            await client.closed()


async def test_a_queue_of_another_shape_ends_the_session_and_no_other(
    broker: Broker, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    async with (
        gateway_here(behind(proxy, broker)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        StompClient.logged_in(gateway.addresses[0]) as other,
        within(),
    ):
        await client.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}")
        await other.ask("SUBSCRIBE", id="a", destination="/topic/other")
        async with away(gateway, proxy):
            await amqp.delete_queue(queue)
            await amqp.declare_queue(queue, durable=True, auto_delete=True, arguments={})
        await client.expect("ERROR", message="precondition_failed")
        await client.closed()
        other.write("SEND", b"x", destination="/topic/other")
        await other.expect("MESSAGE", b"x")
        await other.disconnect()


async def test_credentials_that_no_longer_fit_end_the_session(own_broker: Broker) -> None:
    user = f"ride-{secrets.token_hex(4)}"
    own_broker.ctl("add_user", user, "secret")
    own_broker.ctl("set_permissions", user, ".*", ".*", ".*")
    try:
        async with (
            chaos((own_broker.host, own_broker.amqp_port)) as proxy,
            gateway_here(behind(proxy, own_broker)) as gateway,
            StompClient.logged_in(gateway.addresses[0], login=user, passcode="secret") as client,
            within(60),
        ):
            await client.ask("SUBSCRIBE", id="a", destination="/topic/t")
            async with away(gateway, proxy):
                await asyncio.to_thread(own_broker.ctl, "change_password", user, "another")
            await client.expect("ERROR", message="access_refused")
            await client.closed()
    finally:
        await asyncio.to_thread(own_broker.ctl, "delete_user", user)


# While the broker is away.


async def test_a_client_that_connects_meanwhile_waits(broker: Broker, proxy: ChaosProxy) -> None:
    async with gateway_here(behind(proxy, broker)) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SEND", b"x", destination="/topic/t")
            async with away(gateway, proxy), StompClient.dialled(gateway.addresses[0]) as early:
                early.write("CONNECT", accept_version="1.2")
                with pytest.raises(TimeoutError):
                    await early.receive(seconds=0.7)
                proxy.release(Direction.DOWN)
                await early.expect("CONNECTED")


async def test_a_client_that_connects_when_there_is_no_broker_is_refused_in_the_end(broker: Broker) -> None:
    [nobody] = free_ports(1)
    listeners = [{"tcp": "127.0.0.1:0", "login_timeout": "300ms"}]
    config = parsed(broker.amqp_url, listeners=listeners, upstream=upstream(("127.0.0.1", nobody)))
    async with gateway_here(config) as gateway, StompClient.dialled(gateway.addresses[0]) as client, within():
        client.write("CONNECT", accept_version="1.2")
        await client.expect("ERROR", message="Upstream unavailable")
        await client.closed()


async def test_many_sessions_share_one_dial_for_each_purpose(broker: Broker, proxy: ChaosProxy) -> None:
    async with gateway_here(behind(proxy, broker)) as gateway, contextlib.AsyncExitStack() as stack, within(60):
        clients = [await stack.enter_async_context(StompClient.logged_in(gateway.addresses[0])) for _ in range(50)]
        for number, client in enumerate(clients):
            await client.ask("SUBSCRIBE", id="a", destination=f"/topic/ride.{number}")
            client.write("SEND", b"", destination="/topic/nobody")
            client.write("SEND", b"", destination="/topic/nobody", receipt="r")
            await client.expect("RECEIPT")
        stats = gateway.stats.host("/")
        opened = stats.links_opened
        proxy.reset()
        # Nobody may see the hold: they may all be back before anybody looks.
        await until(lambda: asyncio.sleep(0, stats.links_lost), lambda lost: lost == 2)
        for number, client in enumerate(clients):
            client.write("SEND", b"x", destination=f"/topic/ride.{number}")
            await client.expect("MESSAGE", b"x")
        assert stats.links_opened - opened == 2


async def test_a_virtual_host_whose_broker_is_silent_keeps_no_other_one_away(broker: Broker, proxy: ChaosProxy) -> None:
    """More logins dial the silent broker than may dial at once."""
    async with chaos((broker.host, broker.amqp_port)) as silent, contextlib.AsyncExitStack() as stack:
        away_ = {"urls": [f"amqp://{silent.address[0]}:{silent.address[1]}"], "connect_timeout": "60s"}
        hosts = {"/": {}, "silent": {"amqp_vhost": "/", "links": "dedicated", "upstream": away_}}
        config = parsed(broker.amqp_url, virtual_hosts=hosts, upstream=upstream(proxy.address))
        gateway = await stack.enter_async_context(gateway_here(config))
        address = gateway.addresses[0]
        for _ in range(10):
            client = await stack.enter_async_context(StompClient.logged_in(address, host="silent"))
            await client.ask("SUBSCRIBE", id="a", destination="/topic/t")
        client = await stack.enter_async_context(StompClient.logged_in(address))
        await client.ask("SUBSCRIBE", id="a", destination="/topic/other")
        silent.stall(Direction.DOWN)
        silent.reset()
        lost = gateway.stats.host("silent")
        await until(lambda: asyncio.sleep(0, lost.links_lost), lambda count: count >= 10)
        opened = lost.links_opened
        proxy.reset()
        await until(lambda: asyncio.sleep(0, gateway.stats.host("/").links_lost), lambda count: count == 1)
        client.write("SEND", b"x", destination="/topic/other")
        await client.expect("MESSAGE", b"x")
        assert lost.links_opened == opened


@pytest.mark.parametrize("end", ["drain", "operator", "client"])
async def test_a_held_session_can_end(broker: Broker, proxy: ChaosProxy, end: str) -> None:
    async with gateway_here(behind(proxy, broker)) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0]) as client:
            await client.ask("SUBSCRIBE", id="a", destination="/topic/t")
            async with away(gateway, proxy):
                [connection] = gateway.clients
                if end == "drain":
                    connection.drain()
                    await client.expect("ERROR", message="Shutting down")
                elif end == "operator":
                    connection.close_by_operator("")
                    await client.expect("ERROR", message="Closed by operator")
                else:
                    client.hang_up()
                if end != "client":
                    await client.closed()
        await until(lambda: asyncio.sleep(0, len(gateway.clients)), lambda count: count == 0)


async def test_a_disconnect_meanwhile_waits_for_what_is_not_confirmed(
    broker: Broker, proxy: ChaosProxy, amqp: AmqpBroker, queue: str
) -> None:
    async with (
        gateway_here(behind(proxy, broker)) as gateway,
        StompClient.logged_in(gateway.addresses[0]) as client,
        within(),
    ):
        await client.ask("SEND", b"first", destination=f"/queue/{queue}")
        proxy.stall(Direction.UP)
        client.write("SEND", b"second", destination=f"/queue/{queue}")
        client.write("DISCONNECT", receipt="bye")
        await until(lambda: unconfirmed(gateway), lambda count: count == 1)
        proxy.reset()
        proxy.release(Direction.UP)
        await client.expect("RECEIPT", receipt_id="bye")
        await client.closed()
        assert await amqp.count(queue) == 2
