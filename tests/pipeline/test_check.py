from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName
from gateway.pipeline import line_numbers
from gateway.pipeline.check import check
from gateway.pipeline.parquet_lake import ParquetLake
from tests.support.journals import DAY, START, JournalMaker
from tests.support.lakes import LakeMaker, batches_of_day


class Site:
    """A journal of two boots, and its lake."""

    def __init__(self, root: Path) -> None:
        self.journal = root / "journal"
        maker = JournalMaker(self.journal, seed=1, start=START - DAY, span=2 * DAY)
        self.segments = maker.write(900, per_segment=100).segments
        living = JournalMaker(self.journal, seed=2, node="node2").write(400, per_segment=100, close=False)
        self.segments += living.segments
        self.maker = LakeMaker(root / "lake", self.journal)
        self.lake: ParquetLake = self.maker.lake

    def ingest(self, segments: list[Path] | None = None, *, at_a_time: int = 3) -> None:
        chosen = self.segments if segments is None else segments
        for start in range(0, len(chosen), at_a_time):
            self.maker.ingest(chosen[start : start + at_a_time])

    def check(self, *, journal: bool = False, quiet: bool = False) -> tuple[bool, str]:
        out = io.StringIO()
        complete = check(self.lake, self.journal if journal else None, out, quiet=quiet)
        return complete, out.getvalue()

    def wrong(self, *, journal: bool = False) -> str:
        complete, text = self.check(journal=journal, quiet=True)
        assert not complete
        assert text.splitlines()[-1].startswith("not complete: ")
        return text

    def right(self, *, journal: bool = False) -> str:
        complete, text = self.check(journal=journal)
        assert complete, text
        assert text.splitlines()[-1] == "complete"
        return text

    def a_file(self, pattern: str = "events/*/level=message/batch=00000001/*.parquet") -> Path:
        return next(self.lake.root.glob(pattern))

    def damage(self, segment: Path, *lines: int, to: bytes) -> None:
        content = segment.read_bytes().split(b"\n")
        for line in lines:
            content[line] = to
        segment.write_bytes(b"\n".join(content))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def _change(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def test_a_whole_lake_is_complete(site: Site) -> None:
    site.ingest()
    text = site.right(journal=True)
    assert "ok       2 of 2 boots have all their numbers, each once" in text
    assert f"ok       {len(site.segments)} segments of the journal have as many lines" in text
    assert "1 boots did not close: boot " in text
    assert "(node2)" in text
    assert "512 events, or 250 ms" in text


def test_quiet_says_nothing_of_a_complete_lake(site: Site) -> None:
    site.ingest(site.segments[:-1])
    assert site.check(journal=True, quiet=True) == (True, "")


def test_an_empty_lake_is_complete(site: Site) -> None:
    site.lake.batches.mkdir(parents=True)
    assert f"{len(site.segments)} segments are not ingested yet" in site.right(journal=True)


def test_there_must_be_a_lake_and_a_journal(site: Site) -> None:
    with pytest.raises(PipelineError, match="there is no lake"):
        site.check()
    site.ingest()
    shutil.rmtree(site.journal)
    with pytest.raises(PipelineError, match="there is no journal"):
        site.check(journal=True)


def test_a_segment_that_was_left_out_is_named_by_its_numbers_and_its_file(site: Site) -> None:
    left_out = site.segments.pop(2)
    site.ingest()
    text = site.wrong()
    assert ": 100 lines are missing: 200-299\n" in text
    assert f"later ones of the same boots are in the lake: {left_out.relative_to(site.journal)}\n" in site.wrong(
        journal=True
    )


def test_segments_that_are_newer_than_all_of_their_boots_are_only_waiting(site: Site) -> None:
    site.ingest(site.segments[:-1])
    text = site.right(journal=True)
    assert f"1 segments are not ingested yet: {site.segments[-1].relative_to(site.journal)}" in text


def test_a_segment_under_another_day_is_no_new_one(site: Site) -> None:
    site.ingest()
    copied = site.journal / "d=2020-01-01" / site.segments[1].name
    copied.parent.mkdir()
    shutil.copy(site.segments[1], copied)
    text = site.right(journal=True)
    assert "1 segments lie under another day than when they were ingested: d=2020-01-01/" in text
    assert "not ingested yet" not in text
    with copied.open("ab") as file:
        file.write(b"{}\n")
    assert "1 ingested segments have changed since: d=2020-01-01/" in site.wrong(journal=True)


def test_a_boot_that_begins_late_misses_its_beginning(site: Site) -> None:
    site.ingest(site.segments[1:])
    assert ": 100 lines are missing: 0-99\n" in site.wrong()


def test_rows_that_vanish_are_missed_by_numbers_batch_and_rollup(site: Site) -> None:
    site.ingest()
    path = site.a_file()
    gone = pq.read_table(path, partitioning=None)["seq"][3].as_py()
    _change(path, lambda table: pa.concat_tables([table.slice(0, 3), table.slice(4)]))
    text = site.wrong()
    assert f": 1 lines are missing: {gone}\n" in text
    assert "batch 1: " in text
    assert "the roll-up and the events differ" in text


def test_rows_that_come_twice_are_told(site: Site) -> None:
    site.ingest()
    path = site.a_file()
    doubled = pq.read_table(path, partitioning=None)["seq"][3].as_py()
    _change(path, lambda table: pa.concat_tables([table, table.slice(3, 1)]))
    assert f"1 lines are there more than once: {doubled}\n" in site.wrong()


def test_one_missing_and_one_double_do_not_make_up_for_each_other(site: Site) -> None:
    site.ingest()
    path = site.a_file()
    numbers = pq.read_table(path, partitioning=None)["seq"].to_pylist()
    _change(path, lambda table: pa.concat_tables([table.slice(1), table.slice(5, 1)]))
    text = site.wrong()
    assert f"1 lines are missing: {numbers[0]}\n" in text
    assert f"1 lines are there more than once: {numbers[5]}\n" in text
    assert "rows, but" not in text  # the row counts are still right


def test_a_segment_ingested_twice_is_double(site: Site) -> None:
    site.ingest()
    site.ingest(site.segments[:1])
    text = site.wrong()
    assert "was ingested more than once, by batches 0, 5" in text
    assert "100 lines are there more than once: 0-99" in text


def test_bad_lines_account_for_their_numbers(site: Site) -> None:
    site.damage(site.segments[1], 7, 8, to=b"\xff\x00 no JSON")
    site.damage(site.segments[3], 5, to=b'{"e":"send","t":"x","q":305}')
    site.ingest()
    text = site.right()
    assert "3 bad lines in 2 segments" in text


def test_a_bad_line_explains_a_gap_of_its_own_segment_only(site: Site) -> None:
    site.damage(site.segments[1], 7, to=b"no JSON")
    left_out = site.segments.pop(4)
    site.ingest()
    text = site.wrong()
    assert left_out.name.endswith("000004.v1.jsonl")
    assert ": 100 lines are missing: 400-499\n" in text


def test_a_bad_line_too_many_explains_nothing_elsewhere(site: Site) -> None:
    for index, change in (
        (1, lambda lines: [*lines[:50], b"junk", *lines[50:]]),
        (4, lambda lines: lines[:30] + lines[31:]),
    ):
        segment = site.segments[index]
        segment.write_bytes(b"\n".join(change(segment.read_bytes().split(b"\n"))))
    site.ingest()
    assert ": 1 lines are missing: 430\n" in site.wrong()


def test_more_missing_than_bad_lines_explain(site: Site) -> None:
    site.damage(site.segments[1], 7, to=b"no JSON")
    content = site.segments[1].read_bytes().split(b"\n")
    site.segments[1].write_bytes(b"\n".join([*content[:20], *content[23:]]))
    site.ingest()
    # A bad line explains one of the four, but not which one.
    assert ": 3 lines are missing: 120-122\n" in site.wrong()


def test_a_segment_without_one_good_line_explains_its_numbers(site: Site) -> None:
    site.segments[2].write_bytes(b"junk\n" * 100)
    site.ingest()
    assert "100 bad lines in 1 segments" in site.right()


def test_changed_bad_lines_are_noticed(site: Site) -> None:
    site.damage(site.segments[1], 7, to=b"no JSON")
    site.ingest()
    _change(site.a_file("bad_lines/*/*/*.parquet"), lambda table: table.slice(1))
    assert "1 segments have other bad lines than their manifests say" in site.wrong()


def test_dropped_events_are_counted_and_not_missing(site: Site) -> None:
    segment = site.segments[-1]
    content = segment.read_bytes().splitlines()
    last = json.loads(content[-1])
    dropped = 1234 + (last["n"] if last["e"] == "drop" else 0)
    content.append(json.dumps({"e": "drop", "t": last["t"], "q": last["q"] + 1, "n": 1234}).encode())
    segment.write_bytes(b"\n".join(content) + b"\n")
    site.ingest()
    assert f"(node2): {dropped:,} events were dropped, and counted" in site.right()


def test_retired_days_count_as_present(site: Site) -> None:
    site.ingest()
    removed = [str(path.relative_to(site.lake.root / "events/d=2026-11-20"))
               for path in site.lake.root.glob("events/d=2026-11-20/level=*/batch=*")]  # fmt: skip
    files = list(site.lake.root.glob("events/d=2026-11-20/*/*/*.parquet"))
    rows = pa.concat_tables([pq.read_table(path, columns=["boot", "seq"], partitioning=None) for path in files])
    boots = {boot: line_numbers.joined((n, n) for n in rows.filter(pc.equal(rows["boot"], boot))["seq"].to_pylist())
             for boot in set(rows["boot"].to_pylist())}  # fmt: skip
    site.lake.retired.mkdir()
    retired = {"day": "2026-11-20", "boots": boots, "rows": len(rows), "removed": removed}
    (site.lake.retired / "2026-11-20.json").write_text(json.dumps(retired))
    # Listed as removed, they do not count, whether they still exist or not.
    assert "directories that have been replaced or retired" in site.right()
    shutil.rmtree(site.lake.root / "events/d=2026-11-20")
    assert "ok       2 of 2 boots have all their numbers" in site.right()


def test_a_lost_directory_is_missed(site: Site) -> None:
    site.ingest()
    for path in site.lake.root.glob("rollup_10s/*/batch=00000000"):
        shutil.rmtree(path)
    for path in site.lake.root.glob("events/d=2026-11-20/*/batch=00000001"):
        shutil.rmtree(path)
    text = site.wrong()
    assert (
        "2 directories that manifests speak of are not there: rollup_10s, batch 0, events of 2026-11-20, batch 1"
        in text
    )


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 4096])
def test_a_file_that_cannot_be_read_is_named_and_nothing_else_is_blamed(site: Site, content: bytes) -> None:
    site.ingest()
    path = site.a_file()
    path.write_bytes(content)
    text = site.wrong()
    assert f"{path} cannot be read: " in text
    assert text.splitlines()[-1] == "not complete: 1 thing is wrong"


