"""A batch of lines becomes part of the lake: written, planned, committed.

Spark writes the batch's files into a fresh directory of each table. The plan is one commit to the table ``segments``:
which segments the batch has, and which directory. Then each table commits the files. A run that is killed before the
plan leaves files that nobody sees; one that is killed after it has its batch committed by the next run of any ingest.
Two ingests cannot plan the same segment, since Delta refuses one of two plans at once, and that ingest looks again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName
from gateway.pipeline.journal_segments import day_in
from gateway.pipeline.lake import Lake
from gateway.pipeline.spark_tables import computed, list_files, read_files, write_files
from gateway.pipeline.table_schemas import BATCH_TABLES, schema_of


@dataclass(frozen=True, slots=True)
class OfferedSegment:
    """A segment that Spark offers: its path, name and size, and how many lines Spark reads there."""

    path: str
    name: str
    size: int
    lines: int

    @property
    def parts(self) -> SegmentName | None:
        """What its name says; None if it is not a segment's."""
        return SegmentName.read(self.name)


@dataclass(frozen=True, slots=True)
class IngestedBatch:
    """What a batch brought; ``newest`` is the time of its newest event."""

    number: int
    segments: int
    events: int
    bad_lines: int
    newest: datetime | None


def add_lines(lake: Lake, lines: DataFrame) -> IngestedBatch | None:
    """Add all segments of some lines that the lake does not have yet; None if it has them all.

    Raises PipelineError if a segment has not the lines that it must have.
    """
    offered = [
        OfferedSegment(*row)
        for row in lines.groupBy("path", "file", "bytes").agg(F.count("*").alias("lines")).collect()
    ]
    while segments := _new_segments(lake, offered):
        batch = _add_segments(lake, lines, segments)
        if batch is not None:
            commit_planned(lines.sparkSession, lake)
            return batch
    return None


def commit_planned(spark: SparkSession, lake: Lake) -> None:
    """Commit the files of all batches that are planned, in order. Raises PipelineError if files are missing."""
    for batch, directory in lake.unfinished():
        planned = _planned_rows(lake, batch)
        lacking = [table for table in BATCH_TABLES if lake.last_batch(table) < batch]
        found = list_files(spark, lake, directory, [table for table in lacking if planned[table] != 0])
        for table in lacking:
            files = found.get(table, [])
            rows = sum(file.rows for file in files)
            wanted = planned[table]
            is_whole = rows == wanted if wanted is not None else rows > 0 or not planned["events"]
            if not is_whole:
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


def _new_segments(lake: Lake, offered: list[OfferedSegment]) -> dict[str, OfferedSegment]:
    """The segments that the lake does not have, by name; of several with one name, one. Other files are left out."""
    named = {segment.name: segment for segment in sorted(offered, key=lambda each: each.path) if segment.parts}
    return {name: named[name] for name in named.keys() - known(lake, named)}


def known(lake: Lake, names: Mapping[str, object]) -> set[str]:
    """Which of some segments the lake has."""
    parts = (SegmentName.read(name) for name in names)
    boots = ", ".join(sorted({f"'{part.boot}'" for part in parts if part is not None}))
    if not boots:
        return set()
    found = lake.sql(f"select name from segments where boot in ({boots})")  # noqa: S608 - hexadecimal digits
    return set(found["name"].to_pylist()) & names.keys()


def _add_segments(lake: Lake, lines: DataFrame, segments: Mapping[str, OfferedSegment]) -> IngestedBatch | None:
    """Write and plan a batch; None if another ingest has planned one meanwhile."""
    number, directory = lake.last_batch("segments") + 1, uuid.uuid4().hex
    spark = lines.sparkSession
    write_files(computed("events", lines=lines_of_segments(lines, segments.values())), lake, "events", directory)
    events = read_files(spark, lake, "events", directory)
    write_files(computed("roll_up", events=events), lake, "rollup_10s", directory)
    rollup_rows = sum(file.rows for file in list_files(spark, lake, directory, ["rollup_10s"]).get("rollup_10s", ()))
    found: dict[str, Row] = {row["file"]: row for row in computed("by_segment", events=events).collect()}
    rows = [_row(segment, segment.parts, found.get(name)) for name, segment in segments.items() if segment.parts]
    if damaged := [segments[str(row["name"])] for row in rows if row["bad"]]:
        bad_lines = computed("bad_lines", lines=lines_of_segments(lines, damaged))
        write_files(bad_lines.coalesce(1), lake, "bad_lines", directory)
    about = {"batch": number, "directory": directory, "rollup_rows": rollup_rows, "ingested": datetime.now(UTC)}
    plan = pa.Table.from_pylist([row | about for row in rows], schema_of("segments"))
    if not lake.write_rows("segments", plan, number):
        return None
    all_lines, bad = (pc.sum(plan[column]).as_py() for column in ("lines", "bad"))
    return IngestedBatch(number, len(rows), all_lines - bad, bad, pc.max(plan["newest"]).as_py())


def lines_of_segments(lines: DataFrame, segments: Iterable[OfferedSegment]) -> DataFrame:
    """The lines of some segments, with what the segments' names tell of their writer: ``impl``, ``node`` and ``boot``.

    A join does not search the name again for every line.
    """
    writers = [(each.path, name.impl, name.node, name.boot) for each in segments if (name := each.parts) is not None]
    columns = "path string, impl string, node string, boot string"
    return lines.join(F.broadcast(lines.sparkSession.createDataFrame(writers, columns)), "path")


def _row(segment: OfferedSegment, name: SegmentName, found: Row | None) -> dict[str, object]:
    """A segment's row of the plan."""
    if found:
        _require_all_lines(segment, found)
    seen = found.asDict() if found else {}
    return {
        "name": segment.name,
        "impl": name.impl,
        "node": name.node,
        "boot": name.boot,
        "first": seen.get("first"),
        "last": seen.get("last"),
        "lines": segment.lines,
        "bad": segment.lines - seen.get("events", 0),
        "bytes": segment.size,
        "newest": seen.get("newest"),  # microseconds
        "days": sorted(seen.get("days", ())),
        "session_days": sorted({*seen.get("earliest_sessions", ()), *seen.get("latest_sessions", ())}),
        "d": day_in(segment.path),
    }


def _require_all_lines(segment: OfferedSegment, found: Row) -> None:
    """Raise PipelineError if the lines that were read are not those that the segment's own numbers tell of."""
    span, bad = found["last"] - found["first"] + 1, segment.lines - found["events"]
    whole = span <= segment.lines if bad else span == segment.lines and found["first_event"] == "open"
    if not whole or bad < 0:
        raise PipelineError(
            f"the segment {segment.path} has {segment.lines} lines, and not those from {found['first']} to "
            f"{found['last']} after an `open` line: it is damaged, or was not whole when it was read. Nothing of its "
            "batch was kept. Restore it, or move it out of the journal to go on without it."
        )
