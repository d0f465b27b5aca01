"""Prepares a batch under ``_staging``: writes its rows with Spark, and reads back without Spark what was written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.errors import PipelineError
from gateway.pipeline.line_parser import (
    EVENTS_SCHEMA,
    HIGH_CARDINALITY,
    PARTITIONS,
    bad_lines_of,
    events_of,
    read_fast,
    read_strictly,
)
from gateway.pipeline.parquet_lake import remove
from gateway.pipeline.rollup import roll_up

_DAY: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_CLOCK_TOLERANCE: Final = 300_000_000
"""How far a clock may be adjusted during a session, in microseconds, so that its first day is still found."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of a batch by segment: events, and bad lines."""

    events: dict[str, int]
    bad: dict[str, int]

    def total(self) -> int:
        """All rows; each is made of one line."""
        return sum(self.events.values()) + sum(self.bad.values())


def stage(spark: SparkSession, lines: Mapping[Path, int], directory: Path, *, strictly: bool) -> StagedRows:
    """Write the events, the bad lines and the roll-up of a batch.

    Args:
        spark: the session.
        lines: how many lines each segment of the batch has.
        directory: the batch's empty directory under ``_staging``.
        strictly: do not try the fast way to read lines, which may overlook something in these segments.

    Raises:
        PipelineError: the rows are not as many as the lines.
    """
    if not lines:
        return StagedRows({}, {})
    paths = [f"file://{glob_escaped(path)}" for path in lines]
    expected: dict[str, int] = {}
    for path, count in lines.items():
        expected[path.name] = expected.get(path.name, 0) + count
    bad = strictly or stage_events(spark, paths, directory)
    staged = StagedRows({} if strictly else rows_by_segment(directory / "events"), {})
    if bad or staged.events != {name: count for name, count in expected.items() if count}:
        staged = _stage_strictly(spark, paths, directory)
    if staged.total() != sum(expected.values()):
        raise PipelineError(
            f"the rows of a batch are not as many as its lines ({staged.total()}, {sum(expected.values())}); nothing "
            "of it was kept. Was a finished segment written to? The journal's files must not be changed."
        )
    if staged.events:
        stage_rollup(spark, directory)
    return staged


def stage_events(spark: SparkSession, paths: list[str], directory: Path) -> int:
    """Write the good lines of segments as rows of ``events``, read the fast way, and return how many lines are bad.

    Blank lines and arrays are not among the bad ones.
    """
    observation = Observation()
    _write_events(events_of(read_fast(spark, paths).observe(observation, F.count("reason").alias("bad"))), directory)
    return int(observation.get["bad"])


def _stage_strictly(spark: SparkSession, paths: list[str], directory: Path) -> StagedRows:
    remove(directory / "events")
    rows = read_strictly(spark, paths)
    _write_events(events_of(rows), directory)
    seen = F.lit(datetime.now(UTC))
    _write(bad_lines_of(rows).withColumn("seen", seen).coalesce(1), directory / "bad_lines", "d")
    return StagedRows(rows_by_segment(directory / "events"), rows_by_segment(directory / "bad_lines"))


def stage_rollup(spark: SparkSession, directory: Path) -> None:
    """Write the roll-up of the events that have been staged in ``directory``."""
    schema = f"{EVENTS_SCHEMA}, d string, level string"
    rows = spark.read.schema(schema).parquet(f"file://{glob_escaped(directory)}/events")
    _write(roll_up(rows), directory / "rollup_10s", "d")


def _write_events(events: DataFrame, directory: Path) -> None:
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in HIGH_CARDINALITY}
    _write(events, directory / "events", *PARTITIONS, options=plain)


def _write(rows: DataFrame, directory: Path, *partitions: str, options: dict[str, str] | None = None) -> None:
    writer = rows.write.mode("overwrite").option("compression", "zstd").options(**(options or {}))
    writer.partitionBy(*partitions).parquet(f"file://{directory}")


def glob_escaped(path: Path) -> str:
    """A path for Spark, which takes some characters for patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path))


def rows_by_segment(table: Path) -> dict[str, int]:
    """How many rows of a staged table come from which segment."""
    found: dict[str, int] = {}
    for path in _files(table):
        column = pq.read_table(path, columns=["file"], read_dictionary=["file"], partitioning=None)["file"]
        for entry in pc.value_counts(column).to_pylist():
            found[entry["values"]] = found.get(entry["values"], 0) + entry["counts"]
    return found


def row_count(table: Path) -> int:
    """How many rows a staged table has."""
    return sum(pq.read_metadata(path).num_rows for path in _files(table))


def days(table: Path) -> list[str]:
    """The days of a staged table."""
    return sorted(path.name.removeprefix("d=") for path in table.glob("d=*"))


def session_days(events: Path) -> list[str]:
    """The days on which the sessions began whose beginning or end is in a batch.

    If it has only the end, the beginning is computed from its time and the session's duration, which come from
    different clocks; a session that began near midnight counts for both days.
    """
    found: set[int] = set()
    for path in _files(events, "level=session"):
        table = pq.read_table(path, columns=["ts", "event", "totals"], partitioning=None)
        table = table.filter(pc.is_in(table["event"], pa.array(["conn", "end"])))
        times = table["ts"].cast(pa.int64()).to_pylist()
        totals = table["totals"].to_pylist()
        for time, pairs in zip(times, totals, strict=True):
            began = time - (dict(pairs).get("us", 0) if pairs else 0)
            found.update(((began - _CLOCK_TOLERANCE) // _DAY, (began + _CLOCK_TOLERANCE) // _DAY))
    limit = (date.max - _EPOCH).days
    return [str(_EPOCH + timedelta(days=number)) for number in sorted(found) if 0 <= number <= limit]


def newest_event(events: Path) -> float | None:
    """The time of the newest staged event, in seconds since the epoch; None without events."""
    found = []
    for path in _files(events):
        metadata = pq.read_metadata(path)
        column = metadata.schema.names.index("ts")
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(column).statistics
            if statistics is not None and statistics.has_min_max:
                found.append(statistics.max.replace(tzinfo=UTC).timestamp())
    return max(found, default=None)


def _files(table: Path, below: str = "") -> Iterator[Path]:
    pattern = f"d=*/{below}/*.parquet" if below else "**/*.parquet"
    return (path for path in table.glob(pattern) if not path.name.startswith((".", "_")))
