"""A batch that is planned is not committed without all of its files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from gateway.errors import PipelineError
from gateway.pipeline.batches import commit_planned
from gateway.pipeline.lake import DataFile
from gateway.pipeline.table_schemas import BATCH_TABLES, partitions_of
from tests.support.journals import JournalMaker
from tests.support.lakes import LakeMaker


@pytest.mark.parametrize("lost", ["some", "all"])
@pytest.mark.parametrize("table", BATCH_TABLES)
def test_lost_files_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, lost: str) -> None:
    maker = LakeMaker(tmp_path / "lake")
    segments = JournalMaker(tmp_path / "journal").write(100, per_segment=100).segments
    with segments[0].open("a") as file:
        file.write("nonsense\nand more\n")
    maker.ingest(segments, until=["segments"])
    planned = "max(rollup_rows) rollup_10s, sum(lines - bad) events, sum(bad) bad_lines"
    (rows,) = maker.lake.sql(f"select {planned} from segments").to_pylist()  # noqa: S608
    rows[table] = 0 if lost == "all" else rows[table] - 1

    def left(_spark: object, _lake: object, name: str, _directory: str) -> list[DataFile]:
        return [DataFile("x", 1, 1, rows[name], dict.fromkeys(partitions_of(name), "2026-11-21"))] if rows[name] else []

    monkeypatch.setattr("gateway.pipeline.batches.list_files", left)
    with pytest.raises(PipelineError, match=rf"files of batch 0 in .*/{table}/data/made-0 are missing: they have"):
        commit_planned(cast(SparkSession, None), maker.lake)
    assert maker.lake.last_batch(table) == -1
