"""A batch of segments becomes part of the lake: written, planned, committed.

Spark writes the batch's files into a fresh directory of each table. The plan is one commit to the table ``segments``:
which segments the batch has, and which directory. Then each table commits the files. A run that is killed before the
plan leaves files that nobody sees; one that is killed after it has its batch committed by the next run of any ingest.
Two ingests cannot plan the same segment, since Delta refuses one of two plans at once, and that ingest looks again.

A segment that is damaged is put aside, see `SEGMENTS_ASIDE`, and the batch is made of the others.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.errors import PipelineError
from gateway.journal.reading import LONGEST_LINE
from gateway.pipeline.lake import Lake, closed_before
from gateway.pipeline.spark_tables import computed, read_files, to_read, write_files
from gateway.pipeline.stored_segments import GONE, StoredSegment
from gateway.pipeline.table_schemas import BATCH_TABLES, schema_of

_TEXT: Final = {"lineSep": "\n", "mapreduce.input.linerecordreader.line.maxlength": str(LONGEST_LINE + 1)}
"""Hadoop's reader keeps only a part of a longer line, or nothing: the count of bytes shows that."""
_TOLERANT: Final = {"ignoreCorruptFiles": "true", "ignoreMissingFiles": "true"}
"""Files that cannot be read have no lines."""

Segments = Mapping[str, StoredSegment]
"""Segments by name."""


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """What a batch brought; ``newest`` is the time of its newest event."""

    number: int
    segments: int
    events: int
    bad_lines: int
    newest: datetime | None


@dataclass(slots=True)
class BatchOutcome:
    """What became of some segments.

    ``batch`` is None if none of them was taken in. ``aside`` and ``unreadable`` say of a segment's name why it was not.
    """

    batch: IngestedBatch | None = None
    aside: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def waiting_segments(lake: Lake, segments: Iterable[StoredSegment], *, again: bool = False) -> list[StoredSegment]:
    """The finished segments that are neither in the lake nor aside, oldest first; of several with one name only one.

    A segment that was put aside and has changed since is no longer aside; ``again`` takes in all that are.
    """
    named = {str(each.name): each for each in sorted(segments, key=lambda each: each.path, reverse=True)}
    rows = () if again else lake.sql("select name, bytes, written from segments_aside order by seen").to_pylist()
    aside = {row["name"]: (row["bytes"], row["written"]) for row in rows}
    new = named.keys() - known(lake, named.values())
    waiting = [each for name, each in named.items() if name in new and aside.get(name) != _identity(each)]
    return sorted(waiting, key=lambda each: (each.written, each.path))


def known(lake: Lake, segments: Collection[StoredSegment]) -> set[str]:
    """Which of some segments the lake has, by name: of a segment's day, the one before it and the one after it.

    Those of closed days count, too: the lake has forgotten which of them it has.
    """
    closed = closed_before(lake.table("segments"))
    days = {day for each in segments for day in _neighbours(each.day)}
    if not days:
        return set()
    found = lake.sql(f"select name from segments where d in ({', '.join(map(repr, sorted(days)))})")  # noqa: S608
    return {*found["name"].to_pylist(), *(str(each.name) for each in segments if each.day < closed)}


def _neighbours(day: str) -> list[str]:
    try:
        middle = datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC)
        return [f"{middle + timedelta(days=step):%Y-%m-%d}" for step in (-1, 0, 1)]
    except (ValueError, OverflowError):
        return [day.replace("'", "")]


def _identity(segment: StoredSegment) -> tuple[int, datetime]:
    return segment.size, datetime.fromtimestamp(segment.written, UTC)


def add_segments(spark: SparkSession, lake: Lake, segments: Iterable[StoredSegment]) -> BatchOutcome:
    """Add segments to the lake as one batch, except those that it has and those that are damaged."""
    left = {str(each.name): each for each in segments}
    outcome = BatchOutcome()
    while left:
        try:
            written = _write(spark, lake, left, outcome)
        except PySparkException:
            done = {name for name, each in left.items() if each.trouble() == GONE}
            if not done:
                raise
        else:
            if written is not None and (batch := _planned(lake, written)) is not None:
                outcome.batch = batch
                commit_planned(lake)
                break
            done = known(lake, left.values()) if written is not None else set()
        done |= outcome.aside.keys() | outcome.unreadable.keys()
        left = {name: each for name, each in left.items() if name not in done}
    return outcome


