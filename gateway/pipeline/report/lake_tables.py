"""Reads the computed tables with pyarrow, day by day. A table that does not exist has no rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import PipelineError
from gateway.pipeline.parquet_lake import ParquetLake
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import DAY, datetime_of

Row = Mapping[str, object]
_MICROS: Final = pa.timestamp("us", "UTC")
_DAY_PREFIX: Final = "d="


class LakeTables:
    """The computed tables of a lake."""

    def __init__(self, lake: ParquetLake) -> None:
        self._lake = lake

    def days(self, name: str) -> list[str]:
        """The days that a table has, in order."""
        found = self._lake.table(name).glob(f"{_DAY_PREFIX}*/{name}.parquet")
        return sorted(path.parent.name.removeprefix(_DAY_PREFIX) for path in found)

    def day(self, name: str, day: str, columns: Sequence[str]) -> pa.Table:
        """One day of a table; timestamps become microseconds since the epoch."""
        return _read(self._lake.day_file(name, day), columns)

    def parts(self, name: str, columns: Sequence[str], span: Span) -> Iterator[pa.Table]:
        """The days of a table that overlap with a span, one after the other."""
        first, last = f"{datetime_of(span.start):%Y-%m-%d}", f"{datetime_of(span.end - 1):%Y-%m-%d}"
        for day in self.days(name):
            if first <= day <= last:
                yield self.day(name, day, columns)

    def rows(self, name: str, columns: Sequence[str], span: Span | None = None) -> Iterator[Row]:
        """Rows of the days that overlap with a span, or of all days."""
        days = self.days(name)
        parts = self.parts(name, columns, span) if span else (self.day(name, day, columns) for day in days)
        for part in parts:
            yield from part.to_pylist()

    def whole(self, name: str, columns: Sequence[str]) -> list[Row]:
        """Rows of a table with one file."""
        path = self._lake.whole_file(name)
        rows: list[Row] = _read(path, columns).to_pylist() if path.exists() else []
        return rows


def between(part: pa.Table, column: str, first: int, end: int) -> pa.Table:
    """The rows whose time is at or after ``first`` and before ``end``."""
    times = part[column]
    return part.filter(pc.and_(pc.greater_equal(times, first), pc.less(times, end)))


def whole_number(row: Row, column: str) -> int:
    """A count from a row; 0 if there is none."""
    value = row[column]
    return round(value) if isinstance(value, int | float) else 0


def number(row: Row, column: str) -> float | None:
    """A number from a row."""
    value = row[column]
    return float(value) if isinstance(value, int | float) else None


def time(row: Row, column: str) -> int | None:
    """A time from a row, in microseconds since the epoch."""
    value = row[column]
    return value if isinstance(value, int) else None


def text(row: Row, column: str) -> str | None:
    """A text from a row."""
    value = row[column]
    return value if isinstance(value, str) else None


def hour_overlaps(row: Row, span: Span) -> bool:
    """Whether the hour of a row overlaps with a span."""
    hour = time(row, "hour")
    return hour is not None and hour < span.end and hour + DAY // 24 > span.start


def _read(path: Path, columns: Sequence[str]) -> pa.Table:
    try:
        with pq.ParquetFile(path) as file:
            missing = sorted(set(columns) - set(file.schema_arrow.names))
            if missing:
                raise PipelineError(
                    f"{path} has no column {missing[0]}: another version of the pipeline wrote it. Ingest again."
                )
            return _in_micros(file.read(columns=list(columns)))
    except (OSError, pa.ArrowException) as error:
        raise PipelineError(
            f"cannot read {path}: {error}. See that you may read it; if it is damaged, ingest into a new lake."
        ) from None


def _in_micros(part: pa.Table) -> pa.Table:
    for place, field in enumerate(part.schema):
        if pa.types.is_timestamp(field.type):
            column = part.column(place).cast(_MICROS, safe=False).cast(pa.int64())
            part = part.set_column(place, field.name, column)
    return part
