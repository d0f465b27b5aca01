"""Several brokers of a virtual host: a healthy one serves the clients, whatever is wrong with the others.

The limits of these tests are far above what a client waits, and `connect_timeout` is far above these limits. So no test
succeeds after a broker's time has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.config.model import GatewayConfig
from gateway.server.broker import dialer
from gateway.server.broker.broker_state import Circuit
from gateway.server.process.gateway import Gateway
from tests.support import one_by_one
from tests.support.chaos import ChaosProxy, Direction, chaos
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

_HANGING_NAME = "rabbit-whose-name-server-hangs.test"
_NEVER = "1h"


def url(address: tuple[str, int], scheme: str = "amqp") -> str:
    return f"{scheme}://{address[0]}:{address[1]}"


def config(broker: Broker, *others: str, links: str = "shared", connect_timeout: str = _NEVER) -> GatewayConfig:
    """A gateway whose healthy broker comes after others."""
    urls = [*others, url((broker.host, broker.amqp_port))]
    return parsed(broker.amqp_url, {"links": links}, upstream={"urls": urls, "connect_timeout": connect_timeout})


def circuits(gateway: Gateway) -> list[Circuit]:
    return gateway.pool.dialer.circuits(gateway.config.upstream)


async def exchange(gateway: Gateway) -> None:
    """A client's conversation from CONNECT to DISCONNECT."""
    topic = f"/topic/{secrets.token_hex(6)}"
    async with StompClient.logged_in(gateway.addresses[0]) as client:
        await client.ask("SUBSCRIBE", id="a", destination=topic)
        client.write("SEND", b"x", destination=topic)
        assert (await client.expect("MESSAGE")).body == b"x"
        await client.disconnect()


