"""Computes the tables with one file per day, for the days that a batch changed, and ``durable_subs``.

They are small compared to the events, and come from the roll-up and from events at level session: events at level
message are never read again. Spark computes the rows, and pyarrow writes them, since Spark would write a directory and
not in one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.parquet_lake import ParquetLake
from gateway.pipeline.parquet_schemas import COLUMNS, replace_file
from gateway.pipeline.session_tables import boots, durable_days, durable_subs, features_used, sessions, with_ends
from gateway.pipeline.snapshot import LakeSnapshot
from gateway.pipeline.staging import glob_escaped
from gateway.pipeline.traffic_tables import (
    by_hour,
    dest_hour,
    errors_hour,
    latency_hour,
    redeliveries_hour,
    traffic_10s,
    unacked_hotspots,
)

IDLE_AFTER: Final = 86_400.0
"""Seconds without a connection after which a durable subscription is idle."""

ABANDONED_AFTER: Final = 7 * 86_400.0
"""Seconds after which it is abandoned."""

_ROLLUP: Final = (
    "ts10 timestamp, impl string, node string, vhost string, user string, destination string, dest_kind string, "
    "sub_name string, ack_mode string, event string, code string, bucket int, n double, bytes double"
)
_EVENTS: Final = (
    "ts timestamp, boot string, seq bigint, node string, impl string, event string, session bigint, vhost string, "
    "user string, destination string, sub_name string, latency_us bigint, n bigint, code string, peer string, "
    "tls boolean, version string, heartbeat string, totals map<string,bigint>, gateway_version string"
)
_HOURLY: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "dest_hour": dest_hour,
    "latency_hour": latency_hour,
    "errors_hour": errors_hour,
    "redeliveries_hour": redeliveries_hour,
    "unacked_hotspots": unacked_hotspots,
}


def refresh(
    spark: SparkSession,
    lake: ParquetLake,
    days: Iterable[str],
    session_days: Iterable[str],
    *,
    idle_after: float = IDLE_AFTER,
    abandoned_after: float = ABANDONED_AFTER,
    now: float | None = None,
) -> None:
    """Compute the tables of some days again, and then ``durable_subs``. May be repeated, also after a failure.

    Args:
        spark: the session.
        lake: whose tables to compute, from the batches that belong to it.
        days: with changed events, as 2026-11-21.
        session_days: on which sessions began that have changed.
        idle_after: seconds, see `durable_subs`.
        abandoned_after: seconds, see `durable_subs`.
        now: seconds since the epoch; None: the current time.
    """
    snapshot = LakeSnapshot.read(lake)
    for day in sorted(set(days)):
        _refresh_day(spark, snapshot, day)
    _refresh_sessions(spark, snapshot, sorted(set(session_days)))
    subscriptions = durable_subs(
        _whole(spark, lake, "durable_days"),
        _whole(spark, lake, "boots"),
        idle_after=idle_after,
        abandoned_after=abandoned_after,
        now=time.time() if now is None else now,
    )
    replace_file(lake, "durable_subs", subscriptions.toArrow(), lake.whole_file("durable_subs"))


def _refresh_day(spark: SparkSession, snapshot: LakeSnapshot, day: str) -> None:
    lake = snapshot.lake
    rollup = _read(spark, snapshot.batches_in(lake.table("rollup_10s") / f"d={day}"), _ROLLUP)
    events = _read(spark, _session_lines(snapshot, day), _EVENTS)
    hours = by_hour(rollup).persist()
    try:
        # One partition: then the aggregations below need no exchange, and each table is a single task.
        single = hours.coalesce(1)
        tables = {name: compute(single) for name, compute in _HOURLY.items()}
        tables["traffic_10s"] = traffic_10s(rollup)
        if day not in snapshot.retired:
            # The events of a retired day are deleted: late ones must not replace what was computed from all of them.
            tables["boots"] = boots(events)
            tables["features_used"] = features_used(events)
            tables["durable_days"] = durable_days(rollup, events)
        for name, rows in tables.items():
            replace_file(lake, name, rows.toArrow(), lake.day_file(name, day))
    finally:
        hours.unpersist()


def _refresh_sessions(spark: SparkSession, snapshot: LakeSnapshot, days: Sequence[str]) -> None:
    if not days:
        return
    # A session may have begun on the day before, since its duration comes from another clock.
    first = (date.fromisoformat(days[0]) - timedelta(days=1)).isoformat()
    lake = snapshot.lake
    paths = [path for day in _days(lake, "events") if day >= first for path in _session_lines(snapshot, day)]
    known = sessions(_read(spark, paths, _EVENTS))
    kept = [day for day in days if day not in snapshot.retired]
    found = known.where(F.col("d").isin(*kept)).toArrow()
    for day in kept:
        replace_file(lake, "sessions", found.filter(pc.equal(found["d"], day)), lake.day_file("sessions", day))
    for day in days:
        # The events of a retired day are deleted: keep its sessions, and add the ends that have become known.
        file = lake.day_file("sessions", day)
        if day in snapshot.retired and file.exists():
            before = _read(spark, [file], COLUMNS["sessions"])
            replace_file(lake, "sessions", with_ends(before, known).toArrow(), file)


def _days(lake: ParquetLake, table: str) -> list[str]:
    return sorted(path.name.removeprefix("d=") for path in lake.table(table).glob("d=*"))


def _session_lines(snapshot: LakeSnapshot, day: str) -> list[Path]:
    return snapshot.batches_in(snapshot.lake.table("events") / f"d={day}" / "level=session")


def _whole(spark: SparkSession, lake: ParquetLake, table: str) -> DataFrame:
    files = (lake.day_file(table, day) for day in _days(lake, table))
    return _read(spark, [path for path in files if path.exists()], COLUMNS[table])


def _read(spark: SparkSession, paths: Sequence[Path], schema: str) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*map(_url, paths))


def _url(path: Path) -> str:
    return f"file://{glob_escaped(path.absolute())}"
