"""Journals in an object store are read as those in a directory: by `check` and `gc`."""

from __future__ import annotations

import io
import os
from pathlib import Path

import duckdb
import obstore
import pytest
from obstore.store import from_url

from gateway.errors import PipelineError
from gateway.journal.segments import DAY, SegmentName
from gateway.pipeline.check import check
from gateway.pipeline.maintenance import collect
from gateway.pipeline.stored_segments import remove_empty_days, stored_segments
from tests.support.journals import JournalMaker
from tests.support.lakes import LakeMaker
from tests.support.object_store import BUCKET, running_store

BOOT = "00000000000000aa"


def test_the_name_of_a_day_hides_no_field(tmp_path: Path) -> None:
    """DuckDB takes `day=` in a path for a column by default; lines have a field `d`, their destination."""
    segments = JournalMaker(tmp_path / "d").write(100).segments
    day = segments[0].parent.name.removeprefix("d=")
    assert all(DAY.fullmatch(f"{name}={day}") for name in ("day", "d"))
    (tmp_path / "journal").mkdir()
    segments[0].parent.rename(tmp_path / "journal" / f"day={day}")
    (found,) = stored_segments(tmp_path / "journal")
    assert found.day == day
    with duckdb.connect() as database:
        journal = f"{tmp_path}/journal/*/*.jsonl"
        query = f"select distinct d[1] from read_json('{journal}') where e = 'send'"  # noqa: S608
        assert database.execute(query).fetchall() == [("/",)]
    (tmp_path / "journal" / "day=2020-01-01").mkdir()
    remove_empty_days(tmp_path / "journal")
    assert [path.name for path in (tmp_path / "journal").iterdir()] == [f"day={day}"]


def test_check_and_gc_of_a_journal_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *ingested, late = JournalMaker(tmp_path / "journal", seed=1).write(300, per_segment=100).segments
    maker = LakeMaker(tmp_path / "lake")
    maker.ingest(ingested)
    with running_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        place = from_url(store.url)
        replaced, kept = ingested[0], late
        for path in (replaced, kept):
            obstore.put(place, f"{path.parent.name}/{path.name}", path.read_bytes())
        for path in ingested[1:]:
            obstore.put(place, f"d=2020-01-01/{path.name}", path.read_bytes())
        obstore.put(place, f"{late.parent.name}/notes.txt", late.read_bytes())
        out = io.StringIO()
        assert check(maker.lake, [store.url], out), out.getvalue()
        assert f"ok       {len(ingested)} segments of the journal have as many lines" in out.getvalue()
        assert f"1 segment is not ingested yet: {late.name}\n" in out.getvalue()

        obstore.put(place, f"{late.parent.name}/{ingested[0].name}", late.read_bytes())
        assert not check(maker.lake, [store.url], io.StringIO())
        said = io.StringIO()
        collect(maker.lake, [store.url.replace("s3://", "s3a://")], 0, None, said)
        assert f"/{ingested[0].name}: it has other lines" in said.getvalue()
        assert [str(each.name) for each in stored_segments(store.url)] == sorted([ingested[0].name, late.name])
        # Nothing is left of a day without segments, neither here nor of the last one of all.
        assert not [key for key in store.keys() if "2020" in key], store.keys()
        assert {f"fleet/{late.parent.name}/notes.txt", f"fleet/{late.parent.name}/{late.name}"} < set(store.keys())

        with pytest.raises(PipelineError, match="the journal s3://journals/other cannot be read: No such file"):
            list(stored_segments(f"s3://{BUCKET}/other"))


def test_what_a_journal_has(tmp_path: Path) -> None:
    day = tmp_path / "a b #%?é/d=2026-11-21"
    day.mkdir(parents=True)
    name = SegmentName("gateway", "node1", BOOT, 1, 0)
    later = SegmentName("gateway", "node1", BOOT, 1, 1)
    (day / str(name)).write_text("{}\n{}\nin part")
    (day / later.while_open).write_text("{}\n")
    (day / str(SegmentName("gateway", "node1", BOOT, 1, 2))).touch()
    (day / "notes.txt").write_text("x")
    (day / f"{name}.gz").write_text("x")
    (tmp_path / "a b #%?é" / str(name)).write_text("not in a day")
    os.utime(day / str(name), (1_000, 1_000))
    found = list(stored_segments(day.parent))
    assert [(each.name, each.is_open, each.size, each.count_lines()) for each in found] == [
        (later, True, 3, 1),
        (name, False, 13, 3),
    ]
    assert found[1].written == 1_000
    found[0].delete()
    with pytest.raises(FileNotFoundError):
        found[0].count_lines()
    assert [each.name for each in stored_segments(day.parent.as_uri())] == [name]


@pytest.mark.parametrize(
    ("place", "reason"),
    [("/nowhere/at/all", "No such file or directory"), ("/dev/null", "Not a directory"), ("odd://x", "odd")],
)
def test_a_journal_that_cannot_be_listed_is_told(place: str, reason: str) -> None:
    with pytest.raises(PipelineError, match=f"the journal {place} cannot be read: .*{reason}"):
        list(stored_segments(place))
