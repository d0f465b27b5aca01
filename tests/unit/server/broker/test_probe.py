"""Trying a broker: a file of ours that cannot be used is not blamed on the broker. The rest needs a real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.config.loader import parse
from gateway.server.broker.probe import probe
from tests.support.certificates import Authority
from tests.support.deadline import within


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_file_that_was_spoiled_after_the_configuration_was_read_is_named(
    tmp_path: Path, is_there: bool
) -> None:
    authority = Authority.make(tmp_path, "authority")

    async def nothing_said(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(nothing_said, "127.0.0.1", 0)
    async with server, within():
        port = server.sockets[0].getsockname()[1]
        text = f"upstream: {{urls: ['amqps://127.0.0.1:{port}'], tls: {{ca_file: authority.pem}}}}"
        config = parse(text, directory=tmp_path, environment={})
        if is_there:
            authority.certificate.write_bytes(b"")
        else:
            authority.certificate.unlink()
        (report,) = await probe(config.resolved_virtual_hosts())
    assert not report.usable
    step, finding = report.steps[-1]
    assert (step, finding.partition(", ")[0]) == ("TLS", "no: the files under tls cannot be used")
    assert "Does this port speak TLS?" not in finding


async def test_a_frame_that_no_broker_would_send_is_not_waited_for() -> None:
    """Its size alone says so: this would be 2 MiB, before a login."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\1\0\0" + (2 << 20).to_bytes(4, "big"))
        while await reader.read(100):
            pass
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server, within():
        port = server.sockets[0].getsockname()[1]
        config = parse(f"upstream: {{urls: ['amqp://127.0.0.1:{port}'], connect_timeout: 10min}}", environment={})
        (report,) = await probe(config.resolved_virtual_hosts())
    assert not report.usable
    assert "no" in report.steps[-1][1]
