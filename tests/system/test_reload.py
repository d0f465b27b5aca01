"""Reloading the configuration of a running gateway: what changes, for whom, and who is told."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.errors import ExitCode
from tests.support.admin import AdminClient, Answer
from tests.support.certificates import Authority, Identity
from tests.support.chaos import ChaosProxy
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import (
    ROOT,
    GatewayProcess,
    configuration,
    gateway_process,
    listening,
    upstream,
)
from tests.support.stomp_client import StompClient
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

TCP = {"tcp": "127.0.0.1:0"}


@pytest.fixture
def document(broker_url: str) -> dict[str, Any]:
    return configuration(broker_url, admin="127.0.0.1:0")


@pytest.fixture
def process(document: dict[str, Any]) -> Iterator[GatewayProcess]:
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


async def admin_of(process: GatewayProcess) -> AdminClient:
    await process.until_logged("admin listening")
    return AdminClient(process.admin)


async def asked(process: GatewayProcess, document: dict[str, Any]) -> Answer:
    """Replace the configuration, and ask the API for a reload."""
    process.rewrite(document)
    return await (await admin_of(process)).ask("/api/reload", "POST")


def command(process: GatewayProcess, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `stomp-gateway reload` for this gateway."""
    host, port = process.admin
    return run("reload", "--url", f"http://{host}:{port}", *options)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    program = [sys.executable, "-m", "gateway", *arguments]
    return subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=6 * PATIENCE)


async def refused(process: GatewayProcess, message: str, **headers: str) -> None:
    async with StompClient.dialled(process.address) as client, within():
        client.write("CONNECT", accept_version="1.2", **headers)
        await client.expect("ERROR", message=message)


def keys(changes: list[str]) -> list[str]:
    """The changed keys without what is below them, and without their values."""
    found = (re.match(r"(virtual host \S+: )?(\w+)", change) for change in changes)
    return list(dict.fromkeys(match[0] for match in found if match is not None))


# What changes.


