"""An ingest on a real cluster that loses a worker in the middle has every line once, and every table is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.demo.cluster_ingest import ingest_with_a_kill
from deploy.local.spark_cluster import spark_cluster
from gateway.pipeline.lake import Lake
from tests.pipeline.recomputed import assert_right
from tests.support.journals import JournalMaker

pytestmark = [pytest.mark.spark, pytest.mark.kills]


def test_every_table_is_right_though_a_worker_was_killed(tmp_path: Path) -> None:
    journal, root, log = tmp_path / "journal", tmp_path / "lake", tmp_path / "out"
    made = JournalMaker(journal, seed=7).write(6000, per_segment=500)
    with spark_cluster(tmp_path / "spark") as cluster:
        arguments = ["--journal", str(journal), "--lake", str(root), "--once"]
        said: list[str] = []
        assert ingest_with_a_kill(cluster, arguments, root, log, said.append) == 0, log.read_text()
        assert len(said) == 1
        assert cluster.workers[1].wait(0) == -9
        assert cluster.workers[0].wait(0) is None

    lake = Lake(root)
    found = lake.sql("select count(*) n, count(distinct seq) different, max(seq) last from events").to_pylist()
    assert found == [{"n": made.lines, "different": made.lines, "last": made.lines - 1}]
    assert_right(lake, journal)