def test_a_manifest_that_cannot_be_read_is_named(site: Site) -> None:
    site.ingest()
    site.lake.manifest(1).write_text('{"batch": 1, ')
    assert "manifest 00000001.json cannot be read" in site.wrong()


def test_a_manifest_whose_lines_do_not_add_up_is_named(site: Site) -> None:
    site.ingest()
    manifest = json.loads(site.lake.manifest(1).read_text())
    manifest["segments"][0]["lines"] += 5
    site.lake.manifest(1).write_text(json.dumps(manifest))
    assert "batch 1: its segments have 305 lines, but 300 events" in site.wrong()


def test_a_killed_ingest_leaves_what_the_next_one_replaces(site: Site) -> None:
    site.ingest(site.segments[:-3])
    site.maker.ingest(site.segments[-3:], manifest=False)
    (site.lake.staging / "4").mkdir(parents=True)
    text = site.right()
    assert "directories of a batch that is not finished" in text
    assert "1 leftovers in _staging" in text


def test_an_old_directory_without_a_manifest_is_wrong(site: Site) -> None:
    site.ingest()
    copied = site.a_file().parent
    shutil.copytree(copied, copied.with_name("batch=c00000001-00000009"))
    text = site.wrong()
    assert "1 batch directories without a manifest: " in text
    assert "batch=c00000001-00000009" in text
    assert text.splitlines()[-1] == "not complete: 1 thing is wrong"  # no table counts its rows


