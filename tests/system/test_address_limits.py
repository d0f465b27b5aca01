"""Addresses that may not connect, by networks and after failed logins, at all listeners and workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support.admin import AdminClient
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, listening
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

WITHOUT_A_NAME = b"PROXY UNKNOWN\r\n"
LOCK_OUT = {"delay": 0, "per_login": 2, "lock_out_after": 4, "lock_out_for": "1h", "lock_out_except": []}

# So many connections are all with one of two workers once in 500 times.
MANY = 10


@pytest.fixture(scope="module")
def document(broker_url: str) -> dict[str, Any]:
    listener = {"proxy_protocol": True, "trusted_proxies": ["127.0.0.1"]}
    return configuration(
        broker_url,
        {"loopback_users": []},
        listeners=[{"tcp": "127.0.0.1:0", **listener}, {"websocket": "127.0.0.1:0", **listener}],
        failed_logins=LOCK_OUT,
        admin="127.0.0.1:0",
        workers=2,
    )


@pytest.fixture(scope="module")
def process(document: dict[str, Any]) -> Iterator[GatewayProcess]:
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


def _from(host: str) -> bytes:
    return f"PROXY TCP4 {host} 10.2.2.2 1000 2000\r\n".encode()


async def _assert_closed(address: Address, host: str) -> None:
    """A connection of this client is closed, without an answer to what it sends."""
    async with StompClient.dialled(address, preface=_from(host)) as client:
        client.write("CONNECT", accept_version="1.2")
        await client.closed()


@asynccontextmanager
async def _logged_in(process: GatewayProcess, preface: bytes) -> AsyncIterator[StompClient]:
    async with StompClient.logged_in(process.address, preface=preface) as client:
        yield client


async def _refusal(process: GatewayProcess, preface: bytes) -> str:
    """The answer to a wrong passcode."""
    async with StompClient.dialled(process.address, preface=preface) as client:
        client.write("CONNECT", accept_version="1.2", login="nobody", passcode="wrong")
        return (await client.receive()).headers["message"]


async def _until_refused(process: GatewayProcess, limit: str, count: int) -> None:
    """Wait until so many connections are counted: a worker that has not answered in time is left out for a while."""
    await process.until_logged("admin listening")
    admin = AdminClient(process.admin)
    key = "stomp_gateway_connections_refused_total", frozenset({("limit", limit)})
    await until(admin.samples, lambda samples: samples.get(key) == count)


def _reasons(process: GatewayProcess, host: str) -> set[str]:
    """Why connections of this client were refused, as the log says."""
    return {line["reason"] for line in process.logged("connection refused") if line["peer"] == f"{host}:1000"}


async def test_who_fails_to_log_in_is_locked_out_by_all_workers_and_listeners_and_nobody_else(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    here, there = "10.1.1.1", "10.1.1.2"
    await process.until_logged("workers started")
    async with within(2 * PATIENCE), _logged_in(process, _from(here)) as early:
        answers = [await _refusal(process, _from(here)) for _ in range(4)]
        assert answers == ["Bad CONNECT"] * 2 + ["Too many failed logins"] * 2
        for _ in range(MANY):
            await _assert_closed(process.address, here)
        (other,) = set(listening(process, 4)) - {process.address}
        await _assert_closed(other, here)
        # Who is connected goes on; other addresses are not concerned, nor the proxy.
        await early.ask("SEND", b"x", destination="/topic/lock-outs")
        for preface in (_from(there), WITHOUT_A_NAME):
            async with _logged_in(process, preface):
                pass
        (line,) = process.logged("address locked out")
        assert (line["client"], line["failed"], line["seconds"]) == (here, 4, 3600)
        assert _reasons(process, here) == {"too many logins from this address have failed"}
        await _until_refused(process, "locked-out", MANY + 1)
        admin = AdminClient(process.admin)
        await until(
            lambda: admin.json("/api/overview"),
            lambda overview: overview["connections_refused"].get("locked-out") == MANY + 1,
        )
        await process.reload({**document, "failed_logins": LOCK_OUT | {"lock_out_after": None}})
        for _ in range(MANY):
            async with _logged_in(process, _from(here)):
                pass
        await process.reload(document)


async def test_a_proxy_that_does_not_name_its_clients_is_not_locked_out(process: GatewayProcess) -> None:
    before = len(process.logged("address locked out"))
    async with within(2 * PATIENCE):
        for _ in range(8):
            assert await _refusal(process, WITHOUT_A_NAME) in ("Bad CONNECT", "Too many failed logins")
        async with _logged_in(process, WITHOUT_A_NAME):
            pass
    assert len(process.logged("address locked out")) == before


async def test_networks_are_denied_from_a_reload_on(process: GatewayProcess, document: dict[str, Any]) -> None:
    listeners = [{**each, "denied_networks": ["10.66.0.0/16"]} for each in document["listeners"]]
    denied, other = "10.66.1.1", "10.67.1.1"
    async with within(2 * PATIENCE), _logged_in(process, _from(denied)) as early:
        await process.reload({**document, "listeners": listeners})
        for _ in range(MANY):
            await _assert_closed(process.address, denied)
        async with _logged_in(process, _from(other)):
            pass
        await early.ask("SEND", b"x", destination="/topic/networks")
        await _until_refused(process, "network", MANY)
        assert _reasons(process, denied) == {"the address is in denied_networks"}
        await process.reload(document)
