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
