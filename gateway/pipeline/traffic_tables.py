"""The tables of traffic, all sums of the roll-up. They are computed for any number of days at once; ``d`` is the day.

Counts are added up with their weights and rounded at the end, half away from zero. Percentages are of rounded counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.rollup import count_where, highest_of, rounded_down, whole

_SHARES: Final = {"p50_us": 0.5, "p95_us": 0.95, "p99_us": 0.99, "p999_us": 0.999}
_BY_DESTINATION: Final = ("queue", "confirm", "ack")
_WITH_LATENCY: Final = (*_BY_DESTINATION, "connect", "blocked")
_MANUAL: Final = ("client", "client-individual")


def by_hour(rollup: DataFrame) -> DataFrame:
    """The roll-up by ``hour`` in place of ``ts10``, and without ``node`` and ``sub_name``: the input of most tables."""
    hour = rounded_down("ts10", 3600).alias("hour")
    keys = ("impl", "vhost", "login", "destination", "dest_kind", "ack_mode", "event", "code", "bucket")
    return rollup.groupBy("d", hour, *keys).agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))


def traffic_10s(rollup: DataFrame) -> DataFrame:
    """Events per 10 seconds, of all clients and destinations together, from the roll-up."""
    keys = ("d", "ts10", "impl", "vhost", "event", "code", "bucket")
    return rollup.groupBy(*keys).agg(F.sum("n").alias("n"), F.sum("bytes").alias("bytes"))


def dest_hour(hours: DataFrame) -> DataFrame:
    """Messages and bytes by hour and destination, from `by_hour`."""
    return (
        hours.where(F.col("destination").isNotNull())
        .groupBy("d", "hour", "impl", "vhost", "destination", "dest_kind")
        .agg(
            count_where(_is("send")).alias("sent"),
            _bytes(_is("send")).alias("sent_bytes"),
            count_where(_is("confirm") & F.col("code").isNull()).alias("confirmed"),
            count_where(_is("confirm", "rejected")).alias("rejected"),
            count_where(_is("deliver")).alias("delivered"),
            _bytes(_is("deliver")).alias("delivered_bytes"),
            count_where(_is("deliver", "redelivered")).alias("redelivered"),
            count_where(_is("ack")).alias("acked"),
            count_where(_is("nack", "requeue")).alias("requeued"),
            count_where(_is("nack", "discard")).alias("discarded"),
        )
    )


def latency_hour(hours: DataFrame) -> DataFrame:
    """Percentiles of latencies by hour, for each destination and for all of a virtual host, from `by_hour`."""
    keys = ("d", "hour", "impl", "vhost", "destination", "event")
    timed = hours.where(F.col("bucket").isNotNull() & F.col("event").isin(*_WITH_LATENCY))
    counted = timed.groupBy(*keys, "bucket").agg(F.sum("n").alias("n"))
    has_destination = F.col("event").isin(*_BY_DESTINATION) & F.col("destination").isNotNull()
    of_all = F.lit(None).cast("string")
    both = F.when(has_destination, F.array("destination", of_all)).otherwise(F.array(of_all))
    counted = counted.withColumn("destination", F.explode(both)).groupBy(*keys, "bucket").agg(F.sum("n").alias("n"))
    ranked = _ranked(counted, keys, F.col("n"))
    return ranked.groupBy(*keys).agg(
        whole(F.sum("n")).alias("n"),
        *(_percentile(share).alias(name) for name, share in _SHARES.items()),
        highest_of(F.max("bucket")).alias("max_us"),
    )


def errors_hour(hours: DataFrame) -> DataFrame:
    """ERROR frames by hour, login and code, from `by_hour`."""
    errors = hours.where(_is("error")).groupBy("d", "hour", "impl", "vhost", "login", "code")
    return errors.agg(count_where(_is("error")).alias("n"))


def redeliveries_hour(hours: DataFrame) -> DataFrame:
    """Redelivered messages by hour, login and destination, from `by_hour`."""
    counted = (
        hours.where(_is("deliver"))
        .groupBy("d", "hour", "impl", "vhost", "login", "destination")
        .agg(
            count_where(_is("deliver")).alias("delivered"),
            count_where(_is("deliver", "redelivered")).alias("redelivered"),
        )
    )
    return counted.where(F.col("redelivered") > 0).withColumn("redelivered_pct", _percent("redelivered", "delivered"))


def unacked_hotspots(hours: DataFrame) -> DataFrame:
    """Deliveries of the whole day that had to be acknowledged, and how many were, from `by_hour`."""
    keys = ("d", "impl", "vhost", "login", "destination")
    rows = hours.where(F.col("ack_mode").isin(*_MANUAL) & F.col("event").isin("deliver", "ack", "nack"))
    rows = rows.groupBy(*keys, "event", "code", "bucket").agg(F.sum("n").alias("n"))
    timed = F.when(_is("ack") & F.col("bucket").isNotNull(), F.col("n")).otherwise(0.0)
    counted = (
        _ranked(rows, keys, timed)
        .groupBy(*keys)
        .agg(
            count_where(_is("deliver")).alias("deliveries"),
            count_where(_is("ack")).alias("acked"),
            count_where(_is("nack")).alias("nacked"),
            count_where(_is("deliver", "redelivered")).alias("redelivered"),
            _percentile(0.99).alias("p99_ack_us"),
        )
    )
    unacked = F.col("deliveries") - F.col("acked") - F.col("nacked")
    return (
        counted.withColumn("unacked", F.greatest(unacked, F.lit(0).cast("bigint")))
        .withColumn("unacked_pct", _percent("unacked", "deliveries"))
        .withColumn("redelivered_pct", _percent("redelivered", "deliveries"))
        .drop("redelivered")
    )


def _is(event: str, code: str | None = None) -> Column:
    found = F.col("event") == event
    return found if code is None else found & F.col("code").eqNullSafe(code)


def _bytes(which: Column) -> Column:
    return whole(F.sum(F.when(which, F.col("bytes")).otherwise(0.0)))


def _percent(part: str, whole: str) -> Column:
    """A percentage; null if the whole is 0."""
    return F.when(F.col(whole) > 0, F.col(part) * 100.0 / F.col(whole))


def _ranked(rows: DataFrame, keys: Sequence[str], timed: Column) -> DataFrame:
    """Add the columns that `_percentile` needs: the number of values in buckets up to a row's own, and in all.

    Args:
        rows: with a column ``bucket``.
        keys: of the groups that get percentiles.
        timed: how many values a row stands for; 0 if ``bucket`` is null.
    """
    group = Window.partitionBy(*keys)
    up_to_here = group.orderBy("bucket").rangeBetween(Window.unboundedPreceding, Window.currentRow)
    return (
        rows.withColumn("timed", timed)
        .withColumn("seen", F.sum("timed").over(up_to_here))
        .withColumn("total", F.sum("timed").over(group))
    )


def _percentile(share: float) -> Column:
    """As ``histogram.percentile``, an aggregate over the rows of `_ranked`."""
    part = F.col("total") * F.lit(share)
    # From 2^53 on every double is an integer.
    rounded_up = F.when(part < F.lit(float(1 << 53)), F.ceil(part).cast("double")).otherwise(part)
    rank = F.greatest(rounded_up, F.lit(1.0))
    counts = F.col("timed") > 0
    reached = F.min(F.when(counts & (F.col("seen") >= rank), F.col("bucket")))
    return highest_of(F.coalesce(reached, F.max(F.when(counts, F.col("bucket")))))
