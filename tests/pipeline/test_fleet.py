"""From several gateways, over the places to which they ship, into one lake."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from operator import le
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from gateway.errors import ExitCode
from gateway.journal.segments import SHIPPED_SUFFIX, SegmentName
from gateway.parity.amqp_broker import AmqpBroker
from gateway.pipeline.check import check
from gateway.pipeline.lake import Lake
from tests.support.deadline import until
from tests.support.gateway import ROOT, configuration, gateway_process
from tests.support.lakes import ingested
from tests.support.object_store import ObjectStore, running_store
from tests.support.shipping import Stored, assert_whole, in_directory, in_store, shipping, traffic
from tests.support.stomp_client import ConnectionOverError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NODES = ("a", "b", "c")


@pytest.fixture(scope="module")
def s3() -> Iterator[ObjectStore]:
    with running_store() as store:
        yield store


@pytest.mark.usefixtures("no_tables")
async def test_one_lake_has_every_line_of_gateways_that_are_killed_while_they_ship(
    spark: SparkSession, broker_url: str, amqp: AmqpBroker, tmp_path: Path, s3: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Three gateways for each kind of place, and at last one ingest of all three places."""
    stream, places = f"journal-{secrets.token_hex(4)}", ("directory", "s3", "stream")
    for place in places:
        base, there = tmp_path / place, tmp_path / f"from-{place}"
        to = {"directory": str(there), "s3": s3.url, "stream": "amqp"}[place]
        await _kill_while_they_ship(broker_url, base, {"to": to, "stream": stream}, s3)
        if place == "stream":
            assert await asyncio.to_thread(_collect, broker_url, stream, there) == ExitCode.OK
            await amqp.delete_queue(stream)
        stored = in_store(s3, monkeypatch) if place == "s3" else in_directory(there)
        assert stored == _written(base)
        assert_whole(stored)
        # Boots: one may be killed before its first line.
        assert len({name.split("-")[4] for name in stored}) >= 2 * len(NODES)
        if place == "s3":
            _copy_down(stored, there)  # Spark needs a connector to read an object store
    lake = ingested(spark, tmp_path / "lake", *(tmp_path / f"from-{place}" for place in places))
    _assert_every_line_once(lake, [tmp_path / place for place in places])


async def _kill_while_they_ship(broker_url: str, base: Path, ship: dict[str, str], s3: ObjectStore) -> None:
    """Three gateways ship, are killed twice, and at last drain."""
    documents = [configuration(broker_url, shipping(base / node, ship, node)) for node in NODES]

    async def shipped() -> int:
        return await asyncio.to_thread(_marks, base)

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


def _written(base: Path) -> Stored:
    """The segments of all gateways, in their own directories."""
    return {name: data for node in NODES for name, data in in_directory(base / node).items()}


def _marks(base: Path) -> int:
    return len(list(base.glob(f"*/d*=*/.*{SHIPPED_SUFFIX}")))


def _collect(amqp_url: str, stream: str, there: Path) -> int:
    parts = urlsplit(amqp_url)
    place = f"{parts.scheme}://{parts.username}@{parts.hostname}:{parts.port}"
    command = ["journal", "collect", "--from", place, "--stream", stream, "--to", str(there)]
    return subprocess.run([sys.executable, "-m", "gateway", *command], cwd=ROOT, check=False).returncode


def _copy_down(stored: Stored, there: Path) -> None:
    for name, data in stored.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_bytes(data)


def _assert_every_line_once(lake: Lake, bases: Sequence[Path]) -> None:
    lines = []
    for name, data in ((name, data) for base in bases for name, data in _written(base).items()):
        segment = SegmentName.read(name.partition("/")[2])
        assert segment is not None
        lines += [(segment.boot, json.loads(line)["q"]) for line in data.splitlines()]
    found = lake.sql("select boot, seq from events").to_pylist()
    assert sorted((row["boot"], row["seq"]) for row in found) == sorted(lines)
    assert lake.sql("select * from bad_lines").num_rows == 0
    said = io.StringIO()
    assert check(lake, [base / node for base in bases for node in NODES], said), said.getvalue()
