"""The gateway's own work beside its sessions."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from deploy.local.ports import free_ports
from gateway.config.loader import parse
from gateway.errors import JournalError
from gateway.message_selectors import selector_parser
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


_FILE = "listeners: [{{tcp: '127.0.0.1:0'}}{listeners}]\ndefaults: {{journal: {journal}}}\n"
_OFF = "{level: off}"


async def test_a_stop_during_a_reload_leaves_no_listener_and_no_journal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name of the last listener's address is looked up for ever."""
    loop, is_asked, [port] = asyncio.get_running_loop(), asyncio.Event(), free_ports(1)
    lookup = loop.getaddrinfo

    async def hang(host: str, *args: Any, **options: Any) -> list[Any]:  # noqa: ANN401 - as the loop's own
        if host == "slow.example":
            is_asked.set()
            await asyncio.Event().wait()
        return await lookup(host, *args, **options)

    monkeypatch.setattr(loop, "getaddrinfo", hang)
    listeners = f", {{tcp: '127.0.0.1:{port}'}}, {{tcp: 'slow.example:1'}}"
    before = parse(_FILE.format(listeners="", journal=_OFF), environment={})
    after = parse(_FILE.format(listeners=listeners, journal=f"{{directory: {tmp_path}/a/b}}"), environment={})
    async with within(), gateway_here(before) as gateway:
        reload = asyncio.create_task(gateway.apply(after))
        await is_asked.wait()
        reload.cancel()
        await asyncio.wait([reload])
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert os.listdir(tmp_path) == []
        assert gateway.config is before


async def test_a_journal_that_cannot_be_opened_leaves_nothing_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    before = parse(_FILE.format(listeners="", journal=_OFF), environment={})
    hosts = f"virtual_hosts: {{/: {{}}, bad: {{journal: {{directory: {tmp_path}/file/journal}}}}}}"
    after = parse(_FILE.format(listeners="", journal=f"{{directory: {tmp_path}/a/b}}") + hosts, environment={})
    async with within(), gateway_here(before) as gateway:
        with pytest.raises(JournalError, match="Not a directory"):
            await gateway.apply(after)
        assert os.listdir(tmp_path) == ["file"]
        assert not gateway.journal.is_on


@pytest.mark.parametrize("virtual_hosts", ["{/: {selectors: true}}", "{'*': {selectors: true}}"])
async def test_what_reads_selectors_is_loaded_with_a_configuration_that_has_them(virtual_hosts: str) -> None:
    """And only then. It takes a tenth of a second, which would be everybody's amid the first SUBSCRIBE."""
    parsers = selector_parser.grammar
    parsers.cache_clear()
    without = parse(_FILE.format(listeners="", journal=_OFF), environment={})
    with_selectors = parse(
        _FILE.format(listeners="", journal=_OFF) + f"virtual_hosts: {virtual_hosts}\n", environment={}
    )
    async with within(), gateway_here(without) as gateway:
        assert parsers.cache_info().currsize == 0
        await gateway.apply(with_selectors)
        assert parsers.cache_info().currsize == 2
    parsers.cache_clear()
    async with within(), gateway_here(with_selectors):
        assert parsers.cache_info().currsize == 2