def commit_planned(lake: Lake) -> None:
    """Commit the files of all batches that are planned, in order. Raises PipelineError if files are missing."""
    for batch, directory in lake.unfinished():
        planned = _planned_rows(lake, batch)
        for table in [table for table in BATCH_TABLES if lake.last_batch(table) < batch]:
            wanted = planned[table]
            files = lake.written_files(table, directory) if wanted != 0 else []
            rows = sum(file.rows for file in files)
            if rows != wanted if wanted is not None else not rows and planned["events"]:
                of = "" if wanted is None else f" of {wanted}"
                raise PipelineError(
                    f"files of batch {batch} in {lake.table_url(table)}/data/{directory} are missing: they have {rows} "
                    f"rows{of}. Restore them."
                )
            lake.commit_files(table, files, batch)


def _planned_rows(lake: Lake, batch: int) -> dict[str, int | None]:
    """How many rows each table gets from a batch; None if an earlier release has planned it and did not say."""
    # All columns, because a table of an earlier release lacks `rollup_rows`.
    segments = lake.sql(f"select * from segments where batch = {batch}").to_pylist()  # noqa: S608
    return {
        "events": sum(row["lines"] - row["bad"] for row in segments),
        "rollup_10s": max((row["rollup_rows"] for row in segments if row.get("rollup_rows") is not None), default=None),
        "bad_lines": sum(row["bad"] for row in segments),
    }


@dataclass(frozen=True, slots=True)
class _Written:
    """Files that are written and not planned: their segments, the plan's rows of them, and the directory."""

    segments: Segments
    rows: Sequence[Mapping[str, object]]
    directory: str
    rollup_rows: int


def _write(spark: SparkSession, lake: Lake, segments: Segments, outcome: BatchOutcome) -> _Written | None:
    """Write a batch's files; None if some of the segments are damaged or cannot be read, which `outcome` then tells."""
    counted = _counted(spark, lake, segments, outcome)
    if not counted.keys() >= segments.keys():
        return None
    directory = uuid.uuid4().hex
    lines = lines_of(spark, segments.values())
    write_files(computed("events", lines=lines), lake, "events", directory)
    events = read_files(spark, lake, "events", directory)
    found: dict[str, Row] = {row["file"]: row for row in computed("by_segment", events=events).collect()}
    if damaged := {
        name: why for name, each in segments.items() if (why := _why_damaged(each, counted[name], found.get(name)))
    }:
        _put_aside(lake, segments, damaged, outcome)
        return None
    write_files(computed("roll_up", events=events), lake, "rollup_10s", directory)
    rollup_rows = sum(file.rows for file in lake.written_files("rollup_10s", directory))
    rows = [_row(each, counted[name], found.get(name)) for name, each in segments.items()]
    if with_bad := [segments[str(row["name"])] for row in rows if row["bad"]]:
        bad_lines = computed("bad_lines", lines=lines_of(spark, with_bad))
        write_files(bad_lines.coalesce(1), lake, "bad_lines", directory)
    return _Written(segments, rows, directory, rollup_rows)


def _planned(lake: Lake, written: _Written) -> IngestedBatch | None:
    """Plan a batch that is written; None if another ingest has planned some of its segments meanwhile.

    If the other one has planned other segments, only the number changes, and nothing is written again.
    """
    while True:
        number = lake.last_batch("segments") + 1  # read first, so that another plan meanwhile makes this one fail
        if known(lake, written.segments.values()) & written.segments.keys():
            return None
        about = {
            "batch": number, "directory": written.directory, "rollup_rows": written.rollup_rows,
            "ingested": datetime.now(UTC),
        }  # fmt: skip
        plan = pa.Table.from_pylist([{**row, **about} for row in written.rows], schema_of("segments"))
        if lake.write_rows("segments", plan, number):
            lines, bad = (pc.sum(plan[column]).as_py() for column in ("lines", "bad"))
            return IngestedBatch(number, len(plan), lines - bad, bad, pc.max(plan["newest"]).as_py())


