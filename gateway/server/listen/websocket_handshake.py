"""A WebSocket client's HTTP request, and the answer.

The library reads the request and makes the answer. The checks are those of RabbitMQ's adapter, in its order: path,
upgrade, origin, credentials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import unquote

from websockets.datastructures import Headers, MultipleValuesError
from websockets.exceptions import HeaderLineTooLong, InvalidHeader, RequestLineTooLong, TooManyHeaders
from websockets.extensions.permessage_deflate import ServerPerMessageDeflateFactory
from websockets.headers import parse_authorization_basic
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from gateway.config.listener_settings import Listener
from gateway.server.listen.websocket_transport import HttpCredentials

_SUBPROTOCOLS: Final = tuple(Subprotocol(name) for name in ("v12.stomp", "v11.stomp", "v10.stomp"))

# RabbitMQ's adapter accepts messages that are 4096 bytes longer than the largest frame.
_MESSAGE_OVERHEAD: Final = 4096

# A window of 4 KiB for each direction instead of 32 takes much less memory, and compresses almost as well.
_COMPRESSION: Final = ServerPerMessageDeflateFactory(
    server_max_window_bits=12, client_max_window_bits=12, compress_settings={"memLevel": 5}
)

# The most bytes of a request with its headers. Browsers send cookies, perhaps of some kilobytes.
_MAX_REQUEST_SIZE: Final = 32 << 10
_REQUEST_END: Final = b"\r\n\r\n"

# The most characters of a refused origin in the log.
_LONGEST_ORIGIN: Final = 100

_BASIC_CHALLENGE: Final = 'Basic realm="STOMP", charset="UTF-8"'
_REFUSAL_HEADERS: Final = ("Upgrade", "Allow", "Www-Authenticate")
_REASONS: Final = {
    HTTPStatus.BAD_REQUEST: "the request is malformed",
    HTTPStatus.UNAUTHORIZED: "the Authorization header is not one that is accepted here",
    HTTPStatus.FORBIDDEN: "the origin is not among allowed_origins",
    HTTPStatus.NOT_FOUND: "the path is another one",
    HTTPStatus.METHOD_NOT_ALLOWED: "the method is not GET",
    HTTPStatus.UPGRADE_REQUIRED: "it is no request for a WebSocket",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "the request is too large",
    HTTPStatus.REQUEST_URI_TOO_LONG: "the request is too large",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "the version of HTTP is not 1.1",
}


class StompServerProtocol(ServerProtocol):
    """The library's part of one WebSocket: handshake and frames, without I/O."""

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """The highest version offered. Without an offer, CONNECT decides the version of STOMP."""
        return next((name for name in _SUBPROTOCOLS if name in subprotocols), None)

    def forget(self) -> None:
        """Break the reference cycles of a closed connection, which only a garbage collection would free."""
        self.parser.close()
        self.parser_exc = None


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """The answer to a request, and its credentials.

    For the log: ``refusal``, the reason, None if it is accepted; and the ``origin`` if that is the reason.
    """

    response: Response
    refusal: str | None
    credentials: HttpCredentials | None = None
    origin: str | None = None


