"""An ingest that is killed at any moment, and run again, has every line once.

A process of its own ingests many small batches, and is killed with all its children when the lake shows that it has
come to a certain point: a batch offered, written, planned, committed to some tables or to all. Which point, and how
many moments later, is drawn with a seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pytest

from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS
from tests.support.journals import JournalMaker

pytestmark = pytest.mark.spark

PATIENCE = 300.0
PROGRAM = """
import sys
from pathlib import Path
import gateway.pipeline.tables as tables
from gateway.pipeline.ingest import IngestOptions, ingest
from gateway.pipeline.progress import Progress
from gateway.pipeline.spark_session import SparkOptions

if sys.argv[2] == "no-tables":
    tables.refresh = lambda *_, **__: 0
base = Path(sys.argv[1])
batch_bytes = 1 if sys.argv[2] == "no-tables" else 1 << 20
spark = SparkOptions("local[2]", {"spark.driver.memory": "512m"})
order = IngestOptions([str(base / "journal")], str(base / "lake"), batch_bytes=batch_bytes, spark=spark)
raise SystemExit(ingest(order, Progress()))
"""
POINTS: dict[str, str] = {
    "offered": "_checkpoint/*/offsets/[0-9]*",
    "events under way": "events/data/*",
    "events written": "events/data/*/d=*/level=*/*.parquet",
    "roll-up written": "rollup_10s/data/*/d=*/*.parquet",
    "planned": "segments/_delta_log/*.json",
    "events committed": "events/_delta_log/*.json",
    "all committed": "bad_lines/_delta_log/*.json",
    "noted": "_checkpoint/*/commits/[0-9]*",
}
"""Paths in the lake that show that the ingest has reached a point."""
TABLES = "latency_hour/data/*"
"""The path that shows that it computes tables."""


def started(base: Path, tables: str) -> subprocess.Popen[bytes]:
    log = (base / "out").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(base), tables], stdout=log, stderr=log, start_new_session=True
        )


def killed_at(base: Path, point: str, times: int, moments: int, *, tables: str = "no-tables", java: bool = True) -> int:
    """Run an ingest until it has reached a point so many times, and some milliseconds longer; then kill it.

    Args:
        base: has the journal and the lake.
        point: a pattern below the lake.
        times: how often it must be reached.
        moments: milliseconds.
        tables: whether they are computed.
        java: whether Java is killed as well.

    Returns:
        The process group.
    """
    seen = set(shown(base, point))
    process = started(base, tables)
    try:
        new: set[Path] = set()
        bound = time.monotonic() + PATIENCE
        while len(new) < times:
            assert process.poll() is None, f"ended before it came to {point}: {(base / 'out').read_text()}"
            assert time.monotonic() < bound, f"did not come to {point}: {(base / 'out').read_text()}"
            new |= set(shown(base, point)) - seen
            time.sleep(0.002)  # polling without a pause would take a processor from the ingest
        for _ in range(moments):
            time.sleep(0.001)  # the delay is part of the draw; it waits for nothing
    finally:
        (os.killpg if java else os.kill)(process.pid, signal.SIGKILL)
        process.wait()
    return process.pid


def shown(base: Path, point: str) -> Iterator[Path]:
    try:
        yield from (base / "lake").glob(point)
    except FileNotFoundError:  # removed while it was listed
        return


def draw(seed: int, count: int) -> list[tuple[str, int, int]]:
    """Where to kill: every point about equally often, in random order."""
    chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
    names = list(POINTS)
    points = [POINTS[names[number % len(POINTS)]] for number in range(count)]
    chance.shuffle(points)
    return [(point, chance.randrange(1, 3), chance.choice((0, 0, 5, 50, 200))) for point in points]


def assert_readable(base: Path) -> None:
    """Whatever killed runs have left, each table is a whole snapshot."""
    lake = Lake(base / "lake")
    for table in COLUMNS:
        lake.sql(f"select count(*) from {table}")  # noqa: S608


@pytest.mark.parametrize(
    ("seed", "kills"), [pytest.param(1, 3, id="3 kills"), pytest.param(2, 20, id="20 kills", marks=pytest.mark.kills)]
)
def test_every_line_once_whenever_it_is_killed(tmp_path: Path, seed: int, kills: int) -> None:
    made = JournalMaker(tmp_path / "journal", seed=seed).write(kills * 120, per_segment=30)
    for point, times, moments in draw(seed, kills)[2:]:
        killed_at(tmp_path, point, times, moments)
        assert_readable(tmp_path)
    group = killed_at(tmp_path, POINTS["planned"], 1, 0, java=False)  # Java goes on running
    try:
        killed_at(tmp_path, TABLES, 1, 5, tables="tables")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    assert_readable(tmp_path)
    last = started(tmp_path, "tables")
    try:
        assert last.wait(PATIENCE) == 0, (tmp_path / "out").read_text()
    finally:
        if last.poll() is None:
            os.killpg(last.pid, signal.SIGKILL)
            last.wait()

    lake = Lake(tmp_path / "lake")
    with duckdb.connect() as database:
        question = "select count(*), count(distinct (boot, seq)), min(seq), max(seq) from read_parquet($1)"
        counted = database.execute(question, [lake.files("events")]).fetchall()
    assert counted == [(made.lines, made.lines, 0, made.lines - 1)]
    assert lake.sql("select sum(lines) n, count(distinct name) m from segments").to_pylist() == [
        {"n": made.lines, "m": len(made.segments)}
    ]
    assert lake.unfinished() == []
    assert_readable(tmp_path)
    assert lake.last_batch("durable_subs") == lake.last_batch("segments")
