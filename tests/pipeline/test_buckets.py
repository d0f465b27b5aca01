from __future__ import annotations

import random

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from gateway.journal.histogram import bucket_of, highest_of, lowest_of
from gateway.pipeline.buckets import bucket, highest, lowest

pytestmark = pytest.mark.spark


def test_spark_s_buckets_are_the_histogram_s(spark: SparkSession) -> None:
    chance = random.Random(5)  # noqa: S311 - repeatable is what it must be
    edges = [2**exponent + step for exponent in range(62) for step in (-1, 0, 1)]
    values = [-(2**40), -1, 0, *edges, 2**62, *(chance.getrandbits(chance.randrange(1, 62)) for _ in range(3000))]
    rows = spark.createDataFrame([(value,) for value in values], "value bigint")
    rows = rows.withColumn("bucket", bucket(F.col("value")))
    found = rows.select("value", "bucket", lowest(F.col("bucket")), highest(F.col("bucket")))
    assert found.schema["bucket"].dataType.simpleString() == "int"
    for value, number, low, high in found.collect():
        expected = bucket_of(value)
        assert (number, low, high) == (expected, lowest_of(expected), highest_of(expected)), value


def test_no_value_has_no_bucket(spark: SparkSession) -> None:
    rows = spark.sql("select cast(null as bigint) as value").select(bucket(F.col("value")).alias("bucket"))
    assert rows.select("bucket", highest(F.col("bucket")).alias("high")).collect() == [(None, None)]
