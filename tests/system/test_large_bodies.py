"""Bodies of many reads and many AMQP frames: every byte in its place, over each transport and on each event loop."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.certificates import Authority
from tests.support.deadline import within
from tests.support.gateway import (
    GatewayProcess,
    configuration,
    gateway_here,
    gateway_process,
    listening,
    parsed,
)
from tests.support.stomp_client import StompClient
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

MIB = 1 << 20
# Around an AMQP frame of 128 KiB, around one read of 256,000 bytes, and up to the largest frame.
SIZES = (1, 131_063, 131_064, 131_065, 1, 255_000, 256_000, 257_000, 700_000, 1, 4 * MIB - 200, 600_000, 4 * MIB - 200)


def body(size: int) -> bytes:
    """Bytes that all stand in places of their own, NULs and frame ends of AMQP among them."""
    return b"".join(b"%07d\0\xce" % number for number in range(size // 9 + 1))[:size]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, dict[str, object]]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority.make(directory, "authority")
    certificate, key = authority.sign(directory, "server")
    return authority, {"tcp": "127.0.0.1:0", "tls": {"cert_file": str(certificate), "key_file": str(key)}}


@pytest.fixture(scope="module")
def process(broker_url: str, tls: tuple[Authority, dict[str, object]]) -> Iterator[GatewayProcess]:
    listeners = [{"tcp": "127.0.0.1:0"}, tls[1], {"websocket": "127.0.0.1:0"}]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        yield process


async def pass_through(client: StompClient | WebSocketClient, destination: str) -> None:
    await client.ask("SUBSCRIBE", id="s", destination=destination)
    for size in SIZES:
        client.write("SEND", body(size), destination=destination)
    for size in SIZES:
        received = await client.expect("MESSAGE")
        # Compared here, since pytest would show the difference of megabytes for minutes.
        is_same = received.body == body(size)
        assert is_same, f"{size} bytes came as {len(received.body)}, or changed"


async def test_over_tcp(process: GatewayProcess, queue: str) -> None:
    async with StompClient.logged_in(process.address) as client, within(60):
        await pass_through(client, f"/queue/{queue}")


async def test_over_tls(process: GatewayProcess, queue: str, tls: tuple[Authority, dict[str, object]]) -> None:
    context = ssl.create_default_context(cafile=str(Path(tls[0].certificate)))
    async with StompClient.logged_in(listening(process, 3)[1], tls=context) as client, within(60):
        await pass_through(client, f"/queue/{queue}")


async def test_over_websocket(process: GatewayProcess, queue: str) -> None:
    async with WebSocketClient.logged_in(listening(process, 3)[2]) as client, within(60):
        await pass_through(client, f"/queue/{queue}")


async def test_on_the_event_loop_of_asyncio(broker_url: str, queue: str) -> None:
    async with gateway_here(parsed(broker_url)) as gateway:
        async with StompClient.logged_in(gateway.addresses[0]) as client, within(60):
            await pass_through(client, f"/queue/{queue}")
