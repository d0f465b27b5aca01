"""Several gateways behind HAProxy and nginx, with the very examples of deploy/ and config/proxied.yaml."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.balanced import BALANCERS, EXAMPLES, GatewayPair, LoadBalancer
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import ROOT, GatewayProcess
from tests.support.stomp_client import StompClient
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

STOMP, TLS_ENDS_HERE, TLS_PASSES, WSS = "61613", "61614", "61615", "443"


@pytest.fixture(scope="module")
def pair(broker_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayPair]:
    with GatewayPair(tmp_path_factory.mktemp("gateways"), broker_url) as pair:
        yield pair


@pytest.fixture
def gateways(pair: GatewayPair) -> GatewayPair:
    """Both gateways, whatever earlier tests did to them."""
    pair.complete()
    return pair


def load_balancer(name: str, gateways: GatewayPair, directory: Path) -> Iterator[LoadBalancer]:
    with LoadBalancer(name, gateways, directory).running() as running:
        yield running


@pytest.fixture(params=BALANCERS)
def balancer(request: pytest.FixtureRequest, gateways: GatewayPair, tmp_path: Path) -> Iterator[LoadBalancer]:
    yield from load_balancer(request.param, gateways, tmp_path)


@pytest.fixture
def haproxy(gateways: GatewayPair, tmp_path: Path) -> Iterator[LoadBalancer]:
    yield from load_balancer("haproxy", gateways, tmp_path)


@pytest.fixture
def nginx(gateways: GatewayPair, tmp_path: Path) -> Iterator[LoadBalancer]:
    yield from load_balancer("nginx", gateways, tmp_path)


class Clients:
    """Clients that stay connected through a load balancer until the end of a ``with`` block."""

    def __init__(self, balancer: LoadBalancer, gateways: GatewayPair) -> None:
        self._balancer = balancer
        self._gateways = gateways
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stack.aclose()

    async def log_in(self) -> tuple[StompClient, GatewayProcess]:
        """A further client, and the gateway that it has come to."""
        address = self._balancer.address(STOMP)
        client = await self._stack.enter_async_context(StompClient.logged_in(address, **self._gateways.login))
        return client, (await self._gateways.home(client.connected["session"]))[0]

    async def one_at_each(self) -> dict[GatewayProcess, StompClient]:
        """Further clients, until each gateway has one."""
        found: dict[GatewayProcess, StompClient] = {}
        async with within():
            while len(found) < len(self._gateways.processes):
                client, process = await self.log_in()
                found[process] = client
        return found


@pytest.mark.parametrize("name", BALANCERS)
def test_the_program_has_no_complaint_about_its_example(name: str, pair: GatewayPair, tmp_path: Path) -> None:
    assert LoadBalancer(name, pair, tmp_path).complaints() == ""


# Addresses.


@pytest.mark.parametrize("number", [STOMP, TLS_ENDS_HERE, TLS_PASSES])
async def test_the_gateway_learns_the_address_of_a_client(
    balancer: LoadBalancer, gateways: GatewayPair, number: str
) -> None:
    tls = None if number == STOMP else gateways.authority.client()
    async with StompClient.logged_in(balancer.address(number), tls=tls, **gateways.login) as client, within():
        host, port = client.writer.get_extra_info("sockname")
        process, peer = await gateways.home(client.connected["session"])
        assert peer == f"{host}:{port}"
        (session,) = (await gateways.admin(process).json(f"/api/sessions?q={peer}"))["items"]
        assert (session["id"], session["tls"]) == (client.connected["session"], number == TLS_PASSES)


async def test_the_gateway_learns_the_address_of_a_web_page(balancer: LoadBalancer, gateways: GatewayPair) -> None:
    tls = gateways.authority.client()
    page = {"Origin": "https://shop.example.org"}
    async with WebSocketClient.dialled(balancer.address(WSS), tls=tls, headers=page) as client, within():
        connected = await client.connect(**gateways.login)
        host, port = client.writer.get_extra_info("sockname")
        process, peer = await gateways.home(connected["session"])
        assert peer == f"{host}:{port}"
        (session,) = (await gateways.admin(process).json(f"/api/sessions?q={peer}"))["items"]
        assert session["transport"] == "websocket"


async def test_the_path_of_web_pages_may_end_with_a_slash(balancer: LoadBalancer, gateways: GatewayPair) -> None:
    tls = gateways.authority.client()
    async with WebSocketClient.dialled(balancer.address(WSS), path="/ws/", tls=tls) as client, within():
        await client.connect(**gateways.login)


@pytest.mark.parametrize("name", BALANCERS)
def test_clients_may_come_over_ipv4_and_ipv6(name: str) -> None:
    """A test of words: the machine may have no IPv6."""
    lines = [line.split() for line in (ROOT / EXAMPLES[name]).read_text().splitlines()]
    opened = [line for line in lines if line[:1] in (["bind"], ["listen"])]
    assert len(opened) == 4
    for _, address, option, *_others in opened:
        assert (address.rpartition(":")[0], option) in {("::", "v4v6"), ("[::]", "ipv6only=off")}


async def test_a_page_of_another_origin_is_refused_and_found_in_the_log(
    haproxy: LoadBalancer, gateways: GatewayPair
) -> None:
    tls = gateways.authority.client()
    page = {"Origin": "https://evil.example.org"}
    with pytest.raises(RefusedError) as refusal:
        async with WebSocketClient.dialled(haproxy.address(WSS), tls=tls, headers=page):
            pass
    assert refusal.value.response.status_code == 403
    lines = [line for process in gateways.processes for line in process.logged("websocket handshake refused")]
    assert [line["origin"] for line in lines if line["status"] == 403] == ["https://evil.example.org"]


# Long connections.


async def test_heart_beats_pass(balancer: LoadBalancer, gateways: GatewayPair) -> None:
    async with StompClient.logged_in(balancer.address(STOMP), heart_beat="0,200", **gateways.login) as client, within():
        assert await client.reader.readexactly(2) == b"\n\n"


async def test_haproxys_short_timeouts_are_not_for_clients_that_are_in(gateways: GatewayPair, tmp_path: Path) -> None:
    balancer = LoadBalancer("haproxy", gateways, tmp_path)
    for side in ("client", "server"):
        balancer.change(f"timeout {side} 30s", f"timeout {side} 100ms")
    with balancer.running():
        address = balancer.address(STOMP)
        async with StompClient.logged_in(address, heart_beat="0,200", **gateways.login) as client, within():
            assert await client.reader.readexactly(1) == b"\n"
            await client.ask("BEGIN", transaction="t")


# A gateway that goes.


@pytest.mark.parametrize("name", BALANCERS)
async def test_clients_of_a_killed_gateway_get_on_at_the_other_one(
    name: str, gateways: GatewayPair, queue: str, tmp_path: Path
) -> None:
    balancer = LoadBalancer(name, gateways, tmp_path)
    if name == "haproxy":
        balancer.change("inter 1s", "inter 1h")  # clients need not wait for a health check
    subscription = {"id": "1", "destination": f"/queue/{queue}", "ack": "client-individual"}
    with balancer.running():
        async with Clients(balancer, gateways) as clients:
            (killed, consumer), (other, producer) = (await clients.one_at_each()).items()
            await consumer.ask("SUBSCRIBE", **subscription)
            await producer.ask("SEND", b"order", destination=f"/queue/{queue}")
            await consumer.expect("MESSAGE", b"order")
            killed.child.kill()
            await killed.exit_code(PATIENCE)
            await consumer.closed()
            for _ in range(4):
                consumer, process = await clients.log_in()
                assert process is other
            await consumer.ask("SUBSCRIBE", **subscription)
            message = await consumer.expect("MESSAGE", b"order", redelivered="true")
            await consumer.ask("ACK", id=message["ack"])
            await producer.ask("BEGIN", transaction="t")


async def test_haproxy_gives_a_draining_gateway_no_new_clients(haproxy: LoadBalancer, gateways: GatewayPair) -> None:
    async with Clients(haproxy, gateways) as clients:
        (draining, old), (other, _) = (await clients.one_at_each()).items()
        await gateways.drain(draining, "60s")
        name = f"gateway{gateways.processes.index(draining) + 1}"

        async def log() -> str:
            return haproxy.log()

        await until(log, lambda text: f"Server stomp/{name} is DOWN" in text)
        for _ in range(4):
            _, process = await clients.log_in()
            assert process is other
        await old.ask("BEGIN", transaction="t")


async def test_nginx_gives_a_draining_gateway_no_new_clients(nginx: LoadBalancer, gateways: GatewayPair) -> None:
    async with Clients(nginx, gateways) as clients:
        (draining, old), (other, _) = (await clients.one_at_each()).items()
        await gateways.drain(draining, "0s")
        await old.expect("ERROR", message="Shutting down")
        await old.closed()
        for _ in range(4):
            _, process = await clients.log_in()
            assert process is other


async def test_nginx_prefers_no_gateway_that_reaches_no_broker(nginx: LoadBalancer, gateways: GatewayPair) -> None:
    """It cannot know, so every other client is refused, and gets in when it tries again."""
    await gateways.cut_off(gateways.processes[0])
    answers = []
    async with AsyncExitStack() as clients:
        for _ in range(6):
            client = await clients.enter_async_context(StompClient.dialled(nginx.address(STOMP)))
            client.write("CONNECT", accept_version="1.2", **gateways.login)
            answers.append((await client.receive()).command)
    assert sorted(answers) == ["CONNECTED"] * 3 + ["ERROR"] * 3
