"""Unix-domain listeners from inside: their files, whom they let in, and who connects."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from gateway.admin.admin_listener import AdminListener
from gateway.config.addresses import UnixAddress
from gateway.config.listener_settings import Listener
from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError, ListenError
from gateway.server.listen import listening_sockets
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.listener import OpenListener
from gateway.server.listen.listening_sockets import UnixListeningSocket, bound
from gateway.server.tls_contexts import TlsContexts
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import gateway_here

OWN = f"unix:pid={os.getpid()},uid={os.getuid()},gid={os.getgid()}"

# No file that is made here has it.
OTHER_GROUP = os.getgid() + 1


def settings(directory: Path, more: str = "") -> Listener:
    return parse(f"listeners: [{{unix: a{more}}}]", directory=directory, environment={}).listeners[0]


async def listening(directory: Path, more: str = "") -> UnixListeningSocket:
    (made,) = await bound(settings(directory, more))
    assert isinstance(made, UnixListeningSocket)
    return made


async def refused(listener: Listener) -> str:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at below
        await bound(listener)
    return str(ListenError(str(listener.address), caught.value))


def not_permitted(*_: object) -> None:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.lstat().st_mode)


async def test_the_file_has_its_mode_whatever_the_umask_is_and_goes_with_the_socket(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        made = await listening(tmp_path, ", socket_mode: '0666'")
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "a") == 0o666
    made.close()
    assert not (tmp_path / "a").exists()
    made.close()


async def test_nobody_may_connect_before_the_file_has_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    monkeypatch.setattr(os, "chown", lambda path, _, group: given.append((mode_of(Path(path).resolve()), group)))
    (await listening(tmp_path, f", socket_mode: '0666', socket_group: '{OTHER_GROUP}'")).close()
    assert given == [(0o600, OTHER_GROUP)]


@pytest.mark.parametrize("group", ["null", f"'{os.getgid()}'"])
async def test_a_service_that_may_give_no_file_away_listens_in_its_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    """The units of systemd take the system calls away that change a file's group."""
    monkeypatch.setattr(os, "chown", not_permitted)
    made = await listening(tmp_path, f", socket_mode: '0666', socket_group: {group}")
    assert mode_of(tmp_path / "a") == 0o666
    made.close()


async def test_a_link_in_place_of_the_file_leads_to_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if it comes right after the gateway has looked what is there."""
    (tmp_path / "other").touch(0o600)
    made = await listening(tmp_path)
    usual = os.lstat

    def and_replace(path: str) -> os.stat_result:
        found = usual(path)
        os.replace(tmp_path / "link", tmp_path / "a")
        return found

    (tmp_path / "link").symlink_to(tmp_path / "other")
    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", and_replace)
        made.permit(settings(tmp_path, ", socket_mode: '0666'"))
    assert mode_of(tmp_path / "other") == 0o600
    made.close()


async def test_a_file_that_a_killed_gateway_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "a"))
    made = await listening(tmp_path)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(tmp_path / "a"))
    made.close()


async def test_a_socket_at_which_somebody_answers_is_left_alone(tmp_path: Path) -> None:
    made = await listening(tmp_path, ", backlog: 1")
    assert "another program answers there" in await refused(settings(tmp_path))
    with contextlib.ExitStack() as stack, contextlib.suppress(BlockingIOError):
        for _ in range(10):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect(str(tmp_path / "a"))
        pytest.fail("the queue has no end")
    assert "another program answers there" in await refused(settings(tmp_path))
    assert (tmp_path / "a").is_socket()
    made.close()


async def test_of_two_gateways_that_find_a_stale_socket_one_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes when the first one has just found out that nobody listens there."""
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "a"))
    waits_or_ended = threading.Event()
    ended: list[object] = []
    unlink, flock = os.unlink, fcntl.flock

    def lock(file: int, how: int) -> None:
        try:
            flock(file, how)
        except BlockingIOError:
            waits_or_ended.set()
            raise

    def start_second() -> None:
        try:
            ended.append(asyncio.run(bound(settings(tmp_path))))
        except OSError as error:
            ended.append(error.errno)
        waits_or_ended.set()

    def unlink_later(path: str) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        second.start()
        assert waits_or_ended.wait(PATIENCE)
        unlink(path)

    second = threading.Thread(target=start_second)
    monkeypatch.setattr(fcntl, "flock", lock)
    monkeypatch.setattr(os, "unlink", unlink_later)
    made = await listening(tmp_path)
    second.join()
    assert ended == [errno.EADDRINUSE]
    made.close()


async def test_a_directory_that_somebody_keeps_locked_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening_sockets, "_LOCK_PAUSE", 0)
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_SH)
        assert "another program keeps this directory locked. Check this path" in await refused(settings(tmp_path))
    finally:
        os.close(directory)
    (await listening(tmp_path)).close()


