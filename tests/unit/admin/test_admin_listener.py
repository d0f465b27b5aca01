"""The admin listener's connections before their first request, and requests with bodies."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import structlog

from gateway.admin import admin_listener
from gateway.admin.admin_listener import AdminListener
from gateway.config.loader import parse
from tests.support.certificates import Authority
from tests.support.deadline import within
from tests.support.gateway import gateway_here

_CONFIG = "{{listeners: [{{tcp: '127.0.0.1:0'}}], admin: {{address: '127.0.0.1:0', tls: {tls}{more}}}, {journal}}}"
_NO_JOURNAL = "defaults: {journal: {level: 'off'}}"


@asynccontextmanager
async def _listening(tls: str = "null", more: str = "", later: str = "") -> AsyncIterator[tuple[str, int]]:
    """The address of a running admin listener with ``more`` settings, after a reload with ``later`` ones."""
    config, reloaded = (
        parse(_CONFIG.format(tls=tls, journal=_NO_JOURNAL, more=each), environment={}) for each in (more, later)
    )
    async with gateway_here(config) as gateway:
        listener = AdminListener(config.admin)
        with structlog.testing.capture_logs() as lines:
            await listener.start(gateway)
        (url,) = [line["url"] for line in lines if line["event"] == "admin listening"]
        if later:
            await listener.reload(reloaded)
        try:
            yield "127.0.0.1", int(url.strip("/").rpartition(":")[2])
        finally:
            await listener.stop()


async def test_a_connection_without_a_tls_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_listener, "_HANDSHAKE_TIMEOUT", 0.05)
    certificate, key = Authority.make(tmp_path, "authority").sign(tmp_path, "server")
    async with within(), _listening(f"{{cert_file: {certificate}, key_file: {key}}}") as address:
        reader, writer = await asyncio.open_connection(*address)
        # Before the ten seconds that a listener gives without being told.
        async with asyncio.timeout(5):
            assert await reader.read() == b""
        writer.close()


async def test_the_body_of_a_request_is_not_kept() -> None:
    part = b"x" * (1 << 20)
    async with within(), _listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"DELETE /api/sessions/none HTTP/1.1\r\nHost: localhost\r\n")
        writer.write(b"Connection: close\r\nContent-Length: %d\r\n\r\n" % (20 * len(part)))
        tracemalloc.start()
        for _ in range(20):
            writer.write(part)
            await writer.drain()
        answer = await reader.read()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert answer.startswith(b"HTTP/1.1 404 ")
        assert peak < 10 * len(part)
        writer.close()


@pytest.mark.parametrize(
    ("more", "later", "is_answered"),
    [
        (", allowed_networks: [127.0.0.0/8]", "", True),
        (", denied_networks: [127.0.0.1]", "", False),
        (", allowed_networks: [10.0.0.0/8]", "", False),
        (", allowed_networks: [10.0.0.0/8]", ", allowed_networks: []", True),
        ("", ", denied_networks: [0.0.0.0/0]", False),
    ],
)
async def test_operators_connect_from_some_networks_only(more: str, later: str, is_answered: bool) -> None:
    async with within(), _listening(more=more, later=later) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b""
        with suppress(ConnectionResetError):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200 ") is is_answered
        assert bool(answer) is is_answered
        writer.close()
