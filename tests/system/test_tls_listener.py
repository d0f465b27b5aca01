"""TLS toward clients: who is let in, what a failed handshake leaves in the log, and how a session ends."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ExitCode
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.certificates import Authority, Identity
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import (
    Address,
    GatewayProcess,
    configuration,
    gateway_here,
    gateway_process,
    listening,
    parsed,
)
from tests.support.stomp_client import ConnectionOverError, StompClient, encoded
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.system

FAILED = "tls handshake failed"


@dataclass(frozen=True)
class Files:
    """Certificates for both ends of a connection. Of the two authorities the gateway trusts only the first."""

    directory: Path
    authority: Authority
    stranger: Authority
    server: Identity

    def listener(self, **tls: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
        """A listener with the server's certificate."""
        own = {"cert_file": str(self.server.certificate), "key_file": str(self.server.key)}
        if "verify" in tls:
            own["ca_file"] = str(self.authority.certificate)
        return {"tcp": "127.0.0.1:0", "tls": own | tls}

    def client(self, identity: Identity | None = None) -> ssl.SSLContext:
        """A client's side, with a certificate of its own or without."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        if identity is not None:
            context.load_cert_chain(identity.certificate, identity.key)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    directory = tmp_path_factory.mktemp("tls")
    authority, stranger = Authority.make(directory, "authority"), Authority.make(directory, "stranger")
    return Files(directory, authority, stranger, Identity(*authority.sign(directory, "server")))


@pytest.fixture(scope="module")
def gateway(files: Files, broker_url: str) -> Iterator[GatewayProcess]:
    """With TLS, without client certificates."""
    with gateway_process(configuration(broker_url, listeners=[files.listener()])) as process:
        yield process


@pytest.fixture(scope="module")
def strict(files: Files, broker_url: str) -> Iterator[GatewayProcess]:
    """Only for clients with a certificate of the authority."""
    with gateway_process(configuration(broker_url, listeners=[files.listener(verify="required")])) as process:
        yield process


async def reason_of_last(process: GatewayProcess, event: str, before: int) -> str:
    """Why the one connection failed that was made after so many lines of this event."""
    (line,) = (await process.until_logged(event, before + 1))[before:]
    assert line["peer"].startswith("127.0.0.1:")
    reason = line["reason"]
    assert isinstance(reason, str)
    return reason


async def refused(process: GatewayProcess, context: ssl.SSLContext) -> str:
    """Fail to connect, and return the reason in the log. In TLS 1.3 the client notices the refusal when it reads."""
    before = len(process.logged(FAILED))
    with contextlib.suppress(OSError, ConnectionOverError):
        async with StompClient.dialled(process.address, tls=context) as client:
            client.write("CONNECT", accept_version="1.2")
            pytest.fail(f"was answered with {await client.receive()}")
    return await reason_of_last(process, FAILED, before)


async def answered(process: GatewayProcess, context: ssl.SSLContext) -> None:
    async with StompClient.logged_in(process.address, tls=context) as client, within():
        await client.disconnect()


# A conversation.


async def test_messages_pass_in_both_directions(gateway: GatewayProcess, files: Files) -> None:
    async with StompClient.logged_in(gateway.address, tls=files.client()) as client, within():
        await client.ask("SUBSCRIBE", id="a", destination="/topic/tls-listener")
        body = bytes(range(256)) * 1200
        client.write("SEND", body, destination="/topic/tls-listener", receipt="r")
        frames = {frame.command: frame for frame in [await client.receive(), await client.receive()]}
        assert frames["MESSAGE"].body == body
        assert frames["RECEIPT"]["receipt-id"] == "r"
        await client.disconnect()


async def test_the_final_error_arrives_though_the_client_is_still_sending(
    gateway: GatewayProcess, files: Files
) -> None:
    async with StompClient.logged_in(gateway.address, tls=files.client()) as client, within():
        client.writer.write(b"SEND\nno colon\n\n\0" + b"x" * 2_000_000)
        error = await client.expect("ERROR")
        assert b"colon" in error.body
        await client.closed()


async def test_what_was_sent_before_the_client_closed_is_published(gateway: GatewayProcess, files: Files) -> None:
    async with StompClient.logged_in(gateway.address, tls=files.client()) as reader, within():
        await reader.ask("SUBSCRIBE", id="a", destination="/topic/tls-closing")
        async with StompClient.logged_in(gateway.address, tls=files.client()) as client:
            for number in range(100):
                client.write("SEND", b"%d" % number, destination="/topic/tls-closing", receipt=f"{number}")
            client.hang_up()
            assert [frame.body for frame in await reader.messages(100)] == [b"%d" % number for number in range(100)]
        await reader.disconnect()
    assert "returning true from eof_received" not in gateway.log.read_text()


@pytest.mark.parametrize(
    ("transport", "between"),
    [("tcp", b""), ("tcp", encoded("SEND", b"", destination="/queue/{}", receipt="held")), ("websocket", b"")],
)
async def test_nothing_is_lost_when_a_client_that_is_not_read_closes(
    files: Files, broker_url: str, amqp: AmqpBroker, queue: str, between: bytes, transport: str
) -> None:
    """The client gives others their turn, or is held for the broker's answer; its close is on its way meanwhile."""
    count = 30_000
    sends = encoded("SEND", b"", destination=f"/amq/queue/{queue}") * (count // 2)
    data = sends + between.replace(b"{}", queue.encode()) + sends
    listeners = [files.listener() if transport == "tcp" else {"websocket": "127.0.0.1:0", **_tls_of(files)}]
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        async with within():
            if transport == "tcp":
                async with StompClient.logged_in(process.address, tls=files.client()) as client:
                    client.writer.write(data)
                    await client.writer.drain()
                    client.hang_up()
            else:
                async with WebSocketClient.logged_in(process.address, tls=files.client()) as web:
                    web.send(data, binary=True)
                    await web.writer.drain()
                    web.writer.close()
            expected = count + bool(between)
            assert await until(lambda: amqp.count(queue), lambda found: found == expected) == expected


def _tls_of(files: Files) -> dict[str, Any]:
    return {"tls": files.listener()["tls"]}


async def test_a_stop_sends_the_error_and_does_not_wait_for_handshakes(files: Files, broker_url: str) -> None:
    with gateway_process(configuration(broker_url, listeners=[files.listener()])) as process:
        with socket.create_connection(process.address, PATIENCE):
            async with StompClient.logged_in(process.address, tls=files.client()) as client, within():
                process.terminate()
                await client.expect("ERROR", message="Shutting down")
                await client.closed()
            assert await process.exit_code(PATIENCE) == 0


async def test_nothing_is_lost_under_auto_when_the_gateway_stops_before_a_slow_client(
    files: Files, broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    """Messages arrive one by one, so that each passes the empty TLS buffers and waits in the transport."""
    bodies = [b"%08d" % number * 512 for number in range(1200)]
    listeners = [files.listener(), {"tcp": "127.0.0.1:0"}]
    with gateway_process(configuration(broker_url, listeners=listeners, drain_timeout=1)) as process:
        encrypted, plain = listening(process, 2)
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
            connection.settimeout(PATIENCE)
            connection.connect(encrypted)
            with files.client().wrap_socket(connection, server_hostname="localhost") as slow:
                slow.sendall(encoded("CONNECT", accept_version="1.2", host="/", login="guest", passcode="guest"))
                assert slow.recv(4096).startswith(b"CONNECTED")
                slow.sendall(encoded("SUBSCRIBE", id="0", destination=f"/queue/{queue}", receipt="0"))
                assert slow.recv(4096).startswith(b"RECEIPT")
                async with StompClient.logged_in(plain, login="guest", passcode="guest") as sender:
                    async with within(6 * PATIENCE):
                        for body in bodies:
                            await sender.ask("SEND", body, destination=f"/queue/{queue}")
                process.terminate()
                assert await process.exit_code(PATIENCE) == ExitCode.OK
                received = b""
                with contextlib.suppress(OSError):
                    while data := slow.recv(1 << 20):
                        received += data
    missing = {body for body in bodies if body + b"\0\n" not in received}

    async def lost() -> set[bytes]:
        """Those that are not in the queue either. The broker may still be putting back what was not settled."""
        while (message := await amqp.take(queue)) is not None:
            missing.discard(message.body)
        return missing

    await until(lost, lambda found: not found)


@pytest.mark.parametrize("options", [{}, {"proxy_protocol": True}])
async def test_nothing_is_left_of_connections_that_were_refused(
    files: Files, broker_url: str, options: dict[str, Any]
) -> None:
    """The check for leaks after the test sees what a listener forgets, in asyncio's own loop."""
    config = parsed(broker_url, {"loopback_users": []}, listeners=[files.listener(verify="required") | options])
    header = b"PROXY UNKNOWN\r\n" if options else b""
    good = files.client(files.authority.identify(files.directory, "leaks"))
    async with gateway_here(config) as gateway, within():
        (address,) = gateway.addresses
        async with StompClient.dialled(address), StompClient.dialled(address, preface=header + b"CONNECT\n\n\0"):
            with contextlib.suppress(OSError, ConnectionOverError):
                async with StompClient.dialled(address, preface=header, tls=files.client()) as client:
                    await client.receive()
            async with StompClient.logged_in(address, preface=header, tls=good) as client:
                await client.disconnect()


# Client certificates.


async def test_a_client_with_a_certificate_of_the_authority_is_accepted(strict: GatewayProcess, files: Files) -> None:
    identity = files.authority.identify(files.directory, "good")
    await answered(strict, files.client(identity))


async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    strict: GatewayProcess, files: Files
) -> None:
    assert await refused(strict, files.client()) == "the client showed no certificate"


async def test_a_certificate_of_an_untrusted_authority_is_refused(strict: GatewayProcess, files: Files) -> None:
    identity = files.stranger.identify(files.directory, "foreign")
    reason = await refused(strict, files.client(identity))
    assert reason == "the client's certificate is not accepted: unable to get local issuer certificate"


async def test_an_expired_certificate_is_refused(strict: GatewayProcess, files: Files) -> None:
    identity = files.authority.identify(files.directory, "expired", valid=False)
    reason = await refused(strict, files.client(identity))
    assert reason == "the client's certificate is not accepted: certificate has expired"


async def test_certificates_that_cannot_be_decoded_are_bounded_in_the_log_and_leave_nothing(
    files: Files, broker_url: str
) -> None:
    """The event loop itself decodes them: neither the client nor the gateway asked for that."""
    # An alternative name of type DNS that is not ASCII.
    bad = files.authority.identify(files.directory, "undecodable", alternative_names=b"\x30\x03\x82\x01\xff")
    good = files.authority.identify(files.directory, "decodable")
    many = 20
    listener = files.listener(verify="required") | {"max_unauthenticated_per_address": many}

    async def fail() -> None:
        with contextlib.suppress(OSError, ConnectionOverError):
            async with StompClient.dialled(process.address, tls=files.client(bad)) as client, within():
                client.write("CONNECT", accept_version="1.2")
                pytest.fail(f"was answered with {await client.receive()}")

    with gateway_process(configuration(broker_url, listeners=[listener])) as process:
        await asyncio.gather(*(fail() for _ in range(many)))
        async with StompClient.logged_in(process.address, tls=files.client(good)) as client, within():
            await client.disconnect()
        await process.until_logged("session ended")
        failed, text = process.logged(FAILED), process.log.read_text()
    assert {line["reason"] for line in failed} == {"the client's certificate has a text that cannot be decoded"}
    assert len(failed) == 10
    assert text.count("Traceback") <= 10


async def test_where_a_certificate_is_optional_only_a_bad_one_is_refused(files: Files, broker_url: str) -> None:
    with gateway_process(configuration(broker_url, listeners=[files.listener(verify="optional")])) as process:
        await answered(process, files.client())
        await answered(process, files.client(files.authority.identify(files.directory, "optional")))
        foreign = files.client(files.stranger.identify(files.directory, "foreign-optional"))
        assert "issuer" in await refused(process, foreign)


async def test_a_tls_version_below_the_minimum_is_refused(files: Files, broker_url: str) -> None:
    old = files.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with gateway_process(configuration(broker_url, listeners=[files.listener(min_version="1.3")])) as process:
        assert await refused(process, old) == "the client and the gateway have no version of TLS in common"
        await answered(process, files.client())


async def test_tls_1_2_is_accepted_by_default(gateway: GatewayProcess, files: Files) -> None:
    old = files.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    await answered(gateway, old)


async def test_a_client_that_does_not_trust_the_gateway_is_logged(gateway: GatewayProcess, files: Files) -> None:
    before = len(gateway.logged(FAILED))
    distrustful = ssl.create_default_context(cafile=str(files.stranger.certificate))

    def try_it() -> None:
        # Blocking, since asyncio's clients close without sending the alert.
        with socket.create_connection(gateway.address, PATIENCE) as plain:
            distrustful.wrap_socket(plain, server_hostname="localhost")

    with pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(try_it)
    assert await reason_of_last(gateway, FAILED, before) == "the client gave up: unknown ca"


# Clients that do no TLS handshake.


@pytest.mark.parametrize("data", [b"CONNECT\n\n\0", b"STOMP\n\n\0", b"GET / HTTP/1.1\r\n\r\n", b"\n\n\n\n\n\n\n\n"])
async def test_a_client_without_tls_is_closed_and_others_go_on(
    gateway: GatewayProcess, files: Files, data: bytes
) -> None:
    before = len(gateway.logged(FAILED))
    async with StompClient.logged_in(gateway.address, tls=files.client()) as client, within():
        async with StompClient.dialled(gateway.address) as plain:
            plain.writer.write(data)
            with contextlib.suppress(ConnectionError):
                # A TLS alert may come; no frame does.
                assert b"ERROR" not in await plain.reader.read()
        assert await reason_of_last(gateway, FAILED, before) == "the client does not speak TLS"
        await client.disconnect()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("whose", "alerts"),
    [("nobody", ("HANDSHAKE_FAILURE", "CERTIFICATE_REQUIRED")), ("stranger", ("UNKNOWN_CA", "UNKNOWN_CA"))],
)
async def test_a_refused_client_gets_the_alert_of_tls(
    strict: GatewayProcess, files: Files, version: ssl.TLSVersion, whose: str, alerts: tuple[str, str]
) -> None:
    """Also with a CONNECT on its way, which a client of TLS 1.3 sends before it is refused."""
    other = Identity(*files.stranger.sign(files.directory, "strange")) if whose == "stranger" else None
    context = files.client(other)
    context.maximum_version = version

    def alert() -> str:
        with socket.create_connection(strict.address, PATIENCE) as plain:
            try:
                with context.wrap_socket(plain, server_hostname="localhost") as client:
                    client.sendall(encoded("CONNECT", accept_version="1.2"))
                    client.recv(1)
            except ssl.SSLError as error:
                return str(error.reason)
        return "none"

    assert (await asyncio.to_thread(alert)).endswith("ALERT_" + alerts[version is ssl.TLSVersion.TLSv1_3])


