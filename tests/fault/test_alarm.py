"""RabbitMQ raises an alarm: publishers wait, consumers and their acknowledgements go on, and nothing is lost."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from deploy.local.broker import Broker
from deploy.local.given import GivenBroker
from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from gateway.session.context import Hold
from tests.support.admin import AdminClient
from tests.support.brokers import clear_memory_alarm, raise_memory_alarm, until_queue_gone
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import ROOT, GatewayProcess, configuration, gateway_here, gateway_process, parsed
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system

MIB = 1 << 20
BODY = b"x" * 4096


class Alarm:
    """The memory alarm of a broker, set and cleared by hand."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def set(self) -> None:
        await raise_memory_alarm(self._broker)

    async def clear(self) -> None:
        await clear_memory_alarm(self._broker)


@pytest.fixture(scope="module")
def control(broker: Broker) -> Broker:
    if isinstance(broker, GivenBroker):
        pytest.skip("the broker that AMQP_URL names is not ours to control")
    return broker


@pytest.fixture
def alarm(control: Broker) -> Iterator[Alarm]:
    alarm = Alarm(control)
    yield alarm
    asyncio.run(alarm.clear())


@pytest.fixture(scope="module")
def process(control: Broker) -> Iterator[GatewayProcess]:
    with gateway_process(configuration(control.amqp_url, drain_timeout=2)) as process:
        yield process


