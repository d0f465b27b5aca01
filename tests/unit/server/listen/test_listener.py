"""A listener from inside: which connections it accepts, what it knows of each, and which addresses it takes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import ssl
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import pytest
import structlog

from deploy.local.ports import free_ports
from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.errors import ListenError
from gateway.server.counts import Counts
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.address_checks import AddressChecks, LockOuts
from gateway.server.listen.listener import OpenListener
from gateway.server.shared_counts import SharedCounts, SharedMemory
from gateway.server.stats import Refusal
from gateway.server.tls_contexts import TlsContexts
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import gateway_here

Address = tuple[str, int]

LINE: Final = b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n"
WELCOME: Final = b"welcome"


class WelcomeFactory:
    """Makes protocols that send a welcome and close, and keeps the accepted connections."""

    def __init__(self) -> None:
        self.accepted: list[AcceptedConnection] = []

    def connect(self, accepted: AcceptedConnection) -> asyncio.Protocol:
        self.accepted.append(accepted)
        return _Welcome()


class SilentFactory:
    """Makes protocols that keep their connections open, and keeps what they were made for."""

    def __init__(self) -> None:
        self.accepted: list[AcceptedConnection] = []
        self.transports: list[asyncio.BaseTransport] = []

    def connect(self, accepted: AcceptedConnection) -> asyncio.Protocol:
        self.accepted.append(accepted)
        return _Silent(self.transports, accepted)

    def close(self) -> None:
        for transport in self.transports:
            assert isinstance(transport, asyncio.Transport)
            transport.abort()


class _Silent(asyncio.Protocol):
    def __init__(self, transports: list[asyncio.BaseTransport], accepted: AcceptedConnection) -> None:
        self._transports = transports
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._accepted.on_closed()


class _Welcome(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(WELCOME)
        transport.close()


@contextlib.asynccontextmanager
async def opened(
    factory: WelcomeFactory | SilentFactory,
    *,
    host: str = "127.0.0.1",
    proxied: bool = True,
    more: str = "",
    refused: Counter[str] | None = None,
    kind: str = "tcp",
    counts: Counts | None = None,
) -> AsyncIterator[OpenListener]:
    """A listener of a configuration, open; ``more`` are further settings, each with a comma before it."""
    text = f"listeners: [{{{kind}: '{host}:0', proxy_protocol: {str(proxied).lower()}, login_timeout: 1h{more}}}]"
    settings = parse(text, environment={}).listeners[0]
    listener = OpenListener(settings, factory.connect, TlsContexts(), refused=refused, counts=counts)
    await listener.bind()
    listener.accept()
    try:
        yield listener
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def dialled(address: Address, host: str = "") -> AsyncIterator[socket.socket]:
    """A connection, from an address of this machine if one is given."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setblocking(False)
        client.bind((host, 0))
        await loop.sock_connect(client, address)
        yield client


async def visit(address: Address, header: bytes = LINE) -> bytes:
    """Connect with a PROXY header; what the listener's protocol sends."""
    loop = asyncio.get_running_loop()
    async with within(), dialled(address) as client:
        await loop.sock_sendall(client, header)
        answer = b""
        while data := await loop.sock_recv(client, 100):
            answer += data
        return answer


async def test_a_connection_begins_when_it_is_accepted_and_not_with_its_header() -> None:
    factory = WelcomeFactory()
    loop = asyncio.get_running_loop()
    async with opened(factory) as listener, dialled(listener.addresses[0]) as slow:
        # Connections are accepted in their order.
        assert await visit(listener.addresses[0]) == WELCOME
        accepted_by = loop.time()
        await loop.sock_sendall(slow, LINE)
        assert await loop.sock_recv(slow, 100) == WELCOME
        assert factory.accepted[-1].accepted_at <= accepted_by


