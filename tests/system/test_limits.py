"""Limits per user and address: sessions beyond them are refused, traffic beyond them waits and is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config.model import GatewayConfig
from gateway.parity.amqp_broker import AmqpBroker
from gateway.server.process.gateway import Gateway
from gateway.session.context import Hold
from tests.support.deadline import within
from tests.support.gateway import Address, gateway_here, parsed
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system


@asynccontextmanager
async def limited(broker_url: str, **limits: Any) -> AsyncIterator[tuple[Gateway, Address]]:  # noqa: ANN401 - YAML
    """A gateway with the PROXY protocol, so that clients have any address. The virtual host `other` has no limits."""
    async with gateway_here(limiting(broker_url, limits)) as gateway:
        yield gateway, gateway.addresses[0]


def limiting(broker_url: str, limits: dict[str, Any]) -> GatewayConfig:
    """The configuration of ``limited``."""
    return parsed(
        broker_url,
        {"loopback_users": [], "journal": {"level": "off"}},
        listeners=[{"tcp": "127.0.0.1:0", "proxy_protocol": True}],
        virtual_hosts={"/": {"limits": limits}, "other": {"amqp_vhost": "/"}},
    )


def proxy_header(host: str) -> bytes:
    """The PROXY header for a client at an address."""
    family = "TCP6" if ":" in host else "TCP4"
    return f"PROXY {family} {host} {host} 1000 61613\r\n".encode()


def holds(gateway: Gateway, virtual_host: str) -> int:
    """How often the rate limit held a session of a virtual host."""
    return gateway.stats.host(virtual_host).holds[Hold.RATE_LIMIT.value]


async def gone(gateway: Gateway, sessions: int) -> None:
    """Wait until the gateway has noticed that clients have left."""
    while gateway.limits.sessions("/") > sessions:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0.01)


async def held(gateway: Gateway, sessions: int) -> None:
    """Wait until the rate limit holds so many sessions."""
    while sum(Hold.RATE_LIMIT in each.session.holds for each in gateway.clients) < sessions:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)


async def refused(address: Address, preface: bytes = b"") -> str:
    """Log in beyond the limit, and return the body of the ERROR."""
    async with StompClient.dialled(address, preface=preface or proxy_header("192.0.2.99")) as client:
        client.write("CONNECT", accept_version="1.2", receipt="c")
        frame = await client.expect("ERROR", message="Session limit reached", receipt_id="c")
        await client.closed()
        return frame.body.decode()


async def test_one_session_too_many(broker_url: str) -> None:
    tail = " has 2 sessions, as many as are allowed; close one, or try again later.\n"
    async with limited(broker_url, user={"sessions": 2}) as (gateway, address), within():
        async with (
            StompClient.logged_in(address, preface=proxy_header("192.0.2.1")) as first,
            StompClient.logged_in(address, preface=proxy_header("192.0.2.2")) as second,
            StompClient.logged_in(address, preface=proxy_header("192.0.2.2"), host="other") as other,
        ):
            assert await refused(address) == "The user 'guest'" + tail
            # Open sessions are not disturbed, and as soon as one ends, another may log in.
            await second.ask("SEND", destination="/topic/t")
            await first.disconnect()
            async with StompClient.logged_in(address, preface=proxy_header("192.0.2.3")) as third:
                await refused(address)
                await third.disconnect()
            second.hang_up()
            await gone(gateway, 0)
            await other.disconnect()
        async with StompClient.logged_in(address, preface=proxy_header("192.0.2.1")):
            assert gateway.limits.sessions("/", login="guest") == 1


async def test_one_session_too_many_from_an_address(broker_url: str) -> None:
    async with limited(broker_url, address={"sessions": 1}) as (_, address), within():
        async with (
            StompClient.logged_in(address, preface=proxy_header("2001:db8:0:1::1")),
            StompClient.logged_in(address, preface=proxy_header("2001:db8:0:2::1")),
            StompClient.logged_in(address, preface=proxy_header("192.0.2.1")),
        ):
            assert (await refused(address, proxy_header("2001:db8:0:1::2"))).startswith(
                "The address 2001:db8:0:1::/64 has"
            )
            assert (await refused(address, proxy_header("192.0.2.1"))).startswith(
                "The address 192.0.2.1 has 1 sessions"
            )


async def test_a_login_that_fails_does_not_count_as_a_session(broker_url: str) -> None:
    async with limited(broker_url, sessions=1) as (gateway, address), within():
        async with StompClient.dialled(address, preface=proxy_header("192.0.2.1")) as client:
            client.write("CONNECT", accept_version="1.2", passcode="wrong")
            await client.expect("ERROR", message="Bad CONNECT")
            client.write("CONNECT", accept_version="1.2", heart_beat="senseless")
            await client.expect("ERROR", message="Processing error")
            assert gateway.limits.sessions("/") == 0
            await client.connect()
            assert await refused(address) == (
                "The virtual host '/' has 1 sessions, as many as are allowed; close one, or try again later.\n"
            )


async def test_sessions_of_one_user_share_a_rate_and_lose_nothing(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    """Two sessions share 500 messages per second; the session in another virtual host does not wait."""
    user = {"messages_per_second": 500, "burst": "10ms"}
    async with limited(broker_url, user=user) as (gateway, address), within():
        async with (
            StompClient.logged_in(address, preface=proxy_header("192.0.2.1"), heart_beat="1000,1000") as first,
            StompClient.logged_in(address, preface=proxy_header("192.0.2.2")) as second,
            StompClient.logged_in(address, preface=proxy_header("192.0.2.3"), host="other") as other,
        ):
            await first.ask("SEND", b"", destination=f"/queue/{queue}")
            senders = [first, second, other]
            for client in senders:
                many = [encoded("SEND", destination=f"/amq/queue/{queue}", receipt=f"{n}") for n in range(100)]
                client.writer.write(b"".join(many))
            for client in senders:
                receipts = [(await client.expect("RECEIPT"))["receipt-id"] for _ in range(100)]
                assert sorted(map(int, receipts)) == list(range(100))
            for client in senders:
                await client.disconnect()
        assert holds(gateway, "/") > 1
        assert holds(gateway, "other") == 0
    assert await amqp.count(queue) == 1 + 300


async def test_bytes_count_for_the_rate_and_a_held_client_may_disconnect(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    address_limit = {"bytes_per_second": "1MiB", "burst": "10ms"}
    async with limited(broker_url, address=address_limit) as (gateway, address), within():
        async with StompClient.logged_in(address, preface=proxy_header("192.0.2.1")) as client:
            await client.ask("SEND", b"x" * 300_000, destination=f"/queue/{queue}")
            assert holds(gateway, "/") > 0
            client.write("SEND", b"x" * 300_000, destination=f"/queue/{queue}")
            await client.disconnect()
        async with StompClient.logged_in(address, preface=proxy_header("192.0.2.2")) as client:
            client.write("SEND", b"x" * 300_000, destination=f"/queue/{queue}")
            client.half_close()
            await client.closed()
    assert await amqp.count(queue) == 3


async def test_a_rate_holds_every_session_of_a_user_but_not_a_gateway_that_stops(
    broker_url: str,
) -> None:
    async with (
        within(),
        # CONNECT alone uses up the rate for a minute.
        limited(broker_url, user={"bytes_per_second": "1B", "burst": "1s"}) as (gateway, address),
        StompClient.dialled(address, preface=proxy_header("192.0.2.1")) as first,
        StompClient.dialled(address, preface=proxy_header("192.0.2.2")) as second,
    ):
        for client in (first, second):
            # What was read together with CONNECT is processed once the session is no longer held.
            send = encoded("SEND", destination="/topic/t", receipt="r")
            client.writer.write(encoded("CONNECT", accept_version="1.2") + send)
            await client.expect("CONNECTED")
        await held(gateway, 2)
        stopping = asyncio.ensure_future(gateway.stop())
        for client in (first, second):
            await client.expect("RECEIPT", receipt_id="r")
            await client.expect("ERROR", b"The gateway is stopping; connect again.\n", message="Shutting down")
            client.hang_up()
        await stopping


async def test_a_rate_that_a_reload_adds_or_takes_away_is_for_new_sessions(broker_url: str) -> None:
    slow = {"user": {"bytes_per_second": "1B", "burst": "1s"}}
    async with (
        within(),
        limited(broker_url) as (gateway, address),
        StompClient.logged_in(address, preface=proxy_header("192.0.2.1")) as free,
    ):
        await gateway.apply(limiting(broker_url, slow))
        async with StompClient.logged_in(address, preface=proxy_header("192.0.2.2")):
            await held(gateway, 1)
            await free.ask("SEND", destination="/topic/t")
            await gateway.apply(limiting(broker_url, {}))
            async with StompClient.logged_in(address, preface=proxy_header("192.0.2.3")) as freed:
                await freed.ask("SEND", destination="/topic/t")
                await freed.disconnect()
            await held(gateway, 1)
        assert holds(gateway, "/") == 1
        await free.disconnect()
