"""The HTTP request of a WebSocket client, answered without a server."""

from __future__ import annotations

import pytest
from websockets.server import ServerProtocol

from gateway.config.loader import parse
from gateway.server.listen.websocket_handshake import Handshake

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