def test_the_rollup_must_sum_up_to_the_events(site: Site) -> None:
    site.ingest()

    def more(table: pa.Table) -> pa.Table:
        sends = pc.cast(pc.equal(table["event"], "send"), pa.float64())
        return table.set_column(table.schema.get_field_index("n"), "n", pc.add(table["n"], sends))

    _change(site.a_file("rollup_10s/d=2026-11-21/batch=*/*.parquet"), more)
    text = site.wrong()
    assert "the roll-up and the events differ: 2026-11-21 send: " in text
    assert " ack: " not in text


def test_a_segment_that_changed_after_its_ingest_is_wrong(site: Site) -> None:
    site.ingest()
    with site.segments[4].open("ab") as file:
        file.write(b"{}\n")
    assert f"{site.segments[4].name}: 101 lines, 100 when ingested" in site.wrong(journal=True)


def test_what_else_lies_in_a_journal_is_told(site: Site) -> None:
    site.ingest()
    day = site.segments[0].parent
    name = SegmentName("gateway", "node3", "0" * 16, 1, 0)
    (day / "gateway-node3-0000000000000000-1-000000.v2.jsonl").write_text("{}\n")
    (day / "notes.txt").write_text("x")
    open_one = day / name.while_open
    open_one.write_text("{}\n")
    assert "open segments" not in site.right(journal=True)
    os.utime(open_one, (1, 1))
    text = site.right(journal=True)
    assert "1 segments are of a later schema version" in text
    assert "1 open segments have not been written for an hour" in text


