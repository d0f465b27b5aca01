"""Every line of the journal becomes a row of the lake, once."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pytest

from gateway.errors import ExitCode, PipelineError
from gateway.pipeline.parquet_lake import ParquetLake
from tests.support.journals import DAY, START, JournalMaker, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gateway.pipeline.ingest import IngestOptions

pytestmark = pytest.mark.spark


@pytest.fixture
def no_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the computed tables, which take most of the time and are not tested here."""
    monkeypatch.setattr("gateway.pipeline.tables.refresh", lambda *_, **__: None)


def order(base: Path, *, batch_bytes: int = 1 << 28, skip_missing: bool = False) -> IngestOptions:
    from gateway.pipeline.ingest import IngestOptions  # noqa: PLC0415

    return IngestOptions(base / "journal", base / "lake", batch_bytes=batch_bytes, skip_missing=skip_missing)


def run(spark: SparkSession, wanted: IngestOptions) -> tuple[ExitCode, str, str]:
    from gateway.pipeline.ingest import ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    out, errors = io.StringIO(), io.StringIO()
    return ingest(wanted, Progress(out, errors=errors), spark), out.getvalue(), errors.getvalue()


def ask(lake: Path, question: str, table: str = "events") -> list[tuple[object, ...]]:
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        source = f"read_parquet('{lake}/{table}/**/*.parquet', hive_partitioning = true)"
        return database.execute(question.replace("TABLE", source)).fetchall()


def assert_every_line_once(base: Path) -> None:
    """The segments, read by Python, have the same lines as the table, read by DuckDB."""
    written = set()
    for path in (base / "journal").glob("d=*/*.v1.jsonl"):
        boot = path.name.split("-")[-3]
        written |= {(boot, json.loads(line)["q"]) for line in path.read_text().splitlines()}
    rows = ask(base / "lake", "select boot, seq from TABLE")
    assert len(rows) == len(set(rows)) == len(written)
    assert set(rows) == written
    manifests = ParquetLake(base / "lake").manifests()
    assert sum(segment.lines for manifest in manifests for segment in manifest.segments) == len(written)
    assert sum(manifest.events for manifest in manifests) == len(written)


@pytest.mark.usefixtures("no_tables")
def test_every_line_once_and_again_nothing(spark: SparkSession, tmp_path: Path) -> None:
    made = JournalMaker(tmp_path / "journal", seed=1, span=DAY, start=START + DAY // 2).write(3000, per_segment=500)
    code, out, errors = run(spark, order(tmp_path, batch_bytes=made.segments[0].stat().st_size * 3))
    assert (code, errors) == (ExitCode.OK, "")
    assert f"{made.lines:,} events" in out
    assert_every_line_once(tmp_path)
    lake = ParquetLake(tmp_path / "lake")
    assert len(lake.manifests()) > 1
    assert {day for manifest in lake.manifests() for day in manifest.days} == {"2026-11-21", "2026-11-22"}
    assert not [path for path in lake.root.glob("[!_]*/**/*") if path.is_file() and path.suffix != ".parquet"]
    before = sorted(lake.root.glob("events/**/*.parquet"))

    assert run(spark, order(tmp_path))[1].endswith("nothing new\n")
    assert sorted(lake.root.glob("events/**/*.parquet")) == before

    JournalMaker(tmp_path / "journal", seed=2, node="with-dash.es").write(300, per_segment=100)
    assert run(spark, order(tmp_path))[0] is ExitCode.OK
    assert_every_line_once(tmp_path)
    nodes = ask(lake.root, "select distinct node, impl from TABLE order by 1")
    assert nodes == [("node1", "gateway"), ("with-dash.es", "gateway")]


@pytest.mark.usefixtures("no_tables")
def test_old_segments_and_odd_paths(spark: SparkSession, tmp_path: Path) -> None:
    base = tmp_path / "a [b] {c,d} é?*"
    first = JournalMaker(base / "journal", seed=1).write(50)
    run(spark, order(base))
    JournalMaker(base / "journal", seed=2).write(50)
    for path in base.glob("journal/d=*/*"):
        if path not in first.segments:
            os.utime(path, (1_000_000_000, 1_000_000_000))
    run(spark, order(base))
    copy = tmp_path / "plain"
    shutil.copytree(base, copy)  # DuckDB would take the name for a pattern
    assert_every_line_once(copy)


@pytest.mark.usefixtures("no_tables")
def test_a_journal_that_has_moved_is_not_read_twice(spark: SparkSession, tmp_path: Path) -> None:
    JournalMaker(tmp_path / "journal").write(50)
    run(spark, order(tmp_path))
    shutil.copytree(tmp_path / "journal", tmp_path / "moved")
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "moved").rename(tmp_path / "journal")
    JournalMaker(tmp_path / "journal", seed=2).write(50)
    run(spark, order(tmp_path))
    assert_every_line_once(tmp_path)


