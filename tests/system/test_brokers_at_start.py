"""Who starts a gateway learns from its log which brokers answer; clients do not wait for that."""

from __future__ import annotations

import asyncio

import pytest

from deploy.local.ports import free_ports
from gateway.config.loader import parse
from gateway.server.process.broker_services import BrokerGreetings
from tests.support.deadline import within
from tests.support.gateway import configuration, gateway_here, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


@pytest.mark.parametrize("workers", [1, 2])
async def test_the_log_says_which_brokers_answer_and_no_connection_stays(broker_url: str, workers: int) -> None:
    (closed,) = free_ports(1)
    document = configuration(broker_url, workers=workers)
    (there,) = document["upstream"]["urls"]
    document["upstream"]["urls"].append(nowhere := f"amqp://127.0.0.1:{closed}")
    document["virtual_hosts"]["other"] = {"amqp_vhost": "/"}
    with gateway_process(document) as process:
        answer, *_ = await process.until_logged("broker answers")
        await process.until_logged("broker does not answer")
        assert not process.logged("link opened")
        async with StompClient.logged_in(process.address) as client, within():
            # The header has a slash where the log has a space.
            assert client.connected["server"].partition(" ")[0] == answer["product"].replace(" ", "/")
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(20) == 0
        # One of several workers has looked, for all.
        (answer,), (silence,) = process.logged("broker answers"), process.logged("broker does not answer")
    assert (answer["broker"], answer["virtual_hosts"]) == (there, ["/", "other"])
    assert (silence["broker"], silence["reason"]) == (nowhere, "connection refused")
    assert "stomp-gateway check" in silence["hint"]


async def test_neither_start_nor_stop_waits_for_a_broker_that_is_silent() -> None:
    dialled, hung_up = asyncio.Event(), asyncio.Event()

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        try:
            while await reader.read(100):
                pass
        except ConnectionError:
            pass
        hung_up.set()
        writer.close()

    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    upstream = f"{{urls: ['amqp://127.0.0.1:{port}'], connect_timeout: 10min}}"
    config = parse(
        f"{{listeners: [{{tcp: '127.0.0.1:0'}}], upstream: {upstream}, defaults: {{journal: {{level: off}}}}}}",
        environment={},
    )
    greetings = BrokerGreetings()
    async with server, within(), gateway_here(config) as gateway:
        await greetings.start(gateway)
        await dialled.wait()
        assert not hung_up.is_set()
        await greetings.stop()
        await hung_up.wait()


async def test_a_stop_before_the_start_is_nothing() -> None:
    await BrokerGreetings().stop()
