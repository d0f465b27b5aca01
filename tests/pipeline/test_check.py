from __future__ import annotations

import io
import json
import os
import shutil
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName
from gateway.pipeline.check import check
from gateway.pipeline.maintenance import compact
from gateway.pipeline.table_schemas import BATCH_TABLES, COLUMNS, schema_of
from tests.support.journals import DAY, START, JournalMaker
from tests.support.lakes import LakeMaker, rows_in


class Site:
    """A journal of two boots, and its lake."""

    def __init__(self, root: Path) -> None:
        self.journal = root / "journal"
        maker = JournalMaker(self.journal, seed=1, start=START - DAY, span=2 * DAY)
        self.segments = maker.write(900, per_segment=100).segments
        living = JournalMaker(self.journal, seed=2, node="node2").write(400, per_segment=100, close=False)
        self.segments += living.segments
        self.maker = LakeMaker(root / "lake")
        self.lake = self.maker.lake

    def ingest(self, segments: list[Path] | None = None, *, at_a_time: int = 5) -> None:
        chosen = self.segments if segments is None else segments
        for start in range(0, len(chosen), at_a_time):
            self.maker.ingest(chosen[start : start + at_a_time])

    def check(self, *, journal: bool = False, quiet: bool = False) -> tuple[bool, str]:
        out = io.StringIO()
        complete = check(self.lake, [self.journal] if journal else [], out, quiet=quiet)
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

    def table(self, name: str) -> DeltaTable:
        found = self.lake.table(name)
        assert found is not None
        return found

    def add_again(self, table: str, where: str) -> None:
        """Copy rows of a table, as somebody does by hand."""
        rows = self.lake.sql(f"select * from {table} where {where}").cast(schema_of(table))  # noqa: S608
        write_deltalake(self.table(table), rows, mode="append")

    def damage(self, segment: Path, *lines: int, to: bytes) -> None:
        content = segment.read_bytes().split(b"\n")
        for line in lines:
            content[line] = to
        segment.write_bytes(b"\n".join(content))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    Site(root).ingest()
    return root


@pytest.fixture
def whole(original: Path, tmp_path: Path) -> Site:
    """A site with all segments in its lake."""
    shutil.copytree(original / "lake", tmp_path / "lake")
    site = Site(tmp_path)
    site.maker.batch = site.lake.last_batch("segments") + 1
    return site


def test_a_whole_lake_is_complete(whole: Site) -> None:
    text = whole.right(journal=True)
    assert "ok       2 of 2 boots have all their numbers, each once" in text
    assert f"ok       {len(whole.segments)} segments of the journal have as many lines" in text
    assert "ok       the roll-up of 2 days has the same totals as the events" in text
    assert "ok       computed tables: all 12 have the last batch" in text
    assert "1 boot did not close: boot " in text
    assert "(node2)" in text
    assert "512 events, or 250 ms" in text


def test_quiet_says_nothing_of_a_complete_lake(site: Site) -> None:
    site.ingest(site.segments[:-1])
    assert site.check(journal=True, quiet=True) == (True, "")


def test_there_must_be_a_lake_and_a_journal(site: Site) -> None:
    with pytest.raises(PipelineError, match="there is no lake"):
        site.check()
    site.ingest()
    shutil.rmtree(site.journal)
    with pytest.raises(PipelineError, match="cannot be read: No such file or directory"):
        site.check(journal=True)


def test_a_segment_that_was_left_out_is_named_by_its_numbers_and_its_file(site: Site) -> None:
    left_out = site.segments.pop(2)
    site.ingest()
    text = site.wrong()
    assert ": 100 lines are missing: 200-299\n" in text
    assert f"a later one of its boot is in the lake: {left_out.name}\n" in site.wrong(journal=True)


def test_segments_that_are_newer_than_all_of_their_boots_are_only_waiting(site: Site) -> None:
    site.ingest(site.segments[:-1])
    assert f"1 segment is not ingested yet: {site.segments[-1].name}" in site.right(journal=True)


def test_a_boot_that_begins_late_misses_its_beginning(site: Site) -> None:
    site.ingest(site.segments[1:])
    assert ": 100 lines are missing: 0-99\n" in site.wrong()


def test_rows_that_vanish_are_missed_by_numbers_segment_and_rollup(whole: Site) -> None:
    whole.table("events").delete("seq = 205 and node = 'node1'")
    text = whole.wrong()
    assert ": 1 line is missing: 205\n" in text
    assert (
        f"segment does not have its lines as rows: {whole.segments[2].name}: 99 events and 0 bad lines of 100" in text
    )
    assert "the roll-up and the events differ" in text


def test_rows_that_come_twice_are_told(whole: Site) -> None:
    whole.add_again("events", "seq = 205 and node = 'node1'")
    assert ": 1 line is there more than once: 205\n" in whole.wrong()


