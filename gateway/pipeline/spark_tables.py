"""How Spark computes the rows of tables, writes files into them, and reads them.

Spark writes into a fresh directory ``data/<directory>`` of a table. Nobody sees these files before a commit names them
(`Lake.commit_files`), and those that none ever names are removed by `pipeline compact`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.journal.schema import EVENT_WORDS, MESSAGE_EVENTS, VERSION
from gateway.pipeline.lake import Lake
from gateway.pipeline.table_schemas import COLUMNS, HOURLY_TABLES, partitions_of, schema_of

_TEMPLATES: Final = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=select_autoescape(()), undefined=StrictUndefined,
    trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip
_TEMPLATES.globals |= {"version": VERSION, "words": EVENT_WORDS, "message_events": MESSAGE_EVENTS}
QUERIES: Final[Mapping[str, Callable[..., str]]] = {
    name: macro
    for file in ("batches.sql", "tables.sql")
    for name, macro in vars(_TEMPLATES.get_template(file).module).items()
}
"""The macros of both files by name."""

_HIGH_CARDINALITY: Final = {"events": ("ts", "seq", "msg_no", "latency_us", "queue_us", "body_bytes")}
"""Columns whose values rarely repeat: Parquet would begin a dictionary for them and give it up again."""


def computed(query: str, values: Mapping[str, object] | None = None, **frames: DataFrame) -> DataFrame:
    """The rows that one of `QUERIES` computes from others."""
    spark = next(iter(frames.values())).sparkSession
    return spark.sql(QUERIES[query](**(values or {})), None, **frames)


def hadoop_path(url: str) -> str:
    """A directory or URL as Hadoop names it: always with a scheme."""
    return re.sub(r"^s3://", "s3a://", url) if "://" in url else f"file://{url}"


def to_read(url: str) -> str:
    """The same for Spark's readers, which take some characters for patterns."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", hadoop_path(url))


def read_table(
    spark: SparkSession, lake: Lake, table: str, days: Collection[str] | None = None, where: str = ""
) -> DataFrame:
    """The newest snapshot of a table; if wanted, only of the files that `Lake.files` finds."""
    files = lake.files(table, days, where)
    if not files:
        return spark.createDataFrame([], COLUMNS[table])
    rows = spark.read.schema(COLUMNS[table]).parquet(*map(to_read, files))
    # Partitions are in the path only. Spark finds them there if all files have one parent, which these have not.
    path = "_metadata.file_path"
    return rows.withColumns({name: F.regexp_extract(path, f"^.*/{name}=([^/]*)/", 1) for name in partitions_of(table)})


def write_files(rows: DataFrame, lake: Lake, table: str, directory: str) -> None:
    """Write rows, which have at least the table's columns, into a directory of the table.

    A file of one of `HOURLY_TABLES` has rows of one hour.
    """
    plain = {f"parquet.enable.dictionary#{column}": "false" for column in _HIGH_CARDINALITY.get(table, ())}
    time = {"traffic_10s": "ts10", "sessions": "started"}.get(table, "hour")
    by_hour = {"h": F.date_format(time, "HH")} if table in HOURLY_TABLES else {}
    rows = rows.select(*schema_of(table).names).withColumns(by_hour)
    writer = rows.write.option("compression", "zstd").options(**plain).partitionBy(*partitions_of(table), *by_hour)
    writer.parquet(hadoop_path(_place(lake, table, directory)))


def read_files(spark: SparkSession, lake: Lake, table: str, directory: str) -> DataFrame:
    """The rows that `write_files` has written."""
    return spark.read.schema(COLUMNS[table]).parquet(to_read(_place(lake, table, directory)))


def _place(lake: Lake, table: str, directory: str) -> str:
    return f"{lake.table_url(table)}/data/{directory}"
