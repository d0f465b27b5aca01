"""Taps, and servers behind them that are no STOMP servers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from gateway.config.addresses import SocketAddress
from gateway.config.journal_settings import JournalSettings
from gateway.tap.tap_server import TapServer, TapSettings, open_journal
from tests.support.gateway import Address


@asynccontextmanager
async def tapping(upstream: Address, folder: Path, **settings: Any) -> AsyncIterator[TapServer]:  # noqa: ANN401
    """A tap in front of a server."""
    contexts = {name: settings.pop(name) for name in ("listen_tls", "upstream_tls") if name in settings}
    journal = JournalSettings(level="message", **settings)
    there = TapSettings(SocketAddress("127.0.0.1", 0), SocketAddress(*upstream), folder, "plugin", journal, **contexts)
    tap = TapServer(there, open_journal(there))
    await tap.start()
    try:
        yield tap
    finally:
        await tap.stop()


@asynccontextmanager
async def server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[Address]:
    """A server that is no STOMP server."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await serve(reader, writer)
        writer.close()

    listening = await asyncio.start_server(closing, "127.0.0.1", 0, ssl=tls)
    try:
        yield listening.sockets[0].getsockname()[:2]
    finally:
        listening.close()
