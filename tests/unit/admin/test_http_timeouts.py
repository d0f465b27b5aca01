"""Time limits of connections to the admin listener."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admin import http_timeouts
from gateway.admin.http_timeouts import HttpTimeouts
from tests.support.deadline import within


class _Silent(asyncio.Protocol):
    """A server that never answers, and knows whether it was told of the end."""

    def __init__(self, made: asyncio.Queue[asyncio.BaseTransport]) -> None:
        self.lost = asyncio.Event()
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


class _Door:
    """A doorman at a real door."""

    def __init__(self) -> None:
        self.inner: list[_Silent] = []
        self.made: asyncio.Queue[asyncio.BaseTransport] = asyncio.Queue()
        self.http_timeouts = HttpTimeouts(self._make)
        self.server: asyncio.Server | None = None

    def _make(self) -> asyncio.Protocol:
        self.inner.append(silent := _Silent(self.made))
        return silent

    async def __aenter__(self) -> tuple[str, int]:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(lambda: self.http_timeouts.connection(lambda: None), "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()[:2]
        return host, port

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.close()


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_who_asks_nothing_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who asks letter by letter: only a whole request counts."""
    monkeypatch.setattr(http_timeouts, "_TO_ASK", 0.05)
    async with within(), (door := _Door()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HT")
        assert await _read(reader) == b""
        await door.inner[0].lost.wait()
        writer.close()


async def test_a_request_gives_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_timeouts, "_TO_ASK", 0.05)
    monkeypatch.setattr(http_timeouts, "_TO_FETCH", 0.05)
    async with within(), (door := _Door()) as address:
        reader, writer = await asyncio.open_connection(*address)
        transport = await door.made.get()
        door.http_timeouts.asked(transport)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await door.inner[0].lost.wait()
        door.http_timeouts.answered(transport)
        assert await _read(reader) == b""
        writer.close()
