"""The traffic journal of a real gateway with real clients: complete, free of secrets, and without effect on clients."""

from __future__ import annotations

import json
import secrets
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ExitCode
from gateway.journal.segments import PATTERN
from gateway.parity.amqp_broker import AmqpBroker, BrokerMessage
from tests.support.deadline import within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import ConnectionOverError, StompClient

pytestmark = pytest.mark.system

_SECRET = "this-must-not-be-written"


def journal_of(directory: Path) -> list[dict[str, Any]]:
    """All finished lines, in order."""
    paths = sorted(directory.glob(f"d*=*/{PATTERN}"))
    return [json.loads(line) for path in paths for line in path.read_bytes().splitlines()]


def settings(directory: Path, level: str, **more: object) -> dict[str, Any]:
    return {"journal": {"level": level, "directory": str(directory), **more}}


async def conversation(process: GatewayProcess, queue: str) -> None:
    """7 messages are sent and 6 of them confirmed; 6 are delivered, 3 of them acknowledged, and one refused."""
    destination = f"/amq/queue/{queue}"
    async with within(60):
        async with StompClient.logged_in(process.address) as client:
            for number in range(5):
                await client.ask("SEND", b"x" * 10, destination=destination, persistent="true", number=str(number))
            await client.ask("SUBSCRIBE", destination=destination, id="s", ack="client")
            messages = await client.messages(5)
            await client.ask("ACK", id=messages[2]["ack"])
            await client.ask("NACK", id=messages[3]["ack"], requeue="true")
            again = await client.receive()
            assert again["redelivered"] == "true"
            client.write("BEGIN", transaction="t")
            client.write("SEND", b"", destination="/topic/nobody", transaction="t")
            await client.ask("COMMIT", transaction="t")
            client.write("SEND", b"", destination="nowhere/at/all")
            await client.expect("ERROR")
            client.write("SEND", b"", destination="/topic/nobody")
            await client.disconnect()
        async with StompClient.dialled(process.address) as stranger:
            stranger.write("CONNECT", accept_version="1.2", login="nobody", passcode=_SECRET, host="/")
            await stranger.expect("ERROR")


@pytest.fixture
async def written(broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path, level: str) -> list[dict[str, Any]]:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    document = configuration(broker_url, settings(tmp_path, level))
    with gateway_process(document) as process:
        await conversation(process, queue)
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    return journal_of(tmp_path)


@pytest.mark.parametrize("level", ["message"])
async def test_level_message_tells_of_every_message_and_its_fate(written: list[dict[str, Any]], queue: str) -> None:
    destination = f"/amq/queue/{queue}"
    assert [line["q"] for line in written] == list(range(len(written)))
    assert (written[0]["e"], written[-1]["e"]) == ("open", "close")
    count = Counter(line["e"] for line in written)
    assert (count["send"], count["dlv"], count["conn"], count["end"], count["err"]) == (7, 6, 1, 1, 2)
    assert "stat" not in count
    sends = [line for line in written if line["e"] == "send" and line["d"] == destination]
    assert [(line["m"], line["b"], line["p"], line["rc"]) for line in sends] == [
        (m, 10, True, True) for m in range(1, 6)
    ]
    assert sum(line["n"] if "n" in line else 1 for line in written if line["e"] == "ack") == 3
    (nack,) = (line for line in written if line["e"] == "nack")
    assert (nack["x"], nack["am"], nack["s"]) == ("requeue", "client", "s")
    assert [line["r"] for line in written if line["e"] == "dlv" and "r" in line] == [True]
    confirmed = {(line["d"], line["m"]) for line in written if line["e"] == "conf"}
    assert confirmed >= {(destination, m) for m in range(1, 6)}
    assert all(0 < line["l"] < 60_000_000 for line in written if line["e"] in ("conf", "ack", "conn"))
    (end,) = (line for line in written if line["e"] == "end")
    assert end["x"] == "disconnect"
    assert (end["f"]["unacked"], end["f"]["max_unacked"]) == (2, 5)
    assert {line["x"] for line in written if line["e"] == "use"} >= {
        "amq-queue", "topic", "receipt", "persistent", "transaction", "ack-client", "ack-cumulative", "nack",
        "user-headers",
    }  # fmt: skip
    assert [line["x"] for line in written if line["e"] == "err"] == ["unknown-destination", "bad-connect"]


