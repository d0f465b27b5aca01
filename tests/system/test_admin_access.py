"""Access to the admin listener: users, host names, and what it never shows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.config.listener_settings import DEFAULT_ADMIN_ADDRESS
from gateway.errors import ExitCode
from gateway.journal.schema import AUDIT_CODES
from gateway.journal.segments import PATTERN
from tests.support.admin import AdminClient
from tests.support.certificates import Authority, Identity
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

OPERATOR = ("Öperator", "geheim:ß-secret-of-admin")
READER, SCRAPER = ("reader", "hashed"), ("scraper", "hashed")
# Of the passcode of both, made by htpasswd -nB.
HASH = "$2y$05$3dheo1jumtnTvTM60kF.w.klqRBQDayqxxHeZeCCekL7Jw91W8RGy"
PATHS = (
    "/",
    "/metrics",
    "/api/config",
    "/api/overview",
    "/api/sessions",
    "/api/destinations",
    "/api/links",
    "/api/virtual-hosts",
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("admin"), "authority")


@pytest.fixture(scope="module")
def guarded(
    broker_url: str, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """With users, names and TLS."""
    server = Identity(*authority.sign(tmp_path_factory.mktemp("server"), "server"))
    admin = {
        "address": "127.0.0.1:0",
        "users": [
            {"login": "other", "passcode": "secret-of-other"},
            dict(zip(("login", "passcode"), OPERATOR, strict=True)),
            {"login": READER[0], "passcode_hash": HASH, "role": "read_only"},
            {"login": SCRAPER[0], "passcode_hash": HASH, "role": "metrics"},
        ],
        "tls": {"cert_file": str(server.certificate), "key_file": str(server.key)},
        "allowed_hosts": ["gateway.example.org"],
    }
    with gateway_process(configuration(broker_url, admin=admin)) as process:
        yield process


@pytest.fixture
def tls(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(authority.certificate))


@pytest.fixture(scope="module")
def unguarded(broker_url: str) -> Iterator[GatewayProcess]:
    """Without users, on every address of this machine."""
    with gateway_process(configuration(broker_url, admin="0.0.0.0:0")) as process:
        yield process


# Users.


@pytest.mark.parametrize("path", PATHS)
async def test_without_its_user_nothing_is_shown(guarded: GatewayProcess, tls: ssl.SSLContext, path: str) -> None:
    refused = await AdminClient(guarded.admin, tls=tls).ask(path)
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"].startswith("Basic ")
    assert (await AdminClient(guarded.admin, OPERATOR, tls).ask(path)).status == 200


@pytest.mark.parametrize(
    "authorization",
    ["", "Basic", "Basic !!!", "Basic b3RoZXI=", "Bearer secret-of-other", "Basic b3RoZXI6Z3Vlc3Q=", "Basic Og=="],
)
async def test_wrong_credentials_are_refused(guarded: GatewayProcess, tls: ssl.SSLContext, authorization: str) -> None:
    """Also a login without a passcode, the passcode of another user, and neither."""
    answer = await AdminClient(guarded.admin, tls=tls).ask("/api/overview", Authorization=authorization)
    assert answer.status == 401
    line = guarded.logged("login")[-1]
    assert (line["logger"], line["outcome"], line["asked"]) == ("audit", "refused", "GET /api/overview")
    assert line["peer"].startswith("127.0.0.1:")


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_need_no_user(guarded: GatewayProcess, tls: ssl.SSLContext, path: str) -> None:
    assert (await AdminClient(guarded.admin, tls=tls).ask(path)).status == 200
    # A wrong one does not stop them, and is noted where it is looked at.
    before = len(guarded.logged("login"))
    assert (await AdminClient(guarded.admin, ("other", "wrong"), tls).ask(path)).status == 200
    assert [line["asked"] for line in guarded.logged("login")[before:]] in ([], [f"GET {path}"])


async def test_a_user_closes_sessions(guarded: GatewayProcess, tls: ssl.SSLContext) -> None:
    async with StompClient.logged_in(guarded.address) as client:
        path = f"/api/sessions/{client.connected['session']}"
        assert (await AdminClient(guarded.admin, tls=tls).ask(path, "DELETE")).status == 401
        assert (await AdminClient(guarded.admin, OPERATOR, tls).ask(path, "DELETE")).status == 204
        await client.expect("ERROR", message="Closed by operator")
    [line] = guarded.logged("session closed by operator")
    assert line["user"] == OPERATOR[0]


@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/api/reload", "POST"),
        ("/api/trace?login=guest&seconds=1", "POST"),
        ("/api/log-level?level=debug", "POST"),
        ("/api/links/fail-back", "POST"),
        ("/api/sessions/none", "DELETE"),
    ],
)
async def test_only_the_full_role_changes_something(
    guarded: GatewayProcess, tls: ssl.SSLContext, path: str, method: str
) -> None:
    for user in (READER, SCRAPER):
        refused = await AdminClient(guarded.admin, user, tls).ask(path, method)
        assert refused.status == 403
        assert "role" in refused.json["error"]
    assert (await AdminClient(guarded.admin, OPERATOR, tls).ask(path, "GET")).status != 403


async def test_a_role_sees_what_it_may(guarded: GatewayProcess, tls: ssl.SSLContext) -> None:
    reader, scraper = AdminClient(guarded.admin, READER, tls), AdminClient(guarded.admin, SCRAPER, tls)
    assert {path: (await reader.ask(path)).status for path in PATHS} == dict.fromkeys(PATHS, 200)
    expected = {path: 200 if path == "/metrics" else 403 for path in PATHS}
    assert {path: (await scraper.ask(path)).status for path in PATHS} == expected


async def test_guesses_are_slowed_down_counted_and_locked_out(broker_url: str) -> None:
    admin = {"address": "127.0.0.1:0", "users": [{"login": "operator", "passcode": "right"}]}
    limits = {"delay": 0, "per_login": 20, "lock_out_after": 30, "lock_out_except": []}
    with gateway_process(configuration(broker_url, admin=admin, failed_logins=limits)) as process:
        right, wrong = (AdminClient(process.admin, ("operator", passcode)) for passcode in ("right", "wrong"))
        before = await right.samples()
        assert before["stomp_gateway_admin_logins_failed_total", frozenset()] == 0
        answers = [await wrong.ask("/metrics") for _ in range(29)]
        assert [answer.status for answer in answers] == [401] * 20 + [429] * 9
        assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
        # Who was let in from here before still is.
        after = await right.samples()
        assert after["stomp_gateway_admin_logins_failed_total", frozenset()] == 29
        assert (await wrong.ask("/metrics")).status == 429
        with pytest.raises(OSError):  # noqa: PT011 - however the client notices
            await right.ask("/metrics")
        assert process.logged("address locked out")
        async with StompClient.logged_in(process.address) as client, within():
            await client.disconnect()


# Names.


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:15693", 200),
        ("[::1]:15693", 200),
        ("::1", 200),
        ("LOCALHOST.", 200),
        ("gateway.example.org:15693", 200),
        ("evil.example.org", 403),
        ("127.0.0.1.evil.example.org:15693", 403),
        ("gateway.example.org.evil.example", 403),
        ("", 403),
    ],
)
async def test_only_requests_with_one_of_its_names_are_answered(
    guarded: GatewayProcess, tls: ssl.SSLContext, host: str, status: int
) -> None:
    admin = AdminClient(guarded.admin, OPERATOR, tls)
    assert (await admin.ask("/api/overview", Host=host)).status == status
    assert (await admin.ask("/healthz", Host=host)).status == 200


async def test_a_health_check_without_a_name_is_answered(unguarded: GatewayProcess) -> None:
    """Every browser sends a Host header; a load balancer that uses HTTP/1.0 may not."""
    async with within():
        reader, writer = await asyncio.open_connection("127.0.0.1", unguarded.admin[1])
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"200"
        writer.close()
        await writer.wait_closed()


# From where.


def _own_address() -> str:
    """An address of this machine other than loopback."""
    with socket.socket(type=socket.SOCK_DGRAM) as trial:
        try:
            trial.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this machine has no address but the loopback one")
        return str(trial.getsockname()[0])


async def test_without_users_only_this_machine_closes_sessions(unguarded: GatewayProcess) -> None:
    _, port = unguarded.admin
    elsewhere, here = AdminClient((_own_address(), port)), AdminClient(("127.0.0.1", port))
    async with StompClient.logged_in(unguarded.address) as client:
        path = f"/api/sessions/{client.connected['session']}"
        assert (await elsewhere.ask(path)).status == 200
        assert (await elsewhere.ask("/api/links/fail-back", "POST")).status == 403
        assert (await elsewhere.ask("/api/log-level?level=debug", "POST")).status == 403
        assert (await elsewhere.ask("/api/trace?login=guest&seconds=1", "POST")).status == 403
        foreign = await here.ask("/api/trace?login=guest&seconds=1", "POST", Origin="http://elsewhere.example")
        assert foreign.status == 403
        assert (await elsewhere.ask("/api/log-level")).json == {"level": "info", "configured": "info", "until": None}
        refused = await elsewhere.ask(path, "DELETE")
        assert refused.status == 403
        assert "users" in refused.json["error"]
        assert (await here.ask(path, "DELETE")).status == 204


@pytest.mark.parametrize(
    ("query", "status"),
    [("level=warning&seconds=1", 200), ("level=loud", 400), ("level=debug&seconds=0", 400),
     ("level=debug&seconds=86401", 400), ("", 400)],
)  # fmt: skip
async def test_the_level_of_the_log_is_changed_with_sense_only(
    unguarded: GatewayProcess, query: str, status: int
) -> None:
    admin = AdminClient(("127.0.0.1", unguarded.admin[1]))
    foreign = await admin.ask(f"/api/log-level?{query}", "POST", Origin="http://elsewhere.example")
    assert foreign.status == 403
    answer = await admin.ask(f"/api/log-level?{query}", "POST")
    assert answer.status == status
    if status == 200:
        assert (answer.json["level"], answer.json["configured"]) == ("warning", "info")
        assert (await admin.ask("/api/log-level?level=configured", "POST")).json["level"] == "info"
        assert (await admin.json("/api/overview"))["log_level"]["until"] is None


# Headers of every answer.


@pytest.mark.parametrize("path", [*PATHS, "/healthz", "/nothing", "/api/sessions?page=0"])
async def test_every_answer_has_the_security_headers(unguarded: GatewayProcess, path: str) -> None:
    answer = await AdminClient(("127.0.0.1", unguarded.admin[1])).ask(path)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src 'unsafe-inline'" not in policy


async def test_no_answer_holds_a_passcode(broker_url: str, guarded: GatewayProcess, tls: ssl.SSLContext) -> None:
    async with StompClient.logged_in(guarded.address, login="guest", passcode="guest") as client:
        await client.ask("SUBSCRIBE", id="1", destination="/topic/secrets")
        wrong = "passcode-of-nobody"
        async with StompClient.dialled(guarded.address) as stranger:
            stranger.write("CONNECT", accept_version="1.2", login="stranger", passcode=wrong)
            await stranger.receive()
            admin = AdminClient(guarded.admin, OPERATOR, tls)
            paths = [*PATHS, f"/api/sessions/{client.connected['session']}"]
            texts = [(await admin.ask(path)).text for path in paths]
    log = guarded.log.read_text()
    for text in (*texts, log):
        for secret in (wrong, OPERATOR[1], "secret-of-other", "geheim"):
            assert secret not in text
            assert secret not in json.dumps(text)
        # This user's passcode is its login, which may appear; the pair may not.
        assert "guest:guest" not in text


# Its port.


async def test_a_default_admin_port_that_is_taken_is_only_a_warning(broker_url: str) -> None:
    document = configuration(broker_url)
    del document["admin"]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(AssertionError):  # another program uses it, not just for a moment
            await until(partial(_take_admin_port, stack), bool, 5)
        process = stack.enter_context(gateway_process(document))
        async with StompClient.logged_in(process.address) as client:
            await client.ask("SEND", b"x", destination="/topic/admin")
        # The log says so a moment after the first client can connect.
        [line] = await process.until_logged("no admin listener")
        assert line["address"] == str(DEFAULT_ADMIN_ADDRESS)
        assert line["level"] == "warning"


async def _take_admin_port(stack: contextlib.ExitStack) -> bool:
    """Listen on the default admin port until the stack ends. Returns whether that was possible."""
    with contextlib.ExitStack() as attempt, contextlib.suppress(OSError):
        listener = attempt.enter_context(socket.socket())
        # As the gateway does it: connections that have ended do not keep it away, so they may not keep this one away.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((DEFAULT_ADMIN_ADDRESS.host, DEFAULT_ADMIN_ADDRESS.port))
        listener.listen()
        stack.push(attempt.pop_all())
        return True
    return False


async def test_a_configured_admin_port_that_is_taken_is_an_error(broker_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with gateway_process(configuration(broker_url, admin=f"127.0.0.1:{port}")) as process:
            assert await process.exit_code(20) == 3
            said = process.log.read_text()
    assert f"cannot listen on 127.0.0.1:{port}: the port is taken" in said
    assert "under admin in the configuration" in said


# Audit.


@pytest.mark.parametrize("workers", [1, 2])
async def test_who_asked_for_what_is_in_log_and_journal_at_every_level_of_the_log(
    broker_url: str, tmp_path: Path, workers: int
) -> None:
    admin = {
        "address": "127.0.0.1:0",
        "users": [
            {"login": "operator", "passcode": "geheim-1"},
            {"login": "reader", "passcode": "geheim-2", "role": "read_only"},
        ],
    }
    journal = {"journal": {"level": "session", "directory": str(tmp_path)}}
    document = configuration(broker_url, journal, admin=admin, workers=workers)
    with gateway_process(document) as process:
        operator = AdminClient(process.admin, ("operator", "geheim-1"))
        reader = AdminClient(process.admin, ("reader", "geheim-2"))
        wrong = AdminClient(process.admin, ("operator", "geheim-3"))
        swapped = AdminClient(process.admin, ("geheim-1", "operator"))
        async with within(60), StompClient.logged_in(process.address) as client:
            session = f"/api/sessions/{client.connected['session']}"
            expected: list[tuple[object, ...]] = []
            for name, method, path in (
                ("log-level", "POST", "/api/log-level?level=error&seconds=600"),
                ("trace", "POST", "/api/trace?login=guest&seconds=1"),
                ("fail-back", "POST", "/api/links/fail-back"),
                ("close-session", "DELETE", f"{session}?reason=test"),
                ("reload", "POST", "/api/reload"),
            ):
                assert (await reader.ask(path, method)).status == 403
                assert (await operator.ask(path, method)).status in (200, 204)
                asked = f"{method} {path}"
                expected += [(name, "refused", "reader", asked), (name, "done", "operator", asked)]
            assert (await operator.ask("/api/overview")).status == 200  # to look is not an action
            assert (await operator.ask("/api/sessions/none", "DELETE")).status == 404
            assert (await wrong.ask("/metrics")).status == 401
            assert (await swapped.ask("/api/reload", "POST")).status == 401
            expected += [
                ("close-session", "failed", "operator", "DELETE /api/sessions/none"),
                ("login", "refused", None, "GET /metrics"),
                ("reload", "refused", None, "POST /api/reload"),
            ]
        process.rewrite(document | {"logging": {"format": "json", "level": "warning"}})
        process.child.send_signal(signal.SIGHUP)
        await process.until_logged("reload", 4)
        process.rewrite({"listeners": "none"})
        process.child.send_signal(signal.SIGHUP)
        await process.until_logged("reload", 5)
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
        lines = [json.loads(line) for line in process.log.read_text().splitlines()]
        assert "geheim" not in process.log.read_text()
    trail = [line for line in lines if line.get("logger") == "audit"]
    facts = [(line["event"], line["outcome"], line.get("user"), line.get("asked")) for line in trail]
    by_signal = [("reload", "done"), ("reload", "failed"), ("stop", "done")]
    assert facts == [*expected, *((*each, None, None) for each in by_signal)]
    assert [line.get("signal") for line in trail[-3:]] == ["SIGHUP", "SIGHUP", "SIGTERM"]
    assert all(line["peer"].startswith("127.0.0.1:") for line in trail[:-3])
    assert [line.get("login") for line in trail[11:13]] == ["operator", None]
    assert not [line for line in lines if line["event"] == "session closed by operator"]
    written = _audited(tmp_path)
    assert [(line["x"], line.get("u"), line.get("ip")) for line in written] == [
        (name if outcome == "done" else f"{name}-{outcome}", user, None if asked is None else "127.0.0.1")
        for name, outcome, user, asked in facts
    ]
    assert {line["x"] for line in written} <= AUDIT_CODES


def _audited(journal: Path) -> list[dict[str, Any]]:
    """The lines of a journal about operators, in order."""
    texts = [path.read_text() for path in journal.glob(f"d*=*/{PATTERN}")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return sorted((line for line in lines if line["e"] == "audit"), key=lambda line: int(line["t"]))


# Misbehaving clients.


async def test_connections_are_bounded(unguarded: GatewayProcess) -> None:
    address: Address = ("127.0.0.1", unguarded.admin[1])
    admin = AdminClient(address)
    async with within():
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(socket.create_connection(address)) for _ in range(80)]
            await until(lambda: _asked(admin), lambda status: status == 503)
            # Those beyond the bound are closed at once.
            assert await asyncio.to_thread(_read, idle[-1]) == (
                b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        await until(lambda: _asked(admin), lambda status: status == 200)


def _read(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as reader:
        return reader.read()


async def test_connections_without_a_tls_handshake_are_bounded_too(
    guarded: GatewayProcess, tls: ssl.SSLContext
) -> None:
    address: Address = ("127.0.0.1", guarded.admin[1])
    async with within():
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection(address, timeout=PATIENCE)) for _ in range(80)]
            assert await asyncio.to_thread(silent[-1].recv, 1) == b""
        await until(lambda: _asked(AdminClient(address, tls=tls)), lambda status: status == 200)
    assert guarded.logged("too many connections")


async def _asked(admin: AdminClient) -> int | None:
    try:
        return (await admin.ask("/healthz")).status
    except OSError:
        return None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"CONNECT\naccept-version:1.2\n\n\0",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
    ],
    ids=["long-header", "long-line", "stomp", "tls"],
)
async def test_input_that_is_not_http_is_refused(unguarded: GatewayProcess, data: bytes) -> None:
    address: Address = ("127.0.0.1", unguarded.admin[1])
    with socket.create_connection(address, timeout=PATIENCE) as stranger:
        stranger.sendall(data)
        with contextlib.suppress(ConnectionError):
            assert stranger.recv(12) in (b"", b"HTTP/1.1 400", b"HTTP/1.0 400", b"HTTP/1.1 414", b"HTTP/1.1 431")
    assert (await AdminClient(address).ask("/healthz")).status == 200
    assert not unguarded.logged("admin request failed")
    assert b"xxxx" not in await asyncio.to_thread(unguarded.log.read_bytes)
