"""`archives:` of the configuration: the gateway declares streams and bindings, and says when it cannot."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aio_pika import Connection, Message, connect

from gateway.config.loader import parse
from gateway.errors import ConfigError
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
        lines = await process.until_logged("archive not declared", 2)
        reasons = " ".join(line["reason"] for line in lines)
        assert "no exchange 'there-is-none'" in reasons
        assert "ACCESS_REFUSED" in reasons
        assert "hush" not in process.log.read_text()
        async with StompClient.logged_in(process.address) as client:
            await client.ask("SEND", b"1", destination="/topic/a")


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
