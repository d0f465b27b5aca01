"""Unix-domain listeners as users run them: clients, proxies, browsers' proxies and operators, with several workers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.errors import ExitCode
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import Frame, StompClient
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

OWN = f"unix:pid={os.getpid()},uid={os.getuid()},gid={os.getgid()}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the sockets, and of a certificate for one of them."""
    made = tmp_path_factory.mktemp("sockets")
    Authority.make(made, "authority").sign(made, "gateway")
    return made


@pytest.fixture(scope="module")
def document(broker_url: str, directory: Path) -> dict[str, Any]:
    tls = {"cert_file": str(directory / "gateway.pem"), "key_file": str(directory / "gateway.key")}
    listeners: list[dict[str, Any]] = [
        {"tcp": "127.0.0.1:0"},
        {"unix": str(directory / "plain")},
        {"unix": str(directory / "tls"), "tls": tls},
        {"unix": str(directory / "proxy"), "proxy_protocol": True},
        {"unix": str(directory / "named"), "proxy_protocol": True, "allowed_networks": ["127.0.0.0/8"]},
        {"websocket": f"unix:{directory}/websocket"},
    ]
    admin = {"address": f"unix:{directory}/admin", "socket_mode": "0600"}
    return configuration(broker_url, listeners=listeners, admin=admin, workers=2)


@pytest.fixture(scope="module")
def gateway(document: dict[str, Any]) -> Iterator[GatewayProcess]:
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


async def sessions(gateway: GatewayProcess, directory: Path, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """What `stomp-gateway sessions` shows over the admin listener's own socket."""
    await gateway.until_logged("admin listening")
    command = ["sessions", "--json", "--url", f"unix:{directory}/admin"]
    assert await asyncio.to_thread(main, command) == ExitCode.OK
    found: list[Any] = json.loads(capsys.readouterr().out)
    return found


async def peer_in_log(gateway: GatewayProcess, connected: Frame) -> str:
    """Who a client is in the log line of its login."""

    async def lines() -> list[str]:
        started = gateway.logged("session started")
        return [line["peer"] for line in started if line["session"] == connected["session"]]

    (peer,) = await until(lines, bool)
    return peer


async def test_a_client_is_its_process_in_the_log_and_for_operators(
    gateway: GatewayProcess, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # It logs in as guest, who has to be on this machine.
    async with within(), StompClient.logged_in(directory / "plain") as client:
        assert await peer_in_log(gateway, client.connected) == OWN
        found = await sessions(gateway, directory, capsys)
        (shown,) = [each for each in found if each["id"] == client.connected["session"]]
        assert (shown["peer"], shown["transport"]) == (OWN, "unix")
        assert shown["listener"] == f"unix:{directory}/plain"
        await client.disconnect()


async def test_tls_and_websocket_are_the_same_as_over_tcp(gateway: GatewayProcess, directory: Path) -> None:
    trust = Authority(directory / "authority.pem", directory / "authority.key").client()
    async with within(), StompClient.logged_in(directory / "tls", tls=trust) as client:
        assert await peer_in_log(gateway, client.connected) == OWN
        await client.disconnect()
    async with within(), WebSocketClient.dialled(directory / "websocket") as browser:
        assert await peer_in_log(gateway, await browser.connect()) == OWN


async def test_a_proxy_names_its_clients(gateway: GatewayProcess, directory: Path) -> None:
    line = b"PROXY TCP4 127.0.0.9 10.2.2.2 1000 2000\r\n"
    async with within(), StompClient.logged_in(directory / "proxy", preface=line) as client:
        assert await peer_in_log(gateway, client.connected) == "127.0.0.9:1000"
        await client.disconnect()
    # Whom it does not name is not on this machine for certain, so is not guest.
    async with within(), StompClient.dialled(directory / "proxy", preface=b"PROXY UNKNOWN\r\n") as client:
        client.write("CONNECT", accept_version="1.2")
        await client.expect("ERROR", message="Bad CONNECT")
    # Where only some clients may connect, nobody without a name may.
    async with within(), StompClient.logged_in(directory / "named", preface=line) as client:
        await client.disconnect()
    async with within(), StompClient.dialled(directory / "named", preface=b"PROXY UNKNOWN\r\n") as client:
        await client.closed()


async def test_each_worker_takes_clients_from_the_one_socket(gateway: GatewayProcess, directory: Path) -> None:
    (line,) = await gateway.until_logged("workers started")
    for pid in line["pids"]:
        os.kill(pid, signal.SIGSTOP)
        try:
            async with within(), StompClient.logged_in(directory / "plain") as client:
                await client.disconnect()
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_reload_opens_changes_and_closes_sockets(
    gateway: GatewayProcess, directory: Path, document: dict[str, Any]
) -> None:
    more = [*document["listeners"], {"unix": str(directory / "more"), "socket_mode": "0600"}]
    more[1] = more[1] | {"socket_mode": "0666"}
    line = await gateway.reload(document | {"listeners": more})
    assert f"listener unix:{directory}/more: opened" in line["changes"]
    async with within(), StompClient.logged_in(directory / "more") as client:
        await client.disconnect()
    modes = [stat.S_IMODE((directory / name).stat().st_mode) for name in ("plain", "more")]
    assert modes == [0o666, 0o600]
    admin = document["admin"] | {"socket_mode": "0666"}
    line = await gateway.reload(document | {"admin": admin})
    assert f"listener unix:{directory}/more: closed" in line["changes"]
    assert line["needs_restart"] == ["admin.socket_mode"]
    assert not (directory / "more").exists()
    async with within(), StompClient.logged_in(directory / "plain") as client:
        await client.disconnect()


async def test_a_drain_takes_the_files_away_while_sessions_finish(document: dict[str, Any], tmp_path: Path) -> None:
    socket = tmp_path / "plain"
    listeners = [{"tcp": "127.0.0.1:0"}, {"unix": str(socket)}]
    with gateway_process(document | {"listeners": listeners, "admin": "off"}) as process:
        await process.until_logged("workers started")
        async with within(), StompClient.logged_in(socket) as client:
            await client.ask("SUBSCRIBE", id="a", destination="/topic/a", ack="client")
            process.terminate()
            await client.expect("ERROR", message="Shutting down")
            # The gateway waits for the client to close, for some seconds.
            await until(lambda: asyncio.to_thread(socket.exists), lambda is_there: not is_there)
            # A worker without sessions may have stopped.
            assert [line for line in process.logged("stopped") if "worker" not in line] == []
            await client.closed()
        assert await process.exit_code(PATIENCE) == ExitCode.OK
    assert os.listdir(tmp_path) == []
