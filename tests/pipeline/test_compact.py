from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from gateway.pipeline.compact import compact, recover
from gateway.pipeline.parquet_lake import BATCH_TABLES, ParquetLake
from gateway.pipeline.snapshot import LakeSnapshot, parquet_files

from gateway.cli import main
from gateway.errors import ExitCode, PipelineError
from gateway.pipeline import compact as compacting
from gateway.pipeline.check import check
from tests.support.journals import DAY, START, JournalMaker
from tests.support.lakes import LakeMaker, batches_of_day


@pytest.fixture
def maker(tmp_path: Path) -> LakeMaker:
    journal = tmp_path / "journal"
    made = JournalMaker(journal, seed=5, start=START - DAY, span=2 * DAY).write(600, per_segment=100)
    content = made.segments[1].read_bytes().replace(b'"t":', b'"t" ', 2)
    made.segments[1].write_bytes(content)
    maker = LakeMaker(tmp_path / "lake", journal)
    for segment in made.segments:
        maker.ingest([segment])
    return maker


def _more(maker: LakeMaker) -> None:
    journal = maker.lake.root.parent / "journal"
    made = JournalMaker(journal, seed=6, node="late", start=START - DAY).write(200, per_segment=100)
    for segment in made.segments:
        maker.ingest([segment])


def _days(lake: ParquetLake) -> list[str]:
    return sorted({path.name[2:] for table in BATCH_TABLES for path in lake.table(table).glob("d=*")})


def _rows(lake: ParquetLake, table: str) -> list[pa.Table]:
    directories = [path for day in _days(lake) for path in batches_of_day(lake, table, day)]
    return [pq.read_table(file, partitioning=None) for path in directories for file in parquet_files(path)]


def _events(lake: ParquetLake) -> Counter[tuple[str, int]]:
    tables = _rows(lake, "events")
    return Counter((row["boot"], row["seq"]) for table in tables for row in table.select(["boot", "seq"]).to_pylist())


def _bad(lake: ParquetLake) -> int:
    return sum(map(len, _rows(lake, "bad_lines")))


def _rollup(lake: ParquetLake) -> dict[tuple[object, ...], tuple[float, float]]:
    table = pa.concat_tables(_rows(lake, "rollup_10s"))
    keys = [name for name in table.column_names if name not in ("n", "bytes")]
    summed = table.group_by(keys).aggregate([("n", "sum"), ("bytes", "sum")])
    return {tuple(row[key] for key in keys): (row["n_sum"], row["bytes_sum"]) for row in summed.to_pylist()}


def _complete(lake: ParquetLake) -> str:
    out = io.StringIO()
    assert check(lake, None, out), out.getvalue()
    return out.getvalue()


def test_the_same_rows_in_one_directory_to_a_place(maker: LakeMaker) -> None:
    lake = maker.lake
    events, rollup, bad = _events(lake), _rollup(lake), _bad(lake)
    assert bad == 2
    out = io.StringIO()
    compact(lake, out)
    assert _events(lake) == events
    assert _rollup(lake) == rollup
    assert _bad(lake) == bad
    places = [place for table in ("events", "rollup_10s") for place in LakeSnapshot.read(lake).partitions(table)]
    assert len(places) > 3
    assert all(len(list(place.iterdir())) == 1 for place in places)
    assert "events/d=2026-11-20/level=message: " in out.getvalue()
    assert "leftovers" not in _complete(lake)
    assert "replaced" not in _complete(lake)
    assert len(list(lake.batches.glob("0*.json"))) == len(maker.batches)  # ingest knows its batches by them


def test_order_schema_and_compression_are_kept(maker: LakeMaker) -> None:
    lake = maker.lake
    before = pa.concat_tables(
        [pq.read_table(file, partitioning=None)
         for path in batches_of_day(lake, "events", "2026-11-20") if path.parent.name == "level=session"
         for file in parquet_files(path)]
    )  # fmt: skip
    compact(lake, io.StringIO())
    (directory,) = [
        path for path in batches_of_day(lake, "events", "2026-11-20") if path.parent.name == "level=session"
    ]
    (file,) = parquet_files(directory)
    assert pq.read_table(file, partitioning=None).equals(before)
    assert pq.read_metadata(file).row_group(0).column(0).compression == "ZSTD"


def test_equal_keys_of_the_rollup_become_one_row(maker: LakeMaker) -> None:
    lake = maker.lake
    compact(lake, io.StringIO())
    for table in _rows(lake, "rollup_10s"):
        keys = [name for name in table.column_names if name not in ("n", "bytes")]
        assert len(table) == len(table.group_by(keys).aggregate([]))
        assert table.schema.field("ts10").type == pa.timestamp("us", "UTC")


