"""The PROXY protocol: the address in the header is the client's, and a connection without a header is closed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.local import load_balancers
from deploy.local.broker import Broker
from tests.support.brokers import private_broker
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process
from tests.support.stomp_client import StompClient, encoded

pytestmark = pytest.mark.system

REFUSED = "proxy header refused"
PORTS = struct.pack("!HH", 1000, 2000)
INET = bytes((10, 1, 1, 1, 10, 2, 2, 2)) + PORTS


def binary(rest: bytes = INET, *, command: int = 0x21, family: int = 0x11) -> bytes:
    return b"\r\n\r\n\0\r\nQUIT\n" + bytes((command, family)) + struct.pack("!H", len(rest)) + rest


LINE = b"PROXY TCP4 10.1.1.1 10.2.2.2 1000 2000\r\n"

ACCEPTED = {
    "line": (LINE, "10.1.1.1:1000"),
    "line-ipv6": (b"PROXY TCP6 fe80::1 ::2 1000 2000\r\n", "[fe80::1]:1000"),
    "binary": (binary(), "10.1.1.1:1000"),
    "binary-ipv6": (binary(bytes(15) + b"\5" + bytes(16) + PORTS, family=0x21), "[::5]:1000"),
    "binary-with-more": (binary(INET + b"\4\0\3abc"), "10.1.1.1:1000"),
}
# A header without an address stands for the proxy's own. RabbitMQ closes these connections.
ADDRESS_OF_THE_PROXY = {
    "unknown": b"PROXY UNKNOWN\r\n",
    "unknown-with-more": b"PROXY UNKNOWN ::1 ::2 1 2\r\n",
    "local": binary(b"", command=0x20, family=0),
    "local-with-addresses": binary(command=0x20),
    "unspecified": binary(b"", family=0),
    "unix": binary(b"/a".ljust(216, b"\0"), family=0x31),
}
MALFORMED = {
    "none": b"",
    "lower-case": LINE.lower(),
    "no-address": b"PROXY TCP4 nowhere 10.2.2.2 1000 2000\r\n",
    "address-too-large": b"PROXY TCP4 10.1.1.256 10.2.2.2 1000 2000\r\n",
    "port-too-large": b"PROXY TCP4 10.1.1.1 10.2.2.2 65536 2000\r\n",
    "line-too-long": b"PROXY UNKNOWN " + b"x" * 100 + b"\r\n",
    "bare-line-feed": LINE.replace(b"\r", b""),
    "version-3": binary(command=0x31),
    "command-2": binary(command=0x22),
    "family-4": binary(family=0x41),
    "too-short": binary(INET[:-1]),
    "too-long": binary(INET + bytes(4096)),
}


# Two whole frames, after which a server that takes the header closes the connection by itself.
REST = encoded("CONNECT", accept_version="1.2", host="/") + encoded("DISCONNECT", receipt="r")


@pytest.fixture(scope="module")
def gateway(broker_url: str) -> Iterator[GatewayProcess]:
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True}]
    with gateway_process(configuration(broker_url, {"loopback_users": []}, listeners=listeners)) as process:
        yield process


async def peer_of_session(process: GatewayProcess, address: Address, preface: bytes, **options: Any) -> str:  # noqa: ANN401
    """Log in after a PROXY header, and return the peer in the log."""
    async with StompClient.logged_in(address, preface=preface, **options) as client, within():
        session = client.connected["session"]
        await client.disconnect()
    (line,) = [line for line in process.logged("session started") if line["session"] == session]
    return str(line["peer"])


@pytest.mark.parametrize(("header", "peer"), ACCEPTED.values(), ids=ACCEPTED)
async def test_the_address_in_the_header_is_the_clients(gateway: GatewayProcess, header: bytes, peer: str) -> None:
    assert await peer_of_session(gateway, gateway.address, header) == peer


@pytest.mark.parametrize("header", ADDRESS_OF_THE_PROXY.values(), ids=ADDRESS_OF_THE_PROXY)
async def test_without_an_address_it_is_that_of_the_proxy(gateway: GatewayProcess, header: bytes) -> None:
    assert (await peer_of_session(gateway, gateway.address, header)).startswith("127.0.0.1:")


@pytest.mark.parametrize("header", MALFORMED.values(), ids=MALFORMED)
async def test_a_connection_without_a_header_is_closed_without_an_answer(
    gateway: GatewayProcess, header: bytes
) -> None:
    async with StompClient.dialled(gateway.address, preface=header + REST) as client, within():
        with contextlib.suppress(ConnectionError):
            assert await client.reader.read() == b""


async def test_the_log_has_the_reason_and_the_peer(broker_url: str) -> None:
    headers = {
        b"GET / HTTP/1.1\r\n\r\n": "the connection does not begin with a PROXY header",
        b"PROXY TCP4 nowhere 10.2.2.2 1 2\r\n": "the PROXY line is malformed",
        b"PROXY TCP4 10.1.1.256 10.2.2.2 1 2\r\n": "the PROXY line has an address that is none of TCP4",
        LINE[:-1]: "no whole PROXY header came",
    }
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True}]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        async with StompClient.dialled(process.address):
            pass  # a health check, of which the log says nothing
        for count, (header, reason) in enumerate(headers.items(), 1):
            async with StompClient.dialled(process.address, preface=header) as client:
                client.half_close()
                line = (await process.until_logged(REFUSED, count))[-1]
                host, port = client.writer.get_extra_info("sockname")
                assert (line["peer"], line["reason"]) == (f"{host}:{port}", reason)
        assert len(process.logged(REFUSED)) == len(headers)


async def test_a_header_may_come_byte_by_byte(gateway: GatewayProcess) -> None:
    async with StompClient.dialled(gateway.address) as client, within():
        client.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in LINE:
            client.writer.write(bytes((byte,)))
            await asyncio.sleep(0)
        await client.connect()
        await client.disconnect()


async def test_a_client_without_a_header_is_closed_at_the_login_timeout(broker_url: str) -> None:
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True, "login_timeout": "300ms"}]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        async with StompClient.dialled(process.address, preface=LINE[:-1]) as client, within():
            assert await client.reader.read() == b""
        (line,) = await process.until_logged(REFUSED)
        assert line["reason"] == "no whole PROXY header came"


async def test_log_lines_about_refused_headers_are_limited(broker_url: str) -> None:
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True}]
    with gateway_process(configuration(broker_url, listeners=listeners)) as process:
        for _ in range(50):
            async with StompClient.dialled(process.address, preface=b"GET") as client, within():
                with contextlib.suppress(ConnectionError):
                    assert await client.reader.read() == b""
        assert 1 <= len(process.logged(REFUSED)) < 40


async def test_the_header_comes_before_tls(broker_url: str, tmp_path: Path) -> None:
    authority = Authority.make(tmp_path, "authority")
    certificate, key = authority.sign(tmp_path, "server")
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True, "tls": tls}]
    context = ssl.create_default_context(cafile=str(authority.certificate))
    with gateway_process(configuration(broker_url, {"loopback_users": []}, listeners=listeners)) as process:
        for header, peer in ACCEPTED.values():
            assert await peer_of_session(process, process.address, header, tls=context) == peer
        async with StompClient.dialled(process.address, preface=LINE + b"CONNECT\n\n\0") as client, within():
            with contextlib.suppress(ConnectionError):
                assert b"CONNECTED" not in await client.reader.read()
        (line,) = await process.until_logged("tls handshake failed")
        assert (line["peer"], line["reason"]) == ("10.1.1.1:1000", "the client does not speak TLS")


async def test_the_brokers_connections_carry_the_clients_address(broker_url: str, own_broker: Broker) -> None:
    listeners = [{"tcp": "127.0.0.1:0", "proxy_protocol": True}]
    document = configuration(broker_url, {"loopback_users": [], "links": "dedicated"}, listeners=listeners)
    with gateway_process(document) as process:
        header = b"PROXY TCP4 10.77.1.1 10.2.2.2 1077 2000\r\n"
        async with StompClient.logged_in(process.address, preface=header) as client, within():
            listing = await asyncio.to_thread(own_broker.ctl, "list_connections", "client_properties")
            assert "10.77.1.1:1077" in listing
            await client.disconnect()


# Users who may log in from this machine only.


@pytest.fixture(scope="module")
def guarded(broker_url: str) -> Iterator[GatewayProcess]:
    """A gateway whose default user may log in from this machine only."""
    document = configuration(broker_url, listeners=[{"tcp": "127.0.0.1:0", "proxy_protocol": True}])
    document["defaults"]["loopback_users"] = [document["defaults"]["default_user"]["login"]]
    with gateway_process(document) as process:
        yield process


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        (LINE, False),
        (b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n", True),
        (b"PROXY TCP4 127.1.2.3 127.0.0.1 1 2\r\n", True),
        (b"PROXY TCP6 ::1 ::1 1 2\r\n", True),
        (b"PROXY TCP6 ::ffff:127.0.0.1 ::1 1 2\r\n", True),
        (b"PROXY TCP6 ::ffff:10.0.0.1 ::1 1 2\r\n", False),
        (b"PROXY UNKNOWN\r\n", False),
        (binary(b"", command=0x20, family=0), False),
        (binary(b"", family=0), False),
        (binary(b"/a".ljust(216, b"\0"), family=0x31), False),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_the_address_in_the_header_decides_who_is_local(
    guarded: GatewayProcess, header: bytes, accepted: bool
) -> None:
    async with StompClient.dialled(guarded.address, preface=header) as client, within():
        client.write("CONNECT", accept_version="1.2")
        answer = await client.receive()
        assert answer.command == ("CONNECTED" if accepted else "ERROR")
        assert accepted or answer.body == b"non-loopback access denied"


# RabbitMQ's plugin and HAProxy.


@pytest.fixture(scope="module")
def plugin_behind_a_proxy() -> Iterator[Address]:
    # RabbitMQ 4.3 asks the header whether guest comes from elsewhere.
    config = ["stomp.proxy_protocol = true", "loopback_users = none"]
    with private_broker(["rabbitmq_stomp"], config) as broker:
        assert broker.stomp_port is not None
        yield broker.host, broker.stomp_port


async def is_answered(address: Address, header: bytes) -> bool:
    """Whether a client with this header can log in."""
    async with StompClient.dialled(address, preface=header + REST) as client, within():
        try:
            return (await client.reader.read()).startswith(b"CONNECTED")
        except ConnectionError:
            return False


async def test_the_plugin_takes_and_refuses_the_same_headers(
    plugin_behind_a_proxy: Address, gateway: GatewayProcess
) -> None:
    headers = {name: header for name, (header, _) in ACCEPTED.items()} | MALFORMED
    for address in (plugin_behind_a_proxy, gateway.address):
        answers = {name: await is_answered(address, header) for name, header in headers.items()}
        assert answers == {name: name in ACCEPTED for name in headers}


@contextlib.contextmanager
def haproxy(server: Address, option: str, directory: Path) -> Iterator[Address]:
    """Run HAProxy in front of a server."""
    program = load_balancers.find_haproxy()
    if program is None:
        pytest.skip("no haproxy to stand in front of the gateway: Debian's package haproxy has it")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = directory / "haproxy.cfg"
        config.write_text(
            f"defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 60s\n  timeout server 60s\n"
            f"listen stomp\n  bind fd@{listener.fileno()}\n  server gateway {server[0]}:{server[1]} {option}\n"
        )
        with (directory / "haproxy.log").open("wb") as log:
            child = subprocess.Popen(
                [program, "-db", "-f", str(config)], pass_fds=[listener.fileno()], stdout=log, stderr=log
            )
        try:
            yield listener.getsockname()
        finally:
            child.terminate()
            child.wait(PATIENCE)


@pytest.mark.parametrize("option", ["send-proxy", "send-proxy-v2", "send-proxy-v2 proxy-v2-options unique-id,crc32c"])
async def test_haproxy_in_front_of_the_gateway(gateway: GatewayProcess, option: str, tmp_path: Path) -> None:
    with haproxy(gateway.address, option, tmp_path) as address:
        async with StompClient.logged_in(address) as client, within():
            host, port = client.writer.get_extra_info("sockname")
            session = client.connected["session"]
            await client.disconnect()
    (line,) = [line for line in gateway.logged("session started") if line["session"] == session]
    assert line["peer"] == f"{host}:{port}"
