"""Requests to the admin listener, read, and its answers in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiohttp import web

from gateway.admin.listing import QueryError
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

_DIGITS: Final = 9


class TimeLimit(NamedTuple):
    """Seconds that something lasts if a request does not say, and at most."""

    default: int
    most: int


def peer_of(request: web.Request) -> Peer:
    """Who asks."""
    return Peer("", 0) if request.transport is None else Peer.of(request.transport)


def is_own_page(request: web.Request) -> bool:
    """Whether no foreign web page asks: browsers send a POST at once, with the page's origin."""
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.headers.get("Host")


def no_query(query: Mapping[str, str], *known: str) -> None:
    """Raises `QueryError` for a parameter that is not known."""
    for name in query:
        if name not in known:
            raise QueryError(f"There is no parameter {name[:50]!r} here.")


def seconds_of(query: Mapping[str, str], limit: TimeLimit) -> int:
    """The parameter ``seconds``. Raises `QueryError` for a value out of bounds."""
    text = query.get("seconds", str(limit.default))
    seconds = int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else 0
    if not 1 <= seconds <= limit.most:
        raise QueryError(f"seconds must be a whole number, from 1 to {limit.most}.")
    return seconds


def json_answer(value: Any, status: int = 200) -> web.Response:  # noqa: ANN401 - JSON has every type
    """A value in JSON."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return web.Response(text=text, status=status, content_type="application/json")


def error_answer(status: int, text: str) -> web.Response:
    """Why something is refused."""
    return json_answer({"error": text}, status)