def lines_of(spark: SparkSession, segments: Collection[StoredSegment], **options: str) -> DataFrame:
    """A row for each line: ``value``, ``file`` is the segment's name, ``day`` that of its directory.

    ``impl``, ``node`` and ``boot`` are what the names tell of their writer. A join does not take them apart again for
    every line.
    """
    texts = spark.read.options(**_TEXT, **options).text([to_read(each.url) for each in segments])
    writers = [(str(name := each.name), name.impl, name.node, name.boot, each.day) for each in segments]
    columns = "file string, impl string, node string, boot string, day string"
    return texts.select("value", F.col("_metadata.file_name").alias("file")).join(
        F.broadcast(spark.createDataFrame(writers, columns)), "file"
    )


def _counted(spark: SparkSession, lake: Lake, segments: Segments, outcome: BatchOutcome) -> dict[str, int]:
    """The lines of each segment, of which all bytes were read; those of the others are told by `outcome`."""
    lines = lines_of(spark, segments.values(), **_TOLERANT)
    sizes = {
        row["file"]: (row["lines"], row["bytes"])
        for row in lines.groupBy("file")
        .agg(F.count("*").alias("lines"), F.sum(F.octet_length("value") + 1).alias("bytes"))
        .collect()
    }
    aside = {}
    for name, each in segments.items():
        if name not in sizes:
            outcome.unreadable[name] = each.trouble() or "Spark could not read it"
        elif sizes[name][1] not in (each.size, each.size + 1):  # the last line may lack its LF
            aside[name] = (
                f"{sizes[name][1]:,} of its {each.size:,} bytes could be read: a line is longer than "
                f"{LONGEST_LINE:,} bytes, or it was changed meanwhile"
            )
    _put_aside(lake, segments, aside, outcome)
    return {name: lines for name, (lines, _) in sizes.items() if name not in aside}


def _put_aside(lake: Lake, segments: Segments, why: Mapping[str, str], outcome: BatchOutcome) -> None:
    rows = [
        {
            "name": name, "node": each.name.node, "boot": each.name.boot, "path": each.url, "bytes": each.size,
            "written": _identity(each)[1], "reason": why[name], "seen": datetime.now(UTC), "d": each.day,
        }
        for name, each in segments.items()
        if name in why
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema_of("segments_aside"))
    while rows and not lake.write_rows("segments_aside", table, lake.last_batch("segments_aside") + 1):
        pass  # another ingest has put some aside at the same time
    outcome.aside |= why


def _row(segment: StoredSegment, lines: int, found: Row | None) -> dict[str, object]:
    """A segment's row of the plan."""
    seen = found.asDict() if found else {}
    session_hours = {*seen.get("earliest_sessions", ()), *seen.get("latest_sessions", ())}
    return {
        "name": str(segment.name),
        "impl": segment.name.impl,
        "node": segment.name.node,
        "boot": segment.name.boot,
        "first": seen.get("first"),
        "last": seen.get("last"),
        "lines": lines,
        "bad": lines - seen.get("events", 0),
        "bytes": segment.size,
        "newest": seen.get("newest"),  # microseconds
        "days": sorted(seen.get("days", ())),
        "hours": sorted(seen.get("hours", ())),
        "session_days": sorted({hour[:10] for hour in session_hours}),
        "session_hours": sorted(session_hours),
        "d": segment.day,
    }


def _why_damaged(segment: StoredSegment, lines: int, found: Row | None) -> str | None:
    """Why the lines that were read are not those that the segment's own numbers tell of; None if they are."""
    if found is None:
        return None
    span, bad = found["last"] - found["first"] + 1, lines - found["events"]
    whole = span <= lines if bad else span == lines and found["first_event"] == "open"
    if not whole or bad < 0:
        return (
            f"it has {lines:,} lines, and not those from {found['first']} to {found['last']} after an `open` line: "
            "lines are missing or repeated"
        )
    if found["opened"] is not None and found["opened"] not in _neighbours(segment.day):
        return f"it was begun on {found['opened']} and lies in the directory of another day"
    return None