async def test_a_client_that_never_begins_is_closed_at_the_login_timeout(files: Files, broker_url: str) -> None:
    listener = files.listener() | {"login_timeout": "300ms"}
    with gateway_process(configuration(broker_url, listeners=[listener])) as process:
        async with StompClient.dialled(process.address) as silent, within():
            with contextlib.suppress(ConnectionError):
                await silent.reader.read()
        assert await reason_of_last(process, FAILED, 0) == "the handshake took longer than login_timeout"


async def test_a_client_that_closes_before_the_handshake_is_logged(gateway: GatewayProcess) -> None:
    before = len(gateway.logged(FAILED))
    async with StompClient.dialled(gateway.address):
        pass
    assert await reason_of_last(gateway, FAILED, before) == "the client closed the connection"


async def test_tls_on_a_plain_port_is_closed_with_a_hint_in_the_log(broker_url: str, files: Files) -> None:
    with gateway_process(configuration(broker_url)) as process:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with StompClient.dialled(process.address, tls=files.client()), within():
                pytest.fail("a handshake with a plain port")
        (ended,) = await process.until_logged("session ended")
        assert ended["reason"] == "tls-on-plain-port"
        (line,) = process.logged("tls on a plain port")
        assert line["peer"] == ended["peer"]
        assert "tls" in line["hint"]
        assert not process.logged("error sent")


def plain_answer(address: Address, data: bytes) -> bytes:
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(data)
        answer = b""
        while received := client.recv(4096):
            answer += received
        return answer


@pytest.mark.parametrize("before", [b"", b"\n", b"\r\n\n"])
async def test_a_plain_port_does_not_answer_tls(gateway_address: Address, before: bytes) -> None:
    assert await asyncio.to_thread(plain_answer, gateway_address, before + b"\x16\x03\x01\x02\0\1\0") == b""


async def test_http_on_a_stomp_port_is_answered_in_http(broker_url: str) -> None:
    request = b"GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    with gateway_process(configuration(broker_url)) as process:
        answer = await asyncio.to_thread(plain_answer, process.address, request)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"needs a listener with the key websocket" in answer
        (ended,) = await process.until_logged("session ended")
        assert ended["reason"] == "http-on-stomp-port"
        (line,) = process.logged("http on a stomp port")
        assert line["peer"] == ended["peer"]
        assert "websocket" in line["hint"]
        assert not process.logged("error sent")
