"""The tables of who was there: boots of gateways, sessions, and the features that clients used."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.journal.schema import FEATURES
from gateway.pipeline.rollup import day_of, whole

_TOTALS = ("frames_in", "frames_out", "bytes_in", "bytes_out", "unacked", "max_unacked")
_OF_END = ("ended", "duration_us", "end_code", *_TOTALS)


def boots(events: DataFrame) -> DataFrame:
    """The boots that wrote on a day.

    ``lines`` is the span of the numbers of the boot's lines, and so counts those of messages, which are not read here.

    Args:
        events: of the day, level session.
    """
    return events.groupBy("node", "impl", "boot").agg(
        F.max("gateway_version").alias("gateway_version"),
        F.min("ts").alias("first_ts"),
        F.max("ts").alias("last_ts"),
        F.max(F.col("event") == "close").alias("closed"),
        (F.max("seq") - F.min("seq") + 1).alias("lines"),
        whole(F.sum(F.when(F.col("event") == "drop", F.col("n").cast("double")).otherwise(0.0))).alias("dropped"),
    )


def sessions(events: DataFrame) -> DataFrame:
    """Sessions, whether or not they have ended; ``d`` is the day on which they began.

    Args:
        events: level session, from the day before the first day wanted to the last day there is: a session ends when it
            likes, and one whose beginning is not among them counts from what its end says.
    """
    common = ("ts", "node", "impl", "vhost", "user")
    began = F.struct(*common, "peer", "tls", "version", "heartbeat", "latency_us")
    totals = (F.coalesce(F.try_element_at("totals", F.lit(name)), F.lit(0)).alias(name) for name in ("us", *_TOTALS))
    ended = F.struct(*common, "code", *totals)
    found = (
        events.where(F.col("event").isin("conn", "end") & F.col("session").isNotNull())
        .groupBy("boot", "session")
        .agg(
            F.max(F.when(F.col("event") == "conn", began)).alias("conn"),
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


def with_ends(before: DataFrame, known: DataFrame) -> DataFrame:
    """Sessions of the past, with their ends where these have become known.

    Args:
        before: rows of ``sessions``.
        known: what `sessions` makes of events in which the beginnings of these sessions are not.
    """
    ends = known.where(F.col("ended").isNotNull()).select("boot", "session", *_OF_END)
    then = before.alias("before").join(ends.alias("ends"), ["boot", "session"], "left")
    names = (name for name in before.columns if name not in _OF_END)
    return then.select(*names, *(F.coalesce(f"before.{name}", f"ends.{name}").alias(name) for name in _OF_END))


def features_used(events: DataFrame) -> DataFrame:
    """Which clients used what, from the events of a day, level session."""
    return (
        events.where(F.col("event") == "use")
        .groupBy("impl", "vhost", "user", "version", F.col("code").alias("feature"))
        .agg(
            F.count_distinct("boot", "session").alias("sessions"),
            F.min("ts").alias("first_seen"),
            F.max("ts").alias("last_seen"),
        )
        .withColumn("supported", _known(F.col("feature")))
    )


def _known(feature: Column) -> Column:
    return F.coalesce(feature.isin(*FEATURES), F.lit(False))
