"""Looking after a lake: small files are merged, and what is old is deleted, while others write and read."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableOptimizer

from gateway.errors import ExitCode, PipelineError, UsageError
from gateway.journal.segments import mark_of
from gateway.pipeline.check import check
from gateway.pipeline.ingest import IngestOptions, ingest
from gateway.pipeline.lake import DataFile, Lake, closed_before
from gateway.pipeline.maintenance import collect, compact, forget_segments
from gateway.pipeline.progress import Progress
from gateway.pipeline.spark_session import SparkOptions
from gateway.pipeline.table_schemas import BATCH_TABLES
from tests.support.journals import DAY, SECOND, START, JournalMaker
from tests.support.lakes import LakeMaker

FIRST, SECOND_DAY = "2026-11-20", "2026-11-21"


class Old:
    """A journal of two days and its lake; one segment of the second day is not in it yet."""

    def __init__(self, root: Path) -> None:
        self.journal = root / "journal"
        maker = JournalMaker(self.journal, seed=1, start=START - DAY, span=2 * DAY)
        *self.segments, self.late = maker.write(600, per_segment=100).segments
        self.maker = LakeMaker(root / "lake")
        self.lake: Lake = self.maker.lake

    def collect(self, *, retain_days: float = 1e6, events_days: float | None = None) -> str:
        out = io.StringIO()
        collect(self.lake, [self.journal], retain_days, events_days, out)
        return out.getvalue()

    def check(self) -> str:
        out = io.StringIO()
        assert check(self.lake, [self.journal], out), out.getvalue()
        return out.getvalue()

    def count(self, table: str) -> int:
        return int(self.lake.sql(f"select count(*) n from {table}")["n"][0].as_py())  # noqa: S608


def days_since(day: int) -> float:
    """The age of a day's beginning, in days."""
    return (time.time() - day / SECOND) / (DAY / SECOND)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("old")
    old = Old(root)
    for at in range(0, len(old.segments), 2):
        old.maker.ingest(old.segments[at : at + 2])
    return root


@pytest.fixture
def old(original: Path, tmp_path: Path) -> Old:
    shutil.copytree(original / "lake", tmp_path / "lake")
    old = Old(tmp_path)
    old.maker.batch = old.lake.last_batch("segments") + 1
    return old


@pytest.fixture
def keep_second_day() -> float:
    """The age with which the first day's events are deleted and the second's are kept."""
    return days_since(START) - 0.5


Commit = Callable[..., object]


def _before(monkeypatch: pytest.MonkeyPatch, method: str, owner: type, act: Callable[[], object]) -> None:
    """Let something happen once, between a command's look at the lake and its commit."""
    really: Commit = getattr(owner, method)
    done: list[bool] = []

    def first(*arguments: object, **options: object) -> object:
        if not done:
            done.append(True)
            act()
        return really(*arguments, **options)

    monkeypatch.setattr(owner, method, first)


def test_compact_merges_files_and_keeps_rows(old: Old) -> None:
    before = {table: (old.count(table), len(old.lake.files(table))) for table in (*BATCH_TABLES, "segments")}
    rows = old.lake.sql("select boot, seq, event, counters from events order by boot, seq")
    out = io.StringIO()
    compact(old.lake, out)
    assert {table: old.count(table) for table in before} == {table: count for table, (count, _) in before.items()}
    assert len(old.lake.files("events")) == 4 < before["events"][1]
    assert old.lake.sql("select boot, seq, event, counters from events order by boot, seq") == rows
    assert "events: merged 6 files into 2, removed 0 old files" in out.getvalue()