class Handshake:
    """Reads the request of a connection, and answers it."""

    def __init__(self, protocol: ServerProtocol, listener: Listener) -> None:
        self._protocol = protocol
        self._listener = listener
        self._size = 0
        self._tail = b""
        # The bytes after the request, to be read after the answer.
        self.rest = b""

    def receive(self, data: bytes) -> HandshakeResult | None:
        """Take bytes of the request. Returns the answer, or None if the request is not complete."""
        seen = self._tail + data
        end = seen.find(_REQUEST_END)
        size = len(data) if end < 0 else end + len(_REQUEST_END) - len(self._tail)
        self.rest = data[size:]
        self._tail = seen[-len(_REQUEST_END) + 1 :]
        self._size += size
        if self._size > _MAX_REQUEST_SIZE:
            return _refuse(self._protocol, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        self._protocol.receive_data(data[:size])
        events = self._protocol.events_received()
        if events:
            return _answer(self._protocol, cast(Request, events[0]), self._listener)
        problem = self._protocol.handshake_exc
        return None if problem is None else _refuse(self._protocol, _status_of(problem))


def _status_of(problem: Exception) -> HTTPStatus:
    """The status of the answer to a request that the library cannot read."""
    if isinstance(problem, RequestLineTooLong):
        return HTTPStatus.REQUEST_URI_TOO_LONG
    if isinstance(problem, HeaderLineTooLong | TooManyHeaders):
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    return HTTPStatus.BAD_REQUEST


def message_limit(frame_size: int) -> int:
    """The size of the largest WebSocket message for that of the largest STOMP frame, both in bytes."""
    return frame_size + _MESSAGE_OVERHEAD


def _answer(protocol: ServerProtocol, request: Request, listener: Listener) -> HandshakeResult:
    if not _is_path(request.path, listener.path):
        return _refuse(protocol, HTTPStatus.NOT_FOUND)
    if listener.allowed_origins:
        # A request without an Origin header does not come from a web page.
        protocol.origins = [None, *(cast(Origin, origin) for origin in listener.allowed_origins)]
    if listener.compression:
        protocol.available_extensions = [_COMPRESSION]
    response = protocol.accept(request)
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        refused = _refuse(protocol, response.status_code, response.headers)
        is_foreign = response.status_code == HTTPStatus.FORBIDDEN
        return replace(refused, origin=_origin_of(request)) if is_foreign else refused
    try:
        credentials = _credentials(request.headers, listener)
    except (InvalidHeader, MultipleValuesError):
        challenge = _BASIC_CHALLENGE if listener.use_http_auth else 'Bearer realm="STOMP"'
        return _refuse(protocol, HTTPStatus.UNAUTHORIZED, Headers({"WWW-Authenticate": challenge}))
    if listener.strict_transport_security is not None:
        response.headers["Strict-Transport-Security"] = listener.strict_transport_security
    return HandshakeResult(response, None, credentials)


def _origin_of(request: Request) -> str:
    return ", ".join(request.headers.get_all("Origin"))[:_LONGEST_ORIGIN]


def _refuse(protocol: ServerProtocol, status: int, headers: Headers | None = None) -> HandshakeResult:
    """Refuse a request, like RabbitMQ without a body. Of ``headers``, only those of a refusal are sent."""
    response = protocol.reject(status, "")
    del response.headers["Content-Type"]
    for name, value in (headers or {}).items():
        if name.title() in _REFUSAL_HEADERS:
            response.headers[name.title()] = value
    return HandshakeResult(response, _REASONS.get(HTTPStatus(status), HTTPStatus(status).phrase))


def _is_path(target: str, path: str) -> bool:
    asked = unquote(target.partition("?")[0])
    return asked.removesuffix("/") == unquote(path).removesuffix("/")


def _credentials(headers: Headers, listener: Listener) -> HttpCredentials | None:
    """Login and passcode of a request. A token has an empty login; the broker finds the user in it."""
    value = headers.get("Authorization") if listener.use_http_auth or listener.bearer_tokens else None
    if value is None:
        token = None if listener.token_cookie is None else _cookie(headers, listener.token_cookie)
        return None if not token else (b"", token.encode(errors="surrogateescape"))
    scheme, _, token = value.partition(" ")
    if listener.bearer_tokens and scheme.lower() == "bearer" and token.strip():
        return b"", token.strip().encode(errors="surrogateescape")
    if not listener.use_http_auth:
        raise InvalidHeader("Authorization")
    login, passcode = parse_authorization_basic(value)
    return login.encode(errors="surrogateescape"), passcode.encode(errors="surrogateescape")


def _cookie(headers: Headers, name: str) -> str | None:
    """The value of the first cookie of a name (RFC 6265, 4.2.1)."""
    pairs = (pair.strip().partition("=") for line in headers.get_all("Cookie") for pair in line.split(";"))
    return next((value.strip('"') for each, _, value in pairs if each == name), None)
