"""`archives:` of the configuration: the gateway declares streams and bindings, and says when it cannot."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aio_pika import Connection, Message, connect
from aio_pika.exceptions import ChannelNotFoundEntity

from deploy.local.broker import Broker
from gateway.config.loader import parse
from gateway.errors import ConfigError, ExitCode
from tests.support.deadline import until
from tests.support.gateway import configuration, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

OPERATOR = {"login": "guest", "passcode": "guest"}


@pytest_asyncio.fixture
async def connection(broker_url: str) -> AsyncIterator[Connection]:
    async with await connect(broker_url) as connection:
        assert isinstance(connection, Connection)
        yield connection


@pytest_asyncio.fixture
async def stream(connection: Connection) -> AsyncIterator[str]:
    """The name of a stream that nobody has declared yet."""
    name = f"archive-{secrets.token_hex(4)}"
    yield name
    await (await connection.channel()).queue_delete(name)


def archiving(url: str, stream: str, *destinations: str, **more: object) -> dict[str, Any]:
    """A configuration with one archive."""
    archive = {"stream": stream, "destinations": [*destinations], "user": OPERATOR, **more}
    return configuration(url, {"archives": [archive]})


async def messages(connection: Connection, stream: str, count: int) -> list[bytes]:
    """The first messages of a stream."""
    channel = await connection.channel()
    await channel.set_qos(100)
    found = []
    queue = await channel.get_queue(stream)
    async with queue.iterator(arguments={"x-stream-offset": "first"}) as incoming:
        async for message in incoming:
            await message.ack()
            found.append(message.body)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize("workers", [1, 2])
async def test_what_clients_send_to_archived_destinations_is_in_the_stream(
    broker_url: str, connection: Connection, stream: str, workers: int
) -> None:
    topic = secrets.token_hex(4)
    document = archiving(
        broker_url, stream, f"/topic/{topic}.#", f"/exchange/amq.direct/{topic}", max_age="7d", max_bytes="100MiB"
    )
    with gateway_process(document | {"workers": workers}) as process:
        [line] = await process.until_logged("archive declared")
        assert (line["stream"], line["virtual_host"]) == (stream, "/")
        async with StompClient.logged_in(process.address) as client:
            await client.ask("SEND", b"1", destination=f"/topic/{topic}.a.b")
            await client.ask("SEND", b"no", destination=f"/topic/other.{topic}")
            await client.ask("SEND", b"2", destination=f"/exchange/amq.direct/{topic}")

            assert await messages(connection, stream, 2) == [b"1", b"2"]

            added = archiving(broker_url, stream, f"/topic/{topic}.#", f"/topic/later.{topic}")
            await process.reload(added | {"workers": workers})
            await process.until_logged("archive declared", 2)
            await client.ask("SEND", b"3", destination=f"/topic/later.{topic}")
            assert await messages(connection, stream, 3) == [b"1", b"2", b"3"]


async def test_a_stream_that_is_there_stays_as_it_is_and_another_queue_is_refused(
    broker_url: str, connection: Connection, stream: str
) -> None:
    channel = await connection.channel()
    queue = await channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream", "x-max-age": "1D"})
    await channel.default_exchange.publish(Message(b"1"), stream)
    with gateway_process(archiving(broker_url, stream, "/topic/a.#", max_age="7d")) as process:
        await process.until_logged("archive declared")
    await queue.delete(if_empty=False, if_unused=False)

    # Another channel: RabbitMQ 3.10 once failed here with INTERNAL_ERROR on the one that had published to the stream.
    channel = await connection.channel()
    queue = await channel.declare_queue(stream, durable=True)
    await channel.default_exchange.publish(Message(b"1"), stream)
    with gateway_process(archiving(broker_url, stream, "/topic/a.#")) as process:
        [line] = await process.until_logged("archive not declared")
    assert "x-stream-offset" in line["reason"]
    message = await queue.get()
    assert not message.redelivered


async def test_what_the_broker_refuses_is_logged_without_the_passcode(broker_url: str, stream: str) -> None:
    document = archiving(broker_url, stream, "/exchange/there-is-none/a")
    document["defaults"]["archives"].append(
        {"stream": stream, "destinations": ["/topic/a"], "user": {"login": "guest", "passcode": "hush"}}
    )
    with gateway_process(document) as process:

        async def reasons() -> str:
            return " ".join(line["reason"] for line in process.logged("archive not declared"))

        # One of the two may be tried again before the other has an answer.
        await until(reasons, lambda said: "no exchange 'there-is-none'" in said and "ACCESS_REFUSED" in said)
        assert "hush" not in process.log.read_text()
        async with StompClient.logged_in(process.address) as client:
            await client.ask("SEND", b"1", destination="/topic/a")


async def test_check_tells_whether_a_stream_can_be_declared_and_declares_nothing(
    own_broker: Broker, connection: Connection, stream: str, tmp_path: Path
) -> None:
    user, channel = f"archive-{secrets.token_hex(4)}", await connection.channel()
    own_broker.ctl("add_user", user, "hush-hush")
    file = tmp_path / "gateway.yaml"

    def check(destination: str = "/topic/a.#", passcode: str = "hush-hush", *permissions: str) -> tuple[int, str]:
        if permissions:
            own_broker.ctl("set_permissions", user, *permissions)
        operator = {"login": user, "passcode": passcode}
        document = archiving(own_broker.amqp_url, stream, destination, user=operator)
        file.write_text(json.dumps(document))
        command = [sys.executable, "-m", "gateway", "check", "--config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert "hush" not in done.stdout + done.stderr
        return done.returncode, done.stdout + done.stderr

    def refusal(*arguments: str) -> str:
        code, text = check(*arguments)
        assert code == ExitCode.FAILURE
        assert "1 of 1 archives cannot be declared" in text
        return text

    about = f"archive {stream} of virtual host /, as {user}"
    try:
        assert "Correct user under archives" in refusal("/topic/a.#", "hush-wrong")
        assert f"access to queue '{stream}'" in refusal("/topic/a.#", "hush-hush", "nothing", "nothing", "nothing")
        assert f"set_permissions -p / {user} CONF WRITE READ" in refusal()
        # From 4.3 on RabbitMQ says that an exchange is missing only to who may use one of that name.
        reads = f"{stream}|amq.topic|there-is-none"
        refused = refusal("/exchange/amq.direct/a", "hush-hush", stream, stream, reads)
        assert "access to exchange 'amq.direct'" in refused
        assert "Declare this exchange" in refusal("/exchange/there-is-none/a")
        code, text = check()
        assert (code, f"{about}: yes, it can be declared" in text) == (ExitCode.OK, True), text
        with pytest.raises(ChannelNotFoundEntity):
            await channel.get_queue(stream)

        channel = await connection.channel()
        queue = await channel.declare_queue(stream, durable=True, arguments={"x-queue-type": "stream"})
        assert f"{about}: yes, it is there" in check()[1]
        await queue.delete(if_empty=False, if_unused=False)
        await channel.declare_queue(stream, durable=True)
        assert "A queue of this name is no stream" in refusal()
    finally:
        own_broker.ctl("delete_user", user)


@pytest.mark.parametrize(
    ("destination", "says"),
    [
        ("/queue/a", "to which no stream can be bound"),
        ("/amq/queue/a", "Archive the topic or the exchange in front"),
        ("/topic/a/b", "no destination of a topic or an exchange"),
        ("orders", "no destination of a topic or an exchange"),
    ],
)
def test_what_cannot_be_archived_is_said(destination: str, says: str) -> None:
    user = "{login: a, passcode: b}"
    text = f"defaults: {{archives: [{{stream: s, destinations: [{destination}], user: {user}}}]}}"
    with pytest.raises(ConfigError, match=says):
        parse(text)
