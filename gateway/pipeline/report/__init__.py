"""``stomp-gateway pipeline report``: a lake's tables as one page of HTML, with plots, that opens from disk."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from gateway.errors import PipelineError, UsageError
from gateway.pipeline.lake import Lake
from gateway.pipeline.report.facts.facts import gather, known_span
from gateway.pipeline.report.facts.reading import Tables
from gateway.pipeline.report.page import empty_page, full_page
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import micros_of


def write_report(lake: Lake, output: Path, start: datetime | None, end: datetime | None) -> None:
    """Write the report on a lake, or on a part of its time.

    Args:
        lake: where the tables are; it may be empty, but must be there.
        output: the file to write; it appears whole or not at all.
        start: the first moment to report on; with a time zone.
        end: the moment up to which to report; with a time zone.

    Raises:
        UsageError: if there is no time between start and end.
        PipelineError: if there is no lake, a table cannot be read, or the file cannot be written.
    """
    for option, moment in (("--from", start), ("--to", end)):
        if moment and moment.utcoffset() is None:
            raise UsageError(f"{option} {moment.isoformat()} has no time zone. Append Z for UTC.")
    if start and end and start >= end:
        raise UsageError(f"--from {start.isoformat()} is not before --to {end.isoformat()}. Exchange them.")
    if output.is_dir():
        raise PipelineError(f"-o {output} is a directory. Give the name of a file in it.")
    lake.must_be_listable()
    tables = Tables(lake)
    known = known_span(tables)
    span = _asked(known, start, end)
    generated = micros_of(datetime.now(UTC))
    _write(output, full_page(gather(tables, span), generated) if span else empty_page(known, generated))


def _asked(known: Span | None, start: datetime | None, end: datetime | None) -> Span | None:
    """What was asked for of what is known; None if that is nothing."""
    if known is None:
        return None
    first = max(known.start, micros_of(start)) if start else known.start
    last = min(known.end, micros_of(end)) if end else known.end
    return Span(first, last) if first < last else None


def _write(output: Path, page: str) -> None:
    """Write to a file beside it, then put that into its place."""
    beside = output.with_name(f".{output.name[:100]}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(output)
    except OSError as trouble:
        reason = trouble.strerror or trouble
        raise PipelineError(
            f"cannot write {output}: {reason}. Give -o a file in a directory that exists and that you may write to."
        ) from None
    finally:
        with suppress(OSError):
            beside.unlink()
