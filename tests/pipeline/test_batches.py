"""A batch that is planned is not committed without its files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from gateway.errors import PipelineError
from gateway.pipeline.batches import commit_planned
from gateway.pipeline.lake import DataFile
from tests.support.journals import JournalMaker
from tests.support.lakes import LakeMaker


def test_lost_files_of_the_rollup_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = LakeMaker(tmp_path / "lake")
    maker.ingest(JournalMaker(tmp_path / "journal").write(100, per_segment=100).segments, until=["segments"])
    lines = maker.lake.sql("select sum(lines) n from segments")["n"][0].as_py()

    def left(_spark: object, _lake: object, table: str, _directory: str) -> list[DataFile]:
        return [DataFile("x", 1, 1, lines, {"d": "2026-11-21", "level": "session"})] if table == "events" else []

    monkeypatch.setattr("gateway.pipeline.batches.list_files", left)
    with pytest.raises(PipelineError, match=r"files of batch 0 in .*/rollup_10s/data/made-0 are missing"):
        commit_planned(cast(SparkSession, None), maker.lake)
    assert maker.lake.last_batch("rollup_10s") == -1
