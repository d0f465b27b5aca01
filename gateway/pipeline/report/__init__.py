"""``stomp-gateway pipeline report``: a lake's tables as one HTML page with plots, which needs no web server."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.parquet_lake import ParquetLake
from gateway.pipeline.report.facts import known_span, read_facts
from gateway.pipeline.report.lake_tables import LakeTables
from gateway.pipeline.report.page import empty_page, full_page
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import micros_of


def write_report(lake: ParquetLake, output: Path, start: datetime | None, end: datetime | None) -> None:
    """Write the report on a lake, or on a part of its time, into a file in one step.

    The lake must exist, but may be empty. ``start`` and ``end``, which is exclusive, need a time zone; None means the
    first and the last event. Raises UsageError if start is not before end, or if one has no time zone, and
    PipelineError if there is no lake, a table cannot be read, or the file cannot be written.
    """
    for option, moment in (("--from", start), ("--to", end)):
        if moment and moment.utcoffset() is None:
            raise UsageError(f"{option} {moment.isoformat()} has no time zone. Append Z for UTC.")
    if start and end and start >= end:
        raise UsageError(f"--from {start.isoformat()} is not before --to {end.isoformat()}. Exchange them.")
    if output.is_dir():
        raise PipelineError(f"-o {output} is a directory. Give the name of a file in it.")
    lake.must_be_listable()
    tables = LakeTables(lake)
    known = known_span(tables)
    span = _requested(known, start, end)
    generated = micros_of(datetime.now(UTC))
    _write(output, full_page(read_facts(tables, span), generated) if span else empty_page(known, generated))


def _requested(known: Span | None, start: datetime | None, end: datetime | None) -> Span | None:
    """The requested part of the known span; None if that is empty."""
    if known is None:
        return None
    first = max(known.start, micros_of(start)) if start else known.start
    last = min(known.end, micros_of(end)) if end else known.end
    return Span(first, last) if first < last else None


def _write(output: Path, page: str) -> None:
    """Write a temporary file in the same directory, then rename it."""
    temporary = output.with_name(f".{output.name[:100]}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(output)
    except OSError as error:
        reason = error.strerror or error
        raise PipelineError(
            f"cannot write {output}: {reason}. Give -o a file in a directory that exists and that you may write to."
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink()
