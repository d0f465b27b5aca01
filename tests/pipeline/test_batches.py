"""A batch that is planned is committed with all of its files, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from gateway.errors import PipelineError
from gateway.pipeline.batches import commit_planned
from gateway.pipeline.lake import DataFile, Lake
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
    rows = _planned(maker.lake)
    rows[table] = 0 if lost == "all" else rows[table] - 1
    _leave(rows, monkeypatch)
    with pytest.raises(PipelineError, match=rf"files of batch 0 in .*/{table}/data/made-0 are missing: they have"):
        commit_planned(maker.lake)
    assert maker.lake.last_batch(table) == -1


@pytest.mark.parametrize("said", ["no column", "null"])
def test_a_batch_of_an_earlier_release_did_not_say_how_long_its_roll_up_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    maker = LakeMaker(tmp_path / "lake")
    maker.ingest(JournalMaker(tmp_path / "journal").write(100, per_segment=100).segments, until=["segments"])
    rows = _planned(maker.lake)
    table = maker.lake.table("segments")
    assert table is not None
    plan = maker.lake.sql("select * from segments").drop_columns(["rollup_rows"])
    if said == "null":
        plan = plan.append_column("rollup_rows", pa.nulls(len(plan), pa.int64()))
    write_deltalake(table, plan, mode="overwrite", schema_mode="overwrite", partition_by=partitions_of("segments"))
    _leave(rows | {"rollup_10s": 0}, monkeypatch)
    with pytest.raises(PipelineError, match=r"/rollup_10s/data/made-0 are missing: they have 0 rows\. Restore"):
        commit_planned(maker.lake)
    _leave(rows, monkeypatch)
    commit_planned(maker.lake)
    assert maker.lake.applied() == 0


def _planned(lake: Lake) -> dict[str, int]:
    planned = "max(rollup_rows) rollup_10s, sum(lines - bad) events, sum(bad) bad_lines"
    (rows,) = lake.sql(f"select {planned} from segments").to_pylist()  # noqa: S608
    return dict(rows)


def _leave(rows: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each table have files with that many rows."""

    def left(_: Lake, table: str, directory: str) -> list[DataFile]:
        assert directory == "made-0"
        partition = dict.fromkeys(partitions_of(table), "2026-11-21")
        return [DataFile("x", 1, 1, rows[table], partition)] if rows[table] else []

    monkeypatch.setattr(Lake, "written_files", left)
