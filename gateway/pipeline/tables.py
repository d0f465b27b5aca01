"""Computes the tables that are not grown but replaced: those of the days that a batch touched, and ``durable_subs``.

They are small beside the events, and are made of the roll-up and of the lines of sessions: the lines of messages are
never read again. A table of a day is one file; Spark computes its rows, and they are written here, since Spark writes
directories, in more steps than one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.pipeline.durable import durable_days, durable_subs
from gateway.pipeline.lake import Lake
from gateway.pipeline.published import Published
from gateway.pipeline.table_schemas import COLUMNS, day_schemas, put
from gateway.pipeline.table_sessions import boots, features_used, sessions, with_ends
from gateway.pipeline.table_traffic import (
    by_hour,
    dest_hour,
    errors_hour,
    latency_hour,
    redeliveries_hour,
    traffic_10s,
    unacked_hotspots,
)

__all__ = ["ABANDONED_AFTER", "IDLE_AFTER", "day_schemas", "refresh"]

IDLE_AFTER: Final = 86_400.0
"""Seconds after which a durable subscription is idle when nobody is there."""

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
    lake: Lake,
    days: Iterable[str],
    session_days: Iterable[str],
    *,
    idle_after: float = IDLE_AFTER,
    abandoned_after: float = ABANDONED_AFTER,
    now: float | None = None,
) -> None:
    """Compute the tables of some days anew, and then ``durable_subs``.

    Doing it again does no harm, and what it had not finished is done by doing it again.

    Args:
        spark: the session.
        lake: with batches; what does not belong to it, see `published`, is passed over.
        days: whose events have changed, as 2026-11-21.
        session_days: on which sessions began whose lines have changed.
        idle_after: seconds, see `durable_subs`.
        abandoned_after: seconds, see `durable_subs`.
        now: what time it is, in seconds since the epoch; None: ask the clock.
    """
    published = Published.of(lake)
    for day in sorted(set(days)):
        _refresh_day(spark, published, day)
    _refresh_sessions(spark, published, sorted(set(session_days)))
    known = durable_subs(
        _whole(spark, lake, "durable_days"),
        _whole(spark, lake, "boots"),
        idle_after=idle_after,
        abandoned_after=abandoned_after,
        now=time.time() if now is None else now,
    )
    put(lake, "durable_subs", known.toArrow(), lake.whole_file("durable_subs"))


def _refresh_day(spark: SparkSession, now: Published, day: str) -> None:
    lake = now.lake
    rollup = _read(spark, now.in_place(lake.table("rollup_10s") / f"d={day}"), _ROLLUP)
    events = _read(spark, _session_lines(now, day), _EVENTS)
    hours = by_hour(rollup).persist()
    try:
        # One partition: what follows then needs no exchange, and each table is a single task.
        single = hours.coalesce(1)
        tables = {name: compute(single) for name, compute in _HOURLY.items()}
        tables["traffic_10s"] = traffic_10s(rollup)
        if day not in now.retired:
            # The events of a retired day are deleted: what came late would replace what was computed from all of them.
            tables["boots"] = boots(events)
            tables["features_used"] = features_used(events)
            tables["durable_days"] = durable_days(rollup, events)
        for name, rows in tables.items():
            put(lake, name, rows.toArrow(), lake.day_file(name, day))
    finally:
        hours.unpersist()


def _refresh_sessions(spark: SparkSession, now: Published, days: Sequence[str]) -> None:
    if not days:
        return
    # Its beginning may be of the day before when clocks disagree about its length by a little.
    first = (date.fromisoformat(days[0]) - timedelta(days=1)).isoformat()
    lake = now.lake
    there = [path for day in _days(lake, "events") if day >= first for path in _session_lines(now, day)]
    known = sessions(_read(spark, there, _EVENTS))
    kept = [day for day in days if day not in now.retired]
    found = known.where(F.col("d").isin(*kept)).toArrow()
    for day in kept:
        put(lake, "sessions", found.filter(pc.equal(found["d"], day)), lake.day_file("sessions", day))
    for day in days:
        # The events of a retired day are deleted: what its sessions were is kept, and those that ended since then end.
        file = lake.day_file("sessions", day)
        if day in now.retired and file.exists():
            before = _read(spark, [file], COLUMNS["sessions"])
            put(lake, "sessions", with_ends(before, known).toArrow(), file)


def _days(lake: Lake, table: str) -> list[str]:
    return sorted(path.name.removeprefix("d=") for path in lake.table(table).glob("d=*"))


def _session_lines(now: Published, day: str) -> list[Path]:
    return now.in_place(now.lake.table("events") / f"d={day}" / "level=session")


def _whole(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    files = (lake.day_file(table, day) for day in _days(lake, table))
    return _read(spark, [path for path in files if path.exists()], COLUMNS[table])


def _read(spark: SparkSession, paths: Sequence[Path], schema: str) -> DataFrame:
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*map(_address, paths))


def _address(path: Path) -> str:
    """A path as Spark takes it, to whom some letters are patterns."""
    return "file://" + re.sub(r"([\\*?\[\]{}])", r"\\\1", str(path.absolute()))
