"""Every line of the journals becomes a row of the lake, once."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from gateway.errors import ExitCode, PipelineError
from gateway.pipeline.check import check
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import BATCH_TABLES
from tests.support.journals import DAY, START, JournalMaker, write_segment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def run(spark: SparkSession, base: Path, *journals: Path, batch_bytes: int = 1 << 28) -> tuple[ExitCode, str, str]:
    """Ingest, by default the directory ``journal``, into ``lake``; the exit code and what was printed."""
    from gateway.pipeline.ingest import IngestOptions, ingest  # noqa: PLC0415
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    out, errors = io.StringIO(), io.StringIO()
    places = [str(journal) for journal in journals or (base / "journal",)]
    code = ingest(
        IngestOptions(places, str(base / "lake"), batch_bytes=batch_bytes), Progress(out, errors=errors), spark
    )
    return code, out.getvalue(), errors.getvalue()


def assert_every_line_once(base: Path, *journals: Path) -> None:
    """The segments, read by Python, have the same lines as the table, read by DuckDB by Delta's list of files."""
    written = set()
    for journal in journals or (base / "journal",):
        for path in journal.glob("d=*/*.v1.jsonl"):
            boot = path.name.split("-")[-3]
            written |= {(boot, json.loads(line)["q"]) for line in path.read_text().splitlines()}
    lake = Lake(base / "lake")
    with duckdb.connect() as database:
        rows = database.execute("select boot, seq from read_parquet($1)", [lake.files("events")]).fetchall()
    assert len(rows) == len(set(rows)) == len(written)
    assert set(rows) == written
    assert lake.sql("select sum(lines) n, sum(bad) bad from segments").to_pylist() == [{"n": len(written), "bad": 0}]
    assert lake.unfinished() == []


