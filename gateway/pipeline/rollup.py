"""The roll-up: what happened in 10 seconds, counted. Every other table of traffic is made of it.

Rows of the roll-up can be added up in any order, those of many batches among them: counts and octets are sums, and
latencies are counts by bucket. A message line counts for its weight; what a session at level session did is in its
``stat`` lines. No session writes both, so nothing is counted twice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.journal.schema import MESSAGE_EVENTS
from gateway.pipeline.buckets import HIGHEST, bucket

SLOT: Final = 10
"""Seconds that a row of the roll-up spans."""

KEYS: Final = (
    "ts10",
    "impl",
    "node",
    "vhost",
    "user",
    "destination",
    "dest_kind",
    "sub_name",
    "ack_mode",
    "event",
    "code",
    "bucket",
)
"""Columns of the roll-up that say what is counted; ``n`` and ``bytes`` say how much of it."""

_SLOT_US: Final = SLOT * 1_000_000
_DAY_US: Final = 86_400 * 1_000_000
_FROM_EVENTS: Final = ("impl", "node", "vhost", "user", "destination", "dest_kind", "sub_name", "ack_mode")
_WITH_CODE: Final = ("end", "unsub", "err", "blk", "use", "nack")
_WITH_LATENCY: Final = ("conn", "blk", "ack")
_COUNTED: Final = ("open", "close", "drop", "conn", "end", "use", "sub", "unsub", "err", "blk", *MESSAGE_EVENTS)


def roll_up(events: DataFrame) -> DataFrame:
    """Count events.

    Args:
        events: rows of the table ``events``. Where a column ``level`` is there, the files of messages are not looked
            through for counters.

    Returns:
        Rows of the table ``rollup_10s`` without ``batch``; ``d`` is the day as a string.
    """
    rows = _single_events(events).unionByName(_counters(events))
    # Most rows differ in their bucket: to add up before the exchange too, as Spark would, costs more than it saves.
    rows = rows.repartition("slot", "user", "destination")
    summed = rows.groupBy("slot", *KEYS[1:]).agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))
    start = F.timestamp_micros(F.col("slot") * _SLOT_US)
    return summed.select(
        day_of(start).alias("d"),
        start.alias("ts10"),
        *KEYS[1:],
        "n",
        "bytes",
    )


def day_of(time: Column | str) -> Column:
    """The day of a time as a string, UTC whatever the Spark session's time zone is."""
    return F.date_from_unix_date(_floor_div(F.unix_micros(time), _DAY_US).cast("int")).cast("string")


def rounded_down(time: Column | str, seconds: int) -> Column:
    """A time without what is left of it when the time since the epoch is divided.

    Args:
        time: a timestamp.
        seconds: to a whole multiple of which it is rounded.
    """
    divisor = seconds * 1_000_000
    return F.timestamp_micros(_floor_div(F.unix_micros(time), divisor) * divisor)


def whole(count: Column) -> Column:
    """A sum of the roll-up as bigint, rounded half away from zero; what is beyond 2^53 either way is cut to that."""
    bound = F.lit(float(1 << 53))
    return F.greatest(F.least(F.round(count), bound), -bound).cast("bigint")


def _single_events(events: DataFrame) -> DataFrame:
    """One row for each line that stands for itself."""
    event, code = F.col("event"), F.col("code")
    rejected = (event == "conf") & code.isNotNull()
    code = (
        F.when(event.isin(*_WITH_CODE) | rejected, code)
        .when((event == "dlv") & F.col("redelivered"), F.lit("redelivered"))
        .otherwise(F.lit(None).cast("string"))
    )
    timed = event.isin(*_WITH_LATENCY) | ((event == "conf") & F.col("code").isNull())
    weight = F.coalesce(F.col("weight"), F.lit(1.0))
    covered = F.coalesce(F.col("n"), F.lit(0)).cast("double")
    octets = F.when(event.isin("send", "dlv"), weight * F.coalesce(F.col("body_bytes"), F.lit(0)))
    of_none = event.isin("drop", "ack", "nack") & (covered == 0)
    return events.where(event.isin(*_COUNTED) & ~of_none).select(
        _slot(),
        *_FROM_EVENTS,
        "event",
        code.alias("code"),
        F.when(timed, bucket(F.col("latency_us"))).alias("bucket"),
        F.when(event.isin("ack", "nack"), covered * weight)
        .when(event == "drop", covered)
        .when(event.isin("send", "conf", "dlv"), weight)
        .otherwise(F.lit(1.0))
        .alias("n"),
        F.coalesce(octets, F.lit(0.0)).alias("bytes"),
    )