async def test_a_publisher_waits_and_consumers_go_on(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    async with (
        StompClient.logged_in(process.address) as sender,
        StompClient.logged_in(process.address) as consumer,
        within(60),
    ):
        for number in range(20):
            sender.write("SEND", b"%d" % number, destination=destination)
        await sender.ask("SEND", b"20", destination=destination)
        await alarm.set()
        sender.write("SEND", b"during", destination=destination, receipt="after the alarm")
        sender.write("SEND", b"after", destination=destination, receipt="later still")
        # Another session subscribes, receives, acknowledges and leaves, in the midst of the alarm.
        await consumer.ask("SUBSCRIBE", id="a", ack="client-individual", prefetch_count="5", destination=destination)
        for number in range(21):
            message = await consumer.expect("MESSAGE", b"%d" % number)
            consumer.write("ACK", id=message["ack"])
        await consumer.disconnect()
        with pytest.raises(TimeoutError):
            await sender.receive(seconds=1)
        await alarm.clear()
        assert {(await sender.expect("RECEIPT"))["receipt-id"] for _ in range(2)} == {"after the alarm", "later still"}
        assert await amqp.count(queue) == 2
        await sender.disconnect()


async def test_sends_are_refused_during_an_alarm_if_they_are_held_only_for_so_long(
    control: Broker, queue: str, alarm: Alarm
) -> None:
    config = parsed(control.amqp_url, {"hold_sends_for": "500ms"})
    destination = f"/queue/{queue}"
    async with gateway_here(config) as gateway, StompClient.logged_in(gateway.addresses[0]) as sender, within(60):
        await sender.ask("SEND", b"before", destination=destination)
        await alarm.set()
        [client] = gateway.clients
        sent: list[str] = []

        def send() -> None:
            sent.append(str(len(sent)))
            sender.write("SEND", sent[-1].encode(), destination=destination, receipt=sent[-1])

        async def holds() -> set[Hold]:
            # RabbitMQ says that it takes none when the first one comes, and the client is held after the next.
            if not client.session.holds:
                send()
            return set(client.session.holds)

        await until(holds, lambda found: found == {Hold.BROKER_BLOCKED})
        send()
        answers = {}
        while sent[-1] not in answers:
            answer = await sender.expect("ERROR", message="Upstream unavailable")
            answers[answer["receipt-id"]] = answer
        await alarm.clear()
        taken = [each for each in sent if each not in answers]
        assert {(await sender.expect("RECEIPT"))["receipt-id"] for _ in taken} == {*taken}
        await sender.ask("SEND", b"after", destination=destination)
        await sender.ask("SUBSCRIBE", id="a", destination=destination)
        for body in (b"before", *map(str.encode, taken), b"after"):
            await sender.expect("MESSAGE", body)


async def test_a_session_that_sends_and_subscribes_still_acknowledges(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.logged_in(process.address) as client, within(60):
        for number in range(10):
            await client.ask("SEND", b"%d" % number, destination=destination)
        await alarm.set()
        await client.ask("SUBSCRIBE", id="a", ack="client-individual", prefetch_count="1", destination=destination)
        for number in range(10):
            message = await client.expect("MESSAGE", b"%d" % number)
            client.write("ACK", id=message["ack"])
        await client.ask("BEGIN", transaction="t")
        await client.ask("UNSUBSCRIBE", id="a")
        await until(lambda: amqp.count(queue), lambda count: count == 0)


async def test_a_session_that_begins_during_an_alarm_consumes_and_is_held_when_it_sends(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.logged_in(process.address) as earlier, within(60):
        for number in range(3):
            await earlier.ask("SEND", b"%d" % number, destination=destination)
        await alarm.set()
        earlier.write("SEND", b"", destination="/topic/nobody")
        async with StompClient.logged_in(process.address) as client:
            await client.ask("SUBSCRIBE", id="a", ack="client", prefetch_count="10", destination=destination)
            messages = await client.messages(3)
            await client.ask("ACK", id=messages[1]["ack"])
            client.write("SEND", b"during", destination=destination, receipt="sent")
            client.write("ACK", id=messages[2]["ack"], receipt="behind")
            with pytest.raises(TimeoutError):
                await client.receive(seconds=0.5)
            await alarm.clear()
            # All in order, and the session goes on as any other.
            frames = [await client.receive() for _ in range(3)]
            assert {frame.headers.get("receipt-id") for frame in frames} == {"sent", "behind", None}
            assert [frame.body for frame in frames if frame.command == "MESSAGE"] == [b"during"]
            await client.disconnect()
        # What was not acknowledged is there, and nothing else.
        await until(lambda: amqp.count(queue), lambda count: count == 1)


async def test_a_fast_writer_is_held_during_an_alarm(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.logged_in(process.address) as client, within(90):
        await client.ask("SEND", b"first", destination=destination)
        await alarm.set()
        before = process.memory
        client.writer.transport.set_write_buffer_limits(high=0)
        frame = encoded("SEND", BODY, destination=destination)
        written = 0
        while True:
            client.writer.write(frame * 10)
            written += 10
            try:
                async with asyncio.timeout(1):
                    await client.writer.drain()
            except TimeoutError:
                break
            assert written < 10_000, "the gateway takes everything during an alarm"
        assert process.memory - before < 20 * MIB
        await alarm.clear()
        await client.ask("SEND", b"last", destination=destination)
        assert await amqp.count(queue) == written + 2
        await client.disconnect()


async def test_a_client_that_goes_during_an_alarm_has_sent_what_it_sent(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    async with StompClient.logged_in(process.address) as client, within(60):
        await client.ask("SEND", b"first", destination=destination)
        await alarm.set()
        for _ in range(100):
            client.write("SEND", BODY, destination=destination)
        client.hang_up()
        await client.writer.wait_closed()
    await alarm.clear()
    await until(lambda: amqp.count(queue), lambda count: count == 101)


async def test_log_check_sessions_and_status_tell_of_the_alarm(control: Broker, queue: str, alarm: Alarm) -> None:
    document = configuration(control.amqp_url, admin={"address": "127.0.0.1:0"}, drain_timeout=1)
    with gateway_process(document) as process:
        async with (
            StompClient.logged_in(process.address) as sender,
            StompClient.logged_in(process.address) as late,
            within(60),
        ):
            await sender.ask("SEND", b"first", destination=f"/queue/{queue}")
            await alarm.set()
            sender.write("SEND", b"during", destination=f"/queue/{queue}", receipt="r")
            [told] = await process.until_logged("broker alarm")
            assert (told["level"], told["reason"]) == ("warning", "low on memory")
            assert told["broker"].endswith(f":{control.amqp_port}")
            # A new sender waits for its channel, and it can be seen why.
            late.write("SEND", b"late", destination=f"/queue/{queue}-late", receipt="r")

            async def late_holds() -> list[str]:
                page = await AdminClient(process.admin).json("/api/sessions?sort=connected_at")
                return list(page["items"][-1]["holds"])

            await until(late_holds, lambda holds: "broker-blocked" in holds)
            hosts = await AdminClient(process.admin).json("/api/virtual-hosts")
            assert hosts["items"][0]["brokers"][0]["alarm"] == "low on memory"
            command = [sys.executable, "-m", "gateway", "check", "--config", str(process.config)]
            checked = (
                await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True)
            ).stdout
            assert "alarm         yes: low on memory" in checked
            assert "has an alarm, low on memory" in checked
            await alarm.clear()
            await process.until_logged("broker alarm over")
            assert (await late.expect("RECEIPT"))["receipt-id"] == "r"
            assert (await sender.expect("RECEIPT"))["receipt-id"] == "r"
            assert await late_holds() == []


async def answer_heart_beat(client: StompClient) -> None:
    """Answer a heart-beat of the gateway with one of the client; nothing else may come."""
    assert await client.reader.readexactly(1) == b"\n"
    client.writer.write(b"\n")


async def exchange_heart_beats(client: StompClient, meanwhile: Coroutine[Any, Any, object]) -> None:
    """Answer each heart-beat of the gateway until that is done; nothing else may come."""
    done = asyncio.create_task(meanwhile)
    while not done.done():
        await answer_heart_beat(client)
    await done


async def test_a_held_client_that_sends_heart_beats_stays_and_one_that_is_silent_does_not(
    process: GatewayProcess, queue: str, alarm: Alarm
) -> None:
    destination = f"/queue/{queue}"
    # The client answers each heart-beat, so that a gateway that is late by seconds gets enough of them.
    async with StompClient.logged_in(process.address, heart_beat="2000,250") as client, within(60):
        await client.ask("SEND", b"first", destination=destination)
        alarms = len(process.logged("broker alarm"))
        await exchange_heart_beats(client, alarm.set())
        client.write("SEND", b"x", destination=destination, receipt="r")
        # The broker tells of its alarm when it is published to; the next message is the last one that is read.
        await exchange_heart_beats(client, process.until_logged("broker alarm", alarms + 1))
        client.write("SEND", b"x", destination=destination, receipt="s")
        client.write("BEGIN", transaction="behind", receipt="t")
        # Nobody reads this client now. Its heart-beats count all the same, and the gateway's own go on: two a second,
        # so that this is longer than the gateway waits for one of the client's.
        for _ in range(16):
            await answer_heart_beat(client)
        await client.expect("ERROR", message="Heart-beat timeout")


async def test_temporary_and_exclusive_queues_end_with_their_session_even_during_an_alarm(
    process: GatewayProcess, amqp: AmqpBroker, queue: str, alarm: Alarm
) -> None:
    async with StompClient.logged_in(process.address) as client, within(60):
        await client.ask(
            "SUBSCRIBE", id="a", destination=f"/queue/{queue}", durable="false", exclusive="true", auto_delete="false"
        )
        await client.ask("SEND", b"first", destination="/topic/nobody")
        await alarm.set()
        client.write("SEND", b"during", destination="/topic/nobody")
    await until_queue_gone(amqp, queue)


async def test_the_gateway_stops_during_an_alarm(control: Broker, queue: str, alarm: Alarm) -> None:
    with gateway_process(configuration(control.amqp_url, drain_timeout=1)) as process:
        async with StompClient.logged_in(process.address) as client, within(60):
            await client.ask("SEND", b"first", destination=f"/queue/{queue}")
            await alarm.set()
            client.write("SEND", b"during", destination=f"/queue/{queue}", receipt="r")
            with pytest.raises(TimeoutError):
                await client.receive(seconds=0.5)
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            await client.closed()
            assert await process.exit_code(PATIENCE) == ExitCode.OK
