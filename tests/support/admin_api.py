"""A fake admin listener with the documented interface, whose answers the test chooses."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Item = dict[str, Any]
_LISTS = {
    "sessions": ("virtual_host", "login", "hold", "q"),
    "destinations": ("virtual_host", "q"),
    "links": ("virtual_host", "login", "purpose", "q"),
    "virtual-hosts": ("q",),
}
_SEARCHED = ("id", "login", "peer", "virtual_host", "destination", "name")
_TOTALS = (
    "frames_received", "messages_published", "published_bytes", "messages_delivered", "delivered_bytes",
    "messages_confirmed", "messages_redelivered", "messages_acknowledged", "errors", "sessions_started",
    "sessions_ended", "bytes_received", "bytes_sent",
)  # fmt: skip


def a_session(name: str, **changes: object) -> Item:
    """A session as the interface shows it."""
    item: Item = {
        "id": name, "virtual_host": "/", "login": "guest", "peer": "127.0.0.1:40000", "transport": "tcp", "tls": False,
        "version": "1.2", "state": "connected", "connected_at": "2026-11-21T10:00:00Z", "heart_beat": "10000,10000",
        "listener": "127.0.0.1:61613", "holds": [], "awaited_queues": [],
        "subscriptions": 0, "unacknowledged": 0, "unconfirmed": 0,
        "transactions": 0, "frames_received": 1, "messages_published": 0, "messages_delivered": 0,
        "bytes_received": 100, "bytes_sent": 100, "write_buffer_bytes": 0,
    }  # fmt: skip
    return item | changes


def a_link(name: str, **changes: object) -> Item:
    """A link as the interface shows it."""
    item: Item = {
        "name": name, "virtual_host": "/", "login": "guest", "purpose": "publish", "broker": "127.0.0.1:5672",
        "broker_version": "3.10.8", "tls": False, "channels": 1, "sessions": 1, "blocked": False, "draining": False,
        "write_buffer_bytes": 0, "opened_at": "2026-11-21T10:00:00Z",
    }  # fmt: skip
    return item | changes


def an_overview() -> Item:
    """The gateway as a whole, doing nothing, as the interface shows it."""
    return {
        "version": "0.1.0", "node": "orders-1", "started_at": "2026-11-21T09:00:00Z", "uptime_seconds": 3600.0,
        "ready": True, "reasons": [], "virtual_hosts_down": [], "totals": dict.fromkeys(_TOTALS, 0), "connections": 0,
        "channels": 0, "unconfirmed": 0, "unacknowledged": 0, "subscriptions": 0, "holds": {}, "errors": {},
        "connections_refused": {}, "confirm_latency_seconds": None,
    }  # fmt: skip


@dataclass
class AdminApi:
    """The answers of the fake listener, which a test may change."""

    url: str = ""
    overview: Item = field(default_factory=an_overview)
    lists: dict[str, list[Item]] = field(default_factory=lambda: {name: [] for name in _LISTS})
    details: dict[str, Item] = field(default_factory=dict)
    credentials: tuple[str, str] | None = None
    broken: str | None = None
    """Answered instead of anything else, with status 500."""
    may_close: bool = True
    missing_workers: list[int] = field(default_factory=list)
    closed: list[tuple[str, str]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def answer(self, method: str, target: str, login: str) -> tuple[int, object]:
        """Status and body of a request."""
        self.asked.append(f"{method} {target}")
        if self.broken is not None:
            return 500, {"error": self.broken}
        if self.credentials is not None and login != ":".join(self.credentials):
            return 401, {"error": "Log in."}
        parts = urlsplit(target)
        path, query = parts.path.removeprefix("/api/"), dict(parse_qsl(parts.query))
        if path == "overview":
            return 200, self.overview | {"sessions": len(self.lists["sessions"]), "links": len(self.lists["links"])}
        if path in _LISTS:
            return self._list(path, query)
        if path.startswith("sessions/"):
            return self._one(method, unquote(path.removeprefix("sessions/")), query)
        return 404, {"error": "There is nothing here."}

    def _list(self, name: str, query: Mapping[str, str]) -> tuple[int, object]:
        unknown = set(query) - {*_LISTS[name], "sort", "page", "page_size"}
        if unknown:
            return 400, {"error": f"There is no parameter {min(unknown)}."}
        items = [item for item in self.lists[name] if _matches(item, query)]
        key = query.get("sort", "")
        if key:
            name = key.removeprefix("-")
            if items and name not in items[0]:
                return 400, {"error": f"Nothing can be sorted by {name}."}
            items.sort(key=lambda item: (item[name] is not None, item[name]), reverse=key.startswith("-"))
        page, size = int(query.get("page", 1)), int(query.get("page_size", 100))
        shown = items[(page - 1) * size : page * size]
        answer = {"items": shown, "page": page, "page_size": size, "total": len(items)}
        return 200, answer | {"missing_workers": self.missing_workers}

    def _one(self, method: str, name: str, query: Mapping[str, str]) -> tuple[int, object]:
        sessions = self.lists["sessions"]
        found = next((item for item in sessions if item["id"] == name), None)
        if found is None:
            return 404, {"error": "There is no such session."}
        if method != "DELETE":
            return 200, found | {"subscriptions_list": [], "sends": [], "journal": None} | self.details.get(name, {})
        if not self.may_close:
            return 403, {"error": "Configure users for the admin listener to close sessions from elsewhere."}
        sessions.remove(found)
        self.closed.append((name, query.get("reason", "")))
        return 204, None


def _matches(item: Item, query: Mapping[str, str]) -> bool:
    text = " ".join(str(item.get(name, "")) for name in _SEARCHED).lower()
    return (
        query.get("q", "").lower() in text
        and query.get("hold", "") in (*item.get("holds", ()), "")
        and all(item.get(name) == query[name] for name in ("virtual_host", "login", "purpose") if query.get(name))
    )


@contextmanager
def serving(api: AdminApi) -> Iterator[AdminApi]:
    """Answer on a port of 127.0.0.1, the status page at its root, for the time of a ``with`` block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/":
                self._send(200, files("gateway.admin").joinpath("page.html").read_bytes(), "text/html; charset=utf-8")
                return
            scheme, _, value = self.headers.get("Authorization", "").partition(" ")
            login = base64.b64decode(value).decode() if scheme == "Basic" else ""
            status, body = api.answer(self.command, self.path, login)
            self._send(status, b"" if body is None else json.dumps(body).encode(), "application/json")

        do_DELETE = do_GET  # noqa: N815 - the base class's name

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.02))
    thread.start()
    try:
        yield api
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
