"""Looks after a lake: merges small files, removes files that no table names, and deletes what is old."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Final, TextIO

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties
from deltalake.exceptions import CommitFailedError

from gateway.errors import UsageError
from gateway.journal.schema import VERSION
from gateway.pipeline.check_lines import SUMS
from gateway.pipeline.lake import Lake, closed_before, last_batch, location
from gateway.pipeline.lake_sql import Snapshot
from gateway.pipeline.stored_segments import remove_empty_days, stored_segments
from gateway.pipeline.table_schemas import BATCH_TABLES, COLUMNS, COMPUTED_TABLES

KEEP_HOURS: Final = 168
"""How long a file stays that no table names: readers of older snapshots, and ingests under way, may need it."""

_ZSTD: Final = WriterProperties(compression="ZSTD", compression_level=3)
_SIZES: Final = ((True, 128 << 20), (False, 16 << 20))
"""By whether a day is over: the size from which its files are not merged, so that today's are not merged repeatedly."""
_LEAST_SEGMENTS_DAYS: Final = 8
"""The report looks for nodes that are silent in the segments of the last week."""
_DAY: Final = 86_400


def compact(lake: Lake, out: TextIO, *, quiet: bool = False, now: datetime | None = None) -> None:
    """Merge the small files of partitions with several, and remove files that no table has named for a week.

    Each partition is a commit of its own. On days that are not over by ``now`` only small files are merged. Computed
    tables are not merged: they grow by no files, and a merge while an ingest replaces a day would double it. While a
    batch is planned and not in all tables, no table names its files, so none are removed.

    Raises PipelineError if there is no lake, or a table cannot be read.
    """
    lake.must_exist()
    out = StringIO() if quiet else out
    for name in COLUMNS:
        table = lake.table(name)
        if table is None:
            continue
        merged, into = (0, 0) if name in COMPUTED_TABLES else _merged(lake, name, now or datetime.now(UTC))
        removed = 0 if lake.unfinished() else _vacuumed(lake, name)
        print(f"{name}: merged {merged:,} files into {into:,}, removed {removed:,} old files", file=out)


def _merged(lake: Lake, table: str, now: datetime) -> tuple[int, int]:
    """Merge small files; returns how many there were, and how many there are in place of them."""
    eve = f"{now - timedelta(days=1):%Y-%m-%d}"  # a gateway writes lines of yesterday until its segment is full

    def attempt(found: DeltaTable, is_over: bool, size: int) -> Mapping[str, int]:
        partitions = Counter(
            tuple(file["partition"].values())
            for file in pa.table(found.get_add_actions()).to_pylist()
            if file["size_bytes"] < size and (file["partition"]["d"] < eve) is is_over
        )
        days = sorted({day for (day, *_), small in partitions.items() if small > 1})
        if not days:
            return {"numFilesRemoved": 0, "numFilesAdded": 0}
        return found.optimize.compact([("d", "in", days)], size, min_commit_interval=0, writer_properties=_ZSTD)

    done = [lake.tried(table, partial(attempt, is_over=is_over, size=size)) for is_over, size in _SIZES]
    return sum(each["numFilesRemoved"] for each in done), sum(each["numFilesAdded"] for each in done)


def _vacuumed(lake: Lake, table: str) -> int:
    """Remove the files that the table has not named for `KEEP_HOURS`, and the directories that are empty then."""
    directories = [] if lake.is_remote else list(_unchanged_directories(Path(lake.table_url(table))))
    removed = lake.tried(table, lambda found: found.vacuum(retention_hours=KEEP_HOURS, dry_run=False, full=True))
    for directory in directories:
        with suppress(OSError):  # it is not empty
            directory.rmdir()
    return len(removed)


def _unchanged_directories(root: Path) -> Iterator[Path]:
    """The directories in which nobody has made or removed anything for `KEEP_HOURS`, each after those in it."""
    for place, _, _ in os.walk(root, topdown=False):
        with suppress(FileNotFoundError):  # another compact has removed it
            if time.time() - os.stat(place).st_mtime > KEEP_HOURS * 3600:
                yield Path(place)


def collect(
    lake: Lake,
    journals: Sequence[Path | str],
    retain_days: float,
    events_days: float | None,
    out: TextIO,
    *,
    quiet: bool = False,
) -> None:
    """Delete what is old enough. If ``quiet``, print only what needs attention.

    Of the segments of ``journals``, directories or URLs, those are deleted that are in the lake, have not changed since
    and were last written ``retain_days`` ago or earlier. ``events_days`` is the age from which days of events are
    deleted, None for never; the roll-up and all computed tables stay.

    Raises PipelineError if something in the lake cannot be read, or there is no journal.
    """
    lake.must_exist()
    progress = StringIO() if quiet else out
    for journal in journals:
        _collect_segments(lake, location(str(journal)), retain_days, progress, out)
    if events_days is not None:
        _collect_events(lake, f"{datetime.now(UTC) - timedelta(days=events_days):%Y-%m-%d}", progress, out)


