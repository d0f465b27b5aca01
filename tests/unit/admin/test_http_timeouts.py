"""Time limits of connections to the admin listener."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admin import http_exchange
from gateway.admin.http_exchange import HttpTimeouts
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


class _TimedServer:
    """A server on a real port, whose connections have time limits."""

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


async def test_a_connection_without_a_whole_request_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "_FIRST_REQUEST", 0.05)
    async with within(), (server := _TimedServer()) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HT")
        assert await _read(reader) == b""
        await server.inner[0].lost.wait()
        writer.close()


async def test_a_request_gives_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "_FIRST_REQUEST", 0.05)
    monkeypatch.setattr(http_exchange, "_NEXT_REQUEST", 0.05)
    async with within(), (server := _TimedServer()) as address:
        reader, writer = await asyncio.open_connection(*address)
        transport = await server.made.get()
        server.http_timeouts.request_complete(transport)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await server.inner[0].lost.wait()
        server.http_timeouts.response_made(transport)
        assert await _read(reader) == b""
        writer.close()


async def test_a_response_that_is_never_made_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_exchange, "_RESPONSE", 0.05)
    async with within(), (server := _TimedServer()) as address:
        reader, writer = await asyncio.open_connection(*address)
        server.http_timeouts.request_complete(await server.made.get())
        async with asyncio.timeout(http_exchange._FIRST_REQUEST / 2):
            assert await _read(reader) == b""
        writer.close()