@pytest.mark.parametrize("header", [b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"])
async def test_a_client_behind_a_proxy_that_does_not_name_it_is_not_local(header: bytes) -> None:
    factory = WelcomeFactory()
    async with opened(factory) as listener:
        assert await visit(listener.addresses[0], header) == WELCOME
    (accepted,) = factory.accepted
    assert accepted.peer is not None
    assert (accepted.peer.host, accepted.peer.is_local) == ("127.0.0.1", False)


@pytest.mark.parametrize("fault", [RuntimeError("a fault"), OSError(errno.ENOLCK, "No locks available")])
@pytest.mark.parametrize(("proxied", "header"), [(False, b""), (True, LINE)])
async def test_a_fault_in_the_beginning_of_one_connection_does_not_end_the_listener(
    fault: Exception, proxied: bool, header: bytes
) -> None:
    factory, reported = WelcomeFactory(), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    begin = factory.connect

    def connect(accepted: AcceptedConnection) -> asyncio.Protocol:
        if not reported:
            raise fault
        return begin(accepted)

    factory.connect = connect  # type: ignore[method-assign]
    async with opened(factory, proxied=proxied) as listener:
        assert await visit(listener.addresses[0], header) == b""
        assert _open(listener) == 0
        assert await visit(listener.addresses[0], header) == WELCOME
    assert reported == [fault]


class FailingLock:
    """A lock of counts that fails the first times, as a file's lock may."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __enter__(self) -> None:
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOLCK, "No locks available")

    def __exit__(self, *_: object) -> None:
        """Nothing is locked."""


@pytest.mark.parametrize("patched", ["lock", "peer", "lists"])
async def test_a_fault_before_a_connection_is_counted_does_not_end_the_listener(
    patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory, counts, reported, faults = WelcomeFactory(), Counts(), [], 2
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*arguments: object) -> object:
            if len(reported) < faults:
                raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
            return original(*arguments)

        return fail

    if patched == "lock":
        counts.lock = FailingLock(faults)
    elif patched == "peer":
        monkeypatch.setattr(Peer, "of_socket", failing(Peer.of_socket))
    else:
        monkeypatch.setattr(AddressChecks, "check_accepted", failing(AddressChecks.check_accepted))
    async with opened(factory, proxied=False, counts=counts) as listener:
        for _ in range(faults):
            assert await visit(listener.addresses[0], b"") == b""
        assert _open(listener) == 0
        assert await visit(listener.addresses[0], b"") == WELCOME
    assert len(reported) == faults


async def test_a_connection_that_waits_for_room_is_not_counted_when_the_listener_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.server.listen.connection_limits._PATIENCE", 3600.0)
    async with opened(SilentFactory(), more=", max_handshakes: 2") as listener, contextlib.AsyncExitStack() as clients:
        for number in (1, 2, 3):
            await clients.enter_async_context(dialled(listener.addresses[0], f"127.0.0.{number}"))
        async with within():
            await _connected(listener, 3)
            listener.close()
            await _connected(listener, 0)


async def test_an_address_is_checked_once_unless_a_proxy_names_another(
    monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    asked: list[str] = []
    check = LockOuts.is_locked_out

    def is_locked_out(lock_outs: LockOuts, host: str) -> bool:
        asked.append(host)
        return check(lock_outs, host)

    monkeypatch.setattr(LockOuts, "is_locked_out", is_locked_out)
    for proxied, header, hosts in ((False, b"", ["127.0.0.1"]), (True, LINE, ["10.1.1.1"])):
        asked.clear()
        async with opened(SilentFactory(), proxied=proxied, more=f", {tls}") as listener, within():
            # What is no TLS ends the connection once it is prepared.
            await visit(listener.addresses[0], header + b"no TLS at all")
        assert asked == hosts


async def test_a_listener_that_closes_drops_what_is_just_beginning() -> None:
    factory = SilentFactory()
    begin = factory.connect
    close: list[Callable[[], None]] = []

    def connect(accepted: AcceptedConnection) -> asyncio.Protocol:
        # The connection is accepted, and has no transport yet.
        close.pop()()
        return begin(accepted)

    factory.connect = connect  # type: ignore[method-assign]
    async with opened(factory, proxied=False) as listener:
        close.append(listener.close)
        assert await visit(listener.addresses[0], b"") == b""
        assert _open(listener) == 0


@pytest.mark.parametrize("module", ["asyncio", "uvloop"])
def test_a_listener_that_closes_tells_the_connection_that_has_just_begun(module: str) -> None:
    """Once. uvloop then closes a connection without a word to its protocol, and asyncio tells the protocol."""
    loop_factory = pytest.importorskip(module).new_event_loop

    async def scene() -> None:
        begun: list[OpenListener] = []
        factory = SilentFactory()

        class Closing(asyncio.Protocol):
            lost = 0

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                begun.pop().close()

            def connection_lost(self, exc: Exception | None) -> None:
                self.lost += 1

        protocol = Closing()
        factory.connect = lambda accepted: protocol  # type: ignore[method-assign]
        async with opened(factory, proxied=False) as listener:
            begun.append(listener)
            assert await visit(listener.addresses[0], b"") == b""
            assert (protocol.lost, _open(listener)) == (1, 0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(scene())


async def test_a_connection_that_is_reset_before_it_is_accepted_has_an_address() -> None:
    factory = WelcomeFactory()
    async with opened(factory) as listener:
        address = listener.addresses[0]
        # Blocking: all of it happens before the loop, which is this one, accepts.
        with socket.create_connection(address, PATIENCE) as client:
            host, port = client.getsockname()
            client.sendall(b"PROXY UNKNOWN\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert await visit(address) == WELCOME
    (peer,) = [each.peer for each in factory.accepted if str(each.peer) != "10.1.1.1:1000"]
    assert str(peer) == f"{host}:{port}"


def one_of_three_workers() -> Counts:
    return SharedCounts(SharedMemory.made(3), 0, asyncio.get_running_loop().time)


@pytest.mark.parametrize(("most", "counts_of"), [(2, Counts), (8, one_of_three_workers)])
async def test_handshakes_are_bounded_and_each_has_its_time(
    most: int, counts_of: Callable[[], Counts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.server.listen.connection_limits._PATIENCE", 3600.0)
    factory, elsewhere, refused = WelcomeFactory(), WelcomeFactory(), Counter[str]()
    loop = asyncio.get_running_loop()
    with structlog.testing.capture_logs() as lines:
        async with (
            opened(factory, more=f", max_handshakes: {most}", refused=refused, counts=counts_of()) as listener,
            opened(elsewhere) as other,
            within(),
        ):
            address = listener.addresses[0]
            one, two, three = (dialled(address, f"127.0.0.{number}") for number in (1, 2, 3))
            async with one as first, two, three as third:
                await loop.sock_sendall(third, LINE)
                for _ in range(20):
                    # The others are not held up, and the loop has gone round and round.
                    assert await visit(other.addresses[0]) == WELCOME
                assert not factory.accepted
                first.close()
                assert await loop.sock_recv(third, 100) == WELCOME
    assert {(line["event"], line["ended"]) for line in lines} == {("too many handshakes", 0)}
    assert not refused[Refusal.HANDSHAKES]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The setting of a listener with a certificate."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = Authority.make(directory, "authority").sign(directory, "server")
    return f"tls: {{cert_file: {certificate}, key_file: {key}}}"


def _hello() -> bytes:
    """What a TLS client says first."""
    context, out = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost").do_handshake()
    return out.read()


def _open(listener: OpenListener) -> int:
    """The number of connections that it counts, including those in preparation."""
    limits = listener._limits
    return limits.counts.total((limits.place, ""))


async def _connected(listener: OpenListener, count: int) -> None:
    while _open(listener) != count:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


async def test_a_listener_that_closes_leaves_the_socket_of_a_finished_handshake_to_the_event_loop(tls: str) -> None:
    """The event loop writes the end of TLS, and waits for the client's. Meanwhile nobody may get the descriptor."""
    begun: list[OpenListener] = []

    class Closing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            begun.pop().close()

    def shake_hands(address: Address) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(socket.create_connection(address, PATIENCE))

    factory = SilentFactory()
    factory.connect = lambda accepted: Closing()  # type: ignore[method-assign]
    async with opened(factory, proxied=False, more=f", {tls}") as listener, within():
        begun.append(listener)
        with await asyncio.to_thread(shake_hands, listener.addresses[0]):
            await _connected(listener, 0)
            async with opened(WelcomeFactory(), proxied=False) as another:
                assert await visit(another.addresses[0], b"") == WELCOME


@pytest.mark.parametrize("proxied", [True, False])
async def test_the_address_with_the_most_handshakes_makes_room_once_they_have_had_their_time(
    monkeypatch: pytest.MonkeyPatch, tls: str, proxied: bool
) -> None:
    """Every client is silent: the PROXY header or the handshake never begins."""
    monkeypatch.setattr("gateway.server.listen.connection_limits._PATIENCE", 0.0)
    refused, more = Counter[str](), ", max_handshakes: 4" + ("" if proxied else f", {tls}")
    with structlog.testing.capture_logs() as lines:
        async with (
            opened(SilentFactory(), proxied=proxied, more=more, refused=refused) as listener,
            contextlib.AsyncExitStack() as clients,
            within(),
        ):

            async def dial(host: str) -> socket.socket:
                return await clients.enter_async_context(dialled(listener.addresses[0], host))

            first, *many = [await dial(host) for host in ("127.0.0.1", *["127.0.0.2"] * 3)]
            await _connected(listener, 4)
            last = await dial("127.0.0.1")
            for client in many:
                assert await _answer(client) == b""
            await _connected(listener, 2)
            assert refused[Refusal.HANDSHAKES] == 3
            for client in (first, last):
                with pytest.raises(BlockingIOError):
                    client.recv(1)
    found = [(line["event"], line["whose"], line["ended"], line["most"]) for line in lines]
    assert found == [("too many handshakes", "The address 127.0.0.2", 3, 4)]


async def test_nobody_waits_for_the_handshakes_of_an_address_with_more_than_its_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Silent clients past the proxy: those from elsewhere take the places of the oldest, their own next is refused."""
    monkeypatch.setattr("gateway.server.listen.connection_limits._PATIENCE", 3600.0)
    factory, refused, loop = WelcomeFactory(), Counter[str](), asyncio.get_running_loop()
    with structlog.testing.capture_logs() as lines:
        async with (
            opened(factory, more=", max_handshakes: 4", refused=refused) as listener,
            contextlib.AsyncExitStack() as clients,
            within(),
        ):

            async def dial(host: str) -> socket.socket:
                return await clients.enter_async_context(dialled(listener.addresses[0], host))

            first, *others = [await dial("127.0.0.2") for _ in range(4)]
            await _connected(listener, 4)
            assert await _answer(await dial("127.0.0.2")) == b""
            honest = await dial("127.0.0.3")
            assert await _answer(first) == b""
            assert refused[Refusal.HANDSHAKES] == 2
            await loop.sock_sendall(honest, LINE)
            assert await _answer(honest) == WELCOME
            for client in others:
                with pytest.raises(BlockingIOError):
                    client.recv(1)
            listener.close()
            await _connected(listener, 1)
    found = [(line["event"], line["address"], line["whose"], line["ended"]) for line in lines]
    assert found == [("too many handshakes", "127.0.0.1:0", "The address 127.0.0.2", 1)] * 2


async def test_a_handshake_that_is_ended_before_its_first_step_is_not_counted_any_longer() -> None:
    factory = SilentFactory()
    async with opened(factory) as listener, within():
        # Blocking: the loop, which is this one, accepts only below.
        with socket.create_connection(listener.addresses[0], PATIENCE) as client:
            client.setblocking(False)
            while not _open(listener):  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0)
            listener.close()
            assert await _answer(client) == b""
            await _connected(listener, 0)


async def test_behind_a_proxy_a_handshake_counts_for_the_address_in_the_header(
    monkeypatch: pytest.MonkeyPatch, tls: str
) -> None:
    monkeypatch.setattr("gateway.server.listen.connection_limits._PATIENCE", 0.0)
    loop = asyncio.get_running_loop()
    async with (
        opened(SilentFactory(), more=f", max_handshakes: 3, {tls}") as listener,
        contextlib.AsyncExitStack() as clients,
        within(),
    ):

        async def dial(host: str) -> socket.socket:
            client = await clients.enter_async_context(dialled(listener.addresses[0]))
            await loop.sock_sendall(client, f"PROXY TCP4 {host} 10.2.2.2 1000 2000\r\n".encode() + _hello())
            # The answer tells that the header was read. The client leaves it at that.
            assert await loop.sock_recv(client, 1 << 16)
            return client

        first, *many = [await dial(host) for host in ("192.0.2.1", "192.0.2.2", "192.0.2.2")]
        last = await dial("192.0.2.3")
        for client in many:
            assert await _answer(client) == b""
        await _connected(listener, 2)
        for client in (first, last):
            with pytest.raises(BlockingIOError):
                client.recv(1)


async def test_an_error_of_one_connection_does_not_keep_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.listen.listener._PAUSE", 3600.0)
    errors = [OSError(number, "") for number in (errno.ECONNABORTED, errno.EHOSTUNREACH, errno.EPERM)]
    _failing(monkeypatch, errors)
    async with opened(WelcomeFactory()) as listener:
        assert await visit(listener.addresses[0]) == WELCOME
    assert not errors


async def test_without_file_descriptors_accepting_pauses_and_the_log_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.server.listen.listener._PAUSE", 0.0)
    errors = [OSError(number, "so it is") for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)]
    _failing(monkeypatch, errors)
    with structlog.testing.capture_logs() as lines:
        async with opened(WelcomeFactory()) as listener:
            assert await visit(listener.addresses[0]) == WELCOME
    assert [(line["event"], line["reason"]) for line in lines] == [("accept failed", "so it is")] * 4


def _failing(monkeypatch: pytest.MonkeyPatch, errors: list[OSError]) -> None:
    """Let the first attempts to accept fail, which the operating system does not do on demand."""
    accept = socket.socket.accept

    def fail_first(door: socket.socket) -> tuple[socket.socket, Any]:
        if errors:
            raise errors.pop()
        return accept(door)

    monkeypatch.setattr(socket.socket, "accept", fail_first)


async def test_small_writes_leave_at_once() -> None:
    factory = SilentFactory()
    async with within(), opened(factory, proxied=False) as listener, dialled(listener.addresses[0]):
        await _accepted(factory, 1)
        connection = factory.transports[0].get_extra_info("socket")
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        factory.close()


# Limits.


async def _accepted(factory: SilentFactory, count: int) -> None:
    while len(factory.transports) < count:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)


async def _answer(client: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while data := await asyncio.get_running_loop().sock_recv(client, 1000):
            answer += data
    return answer


async def test_connections_of_an_address_that_have_not_logged_in_are_bounded() -> None:
    factory, refused, loop = SilentFactory(), Counter[str](), asyncio.get_running_loop()
    async with (
        opened(factory, more=", max_unauthenticated_per_address: 2", refused=refused) as listener,
        contextlib.AsyncExitStack() as opened_here,
        within(),
    ):

        async def dial(host: str) -> socket.socket:
            client = await opened_here.enter_async_context(dialled(listener.addresses[0]))
            await loop.sock_sendall(client, f"PROXY TCP4 {host} 10.2.2.2 1000 2000\r\n".encode())
            return client

        first = await dial("192.0.2.1")
        await _accepted(factory, 1)
        await dial("192.0.2.1")
        await _accepted(factory, 2)
        with structlog.testing.capture_logs() as lines:
            answer = await _answer(await dial("192.0.2.1"))
        assert answer.startswith(b"ERROR\nmessage:Too many connections\n")
        assert b"\n\nThe address 192.0.2.1 has 2 connections, as many as are allowed; try again later.\n\0" in answer
        assert [(line["event"], line["whose"], line["most"]) for line in lines] == [
            ("too many connections", "The address 192.0.2.1", 2)
        ]
        # Another address has its own, and who logs in makes room for one more.
        await dial("192.0.2.2")
        await _accepted(factory, 3)
        factory.accepted[1].on_login(False)
        factory.accepted[1].on_login(False)
        await dial("192.0.2.1")
        await _accepted(factory, 4)
        assert await _answer(await dial("192.0.2.1"))
        # So does who leaves; and one that had logged in does not count again.
        first.close()
        factory.accepted[1].on_closed()
        while _open(listener) > 2:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        await dial("192.0.2.1")
        await _accepted(factory, 5)
        assert await _answer(await dial("192.0.2.1"))
        assert refused == {"address": 3}
        factory.close()


@pytest.mark.parametrize(
    ("more", "header", "sent", "reason"),
    [
        ("denied_networks: [127.0.0.0/8]", False, b"CONNECT\n\n\0", "the address is in denied_networks"),
        ("allowed_networks: [10.0.0.0/8]", False, b"", "the address is not in allowed_networks"),
        ("trusted_proxies: [127.0.0.9]", True, b"", "the address is not in trusted_proxies"),
        ("denied_networks: [10.1.1.0/24]", True, LINE, "the address is in denied_networks"),
        ("allowed_networks: [127.0.0.0/8]", True, LINE, "the address is not in allowed_networks"),
    ],
)
async def test_who_is_in_no_network_that_may_connect_is_closed_without_an_answer(
    more: str, header: bool, sent: bytes, reason: str
) -> None:
    factory, refused = WelcomeFactory(), Counter[str]()
    with structlog.testing.capture_logs() as lines:
        async with opened(factory, proxied=header, more=f", {more}", refused=refused) as listener, within():
            async with dialled(listener.addresses[0]) as client:
                peer = "10.1.1.1:1000" if sent == LINE else "{}:{}".format(*client.getsockname())
                await asyncio.get_running_loop().sock_sendall(client, sent)
                assert await _answer(client) == b""
            assert _open(listener) == 0
    assert (factory.accepted, refused) == ([], {"network": 1})
    (line,) = lines
    assert (line["event"], line["peer"], line["reason"]) == ("connection refused", peer, reason)


async def test_who_is_in_the_lists_of_networks_may_connect_and_others_after_a_change() -> None:
    factory = WelcomeFactory()
    lists = ", trusted_proxies: [127.0.0.1], allowed_networks: [10.0.0.0/8], denied_networks: [10.1.1.0/25]"
    async with opened(factory, more=lists) as listener:
        address, other = listener.addresses[0], LINE.replace(b"10.1.1.1 ", b"10.1.1.129 ")
        assert (await visit(address), await visit(address, other)) == (b"", WELCOME)
        listener.change(listener.settings.model_copy(update={"denied_networks": ()}), factory.connect)
        assert (await visit(address), await visit(address, other)) == (WELCOME, WELCOME)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("tcp", b"\n\nThe listener has 1 connections, as many as are allowed; try again later.\n\0\n"),
        ("websocket", b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    ],
)
async def test_the_connections_of_a_listener_are_bounded(kind: str, answer: bytes) -> None:
    factory, refused = SilentFactory(), Counter[str]()
    async with (
        opened(factory, proxied=False, more=", max_connections: 1", refused=refused, kind=kind) as listener,
        within(),
    ):
        async with dialled(listener.addresses[0]):
            await _accepted(factory, 1)
            factory.accepted[0].on_login(False)
            async with dialled(listener.addresses[0]) as second:
                assert (await _answer(second)).endswith(answer)
        while _open(listener):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        async with dialled(listener.addresses[0]):
            await _accepted(factory, 2)
        assert refused == {"listener": 1}
        factory.close()


async def test_a_flood_of_connections_leaves_others_their_turns() -> None:
    factory = SilentFactory()
    async with opened(factory, proxied=False) as listener, within():
        with contextlib.ExitStack() as clients:
            # Blocking: all of them wait before the loop, which is this one, accepts the first.
            for _ in range(60):
                clients.enter_context(socket.create_connection(listener.addresses[0], PATIENCE))
            before, most = 0, 0
            while len(factory.accepted) < 60:
                await asyncio.sleep(0)
                most, before = max(most, len(factory.accepted) - before), len(factory.accepted)
            assert most <= 8
            await _accepted(factory, 60)
            factory.close()


@pytest.mark.parametrize(("seconds", "options"), [("60s", (1, 60, 15, 4)), ("2s", (1, 2, 1, 4)), ("0", (0,))])
async def test_a_client_that_vanishes_is_noticed_by_tcp_keep_alive(seconds: str, options: tuple[int, ...]) -> None:
    factory = SilentFactory()
    async with opened(factory, proxied=False, more=f", tcp_keepalive: {seconds}") as listener, within():
        async with dialled(listener.addresses[0]):
            await _accepted(factory, 1)
            connection = factory.transports[0].get_extra_info("socket")
            found = [connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
            if found[0]:
                names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                found += [connection.getsockopt(socket.IPPROTO_TCP, name) for name in names]
            assert tuple(found) == options
            factory.close()


# Names that stand for several addresses. 192.0.2.1 is nobody's (RFC 5737); no socket has the family of AppleTalk.

HERE: Final = (socket.AF_INET, "127.0.0.1")
NOT_HERE: Final = (socket.AF_INET, "192.0.2.1")
NO_FAMILY: Final = (socket.AF_APPLETALK, "127.0.0.1")


def _standing_for(monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[socket.AddressFamily, str]]) -> None:
    async def found(host: str, port: int, **options: Any) -> list[Any]:  # noqa: ANN401 - as the loop's own
        assert host == "several.example"
        return [(family, options["type"], 6, "", (name, port)) for family, name in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)


@pytest.mark.parametrize("addresses", [[NOT_HERE, HERE], [HERE, NOT_HERE], [NO_FAMILY, HERE], [HERE, NO_FAMILY]])
async def test_addresses_that_this_machine_does_not_have_are_passed_over(
    monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[socket.AddressFamily, str]]
) -> None:
    _standing_for(monkeypatch, addresses)
    async with opened(WelcomeFactory(), host="several.example") as listener:
        ((host, _),) = listener.addresses
        assert host == "127.0.0.1"
        assert await visit(listener.addresses[0]) == WELCOME


@pytest.mark.parametrize(
    ("addresses", "number"),
    [
        ([NO_FAMILY, NO_FAMILY], errno.EAFNOSUPPORT),
        ([NOT_HERE], errno.EADDRNOTAVAIL),
        ([NO_FAMILY, NOT_HERE], errno.EADDRNOTAVAIL),
    ],
)
async def test_a_name_without_an_address_here_cannot_be_listened_on(
    monkeypatch: pytest.MonkeyPatch, addresses: list[tuple[socket.AddressFamily, str]], number: int
) -> None:
    _standing_for(monkeypatch, addresses)
    with pytest.raises(OSError, match="Errno") as caught:
        async with opened(WelcomeFactory(), host="several.example"):
            pytest.fail("it is open")
    assert caught.value.errno == number


def _without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    create = socket.create_server

    def refused(name: tuple[str, int], *, family: socket.AddressFamily, backlog: int) -> socket.socket:
        if family is socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return create(name, family=family, backlog=backlog)

    monkeypatch.setattr(socket, "create_server", refused)


def _listening_at(*addresses: str) -> GatewayConfig:
    listeners = [{"tcp": address} for address in addresses]
    return parse(json.dumps({"listeners": listeners, "defaults": {"journal": {"level": "off"}}}), environment={})


async def test_without_ipv6_every_address_is_every_ipv4_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _without_ipv6(monkeypatch)
    with structlog.testing.capture_logs() as lines:
        async with gateway_here(_listening_at("[::]:0", "0.0.0.0:0")) as gateway:
            assert [host for host, _ in gateway.addresses] == ["0.0.0.0"]  # noqa: S104 - on purpose
    assert [line["address"] for line in lines if line["event"] == "no ipv6"] == ["[::]:0"]


async def test_the_log_says_where_it_listens_as_the_configuration_does() -> None:
    with structlog.testing.capture_logs() as lines:
        async with gateway_here(_listening_at("[::1]:0", "127.0.0.1:0")) as gateway:
            (_, one), (_, other) = gateway.addresses
    named = [line["address"] for line in lines if line["event"] == "listening"]
    assert named == [f"[::1]:{one}", f"127.0.0.1:{other}"]


@pytest.mark.parametrize("addresses", [["[::]:0"], ["[::1]:0", "0.0.0.0:0"], ["127.0.0.1:0", "[::]:0"]])
async def test_without_ipv6_an_address_that_nothing_stands_for_cannot_be_listened_on(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str]
) -> None:
    _without_ipv6(monkeypatch)
    with pytest.raises(ListenError, match=r"cannot listen on \[::1?\]:0"):
        async with gateway_here(_listening_at(*addresses)):
            pytest.fail("it is open")


async def test_what_was_bound_before_an_address_that_is_taken_is_closed_when_the_error_comes() -> None:
    [port] = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ListenError):
            async with gateway_here(_listening_at(f"127.0.0.1:{port}", f"127.0.0.1:{taken.getsockname()[1]}")):
                pytest.fail("it is open")
        # Without a turn of the event loop in between.
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            pass


async def test_an_address_that_is_taken_is_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        async def found(*_: object, **options: Any) -> list[Any]:  # noqa: ANN401 - as the loop's own
            return [(socket.AF_INET, options["type"], 6, "", (host, port)) for host in ("127.0.0.2", "127.0.0.1")]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
        with pytest.raises(OSError, match="Errno") as caught:
            async with opened(WelcomeFactory(), host="several.example"):
                pytest.fail("it is open")
    assert caught.value.errno == errno.EADDRINUSE
