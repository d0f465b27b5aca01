"""`stomp-gateway tap`: bytes pass untouched, whatever they are, and the journal says what clients and server did."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import stomp

from gateway.cli.command_line import main
from gateway.errors import ExitCode
from gateway.journal.segments import PATTERN
from gateway.parity.transcript import Transcript
from gateway.tap.conversation import Conversation
from gateway.tap.departures import RULES
from gateway.tap.tap_server import TapServer
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import ROOT, Address
from tests.support.stomp_client import StompClient, encoded
from tests.support.tapping import server, tapping
from tests.support.transcripts import TRANSCRIPTS, check_transcript

pytestmark = pytest.mark.system

LARGE = 3 << 20


def journal(folder: Path) -> list[dict[str, Any]]:
    """All lines, once the tap has stopped."""
    files = sorted(folder.glob(f"d*=*/{PATTERN}"))
    assert all(file.name.startswith("plugin-") for file in files)
    return [msgspec.json.decode(line) for file in files for line in file.read_bytes().splitlines()]


def of(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["e"] == event]


# Bytes.


async def test_any_bytes_pass_in_any_pieces_and_each_end_of_its_own(tmp_path: Path) -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable is what it must be
    streams = [chance.randbytes(LARGE), b"SEND\nno colon\n\n\0" + chance.randbytes(1000), b"", b"\0" * 100_000]
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # It answers when the client has said all: its half of the connection must still be open.
        heard.append(await reader.read())
        writer.write(heard[-1][::-1])

    async with within(2 * PATIENCE), server(serve) as address, tapping(address, tmp_path) as tap:
        for stream in streams:
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            at = 0
            while at < len(stream):
                size = chance.choice((1, 10, 1000, 100_000))
                writer.write(stream[at : at + size])
                await writer.drain()
                at += size
            writer.write_eof()
            answer = await reader.read()
            assert heard[-1] == stream
            assert answer == stream[::-1]
            writer.close()
        assert tap.unreadable > 0
        await until(_open(tap), lambda number: number == 0)


def _open(tap: TapServer) -> Callable[[], Awaitable[int]]:
    async def number() -> int:
        return len(tap._open)

    return number


async def test_the_plugin_says_the_same_to_a_client_behind_a_tap(
    plugin_address: Address, tmp_path: Path, queue: str
) -> None:
    body = bytes(range(256)) * 400
    frames = b"".join(
        (
            encoded("SUBSCRIBE", id="1", destination=f"/queue/{queue}"),
            encoded("SEND", body, destination=f"/queue/{queue}", receipt="r1", a_b="\n:\\"),
            encoded("NONSENSE"),
            encoded("SEND", destination="/nowhere", receipt="r2"),
        )
    )

    async def said(address: Address, seed: int) -> set[bytes]:
        chance = random.Random(seed)  # noqa: S311
        async with StompClient.logged_in(address) as client:
            at = 0
            while at < len(frames):
                size = chance.choice((1, 7, 500, 5000))
                client.writer.write(frames[at : at + size])
                await client.writer.drain()
                at += size
            data = await client.reader.readexactly(len(body))
            while data.count(b"ERROR") < 2 or b"RECEIPT" not in data or body not in data:
                data += await client.reader.read(65536)
            session = client.connected["session"].encode()
            client.write("DISCONNECT", receipt="bye")
            data += await client.reader.read()
        # Which of them comes first is for the server to choose.
        return set(data.replace(session, b"session").replace(body, b"body").split(b"\0\n"))

    async with within(2 * PATIENCE), tapping(plugin_address, tmp_path) as tap:
        direct, tapped = await said(plugin_address, 1), await said(tap.addresses[0], 2)
    assert tapped == direct
    lines = journal(tmp_path)
    assert [line.get("b", 0) for line in of(lines, "send")] == [len(body), 0]
    assert [line["x"] for line in of(lines, "err")] == ["bad-command", "unknown-destination"]
    (line,) = of(lines, "dlv")
    assert line["b"] == len(body)


async def test_a_client_that_does_not_read_takes_no_memory_and_gets_everything_later(tmp_path: Path) -> None:
    sent, is_done = 0, asyncio.Event()
    piece = b"x" * 65536

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        if await reader.readexactly(1) == b"e":
            writer.write(b"e")
            return
        for _ in range(1024):
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
        is_done.set()

    async with within(2 * PATIENCE), server(serve) as address, tapping(address, tmp_path) as tap:
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, tap.addresses[0])
            await loop.sock_sendall(slow, b"s")
            (connection,) = await until(_connections(tap), lambda found: bool(found and found[0].server is not None))

            async def is_held() -> bool:
                transport = connection.server.transport
                return transport is not None and not transport.is_reading()

            assert await until(is_held, bool)
            # Somebody else is served meanwhile.
            for _ in range(20):
                reader, writer = await asyncio.open_connection(*tap.addresses[0])
                writer.write(b"e")
                assert await reader.readexactly(1) == b"e"
                writer.close()
            client = connection.client.transport
            assert client is not None
            assert client.get_write_buffer_size() < 1 << 20
            assert not is_done.is_set()
            got = 0
            while data := await loop.sock_recv(slow, 1 << 20):
                got += len(data)
            assert got == 1024 * len(piece)


def _connections(tap: TapServer) -> Callable[[], Awaitable[list[Any]]]:
    async def found() -> list[Any]:
        return list(tap._open)

    return found


async def test_a_fault_of_the_tap_is_felt_by_nobody(
    plugin_address: Address, tmp_path: Path, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Conversation.heard

    def heard(self: Conversation, data: bytes, *, from_client: bool) -> Iterator[None]:
        if b"poison" in data:
            raise RuntimeError("a fault of ours")
        return original(self, data, from_client=from_client)

    monkeypatch.setattr(Conversation, "heard", heard)
    async with within(2 * PATIENCE), tapping(plugin_address, tmp_path) as tap:
        async with StompClient.logged_in(tap.addresses[0]) as one, StompClient.logged_in(tap.addresses[0]) as other:
            for client in (one, other):
                await client.ask("SUBSCRIBE", id="1", destination=f"/topic/{queue}")
            one.write("SEND", b"poison", destination=f"/topic/{queue}")
            for client in (one, other):
                await client.expect("MESSAGE", b"poison")
            other.write("SEND", b"well", destination=f"/topic/{queue}")
            await one.expect("MESSAGE", b"well")
    assert len(of(journal(tmp_path), "end")) == 2


async def test_tls_to_both_sides(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "authority")
    identity = authority.sign(tmp_path, "server")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*identity)
    trust = ssl.create_default_context(cafile=authority.certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)

    folder, stream = tmp_path / "journal", random.Random(2).randbytes(LARGE)  # noqa: S311
    async with within(2 * PATIENCE), server(serve, serving) as (_, port):
        async with tapping(("localhost", port), folder, listen_tls=serving, upstream_tls=trust) as tap:
            reader, writer = await asyncio.open_connection(*tap.addresses[0], ssl=trust, server_hostname="localhost")
            writer.write(stream)
            assert await reader.readexactly(len(stream)) == stream
            writer.close()
            # A server whose certificate is not trusted gets nobody.
        async with tapping(("127.0.0.1", port), folder, upstream_tls=ssl.create_default_context()) as tap:
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            assert await reader.read() == b""
            writer.close()


# The journal.


async def test_the_journal_says_what_stomp_py_did(plugin_address: Address, tmp_path: Path, queue: str) -> None:
    class Listener(stomp.ConnectionListener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.messages: list[Any] = []
            self.receipts: list[str] = []

        def on_message(self, frame: Any) -> None:  # noqa: ANN401 - stomp.py has no types
            self.messages.append(frame)

        def on_receipt(self, frame: Any) -> None:  # noqa: ANN401
            self.receipts.append(frame.headers["receipt-id"])

    def converse(address: Address) -> None:
        connection, listener = stomp.Connection12([address], vhost="/"), Listener()
        connection.set_listener("test", listener)
        connection.connect("guest", "guest", wait=True)
        connection.subscribe(f"/queue/{queue}", "7", ack="client-individual", headers={"prefetch-count": "2"})
        for number in range(3):
            connection.send(f"/queue/{queue}", f"secret body {number}", receipt=f"r{number}", persistent="true")
        waited = time_limit()
        while len(listener.messages) < 2 or len(listener.receipts) < 3:
            waited()
        first, second = (message.headers["ack"] for message in listener.messages[:2])
        connection.ack(first)
        connection.nack(second)
        while len(listener.messages) < 4:
            waited()
        connection.disconnect(receipt="bye")

    async with tapping(plugin_address, tmp_path, users="hashed", peers="none") as tap:
        await asyncio.to_thread(converse, tap.addresses[0])
        await until(_open(tap), lambda number: number == 0)
    lines = journal(tmp_path)
    (connect,), (end,), (subscription,) = (of(lines, event) for event in ("conn", "end", "sub"))
    assert "ip" not in connect
    assert connect["u"] != "guest"
    assert 0 < connect["l"] < 60_000_000
    assert (subscription["d"], subscription["pf"], subscription["am"]) == (f"/queue/{queue}", 2, "client-individual")
    assert [line["b"] for line in of(lines, "send")] == [len("secret body 0")] * 3
    assert [line["m"] for line in of(lines, "conf")] == [1, 2, 3]
    assert all(line["l"] > 0 for line in of(lines, "conf"))
    assert len(of(lines, "dlv")) == 4
    assert sum(line.get("r", False) for line in of(lines, "dlv")) == 1
    assert [line["m"] for line in of(lines, "ack")] == [1]
    assert [(line["m"], line["x"]) for line in of(lines, "nack")] == [(2, "requeue")]
    assert end["x"] == "disconnect"
    assert end["f"]["unacked"] == 2
    assert {"queue", "receipt", "persistent", "prefetch", "nack"} <= {line["x"] for line in of(lines, "use")}
    text = msgspec.json.encode(lines)
    assert not [secret for secret in (b"secret", b"guest") if secret in text]


def time_limit() -> Callable[[], None]:
    """Called in a thread that looks again and again: it takes a moment, and must not take for ever."""
    import time  # noqa: PLC0415

    deadline = time.monotonic() + PATIENCE

    def wait() -> None:
        assert time.monotonic() < deadline
        time.sleep(0.005)

    return wait


@pytest.mark.parametrize(
    "transcript", [each for each in TRANSCRIPTS if each.name in RULES], ids=lambda each: each.name.replace("/", ".")
)
async def test_each_rules_own_conversation_shows_it(
    transcript: Transcript, plugin_address: Address, broker_url: str, tmp_path: Path
) -> None:
    async with tapping(plugin_address, tmp_path) as tap:
        await check_transcript(transcript, tap.addresses[0], broker_url, "plugin")
    assert transcript.name in {line["x"] for line in of(journal(tmp_path), "use")}


# The command.


def _command(*arguments: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "tap", *map(str, arguments)], cwd=ROOT, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip


async def test_the_command_runs_until_a_signal_and_finishes_its_journal(
    plugin_address: Address, tmp_path: Path
) -> None:
    host, port = plugin_address
    command = _command("--listen", "127.0.0.1:0", "--upstream", f"{host}:{port}", "--journal", tmp_path)
    try:
        assert command.stderr is not None
        line = await asyncio.to_thread(command.stderr.readline)
        address = line.split(b"address=127.0.0.1:")[1].split()[0]
        async with within(2 * PATIENCE), StompClient.logged_in(("127.0.0.1", int(address))):
            command.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(command.wait, PATIENCE) == ExitCode.OK
        assert b"tap stopped" in command.stderr.read()
    finally:
        command.kill()
        command.communicate()
    assert [line["e"] for line in journal(tmp_path) if line["e"] in ("conn", "end", "close")] == [
        "conn",
        "end",
        "close",
    ]
    assert of(journal(tmp_path), "end")[0]["x"] == "shutdown"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--key-file", "x.key"), "belong together"),
        (("--cert-file", "no.pem", "--key-file", "no.key"), "no.pem"),
        (("--ca-file", "ca.pem"), "need --upstream-tls"),
        (("--upstream-tls", "--ca-file", "no.pem"), "no.pem"),
    ],
)
def test_a_mistake_on_the_command_line_is_named(
    more: tuple[str, ...], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ("--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--journal", str(tmp_path))
    assert main(["tap", *usual, *more]) == ExitCode.CONFIGURATION
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (("--journal", "/dev/null/x"), ExitCode.FAILURE, "the journal cannot be written"),
        (("--listen", "192.0.2.1:61614"), ExitCode.LISTEN, "192.0.2.1:61614"),
    ],
)
def test_a_tap_that_cannot_start_says_why(more: tuple[str, ...], code: ExitCode, text: str, tmp_path: Path) -> None:
    command = _command("--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:1", "--journal", tmp_path, *more)
    _, errors = command.communicate(timeout=2 * PATIENCE)
    assert command.returncode == code
    assert text in errors.decode()
    assert b"Traceback" not in errors