def test_one_missing_and_one_double_do_not_make_up_for_each_other(whole: Site) -> None:
    whole.add_again("events", "seq in (204, 205) and node = 'node1'")
    whole.table("events").delete("seq in (203, 206) and node = 'node1'")
    text = whole.wrong()
    assert ": 2 lines are missing: 203, 206\n" in text
    assert ": 2 lines are there more than once: 204-205\n" in text
    assert "as rows" not in text  # there are as many rows as lines


def test_a_segment_ingested_twice_is_double(whole: Site) -> None:
    whole.ingest(whole.segments[:1])
    text = whole.wrong()
    assert f"1 segment is recorded more than once: {whole.segments[0].name}" in text
    assert ": 100 lines are there more than once: 0-99" in text


def test_rows_of_a_segment_that_is_not_recorded_are_told(site: Site) -> None:
    site.ingest(site.segments[:-1])
    site.lake.write_rows("events", rows_in("events", [{"file": "strange", "d": "2026-11-21", "seq": 1}]), 90)
    assert "1 segment has rows, and the table segments does not have it: strange" in site.wrong()


def test_bad_lines_account_for_their_numbers(site: Site) -> None:
    site.damage(site.segments[1], 7, 8, to=b"\xff\x00 no JSON")
    site.damage(site.segments[3], 5, to=b'{"e":"send","t":"x","q":305}')
    site.ingest()
    assert "3 bad lines in 2 segments" in site.right()


@pytest.mark.parametrize("line", [0, -2])
def test_a_bad_line_at_either_end_of_a_segment_accounts_for_its_number(site: Site, line: int) -> None:
    site.damage(site.segments[1], line, to=b"no JSON")
    site.ingest()
    site.right()


def test_a_bad_line_explains_a_gap_of_its_own_segment_only(site: Site) -> None:
    site.damage(site.segments[1], 7, to=b"no JSON")
    site.segments.pop(4)
    site.ingest()
    assert ": 100 lines are missing: 400-499\n" in site.wrong()


def test_a_bad_line_too_many_explains_nothing_elsewhere(site: Site) -> None:
    for index, change in (
        (1, lambda lines: [*lines[:50], b"junk", *lines[50:]]),
        (4, lambda lines: lines[:30] + lines[31:]),
    ):
        segment = site.segments[index]
        segment.write_bytes(b"\n".join(change(segment.read_bytes().split(b"\n"))))
    site.ingest()
    assert ": 1 line is missing: 430\n" in site.wrong()


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
    assert "100 bad lines in 1 segment" in site.right()


def test_changed_bad_lines_are_noticed(site: Site) -> None:
    site.damage(site.segments[1], 7, to=b"no JSON")
    site.ingest()
    site.table("bad_lines").delete()
    assert f"as rows: {site.segments[1].name}: 99 events and 0 bad lines of 100 lines" in site.wrong()


def test_dropped_events_are_counted_and_not_missing(site: Site) -> None:
    segment = site.segments[-1]
    content = segment.read_bytes().splitlines()
    last = json.loads(content[-1])
    dropped = 1234 + (last["n"] if last["e"] == "drop" else 0)
    content.append(json.dumps({"e": "drop", "t": last["t"], "q": last["q"] + 1, "n": 1234}).encode())
    segment.write_bytes(b"\n".join(content) + b"\n")
    site.ingest()
    assert f"(node2): {dropped:,} events were dropped, and counted" in site.right()


def test_a_lost_file_is_missed(whole: Site) -> None:
    path = Path(whole.lake.files("rollup_10s")[0])
    path.unlink()
    text = whole.wrong()
    assert f"1 file of a table is not there: rollup_10s/{path.parent.name}/{path.name}\n" in text


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 4096])
@pytest.mark.parametrize("table", ["events", "dest_hour"])
def test_a_file_that_cannot_be_read_is_named(whole: Site, table: str, content: bytes) -> None:
    whole.lake.write_rows("dest_hour", rows_in("dest_hour", [{"vhost": "/", "d": "2026-11-21"}]), 99)
    path = Path(whole.lake.files(table)[0])
    path.write_bytes(content)
    assert path.name in whole.wrong()


@pytest.mark.parametrize("done", [["segments"], ["segments", "events"]])
def test_a_planned_batch_is_told_and_not_checked(site: Site, done: list[str]) -> None:
    site.ingest(site.segments[:-3])
    site.maker.ingest(site.segments[-3:], until=done)
    text = site.right(journal=True)
    assert "1 batch is planned and not in all tables yet" in text
    site.maker.batch -= 1
    site.maker.ingest(site.segments[-3:])
    assert "planned" not in site.right(journal=True)


