"""Gateways ship their journals: a drain ships the rest, and a place that is not there harms nobody."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.errors import ExitCode
from tests.support.admin import AdminClient
from tests.support.deadline import PATIENCE
from tests.support.gateway import configuration, gateway_process
from tests.support.shipping import assert_whole, in_directory, shipping, traffic

pytestmark = pytest.mark.system

# What waits and what was tried, and what was not done.
_SHOWN = (
    "waiting_segments", "waiting_bytes", "oldest_seconds", "errors_total",
    "segments_total", "bytes_total", "lost_total",
)  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_drain_ships_the_rest(broker_url: str, tmp_path: Path, workers: int) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    document = configuration(broker_url, shipping(journal, {"to": str(there)}), workers=workers)
    with gateway_process(document) as process:
        await asyncio.gather(*(traffic(process, 100) for _ in range(4)))
        process.terminate()
        assert await process.exit_code(3 * PATIENCE) == ExitCode.OK
        process.assert_no_internal_errors()
    stored = in_directory(there)
    assert stored == in_directory(journal)
    assert_whole(stored)
    lines = [json.loads(line) for data in stored.values() for line in data.splitlines()]
    assert sum(line["e"] == "send" for line in lines) == 400
    assert sum(line["e"] == "close" for line in lines) == workers


async def test_a_place_that_is_not_there_stops_neither_traffic_nor_the_end(broker_url: str, tmp_path: Path) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    there.write_text("this is no directory")
    settings = shipping(journal, {"to": str(there)})
    document = configuration(broker_url, settings, drain_timeout=1, admin="127.0.0.1:0")
    with gateway_process(document) as process:
        await traffic(process, 300)
        (line,) = await process.until_logged("journal cannot be shipped")
        assert "Not a directory" in line["reason"]
        samples = await AdminClient(process.admin).samples()
        shown = {name: samples[f"stomp_gateway_journal_ship_{name}", frozenset()] for name in _SHOWN}
        assert all(shown[name] > 0 for name in _SHOWN[:4]), shown
        assert not any(shown[name] for name in _SHOWN[4:]), shown
        process.terminate()
        assert await process.exit_code(PATIENCE) == ExitCode.OK
        (left,) = process.logged("journal not shipped")
        assert left["segments"] == len(in_directory(journal)) > 0
    there.unlink()
    # This one has the time that the disk needs.
    with gateway_process(document | {"drain_timeout": 600}) as process:
        process.terminate()
        assert await process.exit_code(3 * PATIENCE) == ExitCode.OK
    assert in_directory(there) == in_directory(journal)
