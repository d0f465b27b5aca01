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
