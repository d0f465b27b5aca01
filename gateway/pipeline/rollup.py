"""The roll-up: events counted per 10 seconds. All other tables of traffic are computed from it.

Its rows can be added up in any order, across batches too: counts and bytes are sums, and latencies are counts by
histogram bucket. A message line counts with its weight; the ``stat`` lines of a session at level session count what it
did. No session writes both, so nothing is counted twice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.journal.schema import MESSAGE_EVENTS

SLOT: Final = 10
"""Seconds that a row of the roll-up covers."""

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
_BITS: Final = 4
_PER_OCTAVE: Final = 1 << _BITS
HIGHEST_BUCKET: Final = 800
"""The bucket of 2^53, the largest latency that a line may have."""


def roll_up(events: DataFrame) -> DataFrame:
    """Count rows of the table ``events``. With a column ``level``, only level session is searched for counters.

    Returns rows of the table ``rollup_10s`` without ``batch``; ``d`` is the day as a string.
    """
    rows = _single_events(events).unionByName(_counters(events))
    # Most rows differ in their bucket, so a partial aggregation before the exchange, as Spark would do, does not pay.
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
    """The day of a timestamp as a string, in UTC regardless of the Spark session's time zone."""
    return F.date_from_unix_date(_floor_div(F.unix_micros(time), _DAY_US).cast("int")).cast("string")


def rounded_down(time: Column | str, seconds: int) -> Column:
    """A timestamp rounded down to a multiple of some seconds since the epoch."""
    divisor = seconds * 1_000_000
    return F.timestamp_micros(_floor_div(F.unix_micros(time), divisor) * divisor)


def whole(count: Column) -> Column:
    """A sum of the roll-up as bigint, rounded half away from zero and limited to 2^53 either way."""
    bound = F.lit(float(1 << 53))
    return F.greatest(F.least(F.round(count), bound), -bound).cast("bigint")


def _single_events(events: DataFrame) -> DataFrame:
    """One row for each line that is one event."""
    event, code = F.col("event"), F.col("code")
    rejected = (event == "conf") & code.isNotNull()
    code = (
        F.when(event.isin(*_WITH_CODE) | rejected, code)
        .when((event == "dlv") & F.col("redelivered"), F.lit("redelivered"))
        .otherwise(F.lit(None).cast("string"))
    )
    timed = event.isin(*_WITH_LATENCY) | ((event == "conf") & F.col("code").isNull())
    weight = F.coalesce(F.col("weight"), F.lit(1.0))
    settled = F.coalesce(F.col("n"), F.lit(0)).cast("double")
    body_bytes = F.when(event.isin("send", "dlv"), weight * F.coalesce(F.col("body_bytes"), F.lit(0)))
    empty = event.isin("drop", "ack", "nack") & (settled == 0)
    return events.where(event.isin(*_COUNTED) & ~empty).select(
        _slot(),
        *_FROM_EVENTS,
        "event",
        code.alias("code"),
        F.when(timed, bucket_of(F.col("latency_us"))).alias("bucket"),
        F.when(event.isin("ack", "nack"), settled * weight)
        .when(event == "drop", settled)
        .when(event.isin("send", "conf", "dlv"), weight)
        .otherwise(F.lit(1.0))
        .alias("n"),
        F.coalesce(body_bytes, F.lit(0.0)).alias("bytes"),
    )


def _counters(events: DataFrame) -> DataFrame:
    """The rows for the counters and histograms of ``stat`` lines."""
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
        _row("send", n=_counter("send"), body_bytes=_counter("send_bytes")),
        _row("conf", n=_untimed("conf")),
        _row("conf", "rejected", n=_counter("rejected")),
        _row("dlv", n=_counter("dlv") - redelivered, body_bytes=_counter("dlv_bytes")),
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
    """How many were counted without a latency."""
    own = F.filter("histogram", lambda entry: entry["event"] == event)
    timed = F.aggregate(own, F.lit(0.0), lambda total, entry: total + entry["n"])
    return F.greatest(_counter(event) - timed, F.lit(0.0))


def _histogram() -> Column:
    """The histogram of a ``stat`` line as an array of (event, bucket, n), without malformed keys."""
    entries = F.transform(
        F.map_entries("histogram"),
        lambda entry: F.struct(
            F.substring_index(entry["key"], ":", 1).alias("event"),
            F.substring_index(entry["key"], ":", -1).try_cast("int").alias("bucket"),
            entry["value"].alias("n"),
        ),
    )
    known = F.filter(entries, lambda entry: entry["bucket"].between(0, HIGHEST_BUCKET))
    return F.coalesce(known, F.array().cast("array<struct<event:string,bucket:int,n:bigint>>"))


def _counter(name: str) -> Column:
    return F.coalesce(F.try_element_at("counters", F.lit(name)), F.lit(0).cast("bigint"))


def _row(
    event: str, code: str | None = None, *, n: Column, body_bytes: Column | None = None, in_bucket: Column | None = None
) -> Column:
    return F.struct(
        F.lit(event).alias("event"),
        F.lit(code).cast("string").alias("code"),
        (F.lit(None) if in_bucket is None else in_bucket).cast("int").alias("bucket"),
        n.cast("double").alias("n"),
        (F.lit(0.0) if body_bytes is None else body_bytes).cast("double").alias("bytes"),
    )


def _slot() -> Column:
    """The number of the 10 seconds of a line, since the epoch: Spark groups by numbers faster than by timestamps."""
    return _floor_div(F.unix_micros("ts"), _SLOT_US).alias("slot")


def _floor_div(number: Column, divisor: int) -> Column:
    return F.call_function("div", number - F.pmod(number, F.lit(divisor)), F.lit(divisor))


def _counts_for_something() -> Column:
    # If all deliveries were redeliveries, their bytes are on a row that counts no message.
    return (F.col("n") != 0) | (F.col("bytes") != 0)


# The functions of `gateway.journal.histogram` as Spark columns: integers only, so that both agree bit for bit.


def bucket_of(value: Column) -> Column:
    """The bucket of a bigint, as int; null for null. A value below 0 counts as 0."""
    counted = F.greatest(value, F.lit(0).cast("bigint"))
    # A number has floor(log2) + 1 binary digits; a logarithm could round the wrong way.
    shift = F.greatest(F.length(F.bin(counted)) - (_BITS + 1), F.lit(0))
    # PySpark's functions shift by a constant only; SQL's shift by a column.
    found = F.call_function("shiftleft", shift, F.lit(_BITS)) + F.call_function("shiftright", counted, shift)
    return F.when(value.isNotNull(), found.cast("int"))  # greatest() ignores nulls


def lowest_of(bucket: Column) -> Column:
    """The smallest value in a bucket (int), as bigint."""
    shift = F.shiftright(bucket, _BITS) - 1
    mantissa = (_PER_OCTAVE + bucket.bitwiseAND(F.lit(_PER_OCTAVE - 1))).cast("bigint")
    return F.when(bucket < _PER_OCTAVE, bucket.cast("bigint")).otherwise(F.call_function("shiftleft", mantissa, shift))


def highest_of(bucket: Column) -> Column:
    """The largest value in a bucket (int), as bigint."""
    return lowest_of(bucket + 1) - 1
