"""Gateways ship their journals: every segment arrives once and whole, although gateways are killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from operator import le
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.store import from_url

from gateway.errors import ExitCode
from gateway.journal.segments import PATTERN, SHIPPED_SUFFIX, SegmentName
from gateway.parity import AmqpBroker
from tests.support.admin import AdminClient
from tests.support.deadline import until, within
from tests.support.gateway import ROOT, GatewayProcess, configuration, gateway_process
from tests.support.object_store import ObjectStore, running_store
from tests.support.stomp_client import ConnectionOverError, StompClient

pytestmark = pytest.mark.system

Stored = dict[str, bytes]


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with running_store() as store:
        yield store


# What waits and what was tried, and what was not done.
_SHOWN = (
    "waiting_segments", "waiting_bytes", "oldest_seconds", "errors_total",
    "segments_total", "bytes_total", "lost_total",
)  # fmt: skip


def in_store(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Stored:
    with monkeypatch.context() as patch:
        for name, value in store.environment.items():
            patch.setenv(name, value)
        opened = from_url(store.url)
        names = [meta["path"] for batch in obstore.list(opened) for meta in batch]
        return {name: obstore.get(opened, name).bytes().to_bytes() for name in names}


def in_directory(directory: Path) -> Stored:
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in directory.glob(f"d=*/{PATTERN}")}


def shipping(journal: Path, ship: dict[str, str], node: str = "node") -> dict[str, Any]:
    """A journal in small segments, shipped to a place."""
    settings = {"level": "message", "directory": str(journal), "node": node, "rotate_bytes": 5000, "ship": ship}
    return {"journal": {**settings, "retain_bytes": "1GiB"}}


async def traffic(process: GatewayProcess, messages: int) -> None:
    async with within(60), StompClient.logged_in(process.address) as client:
        for _ in range(messages):
            await client.ask("SEND", b"x", destination="/topic/nobody")
        await client.disconnect()


def assert_whole(stored: Stored) -> None:
    """Every boot's lines are there once, without a gap."""
    boots: dict[str, list[str]] = {}
    for name in sorted(stored):
        parsed = SegmentName.read(name.partition("/")[2])
        assert parsed is not None
        boots.setdefault(parsed.boot, []).append(name)
    for names in boots.values():
        lines = [json.loads(line) for name in names for line in stored[name].splitlines()]
        assert [line["q"] for line in lines] == list(range(len(lines)))


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_drain_ships_the_rest(broker_url: str, tmp_path: Path, workers: int) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    document = configuration(broker_url, shipping(journal, {"to": str(there)}), workers=workers)
    with gateway_process(document) as process:
        await asyncio.gather(*(traffic(process, 100) for _ in range(4)))
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
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
        assert await process.exit_code(30) == ExitCode.OK
        (left,) = process.logged("journal not shipped")
        assert left["segments"] == len(in_directory(journal)) > 0
    there.unlink()
    with gateway_process(document) as process:
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    assert in_directory(there) == in_directory(journal)


@pytest.mark.parametrize("place", ["directory", "s3", "stream"])
async def test_three_gateways_that_are_killed_while_they_ship_lose_and_repeat_nothing(
    broker_url: str, amqp: AmqpBroker, tmp_path: Path, s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    there, stream, nodes = tmp_path / "there", f"journal-{secrets.token_hex(4)}", ("a", "b", "c")
    ship = {"to": {"directory": str(there), "s3": s3.url, "stream": "amqp"}[place], "stream": stream}
    documents = [configuration(broker_url, shipping(tmp_path / node, ship, node)) for node in nodes]

    async def shipped() -> int:
        return await asyncio.to_thread(_marks, tmp_path)

    for enough in (6, 15):
        with ExitStack() as stack:
            processes = [stack.enter_context(gateway_process(document, s3.environment)) for document in documents]
            clients = [asyncio.create_task(traffic(process, 100_000)) for process in processes]
            _ = await until(shipped, partial(le, enough))
            for process in processes:
                process.child.kill()
            ends = await asyncio.gather(*clients, return_exceptions=True)
            assert all(isinstance(end, (ConnectionOverError, ConnectionError)) for end in ends), ends
    with ExitStack() as stack:
        processes = [stack.enter_context(gateway_process(document, s3.environment)) for document in documents]
        for process in processes:
            process.terminate()
        for process in processes:
            assert await process.exit_code(30) == ExitCode.OK
            assert "never-in-a-log" not in process.log.read_text()
            process.assert_no_internal_errors()
    if place == "stream":
        assert await asyncio.to_thread(_collect, broker_url, stream, there) == ExitCode.OK
        await amqp.delete_queue(stream)
    stored = in_store(s3, monkeypatch) if place == "s3" else in_directory(there)
    assert stored == {name: data for node in nodes for name, data in in_directory(tmp_path / node).items()}
    assert_whole(stored)
    assert len({name.split("-")[4] for name in stored}) >= 9  # boots


def _marks(directory: Path) -> int:
    return len(list(directory.glob(f"*/d=*/.*{SHIPPED_SUFFIX}")))


def _collect(amqp_url: str, stream: str, there: Path) -> int:
    parts = urlsplit(amqp_url)
    place = f"{parts.scheme}://{parts.username}@{parts.hostname}:{parts.port}"
    command = ["journal", "collect", "--from", place, "--stream", stream, "--to", str(there)]
    return subprocess.run([sys.executable, "-m", "gateway", *command], cwd=ROOT, check=False).returncode
