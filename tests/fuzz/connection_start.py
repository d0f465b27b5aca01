"""The targets for the first bytes of a connection: the PROXY header, and the HTTP request of a WebSocket client."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from ipaddress import ip_address
from typing import Final

from gateway.config.listener_settings import Listener
from gateway.config.loader import parse
from gateway.server.listen.accepted_connection import Peer
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header
from gateway.server.listen.websocket_handshake import Handshake, HandshakeResult, StompServerProtocol
from tests.fuzz.violation import demand

# The fixed part of version 2, and what may follow it.
_LONGEST_HEADER: Final = 16 + 4096
_MAX_PORT: Final = 65535

_LISTENERS: Final = (
    "websocket: '127.0.0.1:0'",
    "websocket: '127.0.0.1:0', use_http_auth: true, allowed_origins: ['https://example.org'], path: '/caf%C3%A9'",
    "websocket: '127.0.0.1:0', compression: true, strict_transport_security: 'max-age=1'",
)
_PIECE: Final = 11
_LARGEST_ANSWER: Final = 4096


def check_proxy(data: bytes) -> None:
    """Read a PROXY header as a listener does: never more bytes than surely belong to it.

    Raises:
        ViolationError: a promise is broken.
        Exception: something else than ProxyHeaderError was raised.
    """
    whole = _proxy(data)
    demand(_proxy(data + b"CONNECT") == whole or whole is None, "what follows the header changes nothing")
    if isinstance(whole, tuple):
        peer, size = whole
        demand(size <= _LONGEST_HEADER, "a header is bounded")
        if peer is not None:
            demand(str(ip_address(peer.host)) == peer.host, "an address is one")
            demand(0 <= peer.port <= _MAX_PORT, "a port is one")


def _proxy(data: bytes) -> tuple[Peer | None, int] | str | None:
    """The peer and the size of its header; the error; None while the header is not complete."""
    read = 0
    try:
        while missing := bytes_missing(data[:read]):
            demand(missing > 0, "a reader goes forward")
            read += missing
            if read > len(data):
                return None
        return parse_header(data[:read]), read
    except ProxyHeaderError as error:
        demand(bool(str(error)) and read <= _LONGEST_HEADER, "an error says what is wrong, and in time")
        return str(error)


def check_handshake(data: bytes) -> None:
    """Read a request at once, in pieces and byte by byte, which must agree.

    Args:
        data: one byte that chooses the listener, then the request and what follows it.

    Raises:
        ViolationError: a promise is broken.
        Exception: the handshake raised something.
    """
    listener = _listener(data[0] % len(_LISTENERS) if data else 0)
    stream = data[1:]
    whole = _shake([stream], listener)
    for size in (_PIECE, 1):
        pieces = _shake((stream[at : at + size] for at in range(0, len(stream), size)), listener)
        demand(pieces == whole, f"any split gives the same answer: {pieces} and not {whole}")


def _shake(pieces: Iterable[bytes], listener: Listener) -> tuple[object, ...] | None:
    handshake = Handshake(StompServerProtocol(), listener)
    result: HandshakeResult | None = None
    rest = b""
    for piece in pieces:
        if result is not None:
            rest += piece
            continue
        result = handshake.receive(piece)
        if result is not None:
            rest = handshake.rest
    if result is None:
        return None
    answer = result.response.serialize()
    demand(answer.startswith(b"HTTP/1.1 ") and answer.endswith(b"\r\n\r\n"), "an answer is HTTP")
    demand(len(answer) <= _LARGEST_ANSWER, "an answer is short")
    accepted = result.response.status_code == 101
    demand(accepted == (result.refusal is None), "a refusal has its reason")
    demand(accepted or result.credentials is None, "who is refused has no name")
    lines = [line for line in answer.split(b"\r\n") if not line.startswith(b"Date: ")]
    # Behind a request that is refused nothing is read.
    return lines, result.refusal, result.credentials, rest if accepted else b""


@cache
def _listener(number: int) -> Listener:
    return parse(f"listeners: [{{{_LISTENERS[number]}}}]", environment={}).listeners[0]