def test_tables_are_computed_for_batches_that_are_not_in_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    JournalMaker(tmp_path / "journal", span=DAY // 2, start=START + 3 * DAY // 4).write(200)
    asked: list[tuple[list[str], list[str]]] = []

    def refresh(_spark: object, _lake: object, days: list[str], sessions: list[str], **_: float) -> None:
        asked.append((days, sessions))
        if len(asked) == 1:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("gateway.pipeline.tables.refresh", refresh)
    with pytest.raises(PipelineError, match="Input/output error"):
        run(spark, order(tmp_path))
    run(spark, order(tmp_path))
    run(spark, order(tmp_path))
    days = ["2026-11-21", "2026-11-22"]
    assert asked == [(days, days), (days, days)]


@pytest.mark.usefixtures("no_tables")
def test_a_compaction_that_was_killed_is_undone_or_finished_before_anything_else(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gateway.pipeline.compact import compact  # noqa: PLC0415

    made = JournalMaker(tmp_path / "journal").write(300, per_segment=100)
    run(spark, order(tmp_path, batch_bytes=made.segments[0].stat().st_size))
    lake = ParquetLake(tmp_path / "lake")
    batches = len(lake.manifests())
    assert batches > 1

    class KilledError(BaseException):
        pass

    def killed(_path: Path) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("gateway.pipeline.compact.remove", killed)  # removing the first source, after the merge
        with pytest.raises(KilledError):
            compact(lake, io.StringIO())
    JournalMaker(tmp_path / "journal", seed=2).write(50)
    _, said, _ = run(spark, order(tmp_path))
    assert "compaction" in said
    compact(lake, io.StringIO())
    assert_compacted_once(tmp_path)


def assert_compacted_once(base: Path) -> None:
    """As `assert_every_line_once`, and the lake has a compacted directory."""
    assert list((base / "lake").glob("events/d=*/level=*/batch=c*"))
    assert_every_line_once(base)


def test_sessions_of_a_day_whose_events_are_deleted_end_and_are_otherwise_left_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    from gateway.pipeline.retention import collect  # noqa: PLC0415

    long_ago = START - 400 * DAY
    JournalMaker(tmp_path / "journal", start=long_ago).write(200)
    who = {"c": 1, "vh": "/", "u": "app"}
    write_segment(tmp_path / "journal", [{"e": "conn", "t": long_ago, **who, "ip": "192.0.2.7"}], start=long_ago)
    run(spark, order(tmp_path))
    lake = tmp_path / "lake"
    sessions = ask(lake, "select count(*), min(epoch_us(started)) from TABLE", "sessions")
    sent = ask(lake, "select sum(n) from TABLE where event = 'send'", "rollup_10s")[0][0]
    collect(ParquetLake(lake), tmp_path / "journal", retain_days=0, events_days=30, out=io.StringIO())
    assert not list(lake.glob("events/**/*.parquet"))
    JournalMaker(tmp_path / "journal", seed=2, start=long_ago).write(100)
    end = {"e": "end", "t": START, **who, "x": "disconnect", "f": {"us": START - long_ago, "frames_in": 3}}
    write_segment(tmp_path / "journal", [end], start=START, number=1, first=2)
    run(spark, order(tmp_path))
    its_end = ask(lake, "select peer, epoch_us(ended), frames_in from TABLE where boot like '%00aa'", "sessions")
    assert its_end == [("192.0.2.7", START, 3)]
    assert ask(lake, "select count(*), min(epoch_us(started)) from TABLE", "sessions") == sessions
    more = ask(lake, "select sum(n) from TABLE where event = 'send'", "rollup_10s")[0][0]
    assert isinstance(sent, float)
    assert isinstance(more, float)
    assert more > sent
