"""A lake of Delta tables: commits count once, whoever else commits, and SQL reads all tables."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake import DataFile, Lake
from gateway.pipeline.table_schemas import BATCH_TABLES, COLUMNS, partitions_of, schema_of
from tests.support.object_store import running_store

DAY = "2026-11-21"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "a b {c} é #?")


def bad_lines(*lines: str, day: str = DAY) -> pa.Table:
    rows = [{"file": "f", "line": line, "reason": "?", "seen": datetime.now(UTC), "d": day} for line in lines]
    return pa.Table.from_pylist(rows, schema_of("bad_lines"))


def written(lake: Lake, name: str, *lines: str, day: str = DAY) -> DataFile:
    """Write a file as Spark does: without the column of the partition, which is in the path."""
    below = f"data/{name}/d={day}/part-0.parquet"
    path = Path(lake.table_url("bad_lines"), below)
    path.parent.mkdir(parents=True)
    pq.write_table(bad_lines(*lines).drop_columns(["d"]), path)
    return DataFile(below, path.stat().st_size, 1, len(lines), {"d": day})


def lines_in(lake: Lake) -> list[tuple[str, str]]:
    found = lake.sql("select d, line from bad_lines order by d, line").to_pylist()
    return [(row["d"], row["line"]) for row in found]


def test_a_batch_counts_once(lake: Lake) -> None:
    file = written(lake, "x", "one", "two")
    assert lake.commit_files("bad_lines", [file], 3)
    assert not lake.commit_files("bad_lines", [written(lake, "y", "again")], 3)
    assert not lake.write_rows("bad_lines", bad_lines("earlier"), 2)
    assert lake.write_rows("bad_lines", bad_lines("three"), 4)
    assert lines_in(lake) == [(DAY, "one"), (DAY, "three"), (DAY, "two")]
    assert lake.last_batch("bad_lines") == 4
    assert lake.sql("select count(*) n from bad_lines").to_pylist() == [{"n": 3}]


Commit = Callable[..., None]


@pytest.mark.parametrize(("mine", "done"), [(7, False), (8, True)])
def test_of_two_commits_at_once_the_second_looks_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, mine: int, done: bool
) -> None:
    lake.create("bad_lines")
    file, other = written(lake, "mine", "mine"), written(lake, "other", "other")
    really: Commit = DeltaTable.create_write_transaction
    began = False

    def commit(delta: DeltaTable, *arguments: object, **options: object) -> None:
        nonlocal began
        if not began:
            began = True
            assert lake.commit_files("bad_lines", [other], 7)
        really(delta, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
    assert lake.commit_files("bad_lines", [file], mine) is done
    assert lines_in(lake) == ([(DAY, "mine")] if done else []) + [(DAY, "other")]


def test_a_compaction_meanwhile_does_no_harm(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in range(3):
        lake.write_rows("bad_lines", bad_lines(str(batch)), batch)
    file = written(lake, "x", "mine")
    really: Commit = DeltaTable.create_write_transaction

    def commit(delta: DeltaTable, *arguments: object, **options: object) -> None:
        found = lake.table("bad_lines")
        assert found is not None
        found.optimize.compact()
        really(delta, *arguments, **options)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", commit)
    assert lake.commit_files("bad_lines", [file], 3)
    assert len(lake.files("bad_lines")) == 2
    assert [line for _, line in lines_in(lake)] == ["0", "1", "2", "mine"]


def test_days_are_replaced_and_others_stay(lake: Lake) -> None:
    days = ["2026-11-20", "2026-11-21", "2026-11-22"]
    for number, day in enumerate(days):
        lake.write_rows("bad_lines", bad_lines("old", day=day), number)
    assert lake.commit_files("bad_lines", [written(lake, "x", "new", day=days[0])], 3, days=days[:2])
    assert lines_in(lake) == [(days[0], "new"), (days[2], "old")]
    assert not lake.commit_files("bad_lines", [written(lake, "y", "late", day=days[0])], 3, days=days[:2])
    assert lake.commit_files("bad_lines", [], 4, days=[])
    assert lines_in(lake) == [(days[0], "new"), (days[2], "old")]
    assert lake.days("bad_lines") == [days[0], days[2]]


def test_a_table_without_days_is_replaced_as_a_whole(lake: Lake) -> None:
    schema = schema_of("durable_subs")
    for batch, login in enumerate(("app1", "app2")):
        path = Path(lake.table_url("durable_subs"), f"{batch}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([dict.fromkeys(schema.names) | {"login": login}], schema), path)
        lake.commit_files("durable_subs", [DataFile(path.name, path.stat().st_size, 1, 1, {})], batch, days=())
    assert lake.sql("select login from durable_subs").to_pylist() == [{"login": "app2"}]


def test_a_table_of_an_earlier_release_gets_a_new_column(lake: Lake) -> None:
    schema = schema_of("segments")
    earlier = pa.schema([field for field in schema if field.name != "rollup_rows"])
    DeltaTable.create(lake.table_url("segments"), Schema.from_arrow(earlier), partition_by=["d"])
    row = dict.fromkeys(schema.names) | {"name": "s", "rollup_rows": 3, "d": DAY}
    assert lake.write_rows("segments", pa.Table.from_pylist([row], schema), 0)
    assert lake.sql("select name, rollup_rows from segments").to_pylist() == [{"name": "s", "rollup_rows": 3}]


def test_the_files_of_some_days(lake: Lake) -> None:
    for number, day in enumerate(("2026-11-20", "2026-11-21")):
        lake.write_rows("bad_lines", bad_lines("x", day=day), number)
    assert len(lake.files("bad_lines")) == 2
    (only,) = lake.files("bad_lines", ["2026-11-21", "2026-11-25"])
    assert "/d=2026-11-21/" in only
    assert pq.read_table(only, partitioning=None)["line"].to_pylist() == ["x"]
    assert lake.files("bad_lines", []) == []
    assert lake.files("events") == []


def test_a_written_file_without_rows_is_no_part_of_a_table(lake: Lake) -> None:
    """Wherever it is: a writer without rows knows no day for its file."""
    lake.create("bad_lines")
    there = written(lake, "new", "a")
    for folder in ("data/new", f"data/new/d={DAY}"):
        pq.write_table(schema_of("bad_lines").empty_table(), Path(lake.table_url("bad_lines"), folder, "none.parquet"))
    assert [file.path for file in lake.written_files("bad_lines", "new")] == [there.path]


def test_planned_batches_are_unfinished_until_every_table_has_them(lake: Lake) -> None:
    assert lake.unfinished() == []
    schema = schema_of("segments")
    for batch in (0, 1):
        row = dict.fromkeys(schema.names) | {"name": f"s{batch}", "batch": batch, "directory": f"dir{batch}", "d": DAY}
        assert lake.write_rows("segments", pa.Table.from_pylist([row, row], schema), batch)
    assert lake.unfinished() == [(0, "dir0"), (1, "dir1")]
    for table in BATCH_TABLES:
        assert lake.unfinished()[0] == (0, "dir0")
        lake.commit_files(table, [], 0)
    assert lake.unfinished() == [(1, "dir1")]


@pytest.mark.parametrize("table", COLUMNS)
def test_sql_knows_every_table_whether_it_is_there_or_not(lake: Lake, table: str) -> None:
    query = f"select * from {table}"  # noqa: S608
    absent = lake.sql(query)
    assert absent.num_rows == 0
    lake.create(table)
    for found in (absent, lake.sql(query)):
        assert {name: found.schema.field(name).type for name in found.schema.names} == {
            field.name: field.type for field in schema_of(table)
        }
    delta = lake.table(table)
    assert delta is not None
    assert delta.metadata().partition_columns == partitions_of(table)


@pytest.mark.parametrize("url", ["/srv/lake", "file:/srv/lake", "file:///srv/lake/"])
def test_a_directory_may_be_written_as_a_file_url(url: str) -> None:
    assert Lake(url).url == "/srv/lake"


def test_a_file_url_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="has no machine"):
        Lake("file://server/srv/lake")


def test_what_is_wrong_is_said(lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="no lake at"):
        lake.must_exist()
    with pytest.raises(PipelineError, match="Expected: an SQL statement"):
        lake.sql("selec 1")
    lake.create("segments")
    lake.must_exist()
    with pytest.raises(UsageError, match="cannot have square brackets"):
        Lake(tmp_path / "a[b]")
    assert str(Lake(f"file://{tmp_path}/x/")) == f"{tmp_path}/x"
    assert Lake("s3://bucket/lake/").table_url("events") == "s3://bucket/lake/events"


def test_a_lake_in_an_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        lake = Lake(f"{store.url}/lake")
        for batch in (0, 1, 1):
            lake.write_rows("bad_lines", bad_lines(f"line {batch}"), batch)
        assert lines_in(lake) == [(DAY, "line 0"), (DAY, "line 1")]
        assert all(file.startswith(f"{store.url}/lake/bad_lines/d={DAY}/") for file in lake.files("bad_lines", [DAY]))
