"""Several workers are one gateway: to clients, to operators and to the service manager, also when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from deploy.local.ports import free_ports
from gateway.cli import main
from gateway.errors import ExitCode
from gateway.journal.stat import contents_of
from gateway.server.process.supervisor import Supervisor
from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import ROOT, Address, GatewayProcess, configuration, gateway_process, listening, parsed
from tests.support.stomp_client import ConnectionOverError, StompClient, final_error
from tests.support.trace_reader import TraceReader
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

WORKERS = 2

# So many clients are all on one of two workers once in 500 times; then there are more.
CLIENTS = 10


@pytest.fixture(scope="module")
def document(broker_url: str) -> dict[str, Any]:
    return configuration(broker_url, workers=WORKERS, admin="127.0.0.1:0")


@pytest.fixture(scope="module")
def shared(document: dict[str, Any]) -> Iterator[GatewayProcess]:
    """A gateway whose workers live."""
    with gateway_process(document) as process:
        yield process
        process.assert_no_internal_errors()


@pytest.fixture
def process(document: dict[str, Any]) -> Iterator[GatewayProcess]:
    """A gateway that a test may do anything to."""
    with gateway_process(document) as process:
        yield process


async def admin_of(process: GatewayProcess) -> AdminClient:
    await process.until_logged("admin listening")
    return AdminClient(process.admin)


async def started(process: GatewayProcess) -> list[int]:
    """The process ids of the workers, once all of them serve."""
    (line,) = await process.until_logged("workers started")
    return list(line["pids"])


@asynccontextmanager
async def on_each_worker(process: GatewayProcess) -> AsyncIterator[list[list[StompClient]]]:
    """Clients that are logged in, by worker: at least one on each."""
    await started(process)
    async with AsyncExitStack() as stack:
        clients: dict[str, StompClient] = {}
        by_worker: list[list[StompClient]] = [[], []]
        while not all(by_worker):
            for _ in range(CLIENTS):
                client = await stack.enter_async_context(StompClient.logged_in(process.address))
                clients[client.connected["session"]] = client
            known = {session: await worker_of(process, session) for session in clients}
            by_worker = [[clients[session] for session in clients if known[session] == n] for n in range(WORKERS)]
        yield by_worker


async def worker_of(process: GatewayProcess, session: str) -> int:
    """The number of the worker that serves a session."""

    async def lines() -> list[dict[str, Any]]:
        return [line for line in process.logged("session started") if line["session"] == session]

    (line,) = await until(lines, bool)
    return int(line["worker"])


def total(samples: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str) -> float:
    return sum(value for (each, _), value in samples.items() if each == name)


async def test_operators_see_one_gateway(shared: GatewayProcess, queue: str) -> None:
    admin = await admin_of(shared)
    async with within(), on_each_worker(shared) as by_worker:
        clients = [client for group in by_worker for client in group]
        for client in clients:
            await client.ask("SEND", b"x", destination=f"/queue/{queue}")
        overview = await admin.json("/api/overview")
        assert overview["workers"] == WORKERS
        assert overview["sessions"] == len(clients)
        assert overview["ready"]
        page = await admin.json("/api/sessions?page_size=4&page=2")
        assert page["total"] == len(clients)
        assert len(page["items"]) == 4
        whole = (await admin.json("/api/sessions"))["items"]
        assert whole[4:8] == page["items"]
        assert [each["connected_at"] for each in whole] == sorted(each["connected_at"] for each in whole)
        (row,) = (await admin.json(f"/api/destinations?q={queue}"))["items"]
        assert row["published"] == len(clients)
        (host,) = (await admin.json("/api/virtual-hosts"))["items"]
        assert host["sessions"] == len(clients)
        assert host["published"] == overview["totals"]["messages_published"]
        (broker,) = host["brokers"]
        links = await admin.json("/api/links")
        assert broker["links"] == links["total"] == overview["links"] >= WORKERS
        samples = await admin.samples()
        assert total(samples, "stomp_gateway_sessions") == len(clients)
        assert total(samples, "stomp_gateway_workers") == WORKERS
        memory = [name for name, _ in samples if name == "stomp_gateway_worker_resident_memory_bytes"]
        assert len(memory) == WORKERS
        assert (await admin.json("/readyz"))["ready"]


async def test_an_operator_closes_a_session_of_any_worker(shared: GatewayProcess) -> None:
    admin = await admin_of(shared)
    async with within(), on_each_worker(shared) as by_worker:
        for client, *_ in by_worker:
            session = client.connected["session"]
            assert (await admin.json(f"/api/sessions/{session}"))["id"] == session
            assert (await admin.ask(f"/api/sessions/{session}?reason=enough", "DELETE")).status == 204
            assert await final_error(client) == ("Closed by operator", "enough\n")
        assert (await admin.ask("/api/sessions/none", "DELETE")).status == 404


async def test_a_trace_sees_clients_of_all_workers_also_of_a_successor(process: GatewayProcess) -> None:
    by_successor: set[str] = set()

    async def keep_sending(worker: int) -> None:
        """The successor has its part of the trace a moment after it has begun to serve."""
        while True:
            async with StompClient.logged_in(process.address) as client:
                if await worker_of(process, client.connected["session"]) == worker:
                    by_successor.add(client.connected["session"])
                    await client.ask("SEND", b"x", destination="/topic/traced")

    async with within(6 * PATIENCE), on_each_worker(process) as by_worker:
        async with TraceReader.begun(process, "--login", "guest") as trace:
            clients = [group[0] for group in by_worker]
            for client in clients:
                await client.ask("SEND", b"x", destination="/topic/traced")
            sessions = {client.connected["session"] for client in clients}
            await trace.until(lambda _: {item["session"] for item in trace.frames} == sessions)

            (first, _) = await started(process)
            os.kill(first, signal.SIGKILL)
            (line,) = await process.until_logged("worker started")
            sending = asyncio.create_task(keep_sending(line["worker"]))
            await trace.until(lambda item: item.get("command") == "SEND" and item["session"] in by_successor)
            sending.cancel()
            await asyncio.wait([sending])


async def test_a_worker_that_is_killed_ends_its_sessions_only(process: GatewayProcess, queue: str) -> None:
    admin = await admin_of(process)
    pids = await started(process)
    async with within(2 * PATIENCE), on_each_worker(process) as (victims, others):
        for client in (*victims, *others):
            await client.ask("SEND", b"x", destination=f"/queue/{queue}")
        before, shown = await admin.samples(), await admin.json("/api/overview")
        os.kill(pids[0], signal.SIGKILL)
        for client in victims:
            with pytest.raises(ConnectionOverError):
                await client.receive()
        for client in others:
            await client.ask("SEND", b"x", destination=f"/queue/{queue}")
        await process.until_logged("worker started")
        after, shown_after = await admin.samples(), await admin.json("/api/overview")
        for (name, labels), value in before.items():
            if name.startswith("stomp_gateway") and name.endswith(("_total", "_bucket", "_count", "_sum")):
                assert after[name, labels] >= value, (name, labels)
        sent = len(victims) + 2 * len(others)
        assert total(after, "stomp_gateway_messages_published_total") == sent
        assert total(after, "stomp_gateway_sessions") == len(others)
        assert total(after, "stomp_gateway_worker_deaths_total") == 1
        assert shown_after["totals"]["messages_published"] == sent
        assert shown["totals"]["messages_published"] == len(victims) + len(others)
        assert shown_after["workers"] == WORKERS
        # Its successor serves.
        async with on_each_worker(process) as (again, _):
            await again[0].ask("SEND", b"x", destination=f"/queue/{queue}")


async def test_a_worker_that_hangs_is_replaced(document: dict[str, Any]) -> None:
    with gateway_process({**document, "worker_timeout": "5s"}) as process:
        (hanging, _) = await started(process)
        async with within(2 * PATIENCE), on_each_worker(process) as (victims, others):
            os.kill(hanging, signal.SIGSTOP)
            (line,) = await process.until_logged("worker hangs")
            assert (line["worker"], line["pid"], line["seconds"]) == (0, hanging, 5)
            for client in victims:
                with pytest.raises(ConnectionOverError):
                    await client.receive()
            (line,) = await process.until_logged("worker started")
            assert line["worker"] == 0
            for client in others:
                await client.ask("SEND", b"x", destination="/topic/nobody")
            async with on_each_worker(process) as (again, _):
                await again[0].ask("SEND", b"x", destination="/topic/nobody")


async def refused(address: Address, count: int) -> list[str]:
    """What clients are told that log in beyond a limit; so many, since each worker must refuse them."""
    texts = []
    for _ in range(count):
        async with StompClient.dialled(address) as client:
            client.write("CONNECT", accept_version="1.2")
            texts.append((await final_error(client)).body)
    return texts


async def test_limits_of_sessions_hold_over_all_workers_and_those_of_a_dead_one_are_given_back(
    document: dict[str, Any],
) -> None:
    hosts = {"/": {}, "limited": {"amqp_vhost": "/", "limits": {"user": {"sessions": CLIENTS}}}}
    with gateway_process({**document, "virtual_hosts": hosts, "default_vhost": "limited"}) as process:
        pids = await started(process)
        async with within(2 * PATIENCE), AsyncExitStack() as stack:

            async def log_in() -> tuple[StompClient, int]:
                client = await stack.enter_async_context(StompClient.logged_in(process.address, host="limited"))
                return client, await worker_of(process, client.connected["session"])

            clients = [await log_in() for _ in range(CLIENTS)]
            full = f"The user 'guest' has {CLIENTS} sessions, as many as are allowed; close one, or try again later.\n"
            assert await refused(process.address, CLIENTS) == [full] * CLIENTS
            # One goes, and one may come, to whichever worker.
            client, _ = clients.pop()
            await client.ask("DISCONNECT")
            clients.append(await until_accepted(log_in))
            assert await refused(process.address, 1) == [full]
            numbers = [worker for _, worker in clients]
            victim = max(range(WORKERS), key=numbers.count)
            os.kill(pids[victim], signal.SIGKILL)
            await process.until_logged("worker started")
            clients = [each for each in clients if each[1] != victim]
            while len(clients) < CLIENTS:
                clients.append(await log_in())
            assert await refused(process.address, CLIENTS) == [full] * CLIENTS


async def until_accepted(log_in: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what it returns
    """Try again while the gateway has not noticed yet that a session is over."""
    while True:
        try:
            return await log_in()
        except AssertionError:
            continue


async def test_rates_hold_over_all_workers(document: dict[str, Any]) -> None:
    limits = {"user": {"bytes_per_second": 1000, "burst": 200}}
    with gateway_process({**document, "virtual_hosts": {"/": {"limits": limits}}}) as process:
        admin = await admin_of(process)
        held = "stomp_gateway_holds_begun_total", frozenset({("virtual_host", "/"), ("reason", "rate-limit")})
        async with within(2 * PATIENCE), on_each_worker(process) as ((one, *_), (other, *_)):
            # Most of what may come at once.
            await one.ask("SEND", b"x" * 150_000, destination="/topic/nobody")
            assert not (await admin.samples()).get(held)
            other.write("SEND", b"x" * 150_000, destination="/topic/nobody")
            await until(admin.samples, lambda samples: samples.get(held, 0) > 0)


async def test_refused_logins_are_limited_over_all_workers(document: dict[str, Any]) -> None:
    failed_logins = {"per_login": 4, "delay": 0}
    with gateway_process({**document, "failed_logins": failed_logins}) as process:
        admin = await admin_of(process)
        await started(process)
        async with within(2 * PATIENCE):
            messages = []
            for _ in range(CLIENTS):
                async with StompClient.dialled(process.address) as client:
                    client.write("CONNECT", accept_version="1.2", login="nobody", passcode="wrong")
                    messages.append((await client.receive()).headers["message"])
            assert messages == ["Bad CONNECT"] * 4 + ["Too many failed logins"] * (CLIENTS - 4)
            assert total(await admin.samples(), "stomp_gateway_logins_failed_total") == 4
            # Whom the broker accepts is not limited by it.
            async with on_each_worker(process):
                pass


async def test_connections_are_limited_over_all_workers(document: dict[str, Any]) -> None:
    most = 6
    listeners = [{"tcp": "127.0.0.1:0", "max_connections": most}]
    with gateway_process({**document, "listeners": listeners}) as process:
        pids = await started(process)
        full = f"The listener has {most} connections, as many as are allowed; try again later.\n"
        async with within(2 * PATIENCE), AsyncExitStack() as stack:
            workers = []
            for _ in range(most):
                client = await stack.enter_async_context(StompClient.logged_in(process.address))
                workers.append(await worker_of(process, client.connected["session"]))
            for _ in range(CLIENTS):
                async with StompClient.dialled(process.address) as client:
                    assert (await final_error(client)).body == full
            victim = max(range(WORKERS), key=workers.count)
            os.kill(pids[victim], signal.SIGKILL)
            await process.until_logged("worker started")
            for _ in range(workers.count(victim)):
                await stack.enter_async_context(StompClient.logged_in(process.address))
            for _ in range(CLIENTS):
                async with StompClient.dialled(process.address) as client:
                    assert (await final_error(client)).body == full


async def test_a_queue_that_is_exclusive_on_one_worker_is_refused_on_the_other(
    shared: GatewayProcess, queue: str
) -> None:
    async with within(), on_each_worker(shared) as ((owner, *_), (other, *_)):
        # Not that of the fixture, which deletes its queue while the session may still be ending.
        mine = f"{queue}-exclusive"
        headers = {"destination": f"/queue/{mine}", "exclusive": "true", "durable": "false", "auto_delete": "true"}
        await owner.ask("SUBSCRIBE", id="1", **headers)
        other.write("SUBSCRIBE", id="1", **headers)
        assert "RESOURCE_LOCKED" in (await final_error(other)).body
        owner.write("SEND", b"to the owner", destination=f"/amq/queue/{mine}")
        await owner.expect("MESSAGE", b"to the owner")


async def test_a_client_of_one_worker_gets_what_a_client_of_another_sends(shared: GatewayProcess, queue: str) -> None:
    async with within(), on_each_worker(shared) as ((one, *_), (other, *_)):
        await other.ask("SUBSCRIBE", id="t", destination=f"/topic/{queue}")
        await one.ask("SEND", b"to all", destination=f"/topic/{queue}")
        await other.expect("MESSAGE", b"to all")


async def test_tls_websocket_and_the_proxy_protocol_work_on_each_worker(
    broker_url: str, tmp_path: Path, queue: str
) -> None:
    authority = Authority.make(tmp_path, "authority")
    certificate, key = authority.sign(tmp_path, "server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    listeners = [
        {"tcp": "127.0.0.1:0", "tls": tls},
        {"websocket": "127.0.0.1:0"},
        {"tcp": "127.0.0.1:0", "proxy_protocol": True, "tls": tls},
    ]
    document = configuration(broker_url, {"loopback_users": []}, workers=WORKERS, listeners=listeners)
    with gateway_process(document) as process:
        async with within(2 * PATIENCE):
            await started(process)
            addresses = dict.fromkeys(listening(process, WORKERS * len(listeners)))
            assert len(addresses) == len(listeners)
            assert {line["worker"] for line in process.logged("listening")} == set(range(WORKERS))
            secure, web, proxied = addresses
            preface = b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 61613\r\n"
            served: dict[str, set[int]] = {}
            while [len(each) for each in served.values()] != [WORKERS] * 3:
                async with AsyncExitStack() as stack:
                    context = authority.client()
                    one = await stack.enter_async_context(StompClient.logged_in(secure, tls=context))
                    two = await stack.enter_async_context(WebSocketClient.dialled(web))
                    upgraded = await two.connect()
                    three = await stack.enter_async_context(
                        StompClient.logged_in(proxied, preface=preface, tls=context)
                    )
                    for client in (one, two, three):
                        await client.ask("SEND", b"x", destination=f"/queue/{queue}")
                    for kind, connected in (("tls", one.connected), ("web", upgraded), ("proxy", three.connected)):
                        served.setdefault(kind, set()).add(await worker_of(process, connected["session"]))
            peers = {line["peer"] for line in process.logged("session started")}
            assert "192.0.2.7:1000" in peers


async def test_a_reload_answers_once_and_counts_for_all_workers(
    process: GatewayProcess, document: dict[str, Any]
) -> None:
    admin = await admin_of(process)
    await started(process)
    closed = {**document, "virtual_hosts": {"/": {}, "new": {"amqp_vhost": "/"}}}
    async with within(2 * PATIENCE):
        line = await process.reload(closed)
        assert line["event"] == "configuration reloaded"
        assert "virtual host new: new" in line["changes"]
        assert len(process.logged("configuration reloaded")) == 1
        served: set[int] = set()
        while len(served) < WORKERS:
            async with StompClient.logged_in(process.address, host="new") as client:
                served.add(await worker_of(process, client.connected["session"]))
        # What the file may have after a restart only.
        line = await process.reload({**closed, "workers": 3})
        assert line["needs_restart"] == ["workers"]
        # A mistake that is found only when it is tried.
        taken = {"tcp": f"127.0.0.1:{process.address[1]}"}
        line = await process.reload({**closed, "listeners": [{"tcp": "127.0.0.1:0"}, taken]})
        assert line["event"] == "reload refused"
        samples = await admin.samples()
        assert samples["stomp_gateway_reloads_total", frozenset({("result", "refused")})] == 1
        # A successor begins with the configuration in use, and not with the file.
        (first, _) = await started(process)
        os.kill(first, signal.SIGKILL)
        await process.until_logged("worker started")
        served.clear()
        while len(served) < WORKERS:
            async with StompClient.logged_in(process.address, host="new") as client:
                served.add(await worker_of(process, client.connected["session"]))


async def test_the_level_of_the_log_changes_in_all_workers_also_in_a_successor(
    process: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    await admin_of(process)
    url = "http://{}:{}".format(*process.admin)

    async def until_each_worker_tells() -> None:
        """Until each has logged, at level debug, a client that leaves without a login."""
        before = len(process.logged("session ended"))

        def workers() -> set[int]:
            lines = process.logged("session ended")[before:]
            return {line["worker"] for line in lines if line["level"] == "debug"}

        while workers() != set(range(WORKERS)):
            async with StompClient.dialled(process.address):
                pass

    async with within(2 * PATIENCE):
        (first, _) = await started(process)
        assert await asyncio.to_thread(main, ["log-level", "debug", "--for", "1h", "--url", url]) == ExitCode.OK
        assert capsys.readouterr().out.startswith("debug until 2")
        await until_each_worker_tells()
        os.kill(first, signal.SIGKILL)
        await process.until_logged("worker started")
        await until_each_worker_tells()
        assert await asyncio.to_thread(main, ["log-level", "configured", "--url", url]) == ExitCode.OK
        assert capsys.readouterr().out == "info\n"
        _, line = await process.until_logged("log level changed", 2)
        assert (line["new_level"], "worker" in line) == ("info", False)


async def test_a_reload_does_not_ask_a_worker_that_drains_for_its_successor(broker_url: str) -> None:
    """It has closed its listeners, or shall; here it would not even answer."""
    supervisor = Supervisor(parsed(broker_url, workers=WORKERS, drain_delay=600))
    await supervisor.start()
    try:
        replaced, _ = supervisor.workers
        assert replaced.pid is not None
        await replaced.replace()
        os.kill(replaced.pid, signal.SIGSTOP)
        async with within():
            await supervisor.apply(parsed(broker_url, workers=WORKERS, drain_delay=600, drain_timeout=20))
    finally:
        async with within():
            # As if it had failed to start: without `drain_delay`.
            await supervisor.stop()


async def test_a_reload_opens_and_closes_listeners_of_all_workers(document: dict[str, Any]) -> None:
    old, new = ({"tcp": f"127.0.0.1:{port}"} for port in free_ports(2))
    with gateway_process({**document, "listeners": [old]}) as process:
        pids = await started(process)

        async def serving(address: Address) -> set[int]:
            """The workers that serve clients there."""
            served: set[int] = set()
            while len(served) < WORKERS:
                async with StompClient.logged_in(address) as client:
                    served.add(await worker_of(process, client.connected["session"]))
            return served

        async with within(4 * PATIENCE), on_each_worker(process) as by_worker:
            there = "127.0.0.1", int(new["tcp"].rpartition(":")[2])
            line = await process.reload({**document, "listeners": [old, new]})
            assert line["changes"] == [f"listener {new['tcp']}: opened"]
            assert await serving(there) == {0, 1}
            # A successor has it, too.
            os.kill(pids[0], signal.SIGKILL)
            await process.until_logged("worker started")
            assert await serving(there) == {0, 1}
            line = await process.reload({**document, "listeners": [new]})
            assert line["changes"] == [f"listener {old['tcp']}: closed"]
            for client in by_worker[1]:
                assert (await final_error(client)).message == "Shutting down"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*process.address)
            # And opened again, while the other one stays.
            line = await process.reload({**document, "listeners": [old, new]})
            assert line["changes"] == [f"listener {old['tcp']}: opened"]
            assert await serving(process.address) == await serving(there) == {0, 1}


async def test_the_journal_has_a_boot_for_each_worker(broker_url: str, tmp_path: Path, queue: str) -> None:
    journal = {"level": "message", "directory": str(tmp_path / "journal"), "node": "orders"}
    document = configuration(broker_url, {"journal": journal}, workers=WORKERS)
    document["defaults"]["journal"] = journal
    with gateway_process(document) as process:
        async with within(), on_each_worker(process) as by_worker:
            for client, *_ in by_worker:
                await client.ask("SEND", b"x", destination=f"/queue/{queue}")

            async def written() -> set[str]:
                return {boot.node for boot in contents_of(tmp_path / "journal").boots if boot.lines}

            # Until then nobody can know of a boot.
            await until(written, lambda nodes: len(nodes) == WORKERS)
            (first, _) = await started(process)
            os.kill(first, signal.SIGKILL)
            await process.until_logged("worker started")
        process.terminate()
        assert await process.exit_code(PATIENCE) == ExitCode.OK
    boots = contents_of(tmp_path / "journal").boots
    # The first of the killed worker has no end.
    ends = [("orders.w0", False), ("orders.w0", True), ("orders.w1", True)]
    assert sorted((boot.node, bool(boot.closed)) for boot in boots) == ends
    assert not any(boot.missing for boot in boots)


async def test_the_service_manager_hears_of_one_process(document: dict[str, Any], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with gateway_process(document, environment) as process:
            async with within(2 * PATIENCE), on_each_worker(process) as by_worker:
                assert await asyncio.to_thread(manager.recv, 4096) == b"READY=1"
                clients = [client for group in by_worker for client in group]
                # As systemd does it: to all processes.
                pids = await started(process)
                for pid in (*pids, process.pid):
                    os.kill(pid, signal.SIGTERM)
                for client in clients:
                    assert (await final_error(client)).message == "Shutting down"
                said = await asyncio.to_thread(manager.recv, 4096)
                assert said == b"STOPPING=1\nSTATUS=Draining %d sessions" % len(clients)
                assert await process.exit_code(PATIENCE) == ExitCode.OK
                assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_workers_drain_when_their_supervisor_is_killed(process: GatewayProcess) -> None:
    pids = await started(process)
    async with within(2 * PATIENCE), on_each_worker(process) as by_worker:
        process.child.kill()
        for client in (client for group in by_worker for client in group):
            assert (await final_error(client)).message == "Shutting down"
        await all_gone(pids)


async def test_a_second_signal_ends_all_workers_at_once(document: dict[str, Any]) -> None:
    """Longer than the test, they would go on as before."""
    with gateway_process({**document, "drain_delay": 600}) as process:
        pids = await started(process)
        async with within(2 * PATIENCE):
            process.terminate()
            await process.until_logged("drain announced", WORKERS)
            process.terminate()
            assert await process.exit_code(PATIENCE) == -signal.SIGTERM
            await all_gone(pids)


async def all_gone(pids: list[int]) -> None:
    """Wait until there are no such processes."""

    async def alive() -> list[int]:
        return [pid for pid in pids if psutil.pid_exists(pid)]

    await until(alive, lambda found: not found)


def _starting(document: dict[str, Any], folder: Path) -> tuple[subprocess.Popen[bytes], psutil.Process]:
    """A gateway that leads a process group of its own, as on a terminal, and one of its workers, which are there."""
    config, log = folder / "gateway.yaml", folder / "gateway.log"
    config.write_text(yaml.safe_dump(document))
    with log.open("wb") as file:
        child = subprocess.Popen(
            [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
            cwd=ROOT, stderr=file, start_new_session=True,
        )  # fmt: skip
    # A process that was made this moment is in the group of its parent still.
    while len(workers := [each for each in psutil.Process(child.pid).children() if _leads_a_session(each)]) < WORKERS:
        assert child.poll() is None, log.read_text()
    return child, workers[0]


def _leads_a_session(process: psutil.Process) -> bool:
    with suppress(ProcessLookupError):
        return os.getsid(process.pid) == process.pid
    return False


def _ended(child: subprocess.Popen[bytes], folder: Path) -> tuple[int, list[str]]:
    """The exit code, and the events of the log."""
    try:
        code = child.wait(2 * PATIENCE)
    finally:
        child.kill()
        child.wait()
    return code, [json.loads(line)["event"] for line in (folder / "gateway.log").read_text().splitlines()]


def test_a_signal_to_the_terminal_while_workers_start_ends_the_gateway_in_good_order(
    document: dict[str, Any], tmp_path: Path
) -> None:
    child, _ = _starting(document, tmp_path)
    os.killpg(child.pid, signal.SIGINT)
    code, events = _ended(child, tmp_path)
    assert code == ExitCode.OK
    assert "workers started" in events
    assert events[-1] == "stopped"


def test_a_stop_while_workers_start_is_no_failure_though_one_of_them_dies_with_it(
    document: dict[str, Any], tmp_path: Path
) -> None:
    child, worker = _starting(document, tmp_path)
    child.terminate()
    worker.kill()
    code, _ = _ended(child, tmp_path)
    assert code == ExitCode.OK


def test_a_worker_that_cannot_start_says_why_and_the_gateway_ends(document: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "a file"
    file.write_text("")
    broken = {**document, "defaults": {"journal": {"directory": str(file)}}}
    with pytest.raises(AssertionError, match="the journal cannot be written to"):
        GatewayProcess(broken)