def test_compact_leaves_what_is_large_enough_and_more_so_today(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was merged on a day that is not over is not merged again with each new file."""
    at_noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
    old.maker.ingest(JournalMaker(old.journal, seed=6, node="busy", span=DAY // 2).write(1500).segments)
    compact(old.lake, io.StringIO(), now=at_noon)
    (merged,) = old.lake.files("rollup_10s", [SECOND_DAY])
    enough = Path(merged).stat().st_size
    monkeypatch.setattr("gateway.pipeline.maintenance._SIZES", ((True, 1 << 27), (False, enough)))
    for seed in (7, 8):
        old.maker.ingest(JournalMaker(old.journal, seed=seed, node=f"n{seed}").write(10).segments)
    compact(old.lake, io.StringIO(), now=at_noon)
    left = old.lake.files("rollup_10s", [SECOND_DAY])
    assert merged in left
    assert len(left) == 2
    compact(old.lake, io.StringIO(), now=at_noon + timedelta(days=2))
    assert len(old.lake.files("rollup_10s", [SECOND_DAY])) == 1


def test_compact_removes_what_no_table_has_named_for_a_week(old: Old) -> None:
    events = Path(old.lake.table_url("events"))
    replaced = old.lake.files("events")
    compact(old.lake, io.StringIO())
    stray, fresh = events / "data/killed/d=2026-11-20/part-0.parquet", events / "data/under-way/part-0.parquet"
    for path in (stray, fresh):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    os.utime(stray, (1, 1))
    compact(old.lake, io.StringIO())
    assert not stray.exists()
    assert fresh.exists()
    assert all(Path(path).exists() for path in replaced)  # readers of the snapshot before may still need them


def test_compact_removes_directories_that_have_been_empty_for_a_week(old: Old) -> None:
    data = Path(old.lake.table_url("events")) / "data"
    fresh = data / "under-way/_temporary/0"
    fresh.mkdir(parents=True)
    stray = data / "killed/d=2026-11-20/level=session/part-0.parquet"
    stray.parent.mkdir(parents=True)
    stray.write_bytes(b"x")
    for path in (stray, *stray.parents[:3]):
        os.utime(path, (1, 1))
    compact(old.lake, io.StringIO())
    assert not (data / "killed").exists()
    assert fresh.exists()
    old.check()


def test_compact_keeps_the_files_of_a_batch_that_is_planned(old: Old) -> None:
    old.maker.ingest([old.late], until=["segments"])
    path = Path(old.lake.table_url("events")) / "data/made-3/part-0.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x")
    os.utime(path, (1, 1))
    compact(old.lake, io.StringIO())
    assert path.exists()


def test_compact_beside_an_ingest_that_adds_and_replaces(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    really: Commit = TableOptimizer.compact
    seen: list[str] = []

    def compact_later(optimizer: TableOptimizer, *given: object, **options: object) -> object:
        seen.append(optimizer.table.table_uri.rstrip("/").rpartition("/")[2])
        if seen == ["events"]:
            old.maker.ingest([old.late])
        return really(optimizer, *given, **options)

    monkeypatch.setattr(TableOptimizer, "compact", compact_later)
    compact(old.lake, io.StringIO())
    assert seen[0] == "events"
    assert "ok       1 of 1 boot has all its numbers" in old.check()


def test_a_day_that_is_computed_again_beside_compact_counts_once(old: Old, monkeypatch: pytest.MonkeyPatch) -> None:
    day, rows = FIRST, old.lake.sql(f"select * from boots where d = '{FIRST}'")  # noqa: S608
    assert len(old.lake.files("boots", [day])) > 1
    below = f"data/x/d={day}/part-0.parquet"
    path = Path(old.lake.table_url("boots"), below)
    path.parent.mkdir(parents=True)
    pq.write_table(rows.drop_columns(["d"]), path)
    file = DataFile(below, path.stat().st_size, 1, len(rows), {"d": day})
    before = old.count("boots")
    _before(monkeypatch, "create_write_transaction", DeltaTable, lambda: compact(old.lake, io.StringIO()))
    assert old.lake.commit_files("boots", [file], old.lake.last_batch("boots") + 1, days=[day])
    assert old.count("boots") == before


def test_gc_deletes_segments_that_are_in_the_lake_and_old_enough(old: Old) -> None:
    for path in old.segments[:2]:
        os.utime(path, (1, 1))
    text = old.collect(retain_days=10)
    assert [path.exists() for path in old.segments[:3]] == [False, False, True]
    assert "deleted 2 segments" in text
    assert f"kept 1 not ingested yet, {len(old.segments) - 2} younger than 10 days" in text
    assert old.late.exists()
    old.check()


def test_gc_takes_the_mark_of_a_shipped_segment_with_it(old: Old) -> None:
    for path in old.segments:
        mark_of(path).touch()
    days = {path.parent for path in old.segments}
    old.late.unlink()
    old.collect(retain_days=0)
    assert [day for day in days if day.exists()] == []


def test_gc_keeps_a_segment_that_has_changed(old: Old) -> None:
    with old.segments[0].open("ab") as file:
        file.write(b"{}\n")
    assert f"kept {old.segments[0]}: it has other lines" in old.collect(retain_days=0)
    assert old.segments[0].exists()
    assert not old.segments[1].exists()


def test_gc_keeps_segments_of_a_batch_that_is_not_in_all_tables(old: Old) -> None:
    old.maker.ingest([old.late], until=["segments", "events"])
    old.collect(retain_days=0)
    assert old.late.exists()


def test_gc_deletes_old_days_of_events_and_check_misses_nothing(old: Old, keep_second_day: float) -> None:
    rolled_up, rows = old.count("rollup_10s"), old.count("events")
    text = old.collect(events_days=keep_second_day)
    assert old.lake.days("events") == [SECOND_DAY]
    assert f"events of {FIRST}: deleted {rows - old.count('events'):,} rows" in text
    assert old.count("rollup_10s") == rolled_up
    assert "ok       1 of 1 boot has all its numbers" in old.check()
    assert old.collect(events_days=keep_second_day).count("events of") == 0


def test_a_missing_line_is_missed_even_if_its_neighbours_are_deleted(old: Old, keep_second_day: float) -> None:
    table = old.lake.table("events")
    assert table is not None
    table.delete("seq = 7")
    old.collect(events_days=keep_second_day)
    out = io.StringIO()
    assert not check(old.lake, [], out)
    assert "lines are missing" in out.getvalue()


def test_gc_keeps_days_that_computed_tables_lack(old: Old, keep_second_day: float) -> None:
    old.maker.ingest([old.late], until=[*BATCH_TABLES, "segments"])
    assert "events of 2026-11-21: kept, since tables that are computed" in old.collect(events_days=0)
    assert SECOND_DAY in old.lake.days("events")


def test_lines_that_come_while_gc_deletes_their_day_are_noted_or_stay(
    old: Old, keep_second_day: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = JournalMaker(old.journal, seed=9, node="late", start=START - DAY).write(50).segments
    _before(monkeypatch, "delete", DeltaTable, lambda: old.maker.ingest(late))
    old.collect(events_days=keep_second_day)
    assert "ok       2 of 2 boots have all their numbers" in old.check()


def test_a_gc_that_was_killed_after_its_note_is_finished_by_the_next(
    old: Old, keep_second_day: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        _before(patch, "delete", DeltaTable, killed)
        with pytest.raises(KeyboardInterrupt):
            old.collect(events_days=keep_second_day)
    assert old.count("deleted_lines") > 0
    old.check()
    old.collect(events_days=keep_second_day)
    assert old.lake.days("events") == [SECOND_DAY]
    old.check()


def test_late_lines_of_a_deleted_day_count_too(old: Old, keep_second_day: float) -> None:
    old.collect(events_days=keep_second_day)
    old.maker.ingest(JournalMaker(old.journal, seed=9, node="late", start=START - DAY).write(50).segments)
    assert old.lake.days("events") == [FIRST, SECOND_DAY]
    assert "ok       2 of 2 boots have all their numbers" in old.check()
    old.collect(events_days=keep_second_day)
    assert old.lake.days("events") == [SECOND_DAY]
    assert "ok       2 of 2 boots have all their numbers" in old.check()


class Forgetful:
    """A lake that was made of the days 19 to 21, of which the journal still has the last: it forgets what it can."""

    def __init__(self, root: Path) -> None:
        self.root, self.journal, self.maker = root, root / "journal", LakeMaker(root / "lake")
        self.lake: Lake = self.maker.lake
        self.made = JournalMaker(self.journal, seed=1, start=START - 2 * DAY, span=4 * DAY).write(400, per_segment=50)
        self.maker.ingest(self.made.segments)
        self.forget()
        assert len(self.days()) == 3  # the journal still has them
        for day in sorted(self.journal.iterdir())[:-1]:
            day.rename(root / day.name)
        self.forget()

    def forget(self) -> None:
        forget_segments(self.lake, [self.journal], 0, io.StringIO())

    def days(self) -> list[str]:
        return [str(row["d"]) for row in self.lake.sql("select distinct d from segments order by d").to_pylist()]

    def put_back(self, day: str, into: str) -> Path:
        """Put a segment of a day back into the journal, in the directory of a day."""
        path = next((self.root / f"d={day}").iterdir())
        (self.journal / f"d={into}").mkdir(exist_ok=True)
        return Path(shutil.copy(path, self.journal / f"d={into}"))

    def ingest(self) -> tuple[ExitCode, str]:
        """Exit code and warnings of an ingest, which would fail if it had to start Spark."""
        errors = io.StringIO()
        options = IngestOptions([str(self.journal)], self.lake.url, spark=SparkOptions("no such master"))
        return ingest(options, Progress(io.StringIO(), errors=errors)), errors.getvalue()

    def check(self) -> tuple[bool, str]:
        out = io.StringIO()
        return check(self.lake, [self.journal], out), out.getvalue()


@pytest.fixture
def forgetful(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forgetful:
    monkeypatch.setattr("gateway.pipeline.maintenance._LEAST_SEGMENTS_DAYS", 0)
    return Forgetful(tmp_path)


def test_a_segment_that_the_lake_has_forgotten_is_refused(forgetful: Forgetful) -> None:
    """Entries end, and yet nothing is read twice: days of which entries may be gone are closed."""
    assert forgetful.days() == [FIRST, SECOND_DAY]
    assert forgetful.ingest() == (ExitCode.OK, "")
    assert forgetful.check()[0]
    forgetful.put_back(FIRST, into=SECOND_DAY)  # as a gateway over midnight: still known
    assert forgetful.ingest() == (ExitCode.OK, "")
    late = forgetful.put_back("2026-11-19", into="2026-11-19")
    code, warnings = forgetful.ingest()
    assert code is ExitCode.FAILURE
    assert f"1 segment of days before {SECOND_DAY} left unread: {late.name}. The lake has forgotten" in warnings
    complete, text = forgetful.check()
    assert not complete
    assert f"1 segment is of a day that the lake has closed: {late.name}" in text


def test_a_plan_that_comes_while_the_lake_forgets_counts_too(
    forgetful: Forgetful, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an ingest has just planned, and not in all tables, is not forgotten."""
    for day in sorted(forgetful.journal.iterdir()):
        shutil.rmtree(day)
    late = JournalMaker(forgetful.root / "late", seed=9, node="late", start=START).write(50).segments
    forgetful.maker.batch = forgetful.lake.last_batch("segments") + 1
    made = partial(forgetful.maker.ingest, late, until=["segments"])
    _before(monkeypatch, "create_write_transaction", DeltaTable, made)
    forgetful.forget()
    assert closed_before(forgetful.lake.table("segments")) == SECOND_DAY
    assert forgetful.lake.unfinished() == [(forgetful.maker.batch - 1, f"made-{forgetful.maker.batch - 1}")]


def test_too_few_days_of_segments_are_refused(old: Old) -> None:
    with pytest.raises(UsageError, match="--segments-days must be at least 8"):
        forget_segments(old.lake, [], 7, io.StringIO())


def test_gc_needs_a_journal(old: Old) -> None:
    shutil.rmtree(old.journal)
    with pytest.raises(PipelineError, match="cannot be read: No such file or directory"):
        old.collect()
