"""Computes the tables that come from the roll-up and from events, for all that changed at once.

Each table is one job of Spark, which writes the files, and one commit to its Delta table, which replaces the hours that
changed: a run costs what these hours cost, whatever the day has already. Sessions are added to what the table has of
the hours in which they began. The commits come together at the end, those of ``durable_subs`` after all others, since
it is computed from them.
Nothing passes through this process but the names of files and days. Each commit carries the number of the last batch
that the table now has, see `gateway.pipeline.lake`: that tells what is left to compute, and of two ingests that compute
the same table at once, the one with more batches wins.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.lake import Lake
from gateway.pipeline.spark_tables import computed, read_table, write_files
from gateway.pipeline.table_schemas import COMPUTED_TABLES, HOURLY_TABLES, TABLES_OF_EVENTS, partitions_of, schema_of

IDLE_AFTER: Final = 86_400.0
"""Seconds without a connection after which a durable subscription is idle."""

ABANDONED_AFTER: Final = 7 * 86_400.0
"""Seconds after which it is abandoned."""

_HOUR: Final = "yyyy-MM-dd'T'HH"
_OF_CHANGED_HOURS: Final = [table for table in HOURLY_TABLES if table != "sessions"]


def lacks_batches(lake: Lake) -> bool:
    """Whether a computed table lacks a batch that the recorded tables have."""
    return min(map(lake.last_batch, COMPUTED_TABLES)) < lake.applied()


def refresh(
    spark: SparkSession,
    lake: Lake,
    *,
    idle_after: float = IDLE_AFTER,
    abandoned_after: float = ABANDONED_AFTER,
    now: float | None = None,
) -> int:
    """Compute the tables again for the days of all batches that one of them lacks, and then ``durable_subs``.

    May be repeated, also after a failure, and run at any number of places at once. ``idle_after`` and
    ``abandoned_after`` are seconds; ``now`` is Unix time, None for the current time. Returns how many days it computed.
    """
    if not lacks_batches(lake):
        return 0
    run = _Refresh(spark, lake)
    run.hourly()
    run.sessions()
    run.commit()
    run.durable_subs(idle_after, abandoned_after, time.time() if now is None else now)
    run.commit()
    return len(run.days)


class _Refresh:
    """One computation of what the tables lack. Its files lie in directories of their own until `commit`."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark, self._lake = spark, lake
        # In this order: a batch that comes between the two is computed now, and again by the next run.
        has = min(map(lake.last_batch, COMPUTED_TABLES))
        self._batch = lake.applied()
        # All columns, because a table of an earlier release lacks `hours`.
        query = f"select * from segments where batch > {has} and batch <= {self._batch}"  # noqa: S608
        segments = lake.sql(query).to_pylist()
        self.days = sorted({day for segment in segments for day in segment["days"] or ()})
        self._hours = self._changed_hours(segments, _OF_CHANGED_HOURS)
        self._session_hours = self._changed_hours(segments, ("sessions",), "session_")
        self._segments = spark.createDataFrame([(segment["name"],) for segment in segments], "file string")
        self._read = partial(read_table, spark, lake)
        self._directory = self._fresh_directory()
        self._written: dict[str, Mapping[str, Sequence[str]]] = {}
        """The tables that are written and not committed, each with the days or hours that are replaced."""

    def _changed_hours(self, segments: Sequence[Mapping[str, Any]], tables: Sequence[str], kind: str = "") -> list[str]:
        """The hours of new segments, and all hours of a day if they are not known or a file of a table has them all."""
        days, hours, whole = set[str](), set[str](), set[str]()
        for segment in segments:
            days.update(segment[f"{kind}days"] or ())
            hours.update(segment.get(f"{kind}hours") or ())
            whole.update(segment[f"{kind}days"] or () if segment.get(f"{kind}hours") is None else ())
        whole |= {day for table in tables for day in self._lake.whole_days(table)} & days
        return sorted(hours.union(f"{day}T{hour:02}" for day in whole for hour in range(24)))

    def _fresh_directory(self) -> str:
        return f"tables-{self._batch}-{uuid.uuid4().hex[:8]}"

    def hourly(self) -> None:
        """All tables that are computed from the changed hours alone."""
        rollup, lines, events = self._rows("rollup_10s", "ts10"), self._rows("events", "ts"), self._events()
        hours = computed("hours", rollup=rollup).persist()
        # Late lines must not replace what was computed from all events of a day that are deleted now.
        deleted = self._lake.days("deleted_lines")
        kept = [hour for hour in self._hours if hour[:10] not in deleted]
        try:
            for table in _OF_CHANGED_HOURS:
                replaced = kept if table in TABLES_OF_EVENTS else self._hours
                rows = computed(table, rollup=rollup, hours=hours, events=events, lines=lines)
                self._write(table, rows.where(F.col("d").isin({hour[:10] for hour in replaced})), hours=replaced)
        finally:
            hours.unpersist()

    def _events(self) -> DataFrame:
        return self._rows("events", "ts", also=" and level = 'session'")

    def _rows(self, table: str, time: str, hours: Sequence[str] | None = None, also: str = "") -> DataFrame:
        """The rows of some hours, by default the changed ones; files without any are not read."""
        hours = self._hours if hours is None else hours
        if not hours:
            return self._read(table, ())
        span = f"{time} >= '{hours[0]}:00:00Z' and {time} <= '{hours[-1]}:59:59.999999Z'{also}"
        rows = self._read(table, {hour[:10] for hour in hours}, span).where(span)
        return rows.where(F.date_format(time, _HOUR).isin([*hours]))

    def sessions(self) -> None:
        """Adds beginnings and ends of sessions in new segments to the rows of the hours in which they began."""
        events = self._events().join(F.broadcast(self._segments), "file", "left_semi")
        known = self._rows("sessions", "started", self._session_hours)
        sessions = computed("sessions", {"columns": schema_of("sessions").names}, events=events, known=known)
        self._write("sessions", sessions, hours=self._session_hours)

    def durable_subs(self, idle_after: float, abandoned_after: float, now: float) -> None:
        """The durable subscriptions of all days."""
        seconds = {"idle_after": idle_after, "abandoned_after": abandoned_after, "now": now}
        micros = {name: round(value * 1_000_000) for name, value in seconds.items()}
        subscriptions = computed("durable_subs", micros, days=self._read("durable_days"), boots=self._read("boots"))
        self._write("durable_subs", subscriptions, days=[])

    def _write(self, table: str, rows: DataFrame, **replaced: Sequence[str]) -> None:
        """Write the rows that take the place of those of some days or hours, see `Lake.commit_files`.

        Spark makes tasks of about equal size of them: one for a little, and as many as the cluster has for much.
        """
        rows = rows.hint("rebalance", *partitions_of(table))
        rows = rows.sortWithinPartitions(*partitions_of(table), *schema_of(table).names)
        write_files(rows, self._lake, table, self._directory)
        self._written[table] = replaced

    def commit(self) -> None:
        """Commit what is written."""
        for table, replaced in self._written.items():
            files = self._lake.written_files(table, self._directory)
            self._lake.commit_files(table, files, self._batch, **replaced)
        self._written, self._directory = {}, self._fresh_directory()