async def test_new_virtual_hosts_and_aliases_are_for_new_clients_and_nobody_is_disconnected(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    async with StompClient.logged_in(process.address) as early, within():
        await early.ask("SUBSCRIBE", id="a", destination="/topic/reloaded")
        await refused(process, "Bad CONNECT", host="another.example")

        document["virtual_hosts"] = {
            "/": {"aliases": ["another.example"]},
            "new": {"amqp_vhost": "/", "default_topic_exchange": "amq.topic"},
        }
        line = await process.reload(document)
        assert keys(line["changes"]) == ["virtual host /: aliases", "virtual host new: new"]
        assert line["needs_restart"] == []
        for host in ("another.example", "new"):
            async with StompClient.logged_in(process.address, host=host) as late:
                await late.ask("SEND", host.encode(), destination="/topic/reloaded")
                await early.expect("MESSAGE", host.encode())
                await late.disconnect()
        # Not by an alias, but as one of the machine's names, as long as these are wanted.
        async with StompClient.logged_in(process.address, host="localhost"):
            document["local_aliases"] = False
            assert keys((await process.reload(document))["changes"]) == ["local_aliases"]
        await refused(process, "Bad CONNECT", host="localhost")

        # Sessions of a virtual host that is gone go on, and are counted under its name.
        async with StompClient.logged_in(process.address, host="new") as late:
            del document["virtual_hosts"]["new"]
            assert (await process.reload(document))["changes"] == ["virtual host new: gone"]
            await late.ask("SEND", b"last", destination="/topic/reloaded")
            await early.expect("MESSAGE", b"last")
            samples = await (await admin_of(process)).samples()
            assert samples["stomp_gateway_sessions", frozenset({("virtual_host", "new")})] == 1
            await late.disconnect()
        await refused(process, "Bad CONNECT", host="new")
        await early.disconnect()


async def test_a_changed_passcode_counts_for_the_next_client(process: GatewayProcess, document: dict[str, Any]) -> None:
    right = document["defaults"]["default_user"]
    async with StompClient.logged_in(process.address) as early, within():
        document["defaults"] = document["defaults"] | {"default_user": right | {"passcode": "wrong"}}
        line = await process.reload(document)
        assert keys(line["changes"]) == ["virtual host /: default_user"]
        assert "wrong" not in process.log.read_text()
        await refused(process, "Bad CONNECT")
        await early.ask("SEND", b"x", destination="/topic/reloaded")
        document["defaults"] = document["defaults"] | {"default_user": right}
        await process.reload(document)
        async with StompClient.logged_in(process.address) as late:
            await late.disconnect()
        await early.disconnect()


async def brokers_of(process: GatewayProcess) -> dict[int, int]:
    """How many sessions are on the links to each broker, by its port."""
    links = (await (await admin_of(process)).json("/api/links"))["items"]
    sessions: Counter[int] = Counter()
    for link in links:
        sessions[int(link["broker"].rpartition(":")[2])] += link["sessions"]
    return sessions


async def test_sessions_move_to_the_broker_of_a_new_configuration(
    process: GatewayProcess, document: dict[str, Any], proxy: ChaosProxy, queue: str
) -> None:
    async with StompClient.logged_in(process.address) as early, within():
        await early.ask("SUBSCRIBE", id="q", destination=f"/queue/{queue}")
        await early.ask("SEND", b"one", destination="/topic/reloaded")
        document["upstream"] = upstream(proxy.address)
        line = await process.reload(document)
        assert keys(line["changes"]) == ["virtual host /: upstream"]
        assert process.logged("links draining")[-1]["draining"] == 2
        await until(lambda: brokers_of(process), lambda found: found == {proxy.address[1]: 2})
        async with StompClient.logged_in(process.address) as late:
            await late.ask("SEND", b"two", destination=f"/queue/{queue}")
            await early.expect("MESSAGE", b"two")
            # They share links.
            assert await brokers_of(process) == {proxy.address[1]: 3}
            await late.disconnect()
        await early.disconnect()


async def test_what_cannot_move_stays_with_the_broker_of_the_old_configuration(
    process: GatewayProcess, document: dict[str, Any], proxy: ChaosProxy, broker: Broker
) -> None:
    """A queue that would end with its consumer, and another virtual host of the broker."""
    document["virtual_hosts"] = {"/": {}, "moves": {"amqp_vhost": "/"}}
    await process.reload(document)
    async with (
        StompClient.logged_in(process.address) as early,
        StompClient.logged_in(process.address, host="moves") as other,
        within(),
    ):
        await early.ask("SUBSCRIBE", id="t", destination="/topic/reloaded")
        await other.ask("SEND", b"one", destination="/topic/reloaded")
        await early.expect("MESSAGE", b"one")
        document["upstream"] = upstream(proxy.address)
        document["virtual_hosts"]["moves"] = {"amqp_vhost": "elsewhere"}
        await process.reload(document)
        assert [line["virtual_host"] for line in process.logged("links draining")] == ["/"]
        async with StompClient.logged_in(process.address) as late:
            await late.ask("SEND", b"two", destination="/topic/reloaded")
            await early.expect("MESSAGE", b"two")
            await other.ask("SEND", b"three", destination="/topic/reloaded")
            await early.expect("MESSAGE", b"three")
            assert await brokers_of(process) == {broker.amqp_port: 2, proxy.address[1]: 1}
            await late.disconnect()
        await other.disconnect()
        await early.disconnect()


async def test_limits_and_rules_hold_for_new_sessions(process: GatewayProcess, document: dict[str, Any]) -> None:
    deny = [{"action": "deny", "destination": "/topic/*"}]
    document["defaults"] |= {"limits": {"user": {"sessions": 2}}, "destination_rules": deny}
    async with StompClient.logged_in(process.address) as early, within():
        line = await process.reload(document)
        assert keys(line["changes"]) == ["virtual host /: destination_rules", "virtual host /: limits"]
        async with StompClient.logged_in(process.address) as late:
            await refused(process, "Session limit reached")
            await early.ask("SEND", b"x", destination="/topic/reloaded")
            late.write("SEND", b"x", destination="/topic/reloaded")
            await late.expect("ERROR", message="access_refused")
        await early.disconnect()


async def test_the_level_of_the_log_changes_at_once(process: GatewayProcess, document: dict[str, Any]) -> None:
    async def log_in() -> None:
        async with StompClient.logged_in(process.address) as client, within():
            await client.disconnect()
            await client.closed()

    document["logging"] = {"format": "json", "level": "warning"}
    assert keys((await asked(process, document)).json["changes"]) == ["logging"]
    await log_in()
    document["logging"] = {"format": "json", "level": "info"}
    assert keys((await asked(process, document)).json["changes"]) == ["logging"]
    await log_in()
    await process.until_logged("session ended")
    assert len(process.logged("session started")) == 1


async def test_the_journal_changes_for_new_sessions(broker_url: str, tmp_path: Path, document: dict[str, Any]) -> None:
    document["defaults"] |= {"journal": {"level": "off"}}
    with gateway_process(document) as process:
        journal = {"directory": str(tmp_path / "journal"), "rotate_bytes": "8MiB"}
        document["defaults"] |= {"journal": journal}
        assert keys((await process.reload(document))["changes"]) == ["virtual host /: journal"]
        async with StompClient.logged_in(process.address) as client, within():
            await client.disconnect()
        await process.until_logged("session ended")

        async def text() -> str:
            return "".join(file.read_text() for file in (tmp_path / "journal").glob("**/*.jsonl*"))

        await until(text, lambda found: '"disconnect"' in found)
        document["defaults"] |= {"journal": journal | {"rotate_bytes": "9MiB"}}
        answer = (await asked(process, document)).json
        waiting = [{"key": "defaults.journal.rotate_bytes", "in_use": str(8 << 20)}]
        assert answer == {"changes": [], "restart": waiting, "warnings": []}
        shipping = {"retain_bytes": "1GiB", "ship": {"to": "/nowhere"}}
        document["defaults"] |= {"journal": journal | shipping}
        answer = (await asked(process, document)).json
        waiting = [{"key": f"defaults.journal.{key}", "in_use": "null"} for key in shipping]
        assert answer == {"changes": [], "restart": waiting, "warnings": []}


# Listeners.


async def test_listeners_are_opened_and_closed_and_only_clients_of_a_closed_one_are_told_to_go(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    [port] = free_ports(1)
    document["listeners"] = [TCP, {"websocket": "127.0.0.1:0"}, {"tcp": f"localhost:{port}"}]
    async with StompClient.logged_in(process.address) as early, within():
        line = await process.reload(document)
        assert line["changes"] == ["listener 127.0.0.1:0: opened", f"listener localhost:{port}: opened"]
        assert ("127.0.0.1", port) in listening(process, 3)
        async with StompClient.logged_in(("127.0.0.1", port)) as leaving:
            document["listeners"] = [TCP, {"websocket": "127.0.0.1:0"}]
            line = await process.reload(document)
            assert line["changes"] == [f"listener localhost:{port}: closed"]
            await leaving.expect("ERROR", message="Shutting down")
            await leaving.closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await early.ask("SEND", b"x", destination="/topic/reloaded")
        await early.disconnect()


async def test_a_listener_that_begins_to_speak_tls_or_websocket_loses_no_client(
    process: GatewayProcess, document: dict[str, Any], tmp_path: Path
) -> None:
    authority = Authority.make(tmp_path, "authority")
    server = Identity(*authority.sign(tmp_path, "server"))
    tls = {"cert_file": str(server.certificate), "key_file": str(server.key)}
    async with StompClient.logged_in(process.address) as early, within():
        document["listeners"] = [TCP | {"tls": tls}]
        assert (await process.reload(document))["changes"] == ["listener 127.0.0.1:0: changed"]
        async with StompClient.logged_in(process.address, tls=authority.client()) as encrypted:
            document["listeners"] = [TCP | {"login_timeout": "5s"}]
            assert (await process.reload(document))["changes"] == ["listener 127.0.0.1:0: changed"]
            async with StompClient.logged_in(process.address) as plain:
                document["listeners"] = [{"websocket": "127.0.0.1:0"}]
                assert (await process.reload(document))["changes"] == ["listener 127.0.0.1:0: changed"]
                async with WebSocketClient.logged_in(process.address) as browser:
                    await browser.ask("SEND", b"x", destination="/topic/reloaded")
                for client in (early, encrypted, plain):
                    await client.ask("SEND", b"x", destination="/topic/reloaded")
                    await client.disconnect()


async def test_a_listener_has_other_limits_for_new_connections(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    document["listeners"] = [TCP | {"max_connections": 2}]
    async with StompClient.logged_in(process.address), within():
        await process.reload(document)
        async with StompClient.logged_in(process.address):
            async with StompClient.dialled(process.address) as beyond:
                await beyond.expect("ERROR", message="Too many connections")
                await beyond.closed()
    [line] = process.logged("too many connections")
    assert line["most"] == 2


# Refused, as a whole.


async def test_a_file_with_mistakes_changes_nothing_and_everybody_who_asked_learns_why(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    admin = await admin_of(process)
    good = {**document, "virtual_hosts": {"/": {"aliases": ["another.example"]}}, "default_vhst": "/"}
    refusal = await process.reload(good)
    assert refusal["event"] == "reload refused"
    assert refusal["asked_by"] == "SIGHUP"
    [mistake] = refusal["mistakes"]
    assert "Did you mean default_vhost?" in mistake

    answer = await admin.ask("/api/reload", "POST")
    assert answer.status == 422
    [told] = answer.json["mistakes"]
    assert (told["path"], told["suggestion"]) == ("default_vhst", "Did you mean default_vhost?")

    printed = await asyncio.to_thread(command, process)
    expected = await asyncio.to_thread(run, "check", "--offline", "--config", str(process.config))
    assert (printed.returncode, printed.stdout) == (ExitCode.CONFIGURATION, "")
    assert printed.stderr == expected.stderr != ""

    await refused(process, "Bad CONNECT", host="another.example")
    samples = await admin.samples()
    assert samples["stomp_gateway_last_reload_successful", frozenset()] == 0
    assert samples["stomp_gateway_reloads_total", frozenset({("result", "refused")})] == 3

    del good["default_vhst"]
    process.rewrite(good)
    printed = await asyncio.to_thread(command, process)
    assert (printed.returncode, printed.stderr) == (ExitCode.OK, "")
    assert printed.stdout == 'reloaded\n  virtual host /: aliases: ["127.0.0.1", "localhost"] -> ["another.example"]\n'
    samples = await admin.samples()
    assert samples["stomp_gateway_last_reload_successful", frozenset()] == 1
    assert samples["stomp_gateway_reloads_total", frozenset({("result", "done")})] == 1
    started = samples["process_start_time_seconds", frozenset()]
    assert samples["stomp_gateway_last_reload_timestamp_seconds", frozenset()] > started


async def test_an_address_that_is_taken_refuses_the_whole_configuration(
    process: GatewayProcess, document: dict[str, Any], broker: Broker
) -> None:
    [port] = free_ports(1)
    document["virtual_hosts"] = {"/": {"aliases": ["another.example"]}}
    document["listeners"] = [{"tcp": f"127.0.0.1:{port}"}, {"tcp": f"127.0.0.1:{broker.amqp_port}"}]
    answer = await asked(process, document)
    assert answer.status == 422
    assert "the port is taken" in answer.json["mistakes"][0]["sentence"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    async with StompClient.logged_in(process.address) as client, within():
        await client.disconnect()
    await refused(process, "Bad CONNECT", host="another.example")


async def test_a_refused_reload_leaves_no_journal_open(
    process: GatewayProcess, document: dict[str, Any], broker: Broker, tmp_path: Path
) -> None:
    journal = {"directory": str(tmp_path / "journal"), "level": "session"}
    document["defaults"] |= {"journal": journal | {"rotate_bytes": "8MiB"}}
    taken = {"tcp": f"127.0.0.1:{broker.amqp_port}"}
    assert (await asked(process, document | {"listeners": [TCP, taken]})).status == 422
    assert os.listdir(tmp_path) == []
    # An open directory would keep the refused settings until a restart.
    document["defaults"] |= {"journal": journal | {"rotate_bytes": "9MiB"}}
    answer = await asked(process, document)
    assert (keys(answer.json["changes"]), answer.json["restart"]) == (["virtual host /: journal"], [])


async def test_a_port_that_should_move_to_another_address_needs_a_restart(document: dict[str, Any]) -> None:
    [port] = free_ports(1)
    document["listeners"] = [{"tcp": f"127.0.0.1:{port}"}]
    with gateway_process(document) as process:
        document["listeners"] = [{"tcp": f"0.0.0.0:{port}"}]
        answer = await asked(process, document)
        assert answer.status == 422
        assert "only by a restart" in answer.json["mistakes"][0]["sentence"]
        async with StompClient.logged_in(process.address) as client, within():
            await client.disconnect()


# What needs a restart, and who may ask.


async def test_what_needs_a_restart_is_named_with_the_value_in_use_until_it_is_changed_back(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    process.rewrite(document | {"admin": "127.0.0.1:15999"})
    for _ in range(2):
        answer = await (await admin_of(process)).ask("/api/reload", "POST")
        waiting = [{"key": "admin.address", "in_use": "127.0.0.1:0"}]
        assert answer.json == {"changes": [], "restart": waiting, "warnings": []}
    printed = await asyncio.to_thread(command, process)
    assert "needs a restart" in printed.stdout
    assert "admin.address: 127.0.0.1:0" in printed.stdout
    assert (await asked(process, document)).json == {"changes": [], "restart": [], "warnings": []}


async def test_an_answer_has_what_check_warns_of(process: GatewayProcess, document: dict[str, Any]) -> None:
    document["defaults"] |= {"certificate_users": {"users": {"CN=app": {"login": "guest", "passcode": "guest"}}}}
    [warning] = (await asked(process, document)).json["warnings"]
    assert "This has no effect" in warning
    printed = await asyncio.to_thread(command, process)
    assert f"warning: {warning}" in printed.stdout


async def test_users_and_tls_of_the_admin_listener_change_and_only_its_users_may_reload(
    process: GatewayProcess, document: dict[str, Any], tmp_path: Path
) -> None:
    document["admin"] = {"address": "127.0.0.1:0", "users": [{"login": "operator", "passcode": "correct-horse"}]}
    assert keys((await asked(process, document)).json["changes"]) == ["admin"]
    admin = await admin_of(process)
    assert (await admin.ask("/api/reload", "POST")).status == 401
    operator = AdminClient(process.admin, ("operator", "correct-horse"))
    assert (await operator.ask("/api/reload", "POST")).status == 200
    assert process.logged("configuration reloaded")[-1]["asked_by"].endswith(" as operator")

    authority = Authority.make(tmp_path, "authority")
    server = Identity(*authority.sign(tmp_path, "server"))
    document["admin"] |= {"tls": {"cert_file": str(server.certificate), "key_file": str(server.key)}}
    process.rewrite(document)
    assert keys((await operator.ask("/api/reload", "POST")).json["changes"]) == ["admin"]
    over_tls = AdminClient(process.admin, ("operator", "correct-horse"), authority.client())
    assert (await over_tls.ask("/api/overview")).status == 200


async def test_a_foreign_web_page_cannot_reload(process: GatewayProcess) -> None:
    admin = await admin_of(process)
    host, port = admin.address
    assert (await admin.ask("/api/reload", "POST", Origin="https://evil.example")).status == 403
    assert (await admin.ask("/api/reload", "POST", Origin="null")).status == 403
    assert process.logged("configuration reloaded") == []
    assert (await admin.ask("/api/reload", "POST", Origin=f"http://{host}:{port}")).status == 200
    assert (await admin.ask("/api/reload")).status == 405


async def test_hang_ups_in_a_row_and_during_the_stop_do_no_harm(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    for _ in range(20):
        process.child.send_signal(signal.SIGHUP)
    await process.until_logged("configuration reloaded")
    # Reloads that more of the signals led to: the first answer may come before the last of these, the second does not.
    for _ in range(2):
        assert (await (await admin_of(process)).ask("/api/reload", "POST")).json["changes"] == []
    answer = await asked(process, document | {"drain_delay": "10min"})
    assert keys(answer.json["changes"]) == ["drain_delay"]
    process.terminate()
    await process.until_logged("drain announced")
    process.child.send_signal(signal.SIGHUP)
    assert (await (await admin_of(process)).ask("/api/reload", "POST")).status == 409
    printed = await asyncio.to_thread(command, process)
    assert printed.returncode == ExitCode.FAILURE
    assert "The gateway is stopping and does not read its configuration any more." in printed.stderr
    async with StompClient.logged_in(process.address) as client, within():
        await client.disconnect()
    process.terminate()
    assert await process.exit_code(PATIENCE) == -signal.SIGTERM
