"""An ingest that is killed at any moment, and run again, has every line once, and every table is right.

A process of its own ingests many small batches, and is killed with all its children when the lake shows that it has
come to a certain point: a batch offered, written, planned, committed to some tables or to all, or a table computed.
Which point, how, and how many moments later, is drawn with a seed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.errors import ExitCode
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS
from tests.pipeline.recomputed import assert_right
from tests.support.journals import JournalMaker
from tests.support.lakes import UNCOMPILED, ingested

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PATIENCE = 300.0
PROGRAM = f"""
import sys
from pathlib import Path
import gateway.pipeline.tables as tables
from gateway.pipeline.ingest import IngestOptions, ingest
from gateway.pipeline.progress import Progress
from gateway.pipeline.spark_session import SparkOptions

base, mode, *journals = sys.argv[1:]
if mode == "no-tables":
    tables.refresh = lambda *_, **__: 0
batch_bytes = 1 if mode == "no-tables" else 1 << 20
spark = SparkOptions("local[2]", {{"spark.driver.memory": "512m", **{UNCOMPILED}}})
order = IngestOptions(
    [str(Path(base, name)) for name in journals], str(Path(base, "lake")), batch_bytes=batch_bytes, spark=spark
)
raise SystemExit(ingest(order, Progress()))
"""
PLANNED = "segments/_delta_log/*.json"
TABLES = "latency_hour/data/*"
"""Shows that it computes tables."""
BEGUN = "events/data/*"
POINTS = (
    "events/data/*",
    "events/data/*/d=*/level=*/*.parquet",
    "rollup_10s/data/*/d=*/*.parquet",
    PLANNED,
    "events/_delta_log/*.json",
    "bad_lines/_delta_log/*.json",
    TABLES,
)
"""Paths in the lake that show that the ingest has reached a point."""


class IngestProcess:
    """A process that ingests, with Java in its process group.

    Args:
        base: has the journals and the lake.
        journals: directories in it.
        tables: whether it computes tables; without them, each batch is one segment.
    """

    def __init__(self, base: Path, *journals: str, tables: bool = False) -> None:
        self._base = base
        self._seen = {point: set(self._shown(point)) for point in (*POINTS, BEGUN)}
        mode = "tables" if tables else "no-tables"
        command = [sys.executable, "-c", PROGRAM, str(base), mode, *(journals or ("journal",))]
        with (base / "out").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def reaches(self, point: str, times: int = 1) -> None:
        """Wait until the lake shows that this ingest, or another one, has come to a point so many times."""
        new: set[Path] = set()
        bound = time.monotonic() + PATIENCE
        while len(new) < times:
            assert self._process.poll() is None, f"ended before it came to {point}: {self.output}"
            assert time.monotonic() < bound, f"did not come to {point}: {self.output}"
            new |= set(self._shown(point)) - self._seen[point]
            time.sleep(0.002)  # polling without a pause would take a processor from the ingest

    def _shown(self, point: str) -> Iterator[Path]:
        with suppress(FileNotFoundError):  # removed while it was listed
            yield from (self._base / "lake").glob(point)

    @property
    def output(self) -> str:
        """What all processes have printed."""
        return (self._base / "out").read_text()

    def kill(self, number: signal.Signals = signal.SIGKILL, *, java: bool = True) -> None:
        """Send a signal, to Java as well or not, and wait for the end; SIGTERM must end it in good order."""
        (os.killpg if java else os.kill)(self._process.pid, number)
        status = self._process.wait(PATIENCE)
        if number == signal.SIGTERM:
            assert status == ExitCode.TERMINATED, self.output
            assert "Traceback" not in self.output

    def ends(self) -> int:
        """Its exit code."""
        return self._process.wait(PATIENCE)

    def clear(self) -> None:
        """Kill what still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def started(base: Path, *journals: str, tables: bool = False) -> Iterator[IngestProcess]:
    process = IngestProcess(base, *journals, tables=tables)
    try:
        yield process
    finally:
        process.clear()


def make_journal(base: Path, seed: int, lines: int) -> None:
    """Small segments; some have a line that cannot be read."""
    segments = JournalMaker(base / "journal", seed=seed).write(lines, per_segment=30).segments
    for number, path in enumerate(segments[::3]):
        with path.open("a") as file:
            file.write(f"not a line {number}\n")


def assert_readable(base: Path) -> None:
    """Whatever killed runs have left, each table is a whole snapshot."""
    lake = Lake(base / "lake")
    for table in COLUMNS:
        lake.sql(f"select count(*) from {table}")  # noqa: S608


def assert_recovers(spark: SparkSession, base: Path) -> None:
    """The next run makes everything right; it needs no process of its own."""
    assert_right(ingested(spark, base / "lake", base / "journal"), base / "journal")


def wait_moments(chance: random.Random) -> None:
    for _ in range(chance.choice((0, 0, 5, 50, 200))):
        time.sleep(0.001)  # the delay is part of the draw; it waits for nothing


def test_every_line_once_after_two_kills(spark: SparkSession, tmp_path: Path) -> None:
    make_journal(tmp_path, 1, 300)
    with started(tmp_path) as first:
        first.reaches("events/_delta_log/*.json", 2)
        first.kill(java=False)
        assert_readable(tmp_path)
        with started(tmp_path, tables=True) as second:  # while the first one's Java goes on running
            second.reaches(TABLES)
            second.kill(signal.SIGTERM)
            assert "since its Java got the signal too" in second.output
    assert_readable(tmp_path)
    assert_recovers(spark, tmp_path)


@pytest.mark.kills
@pytest.mark.parametrize("seeds", [range(10), range(10, 20)], ids=["seeds 0 to 9", "seeds 10 to 19"])
def test_every_line_once_whenever_it_is_killed(spark: SparkSession, tmp_path: Path, seeds: range) -> None:
    """Each seed adds to the journal, and draws how the next run is killed, which also clears up after the last one."""
    with ExitStack() as processes:  # a Java that is not killed goes on running beside the next ones
        for seed in seeds:
            chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
            point = POINTS[seed % len(POINTS)]
            make_journal(tmp_path, seed, 120)
            ingest = processes.enter_context(started(tmp_path, tables=point == TABLES))
            ingest.reaches(point, 1 if point == TABLES else chance.randrange(1, 3))
            wait_moments(chance)
            ingest.kill(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)), java=chance.random() < 0.8)
            assert_readable(tmp_path)
        assert_recovers(spark, tmp_path)


@pytest.mark.kills
@pytest.mark.parametrize("point", [PLANNED, "events/_delta_log/*.json"])
def test_every_line_once_if_one_of_two_ingests_is_killed(spark: SparkSession, tmp_path: Path, point: str) -> None:
    make_journal(tmp_path, 7, 300)
    with started(tmp_path) as one, started(tmp_path) as other:
        one.reaches(BEGUN, 2)
        one.reaches(point, 3)
        one.kill()
        assert other.ends() == 0, other.output
    assert_recovers(spark, tmp_path)
