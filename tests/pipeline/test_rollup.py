from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.journal import histogram
from gateway.pipeline.batches import lines_of
from gateway.pipeline.spark_tables import QUERIES, computed
from gateway.pipeline.stored_segments import stored_segments
from gateway.pipeline.table_schemas import schema_of
from tests.support.journals import START, write_segment

pytestmark = pytest.mark.spark

WHO = {"c": 1, "vh": "/", "u": "app", "d": "/queue/a", "dk": "queue"}
GOT = {**WHO, "s": "0", "am": "client", "m": 1}


def rolled(spark: SparkSession, directory: Path, lines: Iterable[Mapping[str, object]]) -> list[Row]:
    path = write_segment(directory, [{"t": START, **line} for line in lines])
    (segment,) = (each for each in stored_segments(directory) if each.path == str(path))
    rows = computed("roll_up", events=computed("events", lines=lines_of(spark, [segment])))
    return [row for row in rows.orderBy("ts10", "event", "code", "bucket").collect() if row.event != "open"]


def test_lines_of_the_same_10_seconds_are_added_up(spark: SparkSession, tmp_path: Path) -> None:
    send = {"e": "send", **WHO, "m": 1, "b": 100}
    rows = rolled(
        spark, tmp_path, [send, {**send, "t": START + 9_999_999, "w": 2.5, "b": 10}, {**send, "t": START + 10_000_000}]
    )
    assert [(row.n, row.bytes) for row in rows] == [(3.5, 125.0), (1.0, 100.0)]
    assert {row.d for row in rows} == {"2026-11-21"}
    assert set(rows[0].asDict()) == set(schema_of("rollup_10s").names)


def test_the_counters_of_a_stat_line_become_rows(spark: SparkSession, tmp_path: Path) -> None:
    counters = {"dlv": 10, "dlv_bytes": 900, "redelivered": 4, "ack": 7, "requeue": 2, "discard": 1}
    histogram = {"ack:31": 3, "ack:40": 2, "nack:40": 3, "ack:oddly": 9}
    rows = rolled(spark, tmp_path, [{"e": "stat", **WHO, "s": "0", "am": "client", "cnt": counters, "h": histogram}])
    assert [(row.event, row.code, row.bucket, row.n, row.bytes) for row in rows] == [
        ("ack", None, None, 2.0, 0.0),
        ("ack", None, 31, 3.0, 0.0),
        ("ack", None, 40, 2.0, 0.0),
        ("deliver", None, None, 6.0, 900.0),
        ("deliver", "redelivered", None, 4.0, 0.0),
        ("nack", "discard", None, 1.0, 0.0),
        ("nack", "requeue", None, 2.0, 0.0),
    ]
    assert {row.ack_mode for row in rows} == {"client"}


def test_bytes_are_kept_where_all_deliveries_were_redeliveries(spark: SparkSession, tmp_path: Path) -> None:
    rows = rolled(spark, tmp_path, [{"e": "stat", **WHO, "cnt": {"dlv": 2, "dlv_bytes": 50, "redelivered": 2}}])
    assert [(row.code, row.n, row.bytes) for row in rows] == [(None, 0.0, 50.0), ("redelivered", 2.0, 0.0)]


def test_a_cumulative_acknowledgement_counts_for_all_that_it_covers(spark: SparkSession, tmp_path: Path) -> None:
    ack = {"e": "ack", **GOT, "n": 3, "l": 5, "w": 2.0}
    rows = rolled(spark, tmp_path, [ack, {"e": "ack", **GOT}, {"e": "nack", **GOT, "n": 2, "x": "requeue", "l": 5}])
    assert [(row.event, row.code, row.bucket, row.n) for row in rows] == [
        ("ack", None, None, 1.0),
        ("ack", None, 5, 6.0),
        ("nack", "requeue", None, 2.0),
    ]


def test_the_time_in_the_queue_is_an_event_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    delivery = {"e": "dlv", **GOT, "b": 7}
    rows = rolled(
        spark,
        tmp_path,
        [{**delivery, "ql": 40, "w": 2.0}, delivery, {"e": "stat", **GOT, "cnt": {"dlv": 3}, "h": {"queue:31": 2}}],
    )
    assert [(row.event, row.bucket, row.n, row.bytes) for row in rows] == [
        ("deliver", None, 6.0, 21.0),
        ("queue", 31, 2.0, 0.0),
        ("queue", 36, 2.0, 0.0),
    ]


def test_a_rejection_has_no_latency(spark: SparkSession, tmp_path: Path) -> None:
    conf = {"e": "conf", **WHO, "m": 1, "l": 20}
    rows = rolled(spark, tmp_path, [conf, {**conf, "x": "rejected"}])
    assert [(row.code, row.bucket, row.n) for row in rows] == [(None, 20, 1.0), ("rejected", None, 1.0)]


def test_what_nobody_knows_is_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    assert rolled(spark, tmp_path, [{"e": "later", **WHO}]) == []


def test_days_do_not_follow_the_session_s_time_zone(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        rows = rolled(spark, tmp_path, [{"e": "close", "t": START + 86_399_999_999}])
    finally:
        spark.conf.set("spark.sql.session.timeZone", before or "UTC")
    assert [row.d for row in rows] == ["2026-11-21"]


def test_spark_s_buckets_are_the_histogram_s(spark: SparkSession) -> None:
    chance = random.Random(5)  # noqa: S311 - repeatable is what it must be
    edges = [2**exponent + step for exponent in range(62) for step in (-1, 0, 1)]
    values = [-(2**40), -1, 0, *edges, 2**62, *(chance.getrandbits(chance.randrange(1, 62)) for _ in range(3000))]
    rows = spark.createDataFrame([(value,) for value in values], "value bigint")
    rows = rows.select("value", F.expr(QUERIES["bucket_of"]("value")).alias("bucket"))
    found = rows.select("value", "bucket", *(F.expr(QUERIES[name]("bucket")) for name in ("lowest_of", "highest_of")))
    assert found.schema["bucket"].dataType.simpleString() == "int"
    for value, number, low, high in found.collect():
        bucket = histogram.bucket_of(value)
        assert (number, low, high) == (bucket, histogram.lowest_of(bucket), histogram.highest_of(bucket)), value


def test_no_value_has_no_bucket(spark: SparkSession) -> None:
    rows = spark.sql(f"select {QUERIES['bucket_of']('cast(null as bigint)')} as bucket")
    assert rows.select("bucket", F.expr(QUERIES["highest_of"]("bucket"))).collect() == [(None, None)]
