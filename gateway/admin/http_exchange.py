"""Requests to the admin listener, and its answers: what they have in common, and how long each may take.

The time limits are so that a slow or silent peer cannot keep a connection open for ever.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web

from gateway.server.listen.accepted_connection import Peer

HEADERS: Final = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "stomp-gateway",
}
"""Of every answer."""

OTHER_PAGE: Final = "Another web page cannot ask for this."

# Seconds: until the first request is complete; for the response to be made; for the response to be read and another
# request to be complete.
_FIRST_REQUEST: Final = 10.0
_RESPONSE: Final = 60.0
_NEXT_REQUEST: Final = 30.0


def peer_of(request: web.Request) -> Peer:
    """Who asks."""
    return Peer("", 0) if request.transport is None else Peer.of(request.transport)


def is_own_page(request: web.Request) -> bool:
    """Whether no foreign web page asks: browsers send a POST at once, with the page's origin."""
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("Host")


def json_answer(value: Any, status: int = 200) -> web.Response:  # noqa: ANN401 - JSON has every type
    """A value in JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def error_answer(status: int, text: str) -> web.Response:
    """Why something is refused."""
    return json_answer({"error": text}, status)


class HttpTimeouts:
    """Aborts connections that take too long. ``make_protocol`` makes the HTTP library's protocol of a connection."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._make_protocol = make_protocol
        self._connections: dict[asyncio.BaseTransport, _TimedConnection] = {}

    def connection(self, on_end: Callable[[], None]) -> asyncio.Protocol:
        """The protocol of a new connection; ``on_end`` is called when the connection has ended."""
        return _TimedConnection(self._make_protocol(), self._connections, on_end)

    def request_complete(self, transport: asyncio.BaseTransport | None) -> None:
        """Start the time limit of the response."""
        self._limit(transport, _RESPONSE)

    def response_takes(self, transport: asyncio.BaseTransport | None, seconds: float) -> None:
        """Allow a response more time than others have."""
        self._limit(transport, seconds)

    def response_made(self, transport: asyncio.BaseTransport | None) -> None:
        """Start the time limit of the next request."""
        self._limit(transport, _NEXT_REQUEST)

    def _limit(self, transport: asyncio.BaseTransport | None, seconds: float) -> None:
        connection = None if transport is None else self._connections.get(transport)
        if connection is not None:
            connection.limit(seconds)


class _TimedConnection(asyncio.Protocol):
    """One connection. Everything that happens on it is passed on to the HTTP library's protocol."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        connections: dict[asyncio.BaseTransport, _TimedConnection],
        on_end: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._connections = connections
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, seconds: float) -> None:
        """Abort the connection unless a new limit is set before this one ends."""
        self._stop_timer()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connections[transport] = self
        self.limit(_FIRST_REQUEST)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._on_end()
        if self._transport is not None:
            self._connections.pop(self._transport, None)
            self._inner.connection_lost(exc)