def test_sums_do_not_depend_on_how_many_rows_fit(maker: LakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    rollup, events = _rollup(maker.lake), _events(maker.lake)
    monkeypatch.setattr(compacting, "_ROWS_BEFORE_SUMMING", 10)
    monkeypatch.setattr(compacting, "_ROWS_PER_GROUP", 16)
    monkeypatch.setattr(compacting, "_ROWS_PER_FILE", 50)
    compact(maker.lake, io.StringIO())
    assert _rollup(maker.lake) == rollup
    assert _events(maker.lake) == events
    assert len(list(maker.lake.root.glob("events/d=2026-11-20/level=message/*/part-*.parquet"))) > 1


def test_what_is_compacted_can_be_compacted_with_more(maker: LakeMaker) -> None:
    lake = maker.lake
    compact(lake, io.StringIO())
    _more(maker)
    events, rollup = _events(lake), _rollup(lake)
    compact(lake, io.StringIO())
    assert _events(lake) == events
    assert _rollup(lake) == rollup
    (name,) = [path.name for path in lake.root.glob("rollup_10s/d=2026-11-20/*")]
    assert name == f"batch=c00000000-{maker.batches[-1]:08d}"
    assert len(list(lake.batches.glob("c*.json"))) > 1
    _complete(lake)
    out = io.StringIO()
    compact(lake, out)
    assert out.getvalue() == "nothing to compact\n"


def test_columns_that_came_later_are_null_before(maker: LakeMaker) -> None:
    file = next(maker.lake.root.glob("events/d=2026-11-20/level=session/batch=00000000/*"))
    table = pq.read_table(file, partitioning=None)
    naive = table["ts"].cast(pa.timestamp("us"))
    pq.write_table(
        table.drop_columns(["ts"]).append_column("ts", naive).append_column("new", pc.add(table["seq"], 1)), file
    )
    compact(maker.lake, io.StringIO())
    (directory,) = [
        path for path in batches_of_day(maker.lake, "events", "2026-11-20") if path.parent.name == "level=session"
    ]
    merged = pq.read_table(directory, partitioning=None)
    assert merged["new"].null_count == len(merged) - len(table)
    assert merged.schema.field("ts").type == pa.timestamp("us", "UTC")


def test_a_batch_without_a_manifest_is_left_alone(maker: LakeMaker) -> None:
    lake = maker.lake
    events = _events(lake)
    last = maker.batches[-1]
    lake.manifest(last).unlink()
    orphans = list(lake.root.glob(f"*/**/batch={last:08d}"))
    compact(lake, io.StringIO())
    assert orphans
    assert all(path.is_dir() for path in orphans)
    assert 0 < _events(lake).total() < events.total()


class KilledError(BaseException):
    """Like SIGKILL: no clean-up runs."""


class Killer:
    """Counts system calls that change something, and ends the program before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.at = 0
        for name in ("rename", "replace", "unlink", "rmdir", "mkdir", "fsync"):
            monkeypatch.setattr(os, name, self._wrapped(getattr(os, name)))

    def _wrapped(self, call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*arguments: object, **named: object) -> object:
            self.calls += 1
            if self.calls == self.at:
                raise KilledError
            return call(*arguments, **named)

        return wrapped


def test_killed_at_any_step_no_row_is_lost_or_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = _small(tmp_path)
    events, rollup, bad = _events(maker.lake), _rollup(maker.lake), _bad(maker.lake)
    # One partition for each way of merging is enough; their compactions share a manifest.
    monkeypatch.setattr(compacting, "BATCH_TABLES", ("rollup_10s", "bad_lines"))
    killer = Killer(monkeypatch)
    step, finished = 0, False
    verdicts: Counter[str] = Counter()
    while not finished:
        step += 1
        root = tmp_path / "copy"
        shutil.copytree(maker.lake.root, root)
        lake = ParquetLake(root)
        killer.calls, killer.at = 0, step
        try:
            compact(lake, io.StringIO())
            finished = True
        except KilledError:
            pass
        killer.at = 0
        # Even without recovery, a snapshot contains every row once, and check agrees.
        assert _events(lake) == events, step
        assert _bad(lake) == bad, step
        _often(step, lake)
        out = io.StringIO()
        with lake.locked():
            recover(lake, out)
        verdicts[out.getvalue().split(" ")[0].strip()] += 1
        assert not (root / "_compaction.json").exists()
        compact(lake, io.StringIO())
        assert _events(lake) == events, step
        assert _rollup(lake) == rollup, step
        notes = [line for line in _often(step, lake).splitlines() if line.startswith("note")]
        assert all("bad lines" in line or "did not close" in line for line in notes), step
        assert not any(lake.staging.iterdir()), step
        shutil.rmtree(root)
    assert step > 30
    assert verdicts["undid"] > 5
    assert verdicts["finished"] > 5


def _often(step: int, lake: ParquetLake) -> str:
    return _complete(lake) if step % 3 == 0 else ""


def _small(root: Path) -> LakeMaker:
    """Two batches are enough to be killed between; each has a bad line."""
    made = JournalMaker(root / "journal", seed=5).write(60, per_segment=40)
    maker = LakeMaker(root / "lake", root / "journal")
    for segment in made.segments[:2]:
        segment.write_bytes(segment.read_bytes().replace(b'"t":', b'"t" ', 1))
        maker.ingest([segment])
    return maker


def test_any_engine_reads_a_compacted_lake_from_its_files_alone(maker: LakeMaker) -> None:
    events = _events(maker.lake)
    compact(maker.lake, io.StringIO())
    files = maker.lake.root.glob("events/*/*/*/*.parquet")
    assert sum(pq.read_metadata(path).num_rows for path in files) == events.total()


def test_only_one_process_writes_into_a_lake(maker: LakeMaker) -> None:
    with (maker.lake.root / "_lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="is writing into the lake"):
            compact(maker.lake, io.StringIO())
    compact(maker.lake, io.StringIO())


def test_nothing_is_replaced_by_what_cannot_be_read(maker: LakeMaker) -> None:
    path = next(maker.lake.root.glob("events/*/*/batch=00000001/*.parquet"))
    path.write_bytes(b"PAR1")
    with pytest.raises(PipelineError, match="cannot read"):
        compact(maker.lake, io.StringIO())
    assert path.exists()


def test_a_manifest_that_cannot_be_read_stops_everything(maker: LakeMaker) -> None:
    maker.lake.manifest(1).write_text(json.dumps({"batch": 1}))
    with pytest.raises(PipelineError, match="Restore it"):
        compact(maker.lake, io.StringIO())
    assert not list(maker.lake.root.glob("*/**/batch=c*"))


def test_there_must_be_a_lake(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no lake"):
        compact(ParquetLake(tmp_path / "none"), io.StringIO())


def test_quiet_says_nothing(maker: LakeMaker) -> None:
    out = io.StringIO()
    compact(maker.lake, out, quiet=True)
    assert not out.getvalue()
    assert list(maker.lake.batches.glob("c*.json"))


def test_a_lake_may_lie_below_a_directory_that_is_called_like_a_day(maker: LakeMaker) -> None:
    below = maker.lake.root.parent / "d=backup" / "lake"
    below.parent.mkdir()
    maker.lake.root.rename(below)
    lake = ParquetLake(below)
    events = _events(lake)
    compact(lake, io.StringIO())
    assert events
    assert _events(lake) == events
    assert "events/d=2026-11-20/level=message" in (lake.batches / next(lake.batches.glob("c*.json"))).read_text()
    _complete(lake)


class TestCommand:
    """The command line."""

    def test_a_full_disk_is_a_sentence(
        self, maker: LakeMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("gateway.pipeline.compact._merge", full)
        assert main(["pipeline", "compact", "--lake", str(maker.lake.root)]) == ExitCode.FAILURE
        assert f"no space is left for {maker.lake.root}. Make room" in capsys.readouterr().err

    def test_a_journal_that_may_only_be_read_is_a_sentence(
        self, maker: LakeMaker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def refused(path: Path) -> None:
            raise OSError(errno.EROFS, "Read-only file system", str(path))

        monkeypatch.setattr(Path, "unlink", refused)
        journal = maker.lake.root.parent / "journal"
        line = ["pipeline", "gc", "--lake", str(maker.lake.root), "--journal", str(journal), "--retain-days", "0"]
        assert main(line) == ExitCode.FAILURE
        assert f"no permission to write or read {journal}/d=" in capsys.readouterr().err

    def test_what_is_written_is_not_for_everybody(self, maker: LakeMaker, capsys: pytest.CaptureFixture[str]) -> None:
        before = os.umask(0o022)
        try:
            assert main(["pipeline", "compact", "--lake", str(maker.lake.root), "--quiet"]) == ExitCode.OK
            assert os.umask(0o022) == 0o022  # restored
        finally:
            os.umask(before)
        assert not capsys.readouterr().out
        written = [*maker.lake.root.glob("events/*/*/batch=c*/*.parquet"), *maker.lake.batches.glob("c*.json")]
        assert written
        assert all(path.stat().st_mode & 0o777 == 0o640 for path in written)
        assert all(path.parent.stat().st_mode & 0o007 == 0 for path in written if path.suffix == ".parquet")

    def test_a_damaged_file_is_a_sentence(self, maker: LakeMaker, capsys: pytest.CaptureFixture[str]) -> None:
        file = next(maker.lake.root.glob("events/d=2026-11-20/level=session/batch=00000000/*"))
        content = file.read_bytes()
        file.write_bytes(b"PAR1" + b"\xff" * 400 + content[404:])
        assert main(["pipeline", "compact", "--lake", str(maker.lake.root)]) == ExitCode.FAILURE
        assert capsys.readouterr().err.startswith("stomp-gateway: ")
        assert file.exists()
