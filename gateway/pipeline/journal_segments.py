"""The segments of journals: as a stream of lines for Spark, and those in local directories."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.errors import UsageError
from gateway.journal.schema import VERSION
from gateway.journal.segments import PATTERN
from gateway.pipeline.lake import location
from gateway.pipeline.spark_tables import hadoop_path
from gateway.pipeline.stored_segments import StoredSegment, stored_segments

_DAY: Final = "/d=([^/]*)/[^/]*$"
_PATTERN_CHARACTERS: Final = frozenset("*?[]{}\\")


def absolute(journal: str) -> str:
    """A journal's URL as it is, a directory as an absolute path.

    Raises UsageError for one that Spark's stream would take for a pattern.
    """
    found = location(journal)
    if not _PATTERN_CHARACTERS.isdisjoint(found):
        raise UsageError(f"--journal {found}: Spark takes the characters * ? [ ] {{ }} and \\ for patterns. Rename it.")
    return found


def stream_of_lines(spark: SparkSession, journals: Sequence[str], batch_bytes: int) -> DataFrame:
    """A row for each line of the finished segments of all journals, with its segment.

    Spark leaves out files whose names begin with a dot, which unfinished segments have, and remembers in its checkpoint
    what it has read. ``file`` is the segment's name, ``day`` that of its directory.
    """
    reader = spark.readStream.option("lineSep", "\n").option("maxFileAge", "36500d")
    reader = reader.option("maxBytesPerTrigger", str(batch_bytes))
    sources = (reader.text(f"{hadoop_path(journal)}/d=*/{PATTERN}") for journal in journals)
    return reduce(DataFrame.unionAll, (lines_of(source) for source in sources))


def lines_of(texts: DataFrame) -> DataFrame:
    """The lines of Spark's source ``text`` with their segments, see `stream_of_lines`."""
    path = F.col("_metadata.file_path")
    return texts.select(
        "value",
        path.alias("path"),
        F.col("_metadata.file_name").alias("file"),
        F.col("_metadata.file_size").alias("bytes"),
        F.regexp_extract(path, _DAY, 1).alias("day"),
    )


def day_in(path: str) -> str:
    """The day of a segment's directory, as in the column ``day``: that one is searched for again for every line."""
    found = re.search(_DAY, path)
    return found[1] if found else ""


def sizes_in(journals: Sequence[str]) -> dict[str, int] | None:
    """The sizes of the finished segments by name; None if a journal is no directory of this machine.

    Raises PipelineError if a directory is not there or cannot be read.
    """
    if any("://" in journal for journal in journals):
        return None
    return {str(each.name): each.size for each in _finished(journals) if each.name.version == VERSION}


def later_versions_in(journals: Sequence[str]) -> int:
    """How many segments in local directories have a schema version that this release cannot read."""
    return sum(each.name.version > VERSION for each in _finished(each for each in journals if "://" not in each))


def _finished(journals: Iterable[str]) -> Iterator[StoredSegment]:
    return (each for journal in journals for each in stored_segments(journal) if not each.is_open)
