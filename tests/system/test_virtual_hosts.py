"""One gateway, several virtual hosts: each with its own broker, users, limits and topic exchange."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import pytest
import pytest_asyncio
import yaml

from deploy.local.broker import Broker
from gateway import __version__
from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.brokers import private_broker
from tests.support.chaos import ChaosProxy, Direction, chaos
from tests.support.deadline import until, within
from tests.support.gateway import ROOT, Address, gateway_here, upstream
from tests.support.management import PASSCODE, Management
from tests.support.stomp_client import Frame, StompClient, error_text, final_error

pytestmark = pytest.mark.system

NEWS = "news"
"""The topic exchange of the second virtual host."""


def configured(virtual_hosts: dict[str, Any], **changes: object) -> GatewayConfig:
    """A configuration with a default user, and no other setting for all virtual hosts."""
    document = {
        "listeners": [{"tcp": "127.0.0.1:0"}],
        "default_vhost": "first",
        "virtual_hosts": virtual_hosts,
    }
    return parse(yaml.safe_dump(document | changes), directory=ROOT, name="test.yaml", environment={})


async def refused_connect(address: Address, **headers: str) -> tuple[str, str]:
    async with StompClient.dialled(address) as client:
        client.write("CONNECT", accept_version="1.2", **headers)
        return error_text(await client.receive())


# One broker with two virtual hosts.


@pytest_asyncio.fixture
async def proxy(laboratory: Broker) -> AsyncIterator[ChaosProxy]:
    """The proxy between the gateway of ``two_vhosts`` and the laboratory."""
    async with chaos((laboratory.host, laboratory.amqp_port)) as proxy:
        yield proxy


@pytest_asyncio.fixture
async def two_vhosts(proxy: ChaosProxy, management: Management, user: str, vhost: str) -> AsyncIterator[Address]:
    """``first`` is the laboratory's /, for guest; ``second`` a virtual host with a user and settings of its own."""
    await management.forbid(user)
    await management.permit(user, vhost)
    await management.add_exchange(NEWS, "topic", vhost)
    second = {
        "amqp_vhost": vhost,
        "aliases": ["second.example.com", "127.0.0.1"],
        "default_user": {"login": user, "passcode": PASSCODE},
        "default_topic_exchange": NEWS,
        "default_nack_requeue": False,
        "max_frame_size": "1KiB",
        "confirm_window": {"messages": 1, "bytes": "1KiB"},
        "transactions": {"max_open": 1, "max_actions": 2},
        "hide_server_info": True,
        "conformance": "strict",
    }
    config = configured({"first": {"amqp_vhost": "/"}, "second": second}, upstream=upstream(proxy.address))
    async with gateway_here(config) as gateway:
        yield gateway.addresses[0]


async def test_each_virtual_host_has_its_own_users(two_vhosts: Address, user: str, laboratory_plugin: Address) -> None:
    async with within():
        # The machine's names mean the default virtual host, but for those that a virtual host has.
        local = [(host, "guest") for host in ("localhost", "::1", socket.gethostname())]
        named = [("first", "guest"), ("second", user), ("second.example.com", user), ("127.0.0.1", user)]
        for host, login in named + local:
            async with StompClient.logged_in(two_vhosts, host=host) as client:
                # The broker accepts a user-id only from that user.
                await client.ask("SEND", b"", destination="/topic/any", user_id=login)
                await client.disconnect()
        refused = await refused_connect(two_vhosts, host="first", login=user, passcode=PASSCODE)
        assert refused == ("Bad CONNECT", "Virtual host 'first' access denied")
        async with StompClient.logged_in(two_vhosts) as client, StompClient.logged_in(laboratory_plugin) as other:
            # The broker's name and version, and the gateway's as comment.
            assert client.connected["server"] == f"{other.connected['server']} stomp-gateway/{__version__}"
        message, text = await refused_connect(two_vhosts, host="third")
        assert (message, text.splitlines()[0]) == ("Bad CONNECT", "Virtual host 'third' access denied")


async def test_virtual_hosts_share_no_messages(two_vhosts: Address) -> None:
    async with (
        StompClient.logged_in(two_vhosts, host="first") as first,
        StompClient.logged_in(two_vhosts, host="second") as second,
        within(),
    ):
        name = f"same-{secrets.token_hex(4)}"
        for client in (first, second):
            for kind in ("topic", "queue"):
                await client.ask("SUBSCRIBE", id=kind, destination=f"/{kind}/{name}", durable="false")
        for client, body in ((first, b"one"), (second, b"two")):
            for kind in ("topic", "queue"):
                client.write("SEND", body, destination=f"/{kind}/{name}")
                await client.expect("MESSAGE", body, subscription=kind)
        for client in (first, second):
            await client.disconnect()


