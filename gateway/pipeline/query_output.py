"""Prints the answer to an SQL query as a table, CSV or JSON."""

from __future__ import annotations

import csv
import re
import threading
import time
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, islice, zip_longest
from queue import Empty, Queue
from typing import Final, TextIO

import msgspec
import pyarrow as pa
from rich.cells import cell_len

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake import Lake
from gateway.pipeline.lake_sql import Snapshot, SqlError
from gateway.texts import aligned, printable

FORMATS: Final = ("table", "csv", "json")
_READING: Final = re.compile(
    r"(?:Analyze\s+)?(?:Projection|Filter|WindowAggr|Aggregate|Sort|Limit|Union|Distinct|DistinctOn|Unnest|Values|Subquery|"
    r"SubqueryAlias|EmptyRelation|TableScan|RecursiveQuery|Repartition|DescribeTable|CrossJoin|\w+ Join|Cross Join)\b"
)
"""The top of a logical plan that only reads. Plans that write files or make tables have that at their top."""
_EXPLAIN: Final = "explain format indent\n"
"""Shows the plan of what follows. Without the format, a query that begins with `analyze` would run."""
_ROWS_OF_A_TABLE: Final = 1000
"""A table's columns are as wide as their values, so it is read as a whole before it is printed."""


def print_query(lake: Lake, query: str, form: str, out: TextIO, *, timeout: float | None = None) -> None:
    """Print the answer to a query over the tables of a lake; ``form`` is one of `FORMATS`.

    CSV and JSON are written while they are computed, however long; JSON is one object per line. Raises PipelineError if
    there is no lake, the query is wrong or takes more than `timeout` seconds, UsageError if it does not only read.
    """
    lake.must_exist()
    snapshot = lake.snapshot(query)
    is_explain = _is_explain(snapshot, query)
    batches = _within(snapshot.batches(query), timeout)
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
        _print_table(names, rows, out, has_lines=is_explain)


def _is_explain(snapshot: Snapshot, query: str) -> bool:
    """Whether a query shows a plan itself. Raises UsageError unless its plan only reads, SqlError if it has none."""
    try:
        plan = next(snapshot.rows(_EXPLAIN + query))["plan"]
    except SqlError as error:
        if "Nested EXPLAINs are not supported" in str(error):
            return True
        text = re.sub(r"Line: (\d+)", lambda found: f"Line: {int(found[1]) - 1}", str(error))
        raise SqlError(text) from error
    if not _READING.match(plan):
        raise UsageError(f"pipeline sql only reads, and the plan of this query is: {plan.splitlines()[0][:200]}")
    return False


def _within(batches: Iterator[pa.RecordBatch], seconds: float | None) -> Iterator[pa.RecordBatch]:
    """The same. Raises PipelineError when so many seconds have passed; the query then ends with the process.

    DataFusion cannot be interrupted, so it works in a thread, which also lets Ctrl-C end the process.
    """
    until = None if seconds is None else time.monotonic() + seconds
    made: Queue[pa.RecordBatch | BaseException | None] = Queue(2)

    def work() -> None:
        try:
            for batch in batches:
                made.put(batch)
            made.put(None)
        except BaseException as error:  # noqa: BLE001 - raised where they are wanted
            made.put(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            found = made.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            raise PipelineError(
                f"the query took longer than {seconds:g} seconds (--timeout), and was given up."
            ) from None
        if found is None:
            return
        if isinstance(found, BaseException):
            raise found
        yield found


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


def _print_table(names: list[str], rows: Iterator[list[object]], out: TextIO, *, has_lines: bool) -> None:
    """Print rows. Line breaks are kept only with ``has_lines``: in a client's text they could make up rows."""
    texts: Iterable[Sequence[str]] = ([_text(value) for value in row] for row in islice(rows, _ROWS_OF_A_TABLE))
    if has_lines:
        several = ([text.rstrip().split("\n") for text in row] for row in texts)
        texts = (line for row in several for line in zip_longest(*row, fillvalue=""))
    shown = [[printable(text) for text in row] for row in texts]
    rule = ["-" * max(map(cell_len, column)) for column in zip(names, *shown, strict=True)]
    print(*aligned([names, rule, *shown]), sep="\n", file=out)
    if next(rows, None) is not None:
        print(f"... more than {_ROWS_OF_A_TABLE:,} rows: --format csv and json print all of them", file=out)