@pytest.mark.parametrize("level", ["session"])
async def test_level_session_counts_the_same_without_a_line_for_each(written: list[dict[str, Any]], queue: str) -> None:
    assert [line["q"] for line in written] == list(range(len(written)))
    events = Counter(line["e"] for line in written)
    assert not events.keys() & {"send", "conf", "dlv", "ack", "nack"}
    assert (events["conn"], events["sub"], events["unsub"], events["end"], events["err"]) == (1, 1, 1, 1, 2)
    counted: Counter[str] = Counter()
    latencies: Counter[str] = Counter()
    for line in written:
        if line["e"] == "stat":
            counted.update(line["cnt"])
            for key, number in line.get("h", {}).items():
                latencies[key.partition(":")[0]] += number
    assert counted["send"] == 7
    assert counted["send_bytes"] == 50
    assert (counted["dlv"], counted["redelivered"], counted["ack"], counted["requeue"]) == (6, 1, 3, 1)
    assert counted["conf"] >= 5
    assert latencies == {"conf": counted["conf"], "ack": 3}


@pytest.mark.parametrize("level", ["off"])
async def test_level_off_writes_nothing(written: list[dict[str, Any]], tmp_path: Path) -> None:
    assert written == []
    assert not tuple(tmp_path.iterdir())  # noqa: ASYNC240


