from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from gateway.pipeline.compact import compact
from gateway.pipeline.parquet_lake import ParquetLake
from gateway.pipeline.retention import collect

from gateway.errors import PipelineError
from gateway.pipeline.check import check
from tests.support.journals import DAY, SECOND, START, JournalMaker
from tests.support.lakes import LakeMaker, batches_of_day


class Site:
    """A journal of three days up to today; all but its last segment are in the lake."""

    def __init__(self, root: Path) -> None:
        self.journal = root / "journal"
        today = int(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()) * SECOND
        maker = JournalMaker(self.journal, seed=3, start=today - 2 * DAY, span=2 * DAY + 60 * SECOND)
        self.segments = maker.write(900, per_segment=100).segments
        self.maker = LakeMaker(root / "lake", self.journal)
        self.lake: ParquetLake = self.maker.lake
        for segment in self.segments[:-1]:
            self.maker.ingest([segment])

    def collect(self, retain_days: float = 0, events_days: float | None = None) -> str:
        out = io.StringIO()
        collect(self.lake, self.journal, retain_days, events_days, out)
        return out.getvalue()

    def check(self) -> str:
        out = io.StringIO()
        assert check(self.lake, None, out), out.getvalue()
        return out.getvalue()

    def there(self) -> list[Path]:
        return [path for path in self.segments if path.exists()]

    @property
    def days(self) -> list[str]:
        return sorted(path.name[2:] for path in self.lake.table("rollup_10s").glob("d=*"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _age(path: Path, days: float) -> None:
    then = time.time() - days * 86_400
    os.utime(path, (then, then))


def test_only_what_is_ingested_is_deleted(site: Site) -> None:
    size = sum(path.stat().st_size for path in site.segments[:-1])
    number = len(site.segments) - 1
    assert site.collect() == f"journal: deleted {number} segments, {size:,} bytes; kept 1 not ingested yet\n"
    assert site.there() == site.segments[-1:]


def test_only_what_is_old_enough_is_deleted(site: Site) -> None:
    for segment in site.segments:
        _age(segment, 2.9)
    _age(site.segments[0], 3.1)
    _age(site.segments[-1], 100)  # not ingested
    assert "deleted 1 segments" in (text := site.collect(retain_days=3))
    assert f"{len(site.segments) - 2} younger than 3 days" in text
    assert site.there() == site.segments[1:]


def test_open_segments_later_versions_and_other_files_stay(site: Site) -> None:
    day = site.segments[0].parent
    name = site.segments[0].name
    others = [day / f".{name}.open", day / name.replace(".v1.", ".v2."), day / "x.v1.jsonl", day / f".{name}"]
    for path in others:
        path.write_text("{}\n")
        _age(path, 1000)
    site.collect()
    assert all(path.exists() for path in others)


def test_a_batch_that_is_not_published_keeps_its_segments(site: Site) -> None:
    site.lake.manifest(2).unlink()
    site.collect()
    assert site.there() == [site.segments[2], site.segments[-1]]


def test_a_segment_that_changed_is_kept_and_named(site: Site) -> None:
    with site.segments[1].open("ab") as file:
        file.write(b"more")
    assert f"kept {site.segments[1]}: it has other lines" in site.collect()
    assert site.there() == [site.segments[1], site.segments[-1]]


def test_empty_days_go_but_for_those_that_gateways_use(site: Site) -> None:
    old = site.journal / "d=2020-01-01"
    today = site.journal / f"d={datetime.now(UTC):%Y-%m-%d}"
    full = site.journal / "d=2020-01-02"
    for path in (old, today, full):
        path.mkdir(exist_ok=True)
    (full / "note").write_text("")
    site.collect()
    assert not old.exists()
    assert today.exists()
    assert full.exists()
    assert not site.segments[0].parent.exists()  # two days ago


def test_old_events_go_and_the_lake_stays_complete(site: Site) -> None:
    first, *others = site.days
    assert others
    before = {path: path.stat().st_mtime_ns for path in site.lake.root.glob("rollup_10s/**/*.parquet")}
    text = site.collect(retain_days=1000, events_days=1)
    assert f"events of {first}: deleted " in text
    assert not (site.lake.table("events") / f"d={first}").exists()
    assert batches_of_day(site.lake, "events", first) == []
    assert {path: path.stat().st_mtime_ns for path in site.lake.root.glob("rollup_10s/**/*.parquet")} == before
    assert all((site.lake.table("events") / f"d={day}").is_dir() for day in others)
    assert "1 of 1 boots have all their numbers" in site.check()
    assert "events of" not in site.collect(retain_days=1000, events_days=1)


def test_what_was_retired_is_written_down(site: Site) -> None:
    first = site.days[0]
    files = list(site.lake.root.glob(f"events/d={first}/**/*.parquet"))
    numbers = sorted(number for path in files for number in pq.read_table(path, partitioning=None)["seq"].to_pylist())
    site.collect(retain_days=1000, events_days=1)
    retired = json.loads((site.lake.retired / f"{first}.json").read_text())
    (ranges,) = retired["boots"].values()
    assert [number for low, high in ranges for number in range(low, high + 1)] == numbers
    assert retired["day"] == first
    assert retired["rows"] == len(numbers)


def test_events_whose_tables_are_not_computed_yet_stay(site: Site) -> None:
    first = site.days[0]
    site.lake.set_refreshed(-1)
    text = site.collect(retain_days=1000, events_days=1)
    assert f"events of {first}: kept, since tables that are computed from them lack a batch" in text
    assert batches_of_day(site.lake, "events", first)
    assert not list(site.lake.retired.iterdir())
    site.lake.set_refreshed(site.maker.batches[-1])
    assert f"events of {first}: deleted " in site.collect(retain_days=1000, events_days=1)


def test_quiet_says_only_what_must_be_looked_after(site: Site) -> None:
    with site.segments[1].open("ab") as file:
        file.write(b"more")
    out = io.StringIO()
    collect(site.lake, site.journal, 0, 1, out, quiet=True)
    assert out.getvalue().startswith(f"kept {site.segments[1]}: ")
    assert out.getvalue().count("\n") == 1


def test_without_a_limit_events_stay(site: Site) -> None:
    events = sorted(site.lake.table("events").rglob("*.parquet"))
    site.collect(events_days=None)
    assert sorted(site.lake.table("events").rglob("*.parquet")) == events


def test_killed_while_it_removes_the_lake_is_complete_and_the_next_run_goes_on(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    removed: list[Path] = []

    def rmtree(path: Path) -> None:
        if len(removed) == 2:
            raise KilledError
        removed.append(path)
        remove(path)

    remove = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(KilledError):
        site.collect(retain_days=1000, events_days=1)
    monkeypatch.undo()
    first = site.days[0]
    assert (site.lake.table("events") / f"d={first}").exists()
    assert "replaced or retired" in site.check()
    site.collect(retain_days=1000, events_days=1)
    assert not (site.lake.table("events") / f"d={first}").exists()
    assert "replaced or retired" not in site.check()
    assert not any(site.lake.staging.iterdir())


def test_a_late_batch_of_a_retired_day_counts_and_is_retired_in_its_turn(site: Site) -> None:
    site.collect(retain_days=1000, events_days=1)
    first = site.days[0]
    late = JournalMaker(site.journal, seed=9, node="late", start=START, span=60 * SECOND)
    late._start = int(datetime.fromisoformat(f"{first}T12:00:00+00:00").timestamp()) * SECOND
    site.maker.ingest(late.write(100, per_segment=1000).segments)
    assert len(batches_of_day(site.lake, "events", first)) == 2  # both levels
    assert "2 of 2 boots" in site.check()
    assert f"events of {first}: deleted " in site.collect(retain_days=1000, events_days=1)
    assert "2 of 2 boots" in site.check()


def test_compacted_days_can_be_retired(site: Site) -> None:
    compact(site.lake, io.StringIO())
    site.collect(retain_days=1000, events_days=1)
    assert not (site.lake.table("events") / f"d={site.days[0]}").exists()
    assert "1 of 1 boots" in site.check()


def test_only_one_process_writes_into_a_lake(site: Site) -> None:
    with (site.lake.root / "_lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(PipelineError, match="is writing into the lake"):
            site.collect()
    assert site.there() == site.segments


def test_there_must_be_a_journal(site: Site, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is no journal"):
        collect(site.lake, tmp_path / "none", 0, None, io.StringIO())