def _collect_segments(lake: Lake, journal: str, retain_days: float, progress: TextIO, warnings: TextIO) -> None:
    query = f"select name, lines from segments where batch <= {lake.applied()}"  # noqa: S608
    ingested = {row["name"]: row["lines"] for row in lake.snapshot(query).rows(query)}
    deleted, size, kept = 0, 0, Counter[str]()
    for segment in stored_segments(journal):
        if segment.is_open or segment.name.version != VERSION:
            continue
        lines = ingested.get(str(segment.name))
        if lines is None:
            kept["not ingested yet"] += 1
        elif time.time() - segment.written < retain_days * _DAY:
            kept[f"younger than {retain_days:g} days"] += 1
        else:
            with suppress(FileNotFoundError):  # the gateway has deleted it meanwhile
                if segment.count_lines() == lines:
                    segment.delete()
                    size += segment.size
                    deleted += 1
                else:
                    why = "it has other lines than when it was ingested; see `pipeline check --journal`"
                    print(f"kept {segment.path}: {why}", file=warnings)
    remove_empty_days(journal)
    rest = "; kept " + ", ".join(f"{number:,} {why}" for why, number in sorted(kept.items())) if kept else ""
    print(f"journal: deleted {deleted:,} segments, {size:,} bytes{rest}", file=progress)


def _collect_events(lake: Lake, first_kept: str, progress: TextIO, warnings: TextIO) -> None:
    for day in lake.days("events"):
        if day >= first_kept:
            continue
        rows = _delete_events(lake, day)
        if rows is None:
            why = "tables that are computed from them lack a batch; run `pipeline ingest`"
            print(f"events of {day}: kept, since {why}", file=warnings)
        else:
            print(f"events of {day}: deleted {rows:,} rows", file=progress)


def forget_segments(
    lake: Lake, journals: Sequence[Path | str], segments_days: float, out: TextIO, *, quiet: bool = False
) -> None:
    """Forget which segments were begun more than so many days ago, and let ingests refuse all segments of these days.

    Days of which the journals still have segments are kept, and everything while a batch with such segments is not in
    all tables. Raises UsageError for less than eight days, and PipelineError.
    """
    if segments_days < _LEAST_SEGMENTS_DAYS:
        raise UsageError(
            f"--segments-days must be at least {_LEAST_SEGMENTS_DAYS}: the report looks for silent nodes in them."
        )
    lake.must_exist()
    listed_days = [each.day for journal in journals for each in stored_segments(journal)]
    day = min([f"{datetime.now(UTC) - timedelta(days=segments_days):%Y-%m-%d}", *listed_days])
    while True:
        number = lake.last_batch("segments") + 1  # first, so that a plan that comes meanwhile makes this one fail
        snapshot = lake.snapshot()
        before = closed_before(snapshot.tables["segments"])
        query = f"select count(*) n from segments where d < '{day}' and batch > {_last_whole_batch(snapshot)}"  # noqa: S608
        if day <= before or snapshot.sql(query)["n"][0].as_py():
            said = f"nothing new to forget{f', days before {before} are closed' * bool(before)}"
            break
        if lake.close_days(day, number):
            said = f"days before {day} are closed: ingests refuse their segments from now on"
            break
    print(f"segments: {said}", file=StringIO() if quiet else out)


def collect_messages(lake: Lake, messages_days: float, out: TextIO, *, quiet: bool = False) -> None:
    """Delete messages that were archived more than so many days ago, by whole days. Raises PipelineError."""
    lake.must_exist()
    first_kept = f"{datetime.now(UTC) - timedelta(days=messages_days):%Y-%m-%d}"
    for day in lake.days("messages"):
        if day < first_kept:
            found = lake.tried("messages", partial(DeltaTable.delete, predicate=f"d = '{day}'"))
            print(f"messages of {day}: deleted {found['num_deleted_rows']:,} rows", file=StringIO() if quiet else out)


def _delete_events(lake: Lake, day: str) -> int | None:
    """Note the lines of a day by segment, and delete them; returns how many, or None if tables still need them.

    A commit meanwhile makes the deletion fail, and it begins again. A line may then be noted and still be there, which
    `pipeline check` knows.
    """

    def attempt(events: DeltaTable) -> int | None:
        snapshot = lake.snapshot()  # taken after `events`, so that nothing is deleted that is not noted
        if _is_needed(snapshot, day):
            return None
        noted = snapshot.sql(
            f"select file, boot, {SUMS}, d from events where d = '{day}' and file not in "  # noqa: S608
            f"(select file from deleted_lines where d = '{day}') group by file, boot, d"
        )
        number = last_batch(snapshot.tables["deleted_lines"]) + 1
        if noted.num_rows and not lake.write_rows("deleted_lines", noted, number):
            raise CommitFailedError("another gc has noted something")
        return int(events.delete(f"d = '{day}'")["num_deleted_rows"])

    return lake.tried("events", attempt)


def _is_needed(snapshot: Snapshot, day: str) -> bool:
    """Whether a batch with lines of a day is not in all tables yet."""
    query = f"select unnest(days) d from segments where batch > {_last_whole_batch(snapshot)}"  # noqa: S608
    return any(row["d"] == day for row in snapshot.rows(query))


def _last_whole_batch(snapshot: Snapshot) -> int:
    return min(last_batch(snapshot.tables[table]) for table in (*COMPUTED_TABLES, *BATCH_TABLES))