async def test_each_virtual_host_has_its_own_topic_exchange(two_vhosts: Address) -> None:
    async with within():
        for host, shown in (("first", "/topic/a"), ("second", f"/exchange/{NEWS}/a")):
            async with StompClient.logged_in(two_vhosts, host=host) as client:
                await client.ask("SUBSCRIBE", id="1", destination="/exchange/amq.topic/a")
                client.write("SEND", b"x", destination="/topic/a")
                await client.expect("MESSAGE", b"x", destination=shown)
                await client.disconnect()


async def test_each_virtual_host_has_its_own_limits(two_vhosts: Address) -> None:
    async with (
        StompClient.logged_in(two_vhosts, host="first") as first,
        StompClient.logged_in(two_vhosts, host="second") as second,
        within(),
    ):
        assert "server" not in second.connected.headers
        big = b"x" * 2000
        for identifier in ("a", "b"):
            await first.ask("BEGIN", transaction=identifier)
        await first.ask("SEND", big, destination="/topic/any")
        second.write("SEND", big, destination="/topic/any")
        assert await final_error(second) == ("Malformed frame", "the frame is larger than 1024 octets\n")
        await first.disconnect()
    async with StompClient.logged_in(two_vhosts, host="second") as second, within():
        await second.ask("BEGIN", transaction="a")
        second.write("BEGIN", transaction="b")
        # Strict: every ERROR is the last frame.
        error = await final_error(second)
        assert error == ("Transaction limit exceeded", "Too many concurrent transactions (limit 1)")


async def test_each_virtual_host_has_its_own_window_of_unconfirmed_messages(
    two_vhosts: Address, proxy: ChaosProxy, laboratory: Broker, vhost: str, queue: str
) -> None:
    async with (
        StompClient.logged_in(two_vhosts, host="first") as first,
        StompClient.logged_in(two_vhosts, host="second") as second,
        AmqpBroker.connected(laboratory.amqp_url) as behind_first,
        AmqpBroker.connected(f"{laboratory.amqp_url}{vhost}") as behind_second,
        within(),
    ):
        for client in (first, second):
            await client.ask("SEND", b"", destination=f"/queue/{queue}")
        # From now on no confirm reaches the gateway.
        proxy.stall(Direction.DOWN)
        for client in (second, first):
            for number in range(20):
                client.write("SEND", b"", destination=f"/queue/{queue}", receipt=str(number))
        await until(lambda: behind_first.count(queue), lambda count: count == 21)
        # That came before, over a link of its own.
        await until(lambda: behind_second.count(queue), lambda count: count is not None and count >= 2)
        assert await behind_second.count(queue) == 2
        proxy.release(Direction.DOWN)
        for client in (first, second):
            assert [(await client.expect("RECEIPT"))["receipt-id"] for _ in range(20)] == [*map(str, range(20))]
            await client.disconnect()
        assert await behind_second.count(queue) == 21
        await behind_first.delete_queue(queue)


async def test_each_virtual_host_has_its_own_default_for_nack(two_vhosts: Address) -> None:
    async with within():
        for host in ("first", "second"):
            async with StompClient.logged_in(two_vhosts, host=host) as client:
                queue = f"/queue/nack-{secrets.token_hex(4)}"
                await client.ask(
                    "SUBSCRIBE", id="1", ack="client", prefetch_count="1", destination=queue, exclusive="true"
                )
                client.write("SEND", b"refused", destination=queue)
                client.write("SEND", b"next", destination=queue)
                message = await client.expect("MESSAGE", b"refused", redelivered="false")
                client.write("NACK", id=message["ack"])
                if host == "first":
                    await client.expect("MESSAGE", b"refused", redelivered="true")
                else:
                    await client.expect("MESSAGE", b"next")
                await client.disconnect()


# Two brokers.


@pytest.fixture(scope="module")
def second_broker() -> Iterator[Broker]:
    with private_broker() as broker:
        yield broker


@pytest_asyncio.fixture
async def two_brokers(laboratory: Broker, second_broker: Broker, user: str) -> AsyncIterator[Address]:
    config = configured(
        {
            "first": {"amqp_vhost": "/", "default_user": {"login": user, "passcode": PASSCODE}},
            "second": {"amqp_vhost": "/", "upstream": upstream((second_broker.host, second_broker.amqp_port))},
        },
        upstream=upstream((laboratory.host, laboratory.amqp_port), ride_through=0),
    )
    async with gateway_here(config) as gateway:
        yield gateway.addresses[0]


async def test_each_virtual_host_may_be_on_a_broker_of_its_own(two_brokers: Address, user: str, queue: str) -> None:
    destination = f"/queue/{queue}"
    async with (
        StompClient.logged_in(two_brokers, host="first") as first,
        StompClient.logged_in(two_brokers, host="second") as second,
        within(),
    ):
        # A queue of the same name in a virtual host of the same name, with different properties.
        await first.ask("SUBSCRIBE", id="1", destination=destination)
        await second.ask("SUBSCRIBE", id="1", destination=destination, auto_delete="true")
        for client, body, login in ((first, b"one", user), (second, b"two", "guest")):
            client.write("SEND", body, destination=destination, user_id=login)
            await client.expect("MESSAGE", body, user_id=login)
        # The user of the one broker is not known to the other.
        refused = await refused_connect(two_brokers, host="second", login=user, passcode=PASSCODE)
        assert refused == ("Bad CONNECT", f"Access refused for user '{user}'\n")
        for client in (first, second):
            await client.disconnect()