async def test_a_reload_says_that_the_file_is_gone(tmp_path: Path) -> None:
    text = "listeners: [{unix: a}, {unix: b}]\nadmin: unix:admin\ndefaults: {journal: {level: off}}"
    config = parse(text, directory=tmp_path, environment={})
    async with gateway_here(config) as gateway:
        admin = AdminListener(config.admin)
        await admin.start(gateway)
        (tmp_path / "a").unlink()
        (tmp_path / "admin").unlink()
        with structlog.testing.capture_logs() as lines:
            admin.prepare(config)
            await gateway.apply(config)
        await admin.stop()
    gone = [(line["log_level"], line["address"]) for line in lines if line["event"] == "socket file gone"]
    assert sorted(gone) == [("warning", f"unix:{tmp_path}/a"), ("warning", f"unix:{tmp_path}/admin")]


async def test_the_file_of_a_successor_stays(tmp_path: Path) -> None:
    made = await listening(tmp_path)
    (tmp_path / "a").unlink()
    successor = await listening(tmp_path)
    made.permit(settings(tmp_path, ", socket_mode: '0600'"))
    made.close()
    assert mode_of(tmp_path / "a") == 0o660
    successor.close()


async def test_what_cannot_be_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = settings(tmp_path)
    (tmp_path / "a").touch()
    assert "a file that is no socket is in the way" in await refused(listener)
    (tmp_path / "a").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "chown", not_permitted)
        refusal = await refused(settings(tmp_path, f", socket_group: '{OTHER_GROUP}'"))
        assert "has to be in socket_group; in a service of systemd the unit has to permit it" in refusal
    assert not (tmp_path / "a").exists()
    with monkeypatch.context() as patched, socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "a"))
        patched.setattr(os, "unlink", not_permitted)
        assert "if another user's socket is in the way, delete it" in await refused(listener)
    nowhere = listener.model_copy(update={"unix": UnixAddress(f"{tmp_path}/none/a")})
    assert "No such file or directory. Check this path under listeners" in await refused(nowhere)


class _Kept(asyncio.Protocol):
    """Keeps its connection, as clients do that have not logged in."""

    def __init__(self, accepted: AcceptedConnection, kept: list[asyncio.BaseTransport]) -> None:
        self._accepted = accepted
        self._kept = kept

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._kept.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.on_closed()


@contextlib.asynccontextmanager
async def opened(directory: Path, more: str = "") -> AsyncIterator[list[AcceptedConnection]]:
    """A listener with a Unix-domain socket; the connections that it has accepted."""
    accepted: list[AcceptedConnection] = []
    kept: list[asyncio.BaseTransport] = []

    def connect(connection: AcceptedConnection) -> asyncio.Protocol:
        accepted.append(connection)
        return _Kept(connection, kept)

    listener = OpenListener(settings(directory, more), connect, TlsContexts())
    await listener.bind()
    listener.accept()
    try:
        yield accepted
    finally:
        listener.close()
        for transport in kept:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()


async def test_a_client_is_known_by_its_process_and_counts_by_its_user(tmp_path: Path) -> None:
    async with within(), opened(tmp_path, ", max_unauthenticated_per_address: 1") as accepted:
        _, first = await asyncio.open_unix_connection(tmp_path / "a")
        reader, second = await asyncio.open_unix_connection(tmp_path / "a")
        assert f"The address unix:uid={os.getuid()} has 1 connection".encode() in await reader.read()
        (connection,) = accepted
        assert (str(connection.peer), connection.peer.is_local) == (OWN, True)
        for writer in (first, second):
            writer.close()
            await writer.wait_closed()


def test_a_client_behind_a_proxy_on_this_machine_may_be_anywhere() -> None:
    assert not Peer("unix:uid=0", 0, is_proxy=True, process=OWN).is_local


async def test_a_reload_that_cannot_give_a_socket_to_its_group_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(a: str, b: str, more: str = "") -> str:
        rest = "admin: off\ndefaults: {journal: {level: off}}"
        return f"listeners: [{{unix: a, socket_mode: '{a}'}}, {{unix: b, socket_mode: '{b}'{more}}}]\n{rest}"

    def read(text: str) -> GatewayConfig:
        return parse(text, directory=tmp_path, environment={})

    async with gateway_here(read(config("0660", "0660"))) as gateway:
        assert (await gateway.readiness()).reasons != ("no listener is open",)
        await gateway.apply(read(config("0600", "0666")))
        assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "b")) == (0o600, 0o666)
        monkeypatch.setattr(os, "chown", not_permitted)
        with pytest.raises(GatewayError, match="has to be in socket_group"):
            await gateway.apply(read(config("0640", "0640", f", socket_group: '{OTHER_GROUP}'")))
        assert (mode_of(tmp_path / "a"), mode_of(tmp_path / "b")) == (0o600, 0o666)
    assert not (tmp_path / "a").exists()
