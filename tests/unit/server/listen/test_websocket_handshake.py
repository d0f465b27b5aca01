"""The HTTP request of a WebSocket client, answered without a server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from websockets.server import ServerProtocol

from gateway.config.loader import parse
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.websocket import StompProtocol, WebSocketConnection
from gateway.server.listen.websocket_handshake import Handshake
from gateway.server.log_limits import LogRateLimiter
from gateway.server.paced_work import PacedWork
from tests.support.virtual_time import run_in_virtual_time

REST = (
    "HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/my%20shop", "/my%20shop", 101),
        ("/my%20shop", "/my%20shop/", 101),
        ("/caf%C3%A9", "/caf%c3%a9", 101),
        ("/my%20shop", "/my%2520shop", 404),
        ("/", "/", 101),
        ("/", "/ws", 404),
    ],
)
def test_a_path_is_the_same_however_it_is_written(path: str, asked: str, status: int) -> None:
    listener = parse(f"listeners: [{{websocket: '127.0.0.1:0', path: '{path}'}}]", environment={}).listeners[0]
    result = Handshake(ServerProtocol(), listener).receive(f"GET {asked} {REST}".encode())
    assert result is not None
    assert result.response.status_code == status


@pytest.mark.parametrize(("size", "status"), [(31 << 10, 101), (33 << 10, 431)])
def test_a_request_has_32_kib_however_many_headers_it_has(size: int, status: int) -> None:
    listener = parse("listeners: [{websocket: '127.0.0.1:0', path: '/ws'}]", environment={}).listeners[0]
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 1000) for number in range(size // 1008))
    request = f"GET /ws {REST}".encode().replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n")
    assert abs(len(request) - size) < 1 << 10
    result = Handshake(ServerProtocol(), listener).receive(request)
    assert result is not None
    assert result.response.status_code == status


@pytest.mark.parametrize(
    ("header", "origin"),
    [("Origin: https://evil.test\r\n", "https://evil.test"), (f"Origin: {'x' * 1000}\r\n", "x" * 100), ("", None)],
    ids=["foreign", "long", "none"],
)
def test_an_origin_that_is_refused_is_told_to_the_log(header: str, origin: str | None) -> None:
    text = "listeners: [{websocket: '127.0.0.1:0', allowed_origins: ['https://example.org']}]"
    listener = parse(text, environment={}).listeners[0]
    request = f"GET /ws {REST}".replace("Host:", f"{header}Host:").encode()
    result = Handshake(ServerProtocol(), listener).receive(request)
    assert result is not None
    assert (result.response.status_code, result.origin) == (101 if origin is None else 403, origin)


class _Socket(asyncio.Transport):
    """A client that reads and never closes its side."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.ended_at: list[float] = []

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written += b"<end>"

    def abort(self) -> None:
        self.ended_at.append(asyncio.get_running_loop().time())


def test_who_is_refused_and_does_not_close_is_cut_after_five_seconds() -> None:
    async def work() -> None:
        clock = asyncio.get_running_loop().time
        listener = parse("listeners: [{websocket: '127.0.0.1:0', path: '/ws', login_timeout: 1h}]", environment={})
        accepted = AcceptedConnection(Peer("10.1.1.1", 1000), clock(), LogRateLimiter(clock))
        client = WebSocketConnection(listener.listeners[0], accepted, _no_client, set(), PacedWork())
        wire = _Socket()
        client.connection_made(wire)
        client.data_received(f"GET /nowhere {REST}".encode())
        assert wire.written.startswith(b"HTTP/1.1 404 ")
        assert wire.written.endswith(b"<end>")
        await asyncio.sleep(4.9)
        assert wire.ended_at == []
        await asyncio.sleep(0.2)
        assert wire.ended_at == [5]

    run_in_virtual_time(work())


def _no_client(accepted: AcceptedConnection) -> StompProtocol:
    raise AssertionError("the request is refused")
