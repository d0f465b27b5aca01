"""SQL over one snapshot of a lake's tables, answered by DataFusion, which is inside `deltalake`: no Spark, no Java."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from gateway.errors import PipelineError
from gateway.pipeline.table_schemas import COLUMNS, schema_of

_ARROW_NAMES: Final = {
    pa.string(): "Utf8", pa.bool_(): "Boolean", pa.int32(): "Int32", pa.int64(): "Int64", pa.float64(): "Float64",
    pa.list_(pa.string()): "List(Utf8)", pa.binary(): "Binary",
    pa.timestamp("us", "UTC"): 'Timestamp(Microsecond, Some("UTC"))',
}  # fmt: skip
"""The types of our tables' columns as DataFusion names them."""


class SqlError(PipelineError):
    """A query is wrong, or a file that it needs cannot be read."""


class Snapshot:
    """The tables of a lake as they were at one time; a table that is not there yet is empty.

    Whatever other commands commit meanwhile, every query sees the same rows.
    """

    def __init__(self, tables: Mapping[str, DeltaTable | None]) -> None:
        self.tables = tables
        self._builder = QueryBuilder()
        for name in COLUMNS:
            found = tables.get(name)
            if found is None:
                self._builder.execute(_empty_view(name))
            else:
                self._builder.register(name, found)

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """The answer piece by piece, as it is computed, at least one. Raises SqlError as `sql`."""
        try:
            reader = pa.RecordBatchReader.from_stream(self._builder.execute(query))
            plain = pa.schema([field.with_type(_plain(field.type)) for field in reader.schema])
            empty = True
            for batch in reader:
                empty = False
                yield batch.cast(plain, safe=False)
            if empty:
                yield pa.RecordBatch.from_pylist([], plain)
        except Exception as error:  # delta-rs raises plain exceptions for some errors, such as those of Parquet files
            text = " ".join(str(error).split()) or type(error).__name__
            raise SqlError(f"the query failed: {text[:500]}") from error

    def rows(self, query: str) -> Iterator[dict[str, Any]]:
        """The answer row by row. Raises SqlError as `sql`."""
        for batch in self.batches(query):
            yield from batch.to_pylist()

    def sql(self, query: str) -> pa.Table:
        """The answer as a whole. Raises SqlError if the query is wrong or a file cannot be read."""
        return pa.Table.from_batches(self.batches(query))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The same with plain strings, and microseconds, which every consumer of Arrow knows."""
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_binary_view(kind):
        return pa.binary()
    return pa.string() if pa.types.is_string_view(kind) else kind


def _empty_view(table: str) -> str:
    columns = ", ".join(f"{_null(field.type)} as {field.name}" for field in schema_of(table))
    return f"create view {table} as select {columns} where false"


def _null(kind: pa.DataType) -> str:
    """An expression of a type, for a view without rows."""
    if pa.types.is_map(kind):
        return f"map([''], [{_null(kind.item_type)}])"
    return f"arrow_cast(null, '{_ARROW_NAMES[kind]}')"