def test_the_rollup_must_sum_up_to_the_events(whole: Site) -> None:
    whole.table("rollup_10s").update({"n": "n + 1"}, predicate="event = 'send' and d = '2026-11-21'")
    text = whole.wrong()
    assert "the roll-up and the events differ: 2026-11-21 send: " in text
    assert " ack: " not in text


def test_a_segment_that_changed_after_its_ingest_is_wrong(whole: Site) -> None:
    with whole.segments[4].open("ab") as file:
        file.write(b"{}\n")
    assert f"{whole.segments[4].name}: 101 lines, 100 when ingested" in whole.wrong(journal=True)


def test_since_a_day_only_newer_segments_are_read(whole: Site) -> None:
    """A boot that began before counts from its first segment of that day."""
    days = sorted({path.parent.name[2:] for path in whole.segments})
    assert len(days) > 1

    def checked(since: str) -> bool:
        return check(whole.lake, [], io.StringIO(), since=since)

    assert checked(days[-1])
    assert checked(days[0])
    old = next(path for path in whole.segments if path.parent.name[2:] == days[0])
    (row,) = whole.lake.sql(f"select max(seq) seq from events where file = '{old.name}'").to_pylist()  # noqa: S608
    events = whole.lake.table("events")
    assert events is not None
    events.delete(f"file = '{old.name}' and seq = {row['seq']}")
    assert not checked("")
    assert not checked(days[0])
    assert checked(days[-1])


def test_a_segment_that_waits_for_hours_is_wrong(site: Site) -> None:
    site.maker.ingest(site.segments[:-1])
    waiting = site.segments[-1]
    os.utime(waiting, (time.time() - 7 * 3600,) * 2)
    assert f"1 segment waits for hours: {waiting.name}\n" in site.wrong(journal=True)
    assert check(site.lake, [site.journal], io.StringIO(), overdue=8 * 3600)


def test_what_else_lies_in_a_journal_is_told(whole: Site) -> None:
    day = whole.segments[0].parent
    name = SegmentName("gateway", "node3", "0" * 16, 1, 0)
    (day / "gateway-node3-0000000000000000-1-000000.v2.jsonl").write_text("{}\n")
    (day / "notes.txt").write_text("x")
    open_one = day / name.while_open
    open_one.write_text("{}\n")
    assert "open segments" not in whole.right(journal=True)
    os.utime(open_one, (1, 1))
    text = whole.right(journal=True)
    assert "1 segment is of another schema version" in text
    assert "1 open segment has not been written for an hour" in text


def test_an_empty_segment_is_not_missed(whole: Site) -> None:
    """Ingest leaves it out, too; a full disk may leave one."""
    name = SegmentName.read(whole.segments[0].name)
    assert name is not None
    (whole.segments[0].parent / str(replace(name, number=0))).touch()
    whole.right(journal=True)


def test_computed_tables_must_have_the_last_batch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.ingest(site.segments[:-3])
    site.maker.ingest(site.segments[-3:], until=[*BATCH_TABLES, "segments", "boots"])
    assert "11 computed tables lack batches, up to 1: " in site.right()  # an ingest may be about to compute them
    monkeypatch.setattr("gateway.pipeline.check._BATCH_OVERDUE", timedelta(0))
    assert "11 computed tables lack batches, up to 1: " in site.wrong()


def test_a_compacted_lake_is_as_complete_as_before(whole: Site) -> None:
    before = whole.right(journal=True)
    compact(whole.lake, io.StringIO())
    assert whole.right(journal=True) == before


def test_an_empty_lake_is_complete(site: Site) -> None:
    site.lake.create("segments")
    assert f"{len(site.segments)} segments are not ingested yet" in site.right(journal=True)


@pytest.mark.parametrize("table", BATCH_TABLES)
@pytest.mark.parametrize("lost", ["", "_delta_log"])
def test_a_table_that_is_lost_is_told(whole: Site, table: str, lost: str) -> None:
    shutil.rmtree(Path(whole.lake.table_url(table)) / lost)
    assert f"1 table lacks batches that others have: {table}\n" in whole.wrong()


def test_a_table_that_is_behind_the_computed_ones_is_told(site: Site) -> None:
    site.ingest()
    site.maker.ingest([], until=[name for name in COLUMNS if name != "rollup_10s"])
    assert "1 table lacks batches that others have: rollup_10s\n" in site.wrong()


def test_a_planned_batch_that_no_ingest_finishes_is_wrong(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.ingest(site.segments[:-1])
    site.maker.ingest(site.segments[-1:], until=["segments"])
    assert "1 batch is planned and not in all tables yet" in site.right()
    monkeypatch.setattr("gateway.pipeline.check._BATCH_OVERDUE", timedelta(0))
    assert "1 batch is planned and not in all tables yet" in site.wrong()
