"""The roll-up: events counted per 10 seconds. All other tables of traffic are computed from it.

Its rows can be added up in any order, across batches too: counts and bytes are sums, and latencies are counts by
histogram bucket. A message line counts with its weight; the ``stat`` lines of a session at level session count what it
did. No session writes both, so nothing is counted twice.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.journal.schema import EVENT_WORDS, MESSAGE_EVENTS

SLOT: Final = 10
"""Seconds that a row of the roll-up covers."""

KEYS: Final = (
    "ts10",
    "impl",
    "node",
    "vhost",
    "login",
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
_FROM_EVENTS: Final = ("impl", "node", "vhost", "login", "destination", "dest_kind", "sub_name", "ack_mode")
_WITH_CODE: Final = ("end", "unsubscribe", "error", "blocked", "feature", "nack")
_WITH_LATENCY: Final = ("connect", "blocked", "ack")
_MESSAGE_EVENTS: Final = tuple(EVENT_WORDS.get(event, event) for event in MESSAGE_EVENTS)
_COUNTED: Final = (
    "open", "close", "dropped", "connect", "end", "feature", "subscribe", "unsubscribe", "error", "blocked",
    *_MESSAGE_EVENTS,
)  # fmt: skip
_HISTOGRAMS: Final = ("conf", "ack", "queue")
"""The metrics of a ``stat`` line's histogram, in the journal's own words."""
_BITS: Final = 4
_PER_OCTAVE: Final = 1 << _BITS
HIGHEST_BUCKET: Final = 800
"""The bucket of 2^53, the largest latency that a line may have."""


def roll_up(events: DataFrame) -> DataFrame:
    """Count rows of the table ``events``. With a column ``level``, only level session is searched for counters.

    Returns rows of the table ``rollup_10s``; ``d`` is the day as a string.
    """
    rows = _single_events(events).unionByName(_waited(events)).unionByName(_counters(events))
    # Most rows differ in their bucket, so a partial aggregation before the exchange, as Spark would do, does not pay.
    rows = rows.repartition("slot", "login", "destination")
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


def count_where(which: Column) -> Column:
    """The sum of ``n`` of some rows of each group, as bigint."""
    return whole(F.sum(F.when(which, F.col("n")).otherwise(0.0)))


def _single_events(events: DataFrame) -> DataFrame:
    """One row for each line that is one event."""
    event, code = F.col("event"), F.col("code")
    rejected = (event == "confirm") & code.isNotNull()
    code = (
        F.when(event.isin(*_WITH_CODE) | rejected, code)
        .when((event == "deliver") & F.col("redelivered"), F.lit("redelivered"))
        .otherwise(F.lit(None).cast("string"))
    )
    timed = event.isin(*_WITH_LATENCY) | ((event == "confirm") & F.col("code").isNull())
    weight = F.coalesce(F.col("weight"), F.lit(1.0))
    settled = F.coalesce(F.col("n"), F.lit(0)).cast("double")
    body_bytes = F.when(event.isin("send", "deliver"), weight * F.coalesce(F.col("body_bytes"), F.lit(0)))
    empty = event.isin("dropped", "ack", "nack") & (settled == 0)
    return events.where(event.isin(*_COUNTED) & ~empty).select(
        _slot(),
        *_FROM_EVENTS,
        "event",
        code.alias("code"),
        F.when(timed, bucket_of(F.col("latency_us"))).alias("bucket"),
        F.when(event.isin("ack", "nack"), settled * weight)
        .when(event == "dropped", settled)
        .when(event.isin("send", "confirm", "deliver"), weight)
        .otherwise(F.lit(1.0))
        .alias("n"),
        F.coalesce(body_bytes, F.lit(0.0)).alias("bytes"),
    )


def _waited(events: DataFrame) -> DataFrame:
    """How long messages were in their queues: a second row for a delivery that tells, with the event ``queue``."""
    return events.where((F.col("event") == "deliver") & F.col("queue_us").isNotNull()).select(
        _slot(),
        *_FROM_EVENTS,
        F.lit("queue").alias("event"),
        F.lit(None).cast("string").alias("code"),
        bucket_of(F.col("queue_us")).alias("bucket"),
        F.coalesce(F.col("weight"), F.lit(1.0)).alias("n"),
        F.lit(0.0).alias("bytes"),
    )


def _counters(events: DataFrame) -> DataFrame:
    """The rows for the counters and histograms of ``stat`` lines."""
    if "level" in events.columns:
        events = events.where(F.col("level") == "session")
    stats = events.where(F.col("event") == "stat").select(
        _slot(), *_FROM_EVENTS, F.col("counters").alias("counters"), _histogram().alias("histogram")
    )
    rows = F.concat(F.array(*_plain_rows()), *map(_timed_rows, _HISTOGRAMS))
    return stats.select("slot", *_FROM_EVENTS, F.inline(rows)).where(_counts_for_something())


def _plain_rows() -> list[Column]:
    redelivered = _counter("redelivered")
    return [
        _row("send", n=_counter("send"), body_bytes=_counter("send_bytes")),
        _row("confirm", n=_untimed("conf")),
        _row("confirm", "rejected", n=_counter("rejected")),
        _row("deliver", n=_counter("dlv") - redelivered, body_bytes=_counter("dlv_bytes")),
        _row("deliver", "redelivered", n=redelivered),
        _row("ack", n=_untimed("ack")),
        _row("nack", "requeue", n=_counter("requeue")),
        _row("nack", "discard", n=_counter("discard")),
    ]


def _timed_rows(metric: str) -> Column:
    """One row for each bucket of a metric's histogram."""
    event = EVENT_WORDS.get(metric, metric)
    return F.transform(_of_metric(metric), lambda entry: _row(event, n=entry["n"], in_bucket=entry["bucket"]))


def _untimed(metric: str) -> Column:
    """How many were counted without a latency."""
    timed = F.aggregate(_of_metric(metric), F.lit(0.0), lambda total, entry: total + entry["n"])
    return F.greatest(_counter(metric) - timed, F.lit(0.0))


def _of_metric(metric: str) -> Column:
    return F.filter("histogram", lambda entry: entry["metric"] == metric)


def _histogram() -> Column:
    """The histogram of a ``stat`` line as an array of (metric, bucket, n), without malformed keys."""
    entries = F.transform(
        F.map_entries("histogram"),
        lambda entry: F.struct(
            F.substring_index(entry["key"], ":", 1).alias("metric"),
            F.substring_index(entry["key"], ":", -1).try_cast("int").alias("bucket"),
            entry["value"].alias("n"),
        ),
    )
    known = F.filter(entries, lambda entry: entry["bucket"].between(0, HIGHEST_BUCKET))
    return F.coalesce(known, F.array().cast("array<struct<metric:string,bucket:int,n:bigint>>"))


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
