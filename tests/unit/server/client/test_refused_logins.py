"""A login that is refused is one line in the log, with its login, its virtual host and the reason."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock

import pytest
import structlog

from gateway.config.virtual_host import Upstream, VirtualHost
from gateway.server.broker.broker_errors import UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.connection import ClientConnection
from tests.support.deadline import until
from tests.support.stomp_client import encoded
from tests.unit.server.client.test_connection import Connections, Wire

ORDERS = VirtualHost(name="orders", upstream=Upstream(ride_through=0))
WORDS = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN."


@pytest.fixture(autouse=True)
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker refuses every login."""

    async def log_in(*_: object) -> LoginLinks:
        raise UpstreamError(403, WORDS)

    monkeypatch.setattr(LinkPool, "log_in", log_in)


async def answered(client: ClientConnection, wire: Wire, frame: bytes) -> None:
    """The client sends a frame, and has the ERROR for it."""
    errors = wire.written.count(b"ERROR\n")
    client.data_received(frame)

    async def count() -> int:
        return wire.written.count(b"ERROR\n") - errors

    await until(count, lambda more: more == 1)


def connect(**headers: str) -> bytes:
    return encoded("CONNECT", accept_version="1.2", **headers)


async def lines_of(connections: Connections, *frames: bytes, ends: str = "timeout") -> list[dict[str, Any]]:
    """What is logged about a client that sends these, each behind the answer to the last, and stays or goes."""
    client, wire = connections.accept(connections.clock.now)
    with structlog.testing.capture_logs() as lines:
        for frame in frames:
            await answered(client, wire, frame)
        if ends == "timeout":
            connections.clock.now += 11
            client.time_passed(connections.clock.now)
            assert b"message:Login timeout" in wire.written
        client.connection_lost(None)
    return [dict(line) for line in lines if line["log_level"] != "debug"]


@pytest.mark.parametrize("ends", ["timeout", "leaves"])
async def test_the_brokers_refusal_is_one_line_however_the_client_ends(ends: str) -> None:
    frame = connect(host="stomp.example.org", login="anna", passcode="wrong")
    (line,) = await lines_of(Connections(virtual_host=ORDERS), frame, ends=ends)
    assert (line["event"], line["log_level"], line["reason"]) == ("login refused", "info", WORDS)
    assert (line["virtual_host"], line["login"], line["peer"]) == ("orders", "anna", "10.1.1.1:1000")
    assert line["session"].startswith("session-")
    assert "wrong" not in str(line)


@pytest.mark.parametrize(
    ("settings", "headers", "login", "reason"),
    [
        ({"loopback_users": (b"anna",)}, {"login": "anna", "passcode": "x"}, "anna", "non-loopback access denied"),
        ({"default_user": None}, {}, None, "Missing login or passcode header(s)"),
        ({"default_user": None}, {"login": "anna"}, "anna", "CONNECT has a login and no passcode"),
        ({}, {"login": "anna", "passcode": ""}, "anna", "login or passcode is empty or not UTF-8"),
    ],
    ids=["loopback", "nobody", "no passcode", "empty"],
)
async def test_so_is_the_gateways_own(
    settings: dict[str, Any],
    headers: dict[str, str],
    login: str | None,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def log_in(*_: object) -> LoginLinks:
        return LoginLinks(ORDERS, Credentials("anna", "x"), AsyncMock())

    monkeypatch.setattr(LinkPool, "log_in", log_in)
    connections = Connections(virtual_host=ORDERS.model_copy(update=settings))
    (line,) = await lines_of(connections, connect(**headers))
    assert (line["event"], line["log_level"]) == ("login refused", "info")
    assert (line["virtual_host"], line["login"], line["reason"]) == ("orders", login, reason)


@pytest.mark.parametrize(
    ("host", "level", "shown"),
    [("stomp.example.org", "warning", "stomp.example.org"), ("h" * 300, "info", "h" * 100), ("", "info", "")],
    ids=["a name", "no name of a virtual host", "empty"],
)
async def test_an_unknown_virtual_host_is_a_warning_that_says_what_to_do(host: str, level: str, shown: str) -> None:
    (line,) = await lines_of(Connections(), connect(host=host, login="anna", passcode="wrong"))
    assert (line["event"], line["log_level"]) == ("login refused", level)
    assert (line["virtual_host"], line["login"]) == (shown, "anna")
    assert line["reason"].startswith(f"Virtual host '{host[:200]}")
    assert ("add it to aliases" in line.get("hint", "")) is (level == "warning")


async def test_so_is_a_refusal_that_closes() -> None:
    strict = ORDERS.model_copy(update={"conformance": "strict"})
    for frame in (connect(login="anna", passcode="x"), connect(login="anna", passcode="")):
        lines = await lines_of(Connections(virtual_host=strict), frame, ends="closed")
        assert [line["event"] for line in lines] == ["login refused"]


async def test_a_long_login_that_is_refused_is_a_short_line() -> None:
    (line,) = await lines_of(Connections(virtual_host=ORDERS), connect(login="a" * 50_000, passcode="b"))
    assert line["login"] == "a" * 100


async def test_each_answer_of_the_broker_has_its_line_and_what_the_gateway_repeats_has_one() -> None:
    asked = connect(login="anna", passcode="wrong")
    lines = await lines_of(Connections(virtual_host=ORDERS), asked, asked)
    assert [line["event"] for line in lines] == ["login refused"] * 2
    unasked = connect(host="nowhere")
    lines = await lines_of(Connections(), unasked, unasked, unasked)
    assert [line["event"] for line in lines] == ["login refused", "session ended"]
    assert lines[-1]["errors_left_out"] == 2


async def test_each_login_that_the_gateway_refuses_has_its_line() -> None:
    asked = [connect(host="nowhere", login="anna"), connect(host="nowhere", login="bert"), connect(host="elsewhere")]
    lines = await lines_of(Connections(), *asked, asked[0])
    assert [(line.get("virtual_host"), line.get("login")) for line in lines[:-1]] == [
        ("nowhere", "anna"), ("nowhere", "bert"), ("elsewhere", None),
    ]  # fmt: skip
    assert (lines[-1]["event"], lines[-1]["errors_left_out"]) == ("session ended", 1)


async def test_a_line_feed_in_a_name_does_not_end_the_reason() -> None:
    host, login = "a\nevil level=error", "anna\nbert"
    (line,) = await lines_of(Connections(), connect(host=host, login="anna"))
    assert line["reason"] == f"Virtual host '{host}' access denied"
    settings = ORDERS.model_copy(update={"default_user": None})
    (line,) = await lines_of(Connections(virtual_host=settings), connect(login=login))
    assert line["login"] == login


async def test_a_fault_of_another_kind_is_told_after_a_refusal_too() -> None:
    lines = await lines_of(Connections(), connect(host="nowhere"), b"SEND\n\n\0")
    assert [line["event"] for line in lines] == ["login refused", "error sent"]
