"""Prints the answer to an SQL query as a table, CSV or JSON."""

from __future__ import annotations

import csv
from base64 import b64encode
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice
from typing import Final, TextIO

import msgspec
import pyarrow as pa

from gateway.errors import UsageError
from gateway.pipeline.lake import Lake
from gateway.pipeline.report.client_text import columns_of

FORMATS: Final = ("table", "csv", "json")
_READING: Final = ("select", "with", "explain", "values", "describe", "show", "(")
"""How a statement begins that only reads; DataFusion's others write files and make tables of its own."""
_ROWS_OF_A_TABLE: Final = 1000
"""A table's columns are as wide as their values, so it is read as a whole before it is printed."""


def print_query(lake: Lake, query: str, form: str, out: TextIO) -> None:
    """Print the answer to a query over the tables of a lake; ``form`` is one of `FORMATS`.

    CSV and JSON are written while they are computed, however long; JSON is one object per line. Raises PipelineError if
    there is no lake or the query is wrong, UsageError if it does not only read.
    """
    lake.must_exist()
    if not query.lstrip().lower().startswith(_READING):
        raise UsageError(
            "pipeline sql only reads: begin the query with select, with, explain, values, describe or show."
        )
    batches = lake.snapshot(query).batches(query)
    first = next(batches)
    names = first.schema.names
    rows = (row for batch in chain([first], batches) for row in _rows(batch))
    if form == "csv":
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([_text(value) for value in row] for row in rows)
    elif form == "json":
        for row in rows:
            print(msgspec.json.encode(dict(zip(names, row, strict=True))).decode(), file=out)
    else:
        _print_table(names, rows, out)


def _rows(batch: pa.RecordBatch) -> Iterator[list[object]]:
    columns = [
        [None if value is None else dict(value) for value in column.to_pylist()]
        if pa.types.is_map(column.type) else column.to_pylist()
        for column in batch.columns
    ]  # fmt: skip
    yield from map(list, zip(*columns, strict=True))


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ").removesuffix("+00:00")
    if isinstance(value, bytes):  # a body, which is a text if it can be one
        with suppress(UnicodeDecodeError):
            return value.decode()
        return b64encode(value).decode()
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _print_table(names: list[str], rows: Iterator[list[object]], out: TextIO) -> None:
    shown = [[_printable(_text(value)) for value in row] for row in islice(rows, _ROWS_OF_A_TABLE)]
    rule = ["-" * max(map(columns_of, column)) for column in zip(names, *shown, strict=True)]
    print(*aligned([names, rule, *shown]), sep="\n", file=out)
    if next(rows, None) is not None:
        print(f"... more than {_ROWS_OF_A_TABLE:,} rows: --format csv and json print all of them", file=out)


def _printable(text: str) -> str:
    """The text on one line, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def aligned(rows: Sequence[Sequence[str]], figures: Container[int] = ()) -> Iterator[str]:
    """The lines of a table in plain text; columns of ``figures`` are aligned to the right."""
    widths = [max(map(columns_of, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - columns_of(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (
            gap + cell if place in figures else cell + gap
            for place, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        )
        yield "  ".join(cells).rstrip()
