"""The gateway's own work beside its sessions."""

from __future__ import annotations

import asyncio

import pytest

from gateway.config.loader import parse
from gateway.server.client.connection import ClientConnection
from tests.support.deadline import within
from tests.support.gateway import gateway_here
from tests.support.stomp_client import StompClient


async def test_a_fault_at_a_deadline_ends_one_session_and_not_the_deadlines_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[ClientConnection] = []
    time_passed = ClientConnection.time_passed

    def fail_for_the_first(client: ClientConnection, now: float) -> None:
        checked.append(client)
        if client is checked[0]:
            raise RuntimeError("a fault")
        time_passed(client, now)

    monkeypatch.setattr(ClientConnection, "time_passed", fail_for_the_first)
    config = parse(
        "{listeners: [{tcp: '127.0.0.1:0', login_timeout: 500ms}], defaults: {journal: {level: off}}}", environment={}
    )
    async with gateway_here(config) as gateway, within():
        (address,) = gateway.addresses
        async with StompClient.dialled(address) as one, StompClient.dialled(address) as other:
            errors = await asyncio.gather(one.expect("ERROR"), other.expect("ERROR"))
    assert sorted(error.headers["message"] for error in errors) == ["Login timeout", "Processing error"]


async def test_deadlines_hold_while_sessions_wait_for_their_turn_in_a_drain_of_half_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spreads: list[float] = []
    checked = asyncio.Event()

    async def wait_for_a_check(clients: object, spread: float) -> None:
        spreads.append(spread)
        if len(spreads) == 1:
            checked.clear()
            await checked.wait()

    monkeypatch.setattr("gateway.server.process.gateway.drain_clients", wait_for_a_check)
    monkeypatch.setattr(ClientConnection, "time_passed", lambda client, now: checked.set())
    config = parse(
        "{listeners: [{tcp: '127.0.0.1:0'}], defaults: {journal: {level: off}}, drain_timeout: 4s}", environment={}
    )
    async with within(), gateway_here(config) as gateway:
        (address,) = gateway.addresses
        async with StompClient.dialled(address):
            await checked.wait()
            await gateway.stop()
    assert spreads[0] == 2.0
