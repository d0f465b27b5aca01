"""A lake that the release before Delta has made is taken over: one batch, compacted, one day's events deleted."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from gateway.errors import PipelineError
from gateway.pipeline.check import check
from gateway.pipeline.ingest import IngestOptions, ingest
from gateway.pipeline.lake import Lake
from gateway.pipeline.maintenance import compact
from gateway.pipeline.progress import Progress
from gateway.pipeline.table_schemas import BATCH_TABLES, COMPUTED_TABLES, TABLES_OF_EVENTS
from gateway.pipeline.upgrade import upgrade
from tests.pipeline.oracle import Oracle
from tests.support.journals import DAY, SECOND, START
from tests.support.lakes import assert_same, rows_of

DELETED = "2026-11-19"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(Path(__file__).with_name("old_lake.tar.gz")) as file:
        file.extractall(tmp_path, filter="data")
    killed = tmp_path / "lake/events/d=2026-11-21/level=session"
    shutil.copytree(killed / "batch=00000002", killed / "batch=00000099")
    return tmp_path / "lake"


def count(lake: Lake, query: str) -> object:
    return lake.sql(query).to_pylist()


def test_rows_are_those_that_counted_with_today_s_names(old: Path) -> None:
    out = io.StringIO()
    upgrade(old, out)
    lake = Lake(old)
    assert "events: 255 rows" in out.getvalue()
    oracle = Oracle(old.parent / "journal")
    order = "order by boot, seq, d"
    columns = "boot, seq, d, level, event, login, destination, body_bytes, n, code, weight, latency_us, counters"
    expected = oracle.answer(f"select {columns} from events where d <> '{DELETED}' {order}")  # noqa: S608
    found = [
        {**row, "counters": row["counters"] and dict(row["counters"])}
        for row in lake.sql(f"select {columns} from events {order}").to_pylist()  # noqa: S608
    ]
    assert found == expected
    summed = "select d, event, code, login, sum(n) n, sum(bytes) bytes from rollup_10s group by all order by all"
    plain = "select d, event, code, login, sum(n) n, sum(bytes) bytes from rollup_10s group by d, event, code, login"
    found = sorted(lake.sql(plain).to_pylist(), key=repr)
    assert found == sorted(oracle.answer(summed), key=repr)
    oracle.close()


def test_an_upgraded_lake_is_complete_but_for_its_computed_tables(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(old, io.StringIO())
    out = io.StringIO()
    assert check(Lake(old), [old.parent / "journal"], out), out.getvalue()
    assert "ok       3 of 3 boots have all their numbers, each once" in out.getvalue()
    assert "ok       11 segments of the journal have as many lines" in out.getvalue()
    assert "computed tables lack batches" in out.getvalue()
    assert "1 bad line in 1 segment" in out.getvalue()


def test_what_cannot_be_computed_again_is_taken_over(old: Path) -> None:
    upgrade(old, io.StringIO())
    lake = Lake(old)
    for table in ("boots", "sessions", "features_used", "durable_days"):
        assert lake.days(table) == [DELETED]
    assert lake.days("deleted_lines") == [DELETED]
    segments = {path.parent.name.removeprefix("d=") for path in old.parent.glob("journal/d=*/*.jsonl")}
    assert set(lake.days("segments")) == segments
    assert lake.unfinished() == []
    assert {lake.last_batch(table) for table in (*BATCH_TABLES, "segments")} == {lake.last_batch("segments")}


def test_the_old_lake_is_kept_and_a_killed_upgrade_begins_again(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(path.relative_to(old) for path in old.rglob("*"))

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "commit_files", killed)
        with pytest.raises(KeyboardInterrupt):
            upgrade(old, io.StringIO())
    assert sorted(path.relative_to(old) for path in old.rglob("*")) == before
    upgrade(old, io.StringIO())
    kept = old.with_name("lake.before-upgrade")
    assert sorted(path.relative_to(kept) for path in kept.rglob("*")) == before
    old.rename(old.with_name("lake.new"))  # as if killed between the two renames
    upgrade(old, io.StringIO())
    assert Lake(old).days("events") == ["2026-11-20", "2026-11-21"]


def test_there_must_be_an_old_lake(old: Path) -> None:
    upgrade(old, io.StringIO())
    with pytest.raises(PipelineError, match="there is no lake of an older release"):
        upgrade(old, io.StringIO())


def test_other_commands_refuse_an_old_lake_and_leave_it_alone(old: Path) -> None:
    before = sorted(old.rglob("*"))
    journal = str(old.parent / "journal")
    for command in (
        lambda: ingest(IngestOptions([journal], str(old)), Progress(io.StringIO())),
        lambda: compact(Lake(old), io.StringIO()),
    ):
        with pytest.raises(PipelineError, match="is of an older release: run `pipeline upgrade` first"):
            command()
    assert sorted(old.rglob("*")) == before


def test_an_old_lake_with_tables_of_this_release_is_left_alone(old: Path) -> None:
    Lake(old).create("segments")
    with pytest.raises(PipelineError, match="has tables of this release among those of an older one"):
        upgrade(old, io.StringIO())
    assert Lake(old).table("segments") is not None


@pytest.mark.parametrize("table", ["events", "rollup_10s", "bad_lines"])
def test_an_old_lake_that_has_lost_files_stays(old: Path, table: str) -> None:
    before = sorted(old.iterdir())
    shutil.rmtree(next((old / table).glob("d=2026-11-20")))
    with pytest.raises(PipelineError, match=f"the table {table} of the lake .* rows in place of .*Restore"):
        upgrade(old, io.StringIO())
    assert sorted(old.iterdir()) == before


@pytest.mark.spark
def test_the_next_ingest_computes_all_tables(old: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(old, io.StringIO())
    lake, now = Lake(old), START + DAY
    monkeypatch.setattr("gateway.pipeline.tables.time.time", lambda: now / SECOND)
    ingest(IngestOptions([str(old.parent / "journal")], str(old)), Progress(io.StringIO()), spark)
    assert lake.sql("select count(*) n from segments")["n"].to_pylist() == [11]  # none was read again
    oracle = Oracle(old.parent / "journal", now=now)
    for table in COMPUTED_TABLES:
        # Of the day whose events were deleted there are the old rows, one for the whole day.
        kept = DELETED if table in TABLES_OF_EVENTS else None
        expected = [row for row in oracle.rows(table) if row.get("d", "") != kept]
        assert_same([row for row in rows_of(lake, table) if row.get("d", "") != kept], expected)
        assert kept is None or kept in lake.days(table)
    oracle.close()