def _counters(events: DataFrame) -> DataFrame:
    """The rows that the counters and histograms of ``stat`` lines make."""
    if "level" in events.columns:
        events = events.where(F.col("level") == "session")
    stats = events.where(F.col("event") == "stat").select(
        _slot(), *_FROM_EVENTS, F.col("counters").alias("counters"), _histogram().alias("histogram")
    )
    rows = F.concat(F.array(*_plain_rows()), _timed_rows("conf"), _timed_rows("ack"))
    return stats.select("slot", *_FROM_EVENTS, F.inline(rows)).where(_counts_for_something())


def _plain_rows() -> list[Column]:
    redelivered = _counter("redelivered")
    return [
        _row("send", n=_counter("send"), octets=_counter("send_bytes")),
        _row("conf", n=_untimed("conf")),
        _row("conf", "rejected", n=_counter("rejected")),
        _row("dlv", n=_counter("dlv") - redelivered, octets=_counter("dlv_bytes")),
        _row("dlv", "redelivered", n=redelivered),
        _row("ack", n=_untimed("ack")),
        _row("nack", "requeue", n=_counter("requeue")),
        _row("nack", "discard", n=_counter("discard")),
    ]


def _timed_rows(event: str) -> Column:
    """One row for each bucket of an event's histogram."""
    own = F.filter("histogram", lambda entry: entry["event"] == event)
    return F.transform(own, lambda entry: _row(event, n=entry["n"], in_bucket=entry["bucket"]))


def _untimed(event: str) -> Column:
    """How many have been counted without a latency."""
    own = F.filter("histogram", lambda entry: entry["event"] == event)
    timed = F.aggregate(own, F.lit(0.0), lambda total, entry: total + entry["n"])
    return F.greatest(_counter(event) - timed, F.lit(0.0))


def _histogram() -> Column:
    """The histogram of a ``stat`` line as an array of (event, bucket, n); a key that is no such thing is left out."""
    entries = F.transform(
        F.map_entries("histogram"),
        lambda entry: F.struct(
            F.substring_index(entry["key"], ":", 1).alias("event"),
            F.substring_index(entry["key"], ":", -1).try_cast("int").alias("bucket"),
            entry["value"].alias("n"),
        ),
    )
    known = F.filter(entries, lambda entry: entry["bucket"].between(0, HIGHEST))
    return F.coalesce(known, F.array().cast("array<struct<event:string,bucket:int,n:bigint>>"))


def _counter(name: str) -> Column:
    return F.coalesce(F.try_element_at("counters", F.lit(name)), F.lit(0).cast("bigint"))


def _row(
    event: str, code: str | None = None, *, n: Column, octets: Column | None = None, in_bucket: Column | None = None
) -> Column:
    return F.struct(
        F.lit(event).alias("event"),
        F.lit(code).cast("string").alias("code"),
        (F.lit(None) if in_bucket is None else in_bucket).cast("int").alias("bucket"),
        n.cast("double").alias("n"),
        (F.lit(0.0) if octets is None else octets).cast("double").alias("bytes"),
    )


def _slot() -> Column:
    """The 10 seconds that a line falls into, counted since the epoch: a number is grouped faster than a time."""
    return _floor_div(F.unix_micros("ts"), _SLOT_US).alias("slot")


def _floor_div(number: Column, divisor: int) -> Column:
    return F.call_function("div", number - F.pmod(number, F.lit(divisor)), F.lit(divisor))


def _counts_for_something() -> Column:
    # Where all deliveries were redeliveries, their octets are on a row that counts none.
    return (F.col("n") != 0) | (F.col("bytes") != 0)