def test_a_writer_at_work_is_told(site: Site) -> None:
    site.ingest()
    with (site.lake.root / "_lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another process is writing into the lake" in site.right()
    assert "another process" not in site.right()


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_lost_manifest_is_missed(site: Site, lost: int) -> None:
    site.ingest()
    commits = site.lake.checkpoint / "commits"
    commits.mkdir(parents=True)
    for batch in site.maker.batches:
        (commits / str(batch)).write_text("v1\n{}")
    number = site.maker.batches[lost]
    site.lake.manifest(number).unlink()
    text = site.wrong()
    assert f"1 batches have lost their manifests: {number}\n" in text
    assert "directories of batches whose manifests are lost: events/" in text
    assert "run `pipeline ingest` again, and it replaces them" not in text


def test_a_lost_manifest_is_missed_without_a_checkpoint(site: Site) -> None:
    site.ingest()
    site.lake.manifest(1).unlink()
    assert "1 batches have lost their manifests: 1\n" in site.wrong()


@pytest.mark.parametrize(
    "place", ["_batches", "_retired", "events", "rollup_10s/d=2026-11-21", "events/d=2026-11-21/level=session", "boots"]
)
def test_a_directory_that_cannot_be_listed_is_not_taken_for_empty(
    site: Site, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    site.ingest()
    site.lake.retired.mkdir()
    closed, scandir = site.lake.root / place, os.scandir

    def refuse(path: Path) -> object:
        if Path(path) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PipelineError, match=f"cannot list {closed}: Permission denied"):
        site.check()


@pytest.mark.parametrize(
    "place", ["", "d=2026-11-21", "d=2026-11-21/level=message", "extra", "d=2026-11-21/level=message/extra"]
)
def test_a_parquet_file_that_belongs_to_no_batch_is_wrong(site: Site, place: str) -> None:
    site.ingest()
    stray = site.lake.table("events") / place / "copy.parquet"
    stray.parent.mkdir(exist_ok=True)
    shutil.copy(site.a_file(), stray)
    text = site.wrong()
    assert f"1 Parquet files that belong to no batch: {stray.relative_to(site.lake.root)}\n" in text
    assert text.splitlines()[-1] == "not complete: 1 thing is wrong"


def test_computed_tables_must_have_the_last_batch(site: Site) -> None:
    site.ingest()
    last = site.maker.batches[-1]
    site.lake.set_refreshed(last - 2)
    assert "the computed tables lack the last 2 batches" in site.wrong()
    site.lake.set_refreshed(last + 1)
    assert f"have batches up to {last + 1}, the lake only up to {last}\n" in site.wrong()
    site.lake.set_refreshed(last)
    assert "and they have the last batch" in site.right()


def test_tables_that_an_ingest_will_compute_are_not_wrong(site: Site) -> None:
    site.ingest()
    site.lake.set_refreshed(0)
    with (site.lake.root / "_lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "the computed tables lack the last" in site.right()


def test_files_of_computed_tables_are_there_and_can_be_opened(site: Site) -> None:
    site.ingest()
    site.lake.whole_file("durable_subs").unlink()
    site.lake.day_file("errors_hour", "2026-11-21").unlink()
    site.lake.day_file("boots", "2026-11-20").write_bytes(b"PAR1")
    text = site.wrong()
    assert (
        "2 files of computed tables are not there: durable_subs/durable_subs.parquet, "
        "errors_hour/d=2026-11-21/errors_hour.parquet\n" in text
    )
    assert f"1 files of computed tables cannot be read: {site.lake.day_file('boots', '2026-11-20')} (" in text


def test_tables_that_a_deleted_day_never_had_are_not_missed(site: Site) -> None:
    site.ingest()
    site.lake.retired.mkdir()
    (site.lake.retired / "2026-11-20.json").write_text(json.dumps({"day": "2026-11-20", "boots": {}}))
    for table in ("boots", "sessions", "features_used", "durable_days"):
        site.lake.day_file(table, "2026-11-20").unlink()
    site.right()
    site.lake.day_file("dest_hour", "2026-11-20").unlink()
    assert "1 files of computed tables are not there: dest_hour/" in site.wrong()


def test_a_lake_may_lie_below_a_directory_that_is_called_like_a_day(tmp_path: Path) -> None:
    root = tmp_path / "d=backup"
    root.mkdir()
    site = Site(root)
    site.ingest()
    site.right(journal=True)
    assert batches_of_day(site.lake, "events", "2026-11-21")
    assert not batches_of_day(site.lake, "events", "backup")


def test_numbers_are_looked_at_window_by_window(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_numbers, "WINDOW", 64)
    site.ingest([*site.segments[:2], *site.segments[5:]])
    assert ": 300 lines are missing: 200-499\n" in site.wrong()


def test_a_fingerprint_is_of_a_set_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_numbers, "_CHUNK", 10)
    line_numbers._first_chunk.cache_clear()
    try:
        assert line_numbers.fingerprint_of_range(3, 45) == line_numbers.fingerprint_of(list(range(45, 2, -1)))
    finally:
        line_numbers._first_chunk.cache_clear()
    # Equal count, sum and sum of squares are not enough.
    assert line_numbers.fingerprint_of([0, 3, 5, 6]) != line_numbers.fingerprint_of([1, 2, 4, 7])


def test_gaps_and_repeats() -> None:
    assert line_numbers.gaps_and_repeats([(8, 9), (0, 3), (2, 5), (5, 5)]) == ([(6, 7)], [(2, 3), (5, 5)])
    assert line_numbers.joined([(4, 5), (0, 1), (2, 2), (8, 9), (8, 8)]) == [(0, 2), (4, 5), (8, 9)]
    assert line_numbers.in_words([(n, n + n % 2) for n in range(0, 20, 2)], most=2) == "0, 2 and 8 more ranges"