@pytest.mark.usefixtures("no_tables")
def test_every_line_once_and_again_nothing(spark: SparkSession, tmp_path: Path) -> None:
    made = JournalMaker(tmp_path / "journal", seed=1, span=DAY, start=START + DAY // 2).write(3000, per_segment=500)
    code, out, errors = run(spark, tmp_path, batch_bytes=made.segments[0].stat().st_size * 3)
    assert (code, errors) == (ExitCode.OK, "")
    assert f"{made.lines:,} events" in out
    assert_every_line_once(tmp_path)
    lake = Lake(tmp_path / "lake")
    assert lake.last_batch("segments") > 0
    assert {day for days in lake.sql("select days from segments")["days"].to_pylist() for day in days} == {
        "2026-11-21",
        "2026-11-22",
    }
    before = {table: lake.files(table) for table in BATCH_TABLES}

    assert run(spark, tmp_path)[1].endswith("nothing new\n")
    assert {table: lake.files(table) for table in BATCH_TABLES} == before

    JournalMaker(tmp_path / "journal", seed=2, node="with-dash.es").write(300, per_segment=100)
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert_every_line_once(tmp_path)
    nodes = lake.sql("select distinct node, impl from events order by 1").to_pylist()
    assert nodes == [{"node": "node1", "impl": "gateway"}, {"node": "with-dash.es", "impl": "gateway"}]


@pytest.mark.usefixtures("no_tables")
def test_several_journals_and_the_same_segment_in_two_of_them(spark: SparkSession, tmp_path: Path) -> None:
    first, second = tmp_path / "one", tmp_path / "two b, é #"
    JournalMaker(first, seed=1).write(100, per_segment=40)
    JournalMaker(second, seed=2, node="node2").write(100, per_segment=40)
    shutil.copytree(first, second, dirs_exist_ok=True)
    run(spark, tmp_path, first, second)
    assert_every_line_once(tmp_path, first, second)
    third = tmp_path / "three"
    old = JournalMaker(third, seed=3).write(50).segments[0]
    os.utime(old, (1_000_000_000, 1_000_000_000))
    run(spark, tmp_path, first, second, third)
    assert_every_line_once(tmp_path, first, second, third)


@pytest.mark.usefixtures("no_tables")
def test_a_journal_that_has_moved_does_no_harm_whatever_its_name(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    JournalMaker(journal).write(50)
    run(spark, tmp_path)
    for seed, name in enumerate(("moved", "a *?[]{}\\b", "10:30"), 2):
        journal = journal.rename(tmp_path / name)
        JournalMaker(journal, seed=seed).write(50)
        run(spark, tmp_path, journal)
        assert_every_line_once(tmp_path, journal)


class _KilledError(Exception):
    pass


@pytest.mark.usefixtures("no_tables")
@pytest.mark.parametrize("table", ["segments", "rollup_10s"])
def test_what_a_killed_run_has_planned_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    JournalMaker(tmp_path / "journal").write(200, per_segment=100)
    really: Callable[..., bool] = Lake._commit

    def commit(lake: Lake, name: str, *arguments: object) -> bool:
        if name == table:
            raise _KilledError
        return really(lake, name, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Lake, "_commit", commit)
        with pytest.raises(_KilledError):
            run(spark, tmp_path)
    lake = Lake(tmp_path / "lake")
    assert bool(lake.unfinished()) == (table != "segments")
    JournalMaker(tmp_path / "journal", seed=2).write(50)
    assert run(spark, tmp_path)[0] is ExitCode.OK
    assert_every_line_once(tmp_path)


@pytest.mark.usefixtures("no_tables")
def test_two_ingests_of_one_journal_at_once(spark: SparkSession, tmp_path: Path) -> None:
    size = JournalMaker(tmp_path / "journal").write(200, per_segment=50).segments[0].stat().st_size
    codes: list[ExitCode] = []

    def work() -> None:
        codes.append(run(spark, tmp_path, batch_bytes=size * 2)[0])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [ExitCode.OK] * 2
    assert_every_line_once(tmp_path)


@pytest.mark.usefixtures("no_tables")
def test_an_ingest_of_another_journal_repeats_no_work(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one ingest has written its batch and not planned it, another one plans the same number for its own."""
    one, other = tmp_path / "one", tmp_path / "other"
    JournalMaker(one, seed=1).write(100)
    JournalMaker(other, seed=2, node="node2").write(100)
    really: Callable[..., bool] = Lake.write_rows
    plans: list[int] = []

    def write_rows(lake: Lake, table: str, rows: pa.Table, number: int) -> bool:
        plans.append(number)
        if len(plans) == 1:
            assert run(spark, tmp_path, other)[0] is ExitCode.OK
        return really(lake, table, rows, number)

    monkeypatch.setattr(Lake, "write_rows", write_rows)
    assert run(spark, tmp_path, one)[0] is ExitCode.OK
    assert plans == [0, 0, 1]
    assert len(list((tmp_path / "lake" / "events" / "data").iterdir())) == 2
    assert_every_line_once(tmp_path, one, other)


@pytest.mark.usefixtures("no_tables")
def test_a_batch_whose_days_are_closed_meanwhile_is_given_up(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ingest that has written its batch cannot know any more whether the lake has forgotten these segments."""
    JournalMaker(tmp_path / "journal", seed=1).write(50)
    really: Callable[..., bool] = Lake.write_rows

    def write_rows(lake: Lake, table: str, rows: pa.Table, number: int) -> bool:
        assert lake.close_days("2026-11-23", number)
        return really(lake, table, rows, number)

    monkeypatch.setattr(Lake, "write_rows", write_rows)
    run(spark, tmp_path)
    assert Lake(tmp_path / "lake").sql("select * from segments").num_rows == 0
    monkeypatch.undo()
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert "of days before 2026-11-23 left unread" in errors


FAULTS: dict[str, Callable[[list[str]], list[str]]] = {
    "a line is gone": lambda lines: lines[:5] + lines[6:],
    "the first line is gone": lambda lines: lines[1:],
    "a line is too long": lambda lines: [*lines[:5], lines[5][:-2] + ' ,"x":"' + "x" * 50_000_000 + '"}\n', *lines[6:]],
    "the last line is too long": lambda lines: [*lines, "x" * (1 << 21) + "\n"],
}


@pytest.mark.usefixtures("no_tables")
def test_damaged_segments_are_put_aside_and_taken_in_when_they_are_mended(spark: SparkSession, tmp_path: Path) -> None:
    JournalMaker(tmp_path / "journal", node="healthy").write(50)
    whole = {}
    for seed, (fault, damaged) in enumerate(FAULTS.items(), 2):
        path = JournalMaker(tmp_path / "journal", seed=seed, node=fault.replace(" ", "")).write(50).segments[0]
        whole[path] = path.read_text()
        path.write_text("".join(damaged(whole[path].splitlines(keepends=True))))
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert f"{len(FAULTS)} segments put aside: gateway-" in errors
    lake = Lake(tmp_path / "lake")
    assert lake.sql("select distinct node from events")["node"].to_pylist() == ["healthy"]
    rows = {row["path"]: row for row in lake.sql("select name, reason, path from segments_aside").to_pylist()}
    assert rows.keys() == {str(path) for path in whole}
    for path in whole:
        row = rows[str(path)]
        assert row["name"] == path.name
        assert ("longer than 1,048,576 bytes" if "long" in path.name else "lines are missing") in row["reason"]
        assert path.exists()
    out = io.StringIO()
    assert not check(lake, [tmp_path / "journal"], out)
    assert f"WRONG    {len(FAULTS)} segments are aside: gateway-" in out.getvalue()

    code, out_again, errors = run(spark, tmp_path)
    assert (code, errors) == (ExitCode.OK, "")
    assert out_again.endswith("nothing new\n")

    path, text = next(iter(whole.items()))
    path.write_text(text.partition("\n")[2].partition("\n")[2])
    assert "stomp-gateway: 1 segment put aside: gateway-" in run(spark, tmp_path)[2]

    for path, text in whole.items():
        path.write_text(text)
    assert run(spark, tmp_path)[::2] == (ExitCode.OK, "")
    assert_every_line_once(tmp_path)
    assert check(lake, [tmp_path / "journal"], out := io.StringIO()), out.getvalue()


@pytest.mark.usefixtures("no_tables")
def test_what_is_no_segment_is_named_and_not_read(spark: SparkSession, tmp_path: Path) -> None:
    day = JournalMaker(tmp_path / "journal").write(50).segments[0].parent
    secret = tmp_path / "passwd"
    secret.write_text("root:x:0:0\n")
    link = day / "gateway-node1-00000000000000aa-1-000000.v1.jsonl"
    link.symlink_to(secret)
    os.mkfifo(day / "gateway-node1-00000000000000aa-1-000001.v1.jsonl")
    (day / "gateway-NODE 1.v1.jsonl").write_text("odd\n")
    (tmp_path / "journal" / "d=2026-11-20").symlink_to(day)
    code, _, errors = run(spark, tmp_path)
    assert code is ExitCode.FAILURE
    assert "4 files in the journal are not read" in errors
    for name, why in ((link.name, "a link"), ("000001.v1.jsonl", "no regular file"), ("d=2026-11-20", "a link"),
                      ("NODE 1.v1.jsonl", "not a segment's name")):  # fmt: skip
        assert f"{name} ({why})" in errors
    lake = Lake(tmp_path / "lake")
    assert lake.sql("select count(*) n from bad_lines").to_pylist() == [{"n": 0}]
    assert not check(lake, [tmp_path / "journal"], out := io.StringIO())
    assert "WRONG    3 files of the journal are no segments that may be read" in out.getvalue()
    assert "note     1 file of the journal has a name that no gateway gives" in out.getvalue()


@pytest.mark.usefixtures("no_tables")
def test_what_the_plan_says_of_a_segment(spark: SparkSession, tmp_path: Path) -> None:
    who = {"c": 1, "vh": "/", "u": "app"}
    end = {"e": "end", "t": START + DAY, **who, "x": "disconnect", "f": {"us": DAY * 2, "frames_in": 3}}
    path = write_segment(tmp_path / "journal", [end, "nonsense", {"e": "close", "t": START}], first=7)
    run(spark, tmp_path)
    (row,) = Lake(tmp_path / "lake").sql("select * from segments").to_pylist()
    expected = {
        "name": path.name, "impl": "gateway", "node": "node1", "boot": "00000000000000aa", "first": 7, "last": 10,
        "lines": 4, "bad": 1, "bytes": path.stat().st_size, "batch": 0, "d": "2026-11-21",
        "days": ["2026-11-21", "2026-11-22"], "session_days": ["2026-11-19", "2026-11-20"],
        "session_hours": ["2026-11-19T23", "2026-11-20T00"],
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert isinstance(row["newest"], datetime)
    assert row["newest"].timestamp() * 1_000_000 == START + DAY


@pytest.mark.usefixtures("no_tables")
def test_readers_skip_files_by_time_and_destination(spark: SparkSession, tmp_path: Path) -> None:
    """The lowest and highest values in Delta's log are those of the rows: also before `compact`."""
    for number, hour in enumerate((0, 5)):
        start = START + hour * 3600 * 1_000_000
        who = {"c": 1, "vh": "/", "u": "app", "d": f"/queue/{hour}", "dk": "queue"}
        lines = [{"e": "send", "t": start + second * 1_000_001, **who, "m": second} for second in range(3)]
        write_segment(tmp_path / "journal", lines, boot=f"{number:016x}", start=start)
        run(spark, tmp_path)
    lake = Lake(tmp_path / "lake")
    table = lake.table("events")
    assert table is not None
    log = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    for each in log:
        rows = lake.sql(f"select * from events where level = '{each['partition.level']}'").to_pylist()  # noqa: S608
        own = [row for row in rows if row["boot"] == each["min.boot"]]
        for column in ("ts", "seq", "destination", "login", "msg_no"):
            values = [row[column] for row in own if row[column] is not None]
            assert each[f"min.{column}"] == min(values, default=None), column
            assert each[f"max.{column}"] == max(values, default=None), column
            assert each[f"null_count.{column}"] == len(own) - len(values)
    assert len(log) == 4
    for where in ("destination = '/queue/5'", "ts > timestamp '2026-11-21T04:00:00Z'"):
        query = f"explain analyze select seq from events where level = 'message' and {where}"  # noqa: S608
        plan = str(lake.sql(query).to_pylist())
        assert "-1 total" not in plan
        assert plan.count(".parquet") == 1, plan


def test_tables_are_computed_for_batches_that_are_not_in_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    JournalMaker(tmp_path / "journal").write(100)

    def broken(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("gateway.pipeline.tables.refresh", broken)
        with pytest.raises(PipelineError, match="Input/output error"):
            run(spark, tmp_path)
    assert "tables of 1 day computed" in run(spark, tmp_path)[1]
    assert run(spark, tmp_path)[1].endswith("nothing new\n")
