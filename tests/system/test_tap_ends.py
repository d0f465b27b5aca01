"""How connections through a tap end: nothing is lost, nothing stays open, and no fault holds a client or the tap."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import struct
from pathlib import Path

import pytest
import uvloop

from gateway.tap import proxy, tap_server
from gateway.tap.conversation import Conversation
from gateway.tap.tap_server import TapServer
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, until, within
from tests.support.tapping import server, tapping

pytestmark = pytest.mark.system


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers what it gets, once the client has said all of a line."""
    writer.write(b"answer to " + await reader.readline())
    await writer.drain()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)


async def _none_open(tap: TapServer) -> None:
    async def number() -> int:
        return len(tap._open)

    assert await until(number, lambda found: not found) == 0


def _tls(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server presents, and what trusts it."""
    authority = Authority.make(folder, "authority")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*authority.sign(folder, "server"))
    return serving, ssl.create_default_context(cafile=authority.certificate)


def _reset_at_once(address: tuple[str, int]) -> None:
    client = socket.create_connection(address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def test_clients_that_reset_at_once_leave_nothing_open(tmp_path: Path) -> None:
    async def run() -> None:
        async with within(), server(_echo) as address, tapping(address, tmp_path) as tap:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(20):
                # The loop runs afterwards: then they are gone.
                _reset_at_once(tap.addresses[0])
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()
            await writer.wait_closed()
            await _none_open(tap)

            async def descriptors() -> int:
                return len(os.listdir("/proc/self/fd"))

            assert await until(descriptors, lambda number: number <= before) <= before

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_a_server_name_that_cannot_be_looked_up_ends_its_client(tmp_path: Path) -> None:
    async with within(), tapping(("a..b", 61613), tmp_path) as tap:
        reader, writer = await asyncio.open_connection(*tap.addresses[0])
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("what", ["ended", "time_passed"])
async def test_a_fault_of_the_journal_holds_nobody(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = asyncio.Event()

    def fail(*_: object, **__: object) -> None:
        called.set()
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Conversation, what, fail)
    monkeypatch.setattr(tap_server, "_STAT_INTERVAL", 0.01)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with within(), server(_echo) as address, tapping(address, tmp_path) as tap:
        for _ in range(2):
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            if what == "time_passed":
                await called.wait()
            writer.close()
        await _none_open(tap)
    assert called.is_set()
    assert not failures


async def test_a_tap_that_stops_passes_on_what_it_took(tmp_path: Path) -> None:
    goes_on, got = asyncio.Event(), 0
    has_all = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        nonlocal got
        await goes_on.wait()
        while data := await reader.read(1 << 20):
            got += len(data)
        has_all.set()

    async with within(2 * PATIENCE), server(serve) as address, tapping(address, tmp_path) as tap:
        with socket.socket() as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, tap.addresses[0])
            sending = asyncio.create_task(loop.sock_sendall(client, bytes(64 << 20)))

            async def waiting() -> int:
                transports = [each.server.transport for each in tap._open if each.server is not None]
                return sum(each.get_write_buffer_size() for each in transports if each is not None)

            assert await until(waiting, lambda size: size >= 256 << 10)
            (connection,) = tap._open
            assert connection._conversation is not None
            heard = connection._conversation._client.size
            goes_on.set()
            await tap.stop()
            sending.cancel()
            await has_all.wait()
            # What was heard has been passed on before.
            assert got >= heard


async def _too_much(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says more than a client takes that does not read, and closes."""
    writer.write(bytes(64 << 20))
    await writer.drain()


def _left(tap: TapServer) -> int:
    """Bytes that wait in the tap for clients."""
    transports = [each.client.transport for each in tap._open]
    return sum(each.get_write_buffer_size() for each in transports if each is not None)


async def _is_full(tap: TapServer) -> None:
    async def left() -> int:
        return _left(tap)

    await until(left, bool)


async def test_a_stop_waits_for_nobody_who_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap_server, "_STOP_WITHIN", 0.05)
    async with within(), server(_too_much) as address, tapping(address, tmp_path) as tap:
        with socket.create_connection(tap.addresses[0]):
            await _is_full(tap)
            await tap.stop()
            assert not tap._open


async def test_a_client_that_takes_nothing_goes_after_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_REST_WITHIN", 0.05)

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Until there is something left in the tap, but not so much that it reads no more: it shall see the end.
        while not _left(tap):
            writer.write(bytes(4096))
            await writer.drain()
            await asyncio.sleep(0)

    # Its end is one of both directions.
    serving, trust = _tls(tmp_path)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        async with (
            within(), server(serve, serving) as (_, port),
            tapping(("localhost", port), tmp_path / "journal", upstream_tls=trust) as tap,
        ):  # fmt: skip
            await asyncio.get_running_loop().sock_connect(client, tap.addresses[0])
            await _none_open_but_once(tap)


async def _none_open_but_once(tap: TapServer) -> None:
    """A client has come, and is gone."""

    async def connections() -> int:
        return tap.connections

    await until(connections, bool)
    await _none_open(tap)


async def test_an_answer_comes_after_the_clients_last_word_also_from_a_server_with_tls(tmp_path: Path) -> None:
    serving, trust = _tls(tmp_path)
    async with within(), server(_answer, serving) as (_, port):
        async with tapping(("localhost", port), tmp_path / "journal", upstream_tls=trust) as tap:
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            writer.write(b"question\n")
            writer.write_eof()
            assert await reader.read() == b"answer to question\n"
            writer.close()
            await _none_open(tap)


async def test_a_server_with_tls_that_does_not_answer_a_last_word_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "_ANSWER_WITHIN", 0.05)
    serving, trust = _tls(tmp_path)
    async with within(), server(_echo, serving) as (_, port):
        async with tapping(("localhost", port), tmp_path / "journal", upstream_tls=trust) as tap:
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await _none_open(tap)


async def test_the_end_of_a_client_with_tls_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    serving, trust = _tls(tmp_path)
    async with within(), server(_echo) as address, tapping(address, tmp_path / "journal", listen_tls=serving) as tap:
        _, port = tap.addresses[0]
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trust)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        writer.close()
        await _none_open(tap)
    assert not [record.getMessage() for record in caplog.records if "eof_received" in record.getMessage()]


async def test_a_reset_is_passed_on(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with within(), server(serve) as address, tapping(address, tmp_path) as tap:
        reader, writer = await asyncio.open_connection(*tap.addresses[0])
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
