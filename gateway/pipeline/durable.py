"""Durable subscriptions: a queue that goes on filling while nobody is there. Which of them are abandoned?"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.pipeline.rollup import SLOT, rounded_down, whole

_KEYS: Final = ("vhost", "user", "sub_name", "destination")
_DAY_US: Final = 86_400 * 1_000_000


def durable_days(rollup: DataFrame, events: DataFrame) -> DataFrame:
    """What is known of durable subscriptions from one day.

    Times are those of lines at level session; what only messages tell is known to the 10 seconds of the roll-up.

    Args:
        rollup: of the day.
        events: of the day, level session.
    """
    found = _from_rollup(rollup).unionByName(_from_events(events), allowMissingColumns=True)
    slot = F.min("slot")
    # A line with its time is better than its 10 seconds, unless messages of earlier 10 seconds have been counted.
    first = F.when(rounded_down(F.min("ts"), SLOT) <= slot, F.min("ts")).otherwise(F.coalesce(slot, F.min("ts")))
    return (
        found.groupBy(*_KEYS)
        .agg(
            first.alias("first_seen"),
            F.greatest(F.max("ts"), F.max("slot")).alias("last_connected"),
            F.max(F.when(F.col("event") == "dlv", F.col("slot"))).alias("last_delivery"),
            F.max(F.when(F.col("event").isin("ack", "nack"), F.col("slot"))).alias("last_ack"),
            _count("dlv").alias("deliveries"),
            _count("ack").alias("acks"),
            _last("sub").alias("sub"),
            _last("unsub").alias("unsub"),
        )
        .select(
            "*",
            F.col("sub.ts").alias("last_sub"),
            F.col("sub.boot").alias("last_sub_boot"),
            F.col("unsub.ts").alias("last_unsub"),
            F.col("unsub.code").alias("last_unsub_code"),
        )
        .drop("sub", "unsub")
    )


def durable_subs(
    days: DataFrame, boots: DataFrame, *, idle_after: float, abandoned_after: float, now: float
) -> DataFrame:
    """Durable subscriptions as they are now: when the last boot wrote its last line.

    A clock that is more than a day ahead says nothing about that, unless all of them are.

    Args:
        days: all rows of ``durable_days``.
        boots: all rows of ``boots``.
        idle_after: seconds after which a subscription is idle when nobody is there.
        abandoned_after: seconds after which it is abandoned.
        now: what time it is, in seconds since the epoch.
    """
    all_days = days.groupBy(*_KEYS).agg(
        F.min("first_seen").alias("first_seen"),
        *(F.max(name).alias(name) for name in ("last_connected", "last_delivery", "last_ack")),
        *(F.sum(name).alias(name) for name in ("deliveries", "acks")),
        F.max(F.when(F.col("last_sub").isNotNull(), F.struct("last_sub", "last_sub_boot"))).alias("sub"),
        F.max(F.when(F.col("last_unsub").isNotNull(), F.struct("last_unsub", "last_unsub_code"))).alias("unsub"),
    )
    possible = F.unix_micros("last_ts") <= _microseconds(now) + _DAY_US
    as_of = F.coalesce(F.max(F.when(possible, F.col("last_ts"))), F.max("last_ts"))
    last = boots.agg(as_of.alias("as_of"))
    there = _alive(boots)
    found = all_days.join(F.broadcast(there), F.col("sub.last_sub_boot") == there["alive"], "left").crossJoin(
        F.broadcast(last)
    )
    idle = F.greatest(F.unix_micros("as_of") - F.unix_micros("last_connected"), F.lit(0).cast("bigint"))
    return (
        found.withColumn("connected", _subscribed() & F.col("alive").isNotNull())
        .withColumn("idle_us", F.when(F.col("connected"), F.lit(0).cast("bigint")).otherwise(idle))
        .withColumn("verdict", _verdict(idle_after, abandoned_after))
        .withColumn("days_idle", F.col("idle_us") / F.lit(float(_DAY_US)))
        .drop("sub", "unsub", "alive", "as_of", "idle_us")
    )


def _from_rollup(rollup: DataFrame) -> DataFrame:
    return rollup.where(F.col("sub_name").isNotNull()).select(*_KEYS, "event", F.col("ts10").alias("slot"), "n")


def _from_events(events: DataFrame) -> DataFrame:
    return events.where(F.col("sub_name").isNotNull()).select(
        *_KEYS, "ts", F.struct("ts", "seq", "boot", "event", "code").alias("line")
    )


def _count(event: str) -> Column:
    return whole(F.sum(F.when(F.col("event") == event, F.col("n")).otherwise(0.0)))


def _last(event: str) -> Column:
    """The last line of an event; of equal times that with the larger number."""
    return F.max(F.when(F.col("line.event") == event, F.col("line")))


def _alive(boots: DataFrame) -> DataFrame:
    """The boots that run, in a column ``alive``: neither closed nor followed by another one of the same node."""
    runs = boots.groupBy("impl", "node", "boot").agg(
        F.min("first_ts").alias("first_ts"), F.max("closed").alias("closed")
    )
    latest = F.max("first_ts").over(Window.partitionBy("impl", "node"))
    return (
        runs.withColumn("latest", latest)
        .where(~F.col("closed") & (F.col("first_ts") == F.col("latest")))
        .select(F.col("boot").alias("alive"))
        .distinct()
    )


def _subscribed() -> Column:
    sub, unsub = F.col("sub.last_sub"), F.col("unsub.last_unsub")
    return sub.isNotNull() & (unsub.isNull() | (sub > unsub))


def _verdict(idle_after: float, abandoned_after: float) -> Column:
    sub, unsub = F.col("sub.last_sub"), F.col("unsub.last_unsub")
    deleted = F.col("unsub.last_unsub_code").eqNullSafe("deleted") & (sub.isNull() | (unsub > sub))
    return (
        F.when(deleted, F.lit("deleted"))
        .when(F.col("connected") | (F.col("idle_us") < _microseconds(idle_after)), F.lit("active"))
        .when(F.col("idle_us") < _microseconds(abandoned_after), F.lit("idle"))
        .otherwise(F.lit("abandoned"))
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
