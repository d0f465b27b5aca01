"""The tables of boots, sessions, features and durable subscriptions, from events at level session."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.rollup import SLOT, count_where, day_of, rounded_down

_TOTALS = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked")
_KEYS: Final = ("vhost", "login", "sub_name", "destination")
_DAY_US: Final = 86_400 * 1_000_000


def boots(events: DataFrame) -> DataFrame:
    """The boots that wrote on each day, from its events at level session.

    ``lines`` is computed from the first and last line number, and so counts lines at level message too, which are not
    read here.
    """
    return events.groupBy("d", "node", "impl", "boot").agg(
        F.max("gateway_version").alias("gateway_version"),
        F.min("ts").alias("first_ts"),
        F.max("ts").alias("last_ts"),
        F.max(F.col("event") == "close").alias("closed"),
        (F.max("seq") - F.min("seq") + 1).alias("lines"),
        count_where(F.col("event") == "dropped").alias("dropped"),
    )


def sessions(events: DataFrame) -> DataFrame:
    """Sessions in some events at level session, ended or not; ``d`` is the day on which they began.

    If the beginning of one is missing, it is computed from its end and duration.
    """
    common = ("ts", "node", "impl", "vhost", "login")
    began = F.struct(*common, "peer", "tls", "version", "heartbeat", "latency_us")
    totals = (F.coalesce(F.try_element_at("totals", F.lit(name)), F.lit(0)).alias(name) for name in ("us", *_TOTALS))
    ended = F.struct(*common, "code", *totals)
    found = (
        events.where(F.col("event").isin("connect", "end") & F.col("session").isNotNull())
        .groupBy("boot", "session")
        .agg(
            F.max(F.when(F.col("event") == "connect", began)).alias("conn"),
            F.max(F.when(F.col("event") == "end", ended)).alias("end"),
        )
    )
    started = F.coalesce("conn.ts", F.timestamp_micros(F.unix_micros("end.ts") - F.col("end.us")))
    return found.select(
        "boot",
        "session",
        *(F.coalesce(f"conn.{name}", f"end.{name}").alias(name) for name in common if name != "ts"),
        *(F.col(f"conn.{name}") for name in ("peer", "tls", "version", "heartbeat")),
        day_of(started).alias("d"),
        started.alias("started"),
        F.col("end.ts").alias("ended"),
        F.col("end.us").alias("duration_us"),
        F.col("end.code").alias("end_code"),
        *(F.col(f"end.{name}") for name in _TOTALS),
        F.col("conn.latency_us").alias("connect_us"),
    )


def merged(before: DataFrame, found: DataFrame) -> DataFrame:
    """Rows of the table ``sessions`` that are known, with what `sessions` has found since.

    Either may have only a session's beginning or its end; its exact beginning counts more than a computed one.
    """
    both = before.alias("before").join(found.alias("found"), ["boot", "session"], "full_outer")
    is_computed = F.col("before.tls").isNull()  # which the line of a beginning always has
    names = (name for name in before.columns if name not in ("boot", "session"))
    return both.select("boot", "session", *(_either(name, is_computed).alias(name) for name in names))


def _either(name: str, is_computed: Column) -> Column:
    before, found = F.col(f"before.{name}"), F.col(f"found.{name}")
    return F.when(is_computed, F.coalesce(found, before)).otherwise(F.coalesce(before, found))


def features_used(events: DataFrame) -> DataFrame:
    """Which clients used which features on each day, from its events at level session."""
    return (
        events.where(F.col("event") == "feature")
        .groupBy("d", "impl", "vhost", "login", "version", F.col("code").alias("feature"))
        .agg(
            F.count_distinct("boot", "session").alias("sessions"),
            F.min("ts").alias("first_seen"),
            F.max("ts").alias("last_seen"),
        )
    )


def durable_days(rollup: DataFrame, events: DataFrame) -> DataFrame:
    """The durable subscriptions in the events of each day.

    Times come from the day's events at level session; those of messages, from the roll-up, are
    exact to 10 seconds only.
    """
    found = _from_rollup(rollup).unionByName(_from_events(events), allowMissingColumns=True)
    slot = F.min("slot")
    # Prefer the exact time of a line to its 10 seconds, unless messages were counted in earlier 10 seconds.
    first = F.when(rounded_down(F.min("ts"), SLOT) <= slot, F.min("ts")).otherwise(F.coalesce(slot, F.min("ts")))
    return (
        found.groupBy("d", *_KEYS)
        .agg(
            first.alias("first_seen"),
            F.greatest(F.max("ts"), F.max("slot")).alias("last_connected"),
            F.max(F.when(F.col("event") == "deliver", F.col("slot"))).alias("last_delivery"),
            F.max(F.when(F.col("event").isin("ack", "nack"), F.col("slot"))).alias("last_ack"),
            count_where(F.col("event") == "deliver").alias("deliveries"),
            count_where(F.col("event") == "ack").alias("acks"),
            _last("subscribe").alias("sub"),
            _last("unsubscribe").alias("unsub"),
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
    """Durable subscriptions as they are now, "now" being the time of the newest line of all boots.

    That ignores lines from a clock that is more than a day ahead, unless all lines are.

    Args:
        days: all rows of ``durable_days``.
        boots: all rows of ``boots``.
        idle_after: seconds without a connection after which a subscription is idle.
        abandoned_after: seconds after which it is abandoned.
        now: the current time, in seconds since the epoch.
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
    running = _running(boots)
    found = all_days.join(
        F.broadcast(running), F.col("sub.last_sub_boot") == running["running_boot"], "left"
    ).crossJoin(F.broadcast(last))
    idle = F.greatest(F.unix_micros("as_of") - F.unix_micros("last_connected"), F.lit(0).cast("bigint"))
    return (
        found.withColumn("connected", _subscribed() & F.col("running_boot").isNotNull())
        .withColumn("idle_us", F.when(F.col("connected"), F.lit(0).cast("bigint")).otherwise(idle))
        .withColumn("verdict", _verdict(idle_after, abandoned_after))
        .withColumn("days_idle", F.col("idle_us") / F.lit(float(_DAY_US)))
        .drop("sub", "unsub", "running_boot", "as_of", "idle_us")
    )


def _from_rollup(rollup: DataFrame) -> DataFrame:
    named = rollup.where(F.col("sub_name").isNotNull())
    return named.select("d", *_KEYS, "event", F.col("ts10").alias("slot"), "n")


def _from_events(events: DataFrame) -> DataFrame:
    return events.where(F.col("sub_name").isNotNull()).select(
        "d", *_KEYS, "ts", F.struct("ts", "seq", "boot", "event", "code").alias("line")
    )


def _last(event: str) -> Column:
    """The last line of an event; of equal times, the one with the larger line number."""
    return F.max(F.when(F.col("line.event") == event, F.col("line")))


def _running(boots: DataFrame) -> DataFrame:
    """The running boots, in a column ``running_boot``: neither closed nor followed by another one of the same node."""
    each = boots.groupBy("impl", "node", "boot").agg(
        F.min("first_ts").alias("first_ts"), F.max("closed").alias("closed")
    )
    latest = F.max("first_ts").over(Window.partitionBy("impl", "node"))
    return (
        each.withColumn("latest", latest)
        .where(~F.col("closed") & (F.col("first_ts") == F.col("latest")))
        .select(F.col("boot").alias("running_boot"))
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