async def test_a_broker_that_goes_down_ends_only_its_own_sessions(
    two_brokers: Address, second_broker: Broker, queue: str
) -> None:
    async with (
        StompClient.logged_in(two_brokers, host="first") as first,
        StompClient.logged_in(two_brokers, host="second") as second,
        within(120),
    ):
        for client in (first, second):
            await client.ask("SUBSCRIBE", id="1", destination=f"/topic/{queue}")
        await asyncio.to_thread(second_broker.kill)
        try:
            assert (await final_error(second)).message == "connection_forced"
            assert (await refused_connect(two_brokers, host="second"))[0] == "Upstream unavailable"
            # The other virtual host serves its sessions, old and new.
            async with StompClient.logged_in(two_brokers, host="first") as sender:
                await sender.ask("SEND", b"undisturbed", destination=f"/topic/{queue}")
                await first.expect("MESSAGE", b"undisturbed")
                await sender.disconnect()
        finally:
            await asyncio.to_thread(second_broker.start)

        async def answer() -> str:
            async with StompClient.dialled(two_brokers) as client:
                client.write("CONNECT", accept_version="1.2", host="second")
                return (await client.receive()).command

        await until(answer, lambda command: command == "CONNECTED", seconds=60)
        await first.disconnect()


# loopback_users.

ELSEWHERE = b"PROXY TCP4 203.0.113.9 192.0.2.1 40000 61613\r\n"
HERE = b"PROXY TCP4 127.0.0.1 127.0.0.1 40000 61613\r\n"


@pytest_asyncio.fixture
async def proxied(laboratory: Broker, user: str) -> AsyncIterator[Address]:
    """A listener with the PROXY protocol. In the second virtual host guest may log in from anywhere."""
    config = configured(
        {
            "first": {"amqp_vhost": "/"},
            "second": {"amqp_vhost": "/", "loopback_users": []},
            "third": {"amqp_vhost": "/", "loopback_users": ["guest", user]},
        },
        listeners=[{"tcp": "127.0.0.1:0", "proxy_protocol": True}],
        upstream=upstream((laboratory.host, laboratory.amqp_port)),
    )
    async with gateway_here(config) as gateway:
        yield gateway.addresses[0]


@pytest.mark.parametrize(
    ("origin", "host", "is_guest", "is_let_in"),
    [
        (HERE, "first", True, True),
        (ELSEWHERE, "first", True, False),
        (ELSEWHERE, "first", False, True),
        (ELSEWHERE, "second", True, True),
        (HERE, "third", False, True),
        (ELSEWHERE, "third", False, False),
    ],
)
async def test_loopback_users_come_from_this_machine_only(
    proxied: Address, user: str, origin: bytes, host: str, is_guest: bool, is_let_in: bool
) -> None:
    login = {"login": "guest", "passcode": "guest"} if is_guest else {"login": user, "passcode": PASSCODE}
    async with StompClient.dialled(proxied) as client, within():
        client.writer.write(origin)
        client.write("CONNECT", accept_version="1.2", host=host, **login)
        frame: Frame = await client.receive()
        if is_let_in:
            assert frame.command == "CONNECTED"
            return
        assert error_text(frame) == ("Bad CONNECT", "non-loopback access denied")
        # The connection stays open for another login.
        other = (user, PASSCODE) if is_guest else ("guest", "guest")
        await client.connect(host="second", login=other[0], passcode=other[1])
        await client.disconnect()


def own_addresses() -> list[str]:
    """This machine's IPv4 addresses except loopback."""
    found = [each for addresses in psutil.net_if_addrs().values() for each in addresses]
    return [each.address for each in found if each.family == socket.AF_INET and not each.address.startswith("127.")]


async def test_loopback_users_are_recognized_by_the_address_they_dial_from(laboratory: Broker, user: str) -> None:
    if not own_addresses():
        pytest.skip("this machine has no address but the loopback one")
    config = configured(
        {"first": {"amqp_vhost": "/"}},
        listeners=[{"tcp": "0.0.0.0:0"}],
        upstream=upstream((laboratory.host, laboratory.amqp_port)),
    )
    async with gateway_here(config) as gateway, within():
        port = gateway.addresses[0][1]
        # A client that connects to an address of this machine has the same source address.
        outside = (own_addresses()[0], port)
        assert await refused_connect(outside) == ("Bad CONNECT", "non-loopback access denied")
        async with StompClient.logged_in(outside, login=user, passcode=PASSCODE) as client:
            await client.disconnect()
        async with StompClient.logged_in(("127.0.0.1", port)) as client:
            await client.disconnect()
