"""A small limit of file descriptors: clients who are in work as ever, and the rest are told that there are too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import until, within
from tests.support.gateway import ROOT, GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import ConnectionOverError, StompClient
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

LIMIT = 128
CLIENTS = 300
OUT_OF_REACH = f"max_connections 500 is out of reach: {LIMIT} file descriptors are enough for about "


class Gateway:
    """A gateway with few descriptors, and a listener of each kind."""

    def __init__(self, process: GatewayProcess, directory: Path, tls: ssl.SSLContext) -> None:
        self.process = process
        self.admin = AdminClient(process.admin)
        # Only now: the admin listener opens last.
        lines = [line["address"].rpartition(":") for line in process.logged("listening")]
        self.tcp, self.tls, self.websocket = [(host, int(port)) for host, _, port in lines if port.isdecimal()]
        self.unix = directory / "socket"
        self.client_tls = tls

    async def refused(self) -> int:
        """How many connections it has refused for want of descriptors."""
        samples = await self.admin.samples()
        return int(samples["stomp_gateway_connections_refused_total", frozenset({("limit", "descriptors")})])


@pytest.fixture
def gateway(request: pytest.FixtureRequest, broker_url: str, tmp_path: Path) -> Iterator[Gateway]:
    authority = Authority.make(tmp_path, "authority")
    certificate, key = authority.sign(tmp_path, "gateway")
    files = {"cert_file": str(certificate), "key_file": str(key)}
    document = configuration(
        broker_url,
        {"journal": {"level": "message", "directory": str(tmp_path / "journal")}, "links": request.param},
        listeners=[
            {"tcp": "127.0.0.1:0", "max_connections": 500},
            {"tcp": "127.0.0.1:0", "tls": files},
            {"websocket": "127.0.0.1:0"},
            {"unix": str(tmp_path / "socket")},
        ],
        admin={"address": "127.0.0.1:0"},
    )
    with gateway_process(document, descriptors=LIMIT) as process:
        yield Gateway(process, tmp_path, authority.client())
        process.assert_no_internal_errors()
        assert not process.logged("accept failed")
        assert not process.logged("upstream unreachable")


@pytest.mark.parametrize("gateway", ["shared", "dedicated"], indirect=True)
async def test_whoever_is_in_has_its_links_and_all_others_learn_why_they_are_not(gateway: Gateway) -> None:
    async with contextlib.AsyncExitStack() as clients, within(60):
        inside = await clients.enter_async_context(StompClient.logged_in(gateway.tcp))
        answers = Counter[str]()
        accepted: list[StompClient] = []

        async def use(client: StompClient, number: int) -> None:
            await client.ask("SEND", b"x", destination=f"/queue/descriptors-{number}")
            await client.ask("SUBSCRIBE", id="s", destination=f"/queue/descriptors-{number}")
            await client.expect("MESSAGE", b"x")

        # Shared links are open before the others come, and take the place of none of them.
        await use(inside, 0)

        async def connect() -> None:
            client = await clients.enter_async_context(StompClient.dialled(gateway.tcp))
            client.write("CONNECT", accept_version="1.2")
            answer = await client.receive()
            answers[answer.headers.get("message", answer.command)] += 1
            if answer.command == "CONNECTED":
                accepted.append(client)
            else:
                assert answer.body.startswith(b"The gateway has ")
                await client.closed()

        await asyncio.gather(*(connect() for _ in range(CLIENTS)))
        assert set(answers) == {"CONNECTED", "Too many connections"}
        # The first SEND and the first SUBSCRIBE of each need links.
        for number, client in enumerate(accepted, start=1):
            await use(client, number)
        # Now it is full also for those that come one by one.
        while await _is_let_in(gateway, clients):
            pass
        with pytest.raises(RefusedError, match="503"):
            await clients.enter_async_context(WebSocketClient.dialled(gateway.websocket))
        async with StompClient.dialled(gateway.unix) as client:
            await client.expect("ERROR", message="Too many connections")
        with pytest.raises((OSError, ConnectionOverError)):
            await clients.enter_async_context(StompClient.dialled(gateway.tls, tls=gateway.client_tls))
        assert await gateway.refused() == answers["Too many connections"] + 4
        (line,) = gateway.process.logged("too few file descriptors")[:1]
        assert (line["limit"], line["level"]) == (LIMIT, "warning")
        assert all(word in line["hint"] for word in ("LimitNOFILE", "ulimit -n", "container"))
        (line,) = gateway.process.logged("file descriptors")
        assert line["limit"] == LIMIT
        assert 10 < line["clients"] < LIMIT
        assert [each for each in gateway.process.logged("configuration warning") if OUT_OF_REACH in each["warning"]]
        # One leaves, and another one comes in.
        await inside.disconnect()
        await until(lambda: _is_let_in(gateway, clients), bool)


async def _is_let_in(gateway: Gateway, clients: contextlib.AsyncExitStack) -> bool:
    """Whether one more client can log in, which then stays."""
    client = await clients.enter_async_context(StompClient.dialled(gateway.tcp))
    client.write("CONNECT", accept_version="1.2")
    return (await client.receive()).command == "CONNECTED"


async def test_check_says_what_the_limit_allows(broker_url: str, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    listeners = [{"tcp": "127.0.0.1:0", "max_connections": 500}]
    file.write_text(json.dumps(configuration(broker_url, listeners=listeners)))
    check = sys.executable, "-m", "gateway", "check", "--config", str(file)
    limited = "sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *check
    child = await asyncio.create_subprocess_exec(*limited, stdout=asyncio.subprocess.PIPE, cwd=ROOT)
    out, _ = await child.communicate()
    assert f"warning: listener 127.0.0.1:0: {OUT_OF_REACH}" in out.decode()