@contextlib.contextmanager
def silent() -> Iterator[tuple[str, int]]:
    """Whoever connects here gets no byte."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        host, port = listening.getsockname()
        yield host, port


@pytest.fixture
def hanging_name(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every lookup of one name hangs."""
    found, end = socket.getaddrinfo, threading.Event()

    def getaddrinfo(host: str, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - as the function has
        if host == _HANGING_NAME and not more.get("flags"):
            end.wait()
        return found(host, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    end.set()


@pytest.mark.parametrize("fault", ["closed", "silent", "tls", "name", "full", "all"])
async def test_a_healthy_broker_is_reached_whatever_the_others_do(
    broker: Broker, hanging_name: None, fault: str
) -> None:
    [nobody] = free_ports(1)
    with silent() as address, full() as unanswered:
        faults = {
            "closed": url(("127.0.0.1", nobody)),
            "silent": url(address),
            "tls": url(address, "amqps"),
            "name": f"amqp://{_HANGING_NAME}",
            "full": url(unanswered),
        }
        others = list(faults.values()) if fault == "all" else [faults[fault]]
        async with gateway_here(config(broker, *others)) as gateway, within():
            await exchange(gateway)


@contextlib.contextmanager
def full() -> Iterator[tuple[str, int]]:
    """Nobody accepts connections here, and the queue for them is full: TCP itself is silent."""
    with socket.socket() as listening, contextlib.ExitStack() as stack:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        host, port = listening.getsockname()
        yield host, port


async def test_many_clients_that_log_in_while_a_name_server_hangs(broker: Broker, hanging_name: None) -> None:
    """More than the event loop has threads for lookups; and the healthy broker has a name too."""
    names = [f"amqp://{_HANGING_NAME}:{port}" for port in range(1, 9)]
    healthy = f"amqp://localhost:{broker.amqp_port}"
    upstream = {"urls": [*names, healthy], "connect_timeout": _NEVER}
    document = parsed(broker.amqp_url, {"links": "dedicated"}, upstream=upstream)
    async with gateway_here(document) as gateway, within():
        await asyncio.gather(*(exchange(gateway) for _ in range(20)))


def wait_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a broker is dialled only if the one before it has failed."""
    for name, seconds in one_by_one.CONSTANTS.items():
        monkeypatch.setattr(dialer, name, seconds)


async def test_a_dead_broker_is_not_dialled_first_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)
    async with chaos(("127.0.0.1", free_ports(1)[0])) as resetting:
        async with gateway_here(config(broker, url(resetting.address), links="dedicated")) as gateway, within():
            await exchange(gateway)
            dead = circuits(gateway)[0]
            assert dead.is_open
            assert resetting.accepted == 1
            # As if it had failed several times: it is not tried again during this test.
            for _ in range(6):
                dead.failed(dead.reason, asyncio.get_running_loop().time(), is_trial=True)
            await exchange(gateway)
            assert resetting.accepted == 1


async def test_a_broker_that_is_late_is_not_dialled_first_while_others_answer(
    broker: Broker, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.stall(Direction.DOWN)
    async with gateway_here(config(broker, url(proxy.address), links="dedicated")) as gateway, within():
        await exchange(gateway)
        assert circuits(gateway)[0].is_late
        dialled = proxy.accepted
        wait_for_each(monkeypatch)
        await exchange(gateway)
        assert proxy.accepted == dialled


async def test_a_broker_that_answered_too_late_is_closed_in_order_and_trusted_again(
    broker: Broker, proxy: ChaosProxy
) -> None:
    proxy.stall(Direction.DOWN)
    document = config(broker, url(proxy.address), links="dedicated")
    async with gateway_here(document) as gateway, within():
        await exchange(gateway)
        proxy.release(Direction.DOWN)
        await until(lambda: asyncio.sleep(0, circuits(gateway)[0].is_late), lambda late: not late)
        await until(lambda: asyncio.sleep(0, proxy.connections), lambda open_ones: open_ones == 0)
        before = proxy.accepted
        await exchange(gateway)
        assert proxy.accepted > before


async def test_a_refused_login_is_the_answer_of_all_brokers_and_no_fault_of_one(
    own_broker: Broker, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_each(monkeypatch)
    async with chaos((own_broker.host, own_broker.amqp_port)) as second:
        urls = [url(proxy.address), url(second.address)]
        async with gateway_here(parsed(own_broker.amqp_url, upstream={"urls": urls})) as gateway, within():
            async with StompClient.dialled(gateway.addresses[0]) as client:
                client.write("CONNECT", accept_version="1.2", login="guest", passcode="wrong")
                await client.expect("ERROR", message="Bad CONNECT")
            assert (proxy.accepted, second.accepted) == (1, 0)
            assert not any(circuit.is_open for circuit in circuits(gateway))


async def test_another_refusal_is_asked_of_the_other_brokers_too(
    own_broker: Broker, proxy: ChaosProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual host that one node does not have, or does not have yet."""
    wait_for_each(monkeypatch)
    async with chaos((own_broker.host, own_broker.amqp_port)) as second:
        urls = [url(proxy.address), url(second.address)]
        hosts = {"nowhere": {"amqp_vhost": "no-such-virtual-host"}}
        document = parsed(own_broker.amqp_url, upstream={"urls": urls}, virtual_hosts=hosts, default_vhost="nowhere")
        async with gateway_here(document) as gateway, within():
            async with StompClient.dialled(gateway.addresses[0]) as client:
                client.write("CONNECT", accept_version="1.2")
                await client.expect("ERROR", message="Bad CONNECT")
            assert (proxy.accepted, second.accepted) == (1, 1)
            assert not any(circuit.is_open for circuit in circuits(gateway))


async def test_shuffled_brokers_all_get_links(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_each(monkeypatch)
    async with contextlib.AsyncExitStack() as stack:
        address = broker.host, broker.amqp_port
        proxies = [await stack.enter_async_context(chaos(address)) for _ in range(2)]
        upstream = {"urls": [url(proxy.address) for proxy in proxies], "order": "shuffle", "connect_timeout": _NEVER}
        document = parsed(broker.amqp_url, {"links": "dedicated"}, upstream=upstream)
        async with gateway_here(document) as gateway, within():
            while not all(proxy.accepted for proxy in proxies):
                await exchange(gateway)


async def test_when_all_brokers_are_dead_the_next_client_still_asks_them(broker: Broker, proxy: ChaosProxy) -> None:
    """No client is refused because of what is remembered."""
    proxy.cut_after(5, Direction.DOWN)
    upstream = {"urls": [url(proxy.address)], "connect_timeout": _NEVER, "ride_through": 0}
    async with gateway_here(parsed(broker.amqp_url, upstream=upstream)) as gateway, within():
        async with StompClient.dialled(gateway.addresses[0]) as client:
            client.write("CONNECT", accept_version="1.2")
            await client.expect("ERROR", message="Upstream unavailable")
        assert circuits(gateway)[0].is_open
        await exchange(gateway)
        assert not circuits(gateway)[0].is_open
