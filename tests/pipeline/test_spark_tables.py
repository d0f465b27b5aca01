"""Spark writes files into a table, a commit makes them part of it, and Spark reads its snapshot back."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEEN = datetime(2026, 11, 21, 12, 30, 15, 123456, UTC)


def test_what_spark_writes_is_in_the_table_once_it_is_committed(spark: SparkSession, tmp_path: Path) -> None:
    from gateway.pipeline.spark_tables import read_table, write_files  # noqa: PLC0415

    lake = Lake(tmp_path / "a b {c} é #?")
    (tmp_path / "a b {c} é #?" / "copy:old").mkdir(parents=True)  # whatever lies beside the tables
    days = ["2026-11-21", "2026-11-22"]
    for number, directory in enumerate(("first", "second")):
        rows = [("f", f"{directory} {day}", "?", SEEN, day) for day in days for _ in range(3)]
        write_files(spark.createDataFrame(rows, COLUMNS["bad_lines"]), lake, "bad_lines", directory)
        assert read_table(spark, lake, "bad_lines").count() == number * 6
        files = lake.written_files("bad_lines", directory)
        assert {file.partition["d"] for file in files} == set(days)
        assert sum(file.rows for file in files) == 6
        for file in files:
            path = Path(lake.table_url("bad_lines"), file.path)
            assert (path.stat().st_size, path.stat().st_mtime_ns // 1_000_000) == (file.size, file.modified)
        assert lake.commit_files("bad_lines", files, number)
    delta = lake.table("bad_lines")
    assert delta is not None
    delta.optimize.compact(partition_filters=[("d", "=", days[0])])
    found = read_table(spark, lake, "bad_lines")
    assert found.columns == ["file", "line", "reason", "seen", "d"]
    expected = sorted(
        (f"{directory} {day}", day) for day in days for directory in ("first", "second") for _ in range(3)
    )
    assert sorted((row["line"], row["d"]) for row in found.collect()) == expected
    assert lake.sql("select count(*) n from bad_lines").to_pylist() == [{"n": 12}]
    assert set(lake.sql("select seen from bad_lines")["seen"].to_pylist()) == {SEEN}
    assert [row["d"] for row in read_table(spark, lake, "bad_lines", days[1:]).collect()] == [days[1]] * 6


def test_a_lake_may_have_a_colon_in_its_path(spark: SparkSession, tmp_path: Path) -> None:
    from gateway.pipeline.spark_tables import read_table, write_files  # noqa: PLC0415

    lake = Lake(tmp_path / "a:b" / "lake 10:30")
    write_files(
        spark.createDataFrame([("f", "x", "?", SEEN, "2026-11-21")], COLUMNS["bad_lines"]), lake, "bad_lines", "first"
    )
    assert lake.commit_files("bad_lines", lake.written_files("bad_lines", "first"), 0)
    assert [row["line"] for row in read_table(spark, lake, "bad_lines").collect()] == ["x"]


def test_where_nothing_was_written_there_are_no_files(spark: SparkSession, tmp_path: Path) -> None:
    from gateway.pipeline.spark_tables import read_table, write_files  # noqa: PLC0415

    lake = Lake(tmp_path / "lake")
    assert lake.written_files("bad_lines", "none") == []
    write_files(spark.createDataFrame([], COLUMNS["bad_lines"]), lake, "bad_lines", "none")
    assert lake.written_files("bad_lines", "none") == []
    empty = read_table(spark, lake, "events", ["2026-11-21"], "level = 'session'")
    assert (empty.count(), empty.columns[-2:]) == (0, ["d", "level"])
