"""How Spark reads the tables of a lake, and writes files into them.

Spark writes into a fresh directory ``data/<directory>`` of a table. Nobody sees these files before a commit names them
(`Lake.commit_files`), and those that none ever names are removed by `pipeline compact`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.pipeline.lake import DataFile, Lake
from gateway.pipeline.table_schemas import COLUMNS, partitions_of, schema_of

_HIGH_CARDINALITY: Final = {"events": ("ts", "seq", "msg_no", "latency_us", "queue_us", "body_bytes")}
"""Columns whose values rarely repeat: Parquet would begin a dictionary for them and give it up again."""


def hadoop_path(url: str) -> str:
    """A directory or URL as Hadoop names it: always with a scheme."""
    return re.sub(r"^s3://", "s3a://", url) if "://" in url else f"file://{url}"


def to_read(url: str) -> str:
    """The same for Spark's readers, which take some characters for patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", hadoop_path(url))


def read_table(
    spark: SparkSession, lake: Lake, table: str, days: Collection[str] | None = None, level: str | None = None
) -> DataFrame:
    """The newest snapshot of a table; if wanted, only of some days, or of one level of ``events``."""
    files = lake.files(table, days, level)
    if not files:
        return spark.createDataFrame([], COLUMNS[table])
    rows = spark.read.schema(_in_files(table)).parquet(*map(to_read, files))
    # Partitions are in the path only. Spark finds them there if all files have one parent, which these have not.
    path = "_metadata.file_path"
    return rows.select(
        "*", *(F.regexp_extract(path, f"^.*/{name}=([^/]*)/", 1).alias(name) for name in partitions_of(table))
    )


def write_files(rows: DataFrame, lake: Lake, table: str, directory: str) -> None:
    """Write rows, which have at least the table's columns, into a directory of the table."""
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in _HIGH_CARDINALITY.get(table, ())}
    writer = rows.select(*schema_of(table).names).write.option("compression", "zstd").options(**plain)
    writer.partitionBy(*partitions_of(table)).parquet(hadoop_path(_place(lake, table, directory)))


def read_files(spark: SparkSession, lake: Lake, table: str, directory: str) -> DataFrame:
    """The rows that `write_files` has written."""
    return spark.read.schema(COLUMNS[table]).parquet(to_read(_place(lake, table, directory)))


def list_files(spark: SparkSession, lake: Lake, table: str, directory: str) -> list[DataFile]:
    """The files that `write_files` has written, those without rows left out."""
    about = ("file_path", "file_size", "file_modification_time")
    try:
        files = read_files(spark, lake, table, directory).select(*(f"_metadata.{name}" for name in about))
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":  # there was nothing to write
            return []
        raise
    counted = files.groupBy(*about).count().withColumn("modified", F.unix_millis("file_modification_time"))
    return [
        _data_file(row["file_path"], row["file_size"], row["modified"], row["count"], directory)
        for row in counted.collect()
    ]


def _data_file(url: str, size: int, modified: int, rows: int, directory: str) -> DataFile:
    below = url.rpartition(f"/data/{directory}/")[2]
    partition = dict(part.split("=", 1) for part in below.split("/")[:-1])
    return DataFile(f"data/{directory}/{below}", size, modified, rows, partition)


def _place(lake: Lake, table: str, directory: str) -> str:
    return f"{lake.table_url(table)}/data/{directory}"


def _in_files(table: str) -> str:
    """The columns that a table's files have: all but its partitions."""
    partitions = partitions_of(table)
    return ", ".join(column for column in COLUMNS[table].split(", ") if column.split(" ")[0] not in partitions)
