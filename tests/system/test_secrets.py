"""Secrets are planted wherever the gateway takes one, all that may speak is provoked, and what it said is searched."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import pytest_asyncio
import yaml
from aiormq import Connection as AiormqConnection

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from gateway.cli import main
from gateway.config.model import Logging
from gateway.server.process.logs import configure_logs
from tests.support.admin import AdminClient
from tests.support.certificates import Authority, encrypted
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import (
    ROOT,
    Address,
    GatewayProcess,
    configuration,
    gateway_here,
    gateway_process,
    listening,
    parsed,
)
from tests.support.management import Management
from tests.support.stomp_client import ConnectionOverError, StompClient, encoded
from tests.support.websocket_client import RefusedError, WebSocketClient

pytestmark = pytest.mark.system

# Begins every planted secret; what begins with it in an output is a leak.
PLANT: Final = "pl4nted"
# The rest has what could end a pattern that blanks passcodes too early.
REST: Final = "@a/b:c?d#e %f'\"\\"

USER, DEFAULT, CERTIFIED, OPERATOR, WRONG, TOKEN, BY_HTTP = (
    f"{PLANT}-{what}{REST}" for what in ("user", "default", "certified", "operator", "wrong", "token", "http")
)
PATHS = (
    "/", "/metrics", "/healthz", "/readyz", "/api/overview", "/api/sessions", "/api/links", "/api/destinations",
    "/api/virtual-hosts", "/api/nothing",
)  # fmt: skip


@dataclass
class Search:
    """Everything that came out of a gateway, by where."""

    outputs: dict[str, str] = field(default_factory=dict)

    def add(self, where: str, text: str | bytes) -> None:
        """Take one more output."""
        self.outputs[where] = text if isinstance(text, str) else text.decode("utf-8", "backslashreplace")

    @property
    def leaks(self) -> list[str]:
        """Where a secret is: as it was planted, or as HTTP Basic writes it."""
        marks = [PLANT, *(encoding[:-2] for encoding in map(_basic, (OPERATOR, BY_HTTP, WRONG)))]
        return [where for where, text in self.outputs.items() if any(mark in text for mark in marks)]


def _basic(passcode: str) -> str:
    return base64.b64encode(f"nobody:{passcode}".encode()).decode()


@dataclass(frozen=True)
class Planted:
    """A gateway with secrets, and what the test needs to talk to it."""

    process: GatewayProcess
    addresses: list[Address]
    journal: Path
    operator: AdminClient


@pytest.fixture
def document(laboratory: Broker, tmp_path: Path) -> dict[str, Any]:
    """Secrets in every place of the configuration: written out, in a file, and in a variable."""
    (tmp_path / "operator").write_text(OPERATOR)
    certificate, key = Authority.make(tmp_path, "authority").sign(tmp_path, "server")
    default = {"login": "secret-default", "passcode": DEFAULT}
    everyone = {"login": "secret-certified", "passcode": "${CERTIFIED_PASSCODE}"}
    return configuration(
        laboratory.amqp_url,
        {
            "default_user": default,
            "certificate_users": {"everyone": everyone},
            "journal": {"level": "message", "directory": str(tmp_path / "journal")},
            "login_cache": 0,
        },
        listeners=[
            {"tcp": "127.0.0.1:0"},
            {"websocket": "127.0.0.1:0", "use_http_auth": True},
            {"tcp": "127.0.0.1:0", "tls": {"cert_file": str(certificate), "key_file": str(key)}},
        ],
        # The second virtual host has a broker that nobody reaches.
        virtual_hosts={"/": None, "dead": {"upstream": {"urls": [f"amqp://127.0.0.1:{free_ports(1)[0]}"]}}},
        admin={
            "address": "127.0.0.1:0",
            "users": [{"login": "operator", "passcode_file": str(tmp_path / "operator")}],
        },
        logging={"format": "json", "level": "debug"},
    )


@pytest_asyncio.fixture
async def planted(document: dict[str, Any], management: Management, tmp_path: Path) -> AsyncIterator[Planted]:
    for name, passcode in (("secret-default", DEFAULT), ("secret-user", USER)):
        await management.add_user(name, passcode=passcode)
    # From nothing: a forked gateway has the command line of the process that it is forked from.
    with gateway_process(document, {"CERTIFIED_PASSCODE": CERTIFIED}, from_nothing=True) as process:
        operator = AdminClient(process.admin, ("operator", OPERATOR))
        yield Planted(process, listening(process, 3), tmp_path / "journal", operator)
    for name in ("secret-default", "secret-user"):
        await management.delete_user(name)


async def answer_to(address: Address, data: bytes) -> bytes:
    """All that a client hears that sends some bytes and then ends its side."""
    async with StompClient.dialled(address) as client, within():
        client.writer.write(data)
        client.half_close()
        with contextlib.suppress(ConnectionError):
            return await client.reader.read()
    return b""


def spoiled_logins() -> Iterator[bytes]:
    """Frames with a secret in them that are wrong in every way."""
    good = {"accept_version": "1.2", "host": "/", "login": "secret-user"}
    yield encoded("CONNECT", passcode=WRONG, **good)
    yield encoded("CONNECT", passcode=USER, **good | {"host": "dead"})
    yield encoded("CONNECT", passcode=USER, **good | {"host": "nowhere"})
    yield encoded("CONNECT", passcode=USER, **good | {"accept_version": "9"})
    yield encoded("CONNECT", passcode=USER, **good, heart_beat="soon")
    yield encoded("SEND", passcode=USER, destination="/queue/secrets")
    yield encoded("LOGIN", passcode=USER)
    yield b"CONNECT\nlogin:a\npasscode:%b\\x\n\n\0" % PLANT.encode()
    yield b"CONNECT\nlogin:a\n%b\n\n\0" % PLANT.encode()
    yield b"CONNECT\nlogin:a\npasscode:%b" % (PLANT.encode() * 20_000)
    yield b"%b\n\n\0" % PLANT.encode()
    yield b"CONNECT\nlogin:a\npasscode:%b\xff\n\n\0" % PLANT.encode()
    yield encoded("CONNECT", passcode=USER, **good) + encoded("CONNECT", passcode=USER, **good)
    yield encoded("CONNECT", passcode=USER, **good) + encoded("TOKEN", token=TOKEN, passcode=TOKEN, receipt="1")
    yield encoded("CONNECT", passcode=USER, **good) + encoded("TOKEN", TOKEN.encode(), receipt="1")


async def provoke(planted: Planted, search: Search) -> None:
    """Let everything happen that may be logged."""
    plain, web, encrypted_port = planted.addresses
    for number, data in enumerate(spoiled_logins()):
        search.add(f"answer to login {number}", await answer_to(plain, data))
    # TLS is wanted there, and WebSocket.
    search.add("answer at TLS", await answer_to(encrypted_port, encoded("CONNECT", passcode=USER)))
    search.add("answer at HTTP", await answer_to(web, encoded("CONNECT", passcode=USER)))
    for scheme in ("Basic", "Bearer"):
        try:
            async with WebSocketClient.dialled(web, headers={"Authorization": f"{scheme} {_basic(BY_HTTP)}"}) as client:
                client.write("CONNECT", accept_version="1.2", host="/")
                search.add("ERROR over WebSocket", repr(await client.receive()))
        except RefusedError as refused:
            search.add("refusal over WebSocket", repr(refused.response))
    async with StompClient.logged_in(plain, login="secret-user", passcode=USER) as client, within(6 * PATIENCE):
        await client.ask("SUBSCRIBE", id="1", destination="/topic/secrets")
        async with StompClient.logged_in(plain) as by_default:
            await by_default.ask("SEND", b"x", destination="/topic/secrets")
            search.add("MESSAGE", repr(await client.receive()))
            stranger = AdminClient(planted.operator.address, ("nobody", WRONG))
            for path in PATHS:
                search.add(f"admin {path}", (await planted.operator.ask(path)).text)
                search.add(f"admin {path} for a stranger", (await stranger.ask(path)).text)
            for session in (await planted.operator.json("/api/sessions"))["items"]:
                search.add(
                    f"admin {session['id']}", (await planted.operator.ask(f"/api/sessions/{session['id']}")).text
                )
            search.add("ps", " ".join(psutil.Process(planted.process.pid).cmdline()))
            search.add("commands", await asyncio.to_thread(_commands, planted.operator))
            await by_default.disconnect()
        await client.disconnect()


def _commands(operator: AdminClient) -> str:
    """What the commands print that ask the gateway: with the right passcode, and a wrong one."""
    host, port = operator.address
    commands = ((["sessions"], OPERATOR), (["links", "--json"], OPERATOR), (["top", "--once"], WRONG))
    text = ""
    for command, passcode in commands:
        done = subprocess.run(
            [sys.executable, "-m", "gateway", *command, "--url", f"http://{host}:{port}", "--user", "operator"],
            capture_output=True, text=True, check=False, cwd=ROOT,
            env=os.environ | {"STOMP_GATEWAY_ADMIN_PASSCODE": passcode},
        )  # fmt: skip
        text += done.stdout + done.stderr
    return text


async def test_no_output_of_a_gateway_has_a_secret(planted: Planted) -> None:
    search = Search()
    await provoke(planted, search)
    planted.process.terminate()
    assert await planted.process.exit_code(PATIENCE) == 0
    search.add("log", planted.process.log.read_bytes())
    for file in planted.journal.rglob("*.jsonl*"):
        search.add(f"journal {file.name}", file.read_bytes())
    assert search.leaks == []
    # What was searched is there, and "ps" is the gateway's own command line.
    assert str(planted.process.config) in search.outputs["ps"]
    assert any(where.startswith("journal") for where in search.outputs)
    log = search.outputs["log"]
    assert '"level": "debug"' in log
    for told in ("secret-user", "secret-default", "ACCESS_REFUSED", "websocket handshake refused", "session ended"):
        assert told in log + search.outputs["commands"], told


def test_no_command_prints_a_secret_of_its_files(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CERTIFIED_PASSCODE", CERTIFIED)
    search = Search()
    encrypted(tmp_path / "server.key", tmp_path / "encrypted.key", PLANT.encode())
    tls = {"cert_file": str(tmp_path / "server.pem"), "key_file": str(tmp_path / "encrypted.key")}
    users = {"users": [{"login": "a", "passcode": PLANT, "passcode_file": str(tmp_path / "operator")}]}
    spoiled: dict[str, dict[str, Any]] = {
        "as it is": {},
        "an unreachable broker": {"default_vhost": "dead"},
        "a URL with credentials": {"upstream": {"urls": [f"amqp://u:{PLANT}@h", f"amqp://{PLANT}:x@h:x", PLANT]}},
        "an encrypted key": {"listeners": [{"tcp": "127.0.0.1:0", "tls": tls}]},
        "two passcodes": {"admin": users},
        "a passcode in the wrong place": {"defaults": {"default_user": PLANT, "passcode": PLANT, "prefetch": PLANT}},
        "a list": {"defaults": {"default_user": {"login": "a", "passcode": [PLANT]}}},
    }
    for number, (what, changes) in enumerate(spoiled.items()):
        file = tmp_path / f"{number}.yaml"
        file.write_text(yaml.safe_dump(document | changes))
        assert main(["check", "--config", str(file)]) != 0, what
        said = capsys.readouterr()
        search.add(f"check of {what}", said.out + said.err)
    (tmp_path / "rabbitmq.conf").write_text(
        f"stomp.default_user = a\nstomp.default_pass = {PLANT}\nstomp.nonsense = 1\n"
    )
    main(["migrate", str(tmp_path / "rabbitmq.conf"), "--lenient", "--passcode-variable", "PASSCODE"])
    said = capsys.readouterr()
    search.add("migrate", said.out + said.err)
    assert "stomp.nonsense" in search.outputs["migrate"]
    assert search.leaks == []


# In the process.


async def test_no_object_of_the_core_shows_a_secret(
    document: dict[str, Any], laboratory: Broker, management: Management
) -> None:
    """Every object of the gateway that is alive is asked for its text, while sessions are logged in and logging in."""
    document["defaults"]["certificate_users"]["everyone"]["passcode"] = CERTIFIED
    await management.add_user("secret-shown", passcode=USER)
    config = parsed(laboratory.amqp_url, **{key: document[key] for key in ("admin", "defaults")})
    async with gateway_here(config) as gateway, within(6 * PATIENCE):
        (address,) = gateway.addresses
        async with (
            StompClient.logged_in(address, login="secret-shown", passcode=USER) as client,
            StompClient.dialled(address) as half,
        ):
            await client.ask("SEND", b"x", destination="/topic/a")
            await client.ask("SUBSCRIBE", id="1", destination="/topic/a")
            half.write("CONNECT", accept_version="1.2", host="/", login="secret-shown", passcode=WRONG)
            await asyncio.sleep(0)
            shown = [(type(each).__name__, _text(each)) for each in gc.get_objects() if _is_ours(each)]
            tasks = [repr(task) for task in asyncio.all_tasks()]
            await half.expect("ERROR")
            await client.disconnect()
    await management.delete_user("secret-shown")
    assert {"Session", "Link", "GatewayConfig", "User", "Credentials", "ClientConnection"} <= {
        name for name, _ in shown
    }
    assert [name for name, text in shown if PLANT in text] == []
    assert not [task for task in tasks if PLANT in task]


def _is_ours(thing: object) -> bool:
    return str(type(thing).__module__).startswith("gateway.")


def _text(thing: object) -> str:
    """As a log or a debugger would show it, and its attributes one level down."""
    names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    below = {**getattr(thing, "__dict__", {}), **{name: getattr(thing, name, None) for name in names}}
    # A passcode is somewhere, as text of its own: whoever shows that has asked for it by its name.
    rest = [repr(value) for value in below.values() if not isinstance(value, str | bytes)]
    return f"{thing!r} {thing} {rest}"


async def test_a_traceback_shows_no_secret(laboratory: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The AMQP library fails in a way that nobody expects, with the URL and its passcode in the error's text."""

    async def fail(connection: AiormqConnection, *_: object, **__: object) -> None:
        secret = connection.url.password
        raise ZeroDivisionError(f"no way to {connection.url}" if secret else "")

    monkeypatch.setattr(AiormqConnection, "connect", fail)
    with (tmp_path / "log").open("w") as stream:
        configure_logs(Logging(format="json", level="debug"), stream)
        async with gateway_here(parsed(laboratory.amqp_url)) as gateway, within():
            (address,) = gateway.addresses
            async with StompClient.dialled(address) as client:
                client.write("CONNECT", accept_version="1.2", host="/", login="secret", passcode=USER)
                with contextlib.suppress(ConnectionOverError):
                    assert PLANT not in repr(await client.receive())
    log = (tmp_path / "log").read_text()
    assert "ZeroDivisionError" in log
    assert "amqp://secret:***@" in log
    assert PLANT not in log