async def test_secrets_bodies_and_header_values_are_never_written(
    broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    changes = settings(tmp_path, "message", users="hashed", peers="none", header_values=["allowed"])
    with gateway_process(configuration(broker_url, changes)) as process:
        async with within(60), StompClient.dialled(process.address) as client:
            client.write("CONNECT", accept_version="1.2", login=_SECRET, passcode=_SECRET, host="/")
            await client.expect("ERROR")
        async with within(60), StompClient.logged_in(process.address) as client:
            await client.ask(
                "SEND", _SECRET.encode(), destination=f"/amq/queue/{queue}", allowed="shown", secret=_SECRET,
                correlation_id=_SECRET,
            )  # fmt: skip
            client.write("ACK", id=_SECRET)
            await client.expect("ERROR")
            client.write("BEGIN", transaction=_SECRET)
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert _SECRET.encode() not in written
    assert b"127.0.0.1" not in written
    found = journal_of(tmp_path)
    (conn,) = (line for line in found if line["e"] == "conn")
    assert len(bytes.fromhex(conn["u"])) == 8
    (send,) = (line for line in found if line["e"] == "send")
    assert send["hv"] == {"allowed": "shown"}


async def test_sampled_messages_keep_all_their_events(
    broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    changes = settings(tmp_path, "message", sample=0.25)
    destination = f"/amq/queue/{queue}"
    with gateway_process(configuration(broker_url, changes)) as process:
        async with within(60), StompClient.logged_in(process.address) as client:
            for _ in range(400):
                client.write("SEND", b"x", destination=destination)
            await client.ask("SEND", b"x", destination=destination)
            await client.ask("SUBSCRIBE", destination=destination, id="s", ack="client")
            messages = await client.messages(401)
            await client.ask("ACK", id=messages[200]["ack"])
            await client.ask("ACK", id=messages[400]["ack"])
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    found = journal_of(tmp_path)
    by_event = {name: [line for line in found if line["e"] == name] for name in ("send", "dlv", "ack")}
    assert 50 < len(by_event["send"]) < 150
    assert all(line["w"] == 4 for lines in by_event.values() for line in lines)
    assert len(by_event["dlv"]) == sum(line.get("n", 1) for line in by_event["ack"])


async def test_a_directory_that_cannot_be_used_is_an_error_at_the_start(broker_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match=r"journal cannot be written to .*name another directory"):
        GatewayProcess(configuration(broker_url, settings(tmp_path / "file" / "x", "session")))


async def test_without_a_configured_directory_the_gateway_runs_without_a_journal(
    broker_url: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    environment = {"STATE_DIRECTORY": str(tmp_path / "file")}
    with gateway_process(configuration(broker_url, {"journal": {}}), environment) as process:
        async with within(30), StompClient.logged_in(process.address) as client:
            await client.disconnect()
        (line,) = process.logged("no journal")
        assert "level to off" in line["hint"]


async def test_killed_under_load_at_most_the_last_moment_is_missing(
    broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path
) -> None:
    """Every answered message has its lines, but for one batch at the most, 512, or a quarter of a second's."""
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    document = configuration(broker_url, settings(tmp_path, "message"))
    receipts = 0
    with gateway_process(document) as process:
        async with within(120), StompClient.logged_in(process.address) as client:
            try:
                for number in range(1_000_000):
                    client.write("SEND", b"x", destination=f"/amq/queue/{queue}", receipt=str(number))
                    if number % 100 == 99:
                        for _ in range(100):
                            assert (await client.receive()).command == "RECEIPT"
                            receipts += 1
                    if number == 20_000:
                        process.child.send_signal(signal.SIGKILL)
            except (ConnectionOverError, ConnectionError, EOFError):
                pass
        assert await process.exit_code(30) == -signal.SIGKILL
    assert journal_of(tmp_path) == []  # readers ignore the open segment
    with gateway_process(document) as process:
        async with within(30), StompClient.logged_in(process.address) as client:
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    found = journal_of(tmp_path)
    boots = {line["boot"] for line in found if line["e"] == "open"}
    assert len(boots) == 2
    confirmed = sum(1 for line in found if line["e"] == "conf")
    assert receipts >= 20_000
    # Two events for each message: sent, and confirmed. The client had at most 100 in flight.
    assert 0 <= receipts - confirmed <= 512
    numbers = [line["q"] for line in found]
    second = numbers.index(0, 1)
    assert numbers == [*range(second), *range(len(numbers) - second)]


@pytest.mark.parametrize("level", ["message", "session"])
async def test_another_gateway_learns_how_long_a_message_has_waited(
    broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path, level: str
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    destination = f"/amq/queue/{queue}"
    sending, receiving = (configuration(broker_url, settings(tmp_path / name, level, correlate=True)) for name in "ab")
    with gateway_process(sending) as publisher, gateway_process(receiving) as process:
        async with within(60), StompClient.logged_in(publisher.address) as client:
            for number in range(6):
                await client.ask("SEND", b"x", destination=destination, number=str(number))
            await client.disconnect()
        async with within(60), StompClient.logged_in(process.address) as client:
            await client.ask("SUBSCRIBE", destination=destination, id="s", ack="auto")
            messages = await client.messages(6)
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    assert [message["number"] for message in messages] == [str(number) for number in range(6)]
    assert not [name for message in messages for name in message.headers if "published" in name]
    found = journal_of(tmp_path / "b")
    if level == "message":
        deliveries = [line for line in found if line["e"] == "dlv"]
        assert len(deliveries) == 6
        assert all(0 < line["ql"] < 60_000_000 for line in deliveries)
        # Each was there before the next was sent.
        sent = [line["t"] - line["ql"] for line in deliveries]
        assert sent == sorted(sent)
    else:
        (line,) = (line for line in found if line["e"] == "stat" and "s" in line)
        assert sum(number for key, number in line["h"].items() if key.startswith("queue:")) == 6


async def test_without_correlation_nothing_is_added_to_a_message_nor_read_from_it(
    broker_url: str, amqp: AmqpBroker, queue: str, tmp_path: Path
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    destination = f"/amq/queue/{queue}"
    marked = BrokerMessage(headers={"x-stomp-gateway-published": 1, "own": "2"}, body=b"x")
    with gateway_process(configuration(broker_url, settings(tmp_path, "message"))) as process:
        async with within(60), StompClient.logged_in(process.address) as client:
            await client.ask("SEND", b"x", destination=destination)
            taken = await amqp.take(queue)
            assert taken is not None
            assert set(taken.headers) == {"receipt", "content-length"}
            await amqp.publish("", queue, marked)
            await client.ask("SUBSCRIBE", destination=destination, id="s", ack="auto")
            (message,) = await client.messages(1)
            assert message["own"] == "2"
            assert "x-stomp-gateway-published" not in message.headers
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    (line,) = (line for line in journal_of(tmp_path) if line["e"] == "dlv")
    assert "ql" not in line


async def test_two_levels_on_one_gateway(broker_url: str, tmp_path: Path) -> None:
    name = f"other-{secrets.token_hex(4)}"
    document = configuration(broker_url, settings(tmp_path, "message"))
    document["virtual_hosts"][name] = {"amqp_vhost": "/", "journal": {"level": "session"}}
    with gateway_process(document) as process:
        for host in ("/", name):
            async with within(30), StompClient.logged_in(process.address, host=host) as client:
                await client.ask("SEND", b"x", destination="/topic/none")
                await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    found = journal_of(tmp_path)
    assert {line["vh"] for line in found if line["e"] == "send"} == {"/"}
    assert {line["vh"] for line in found if line["e"] == "stat"} == {name}
