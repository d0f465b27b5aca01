"""Tables that are computed: are they there, of all days and of the last batch? Not: are their figures right?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.completeness.findings import Findings, named, shortened
from gateway.pipeline.lake import DAY_TABLES, WHOLE_TABLES, listed
from gateway.pipeline.published import Published, is_being_written

_OF_EVENTS: Final = ("boots", "features_used", "durable_days", "sessions")
"""Tables that are not computed again for a day whose events were deleted."""

_ADVICE: Final = (
    "Remove {}/_refreshed.json and run `pipeline ingest`: it computes all days again, but for the sessions and boots "
    "of those whose events were deleted."
)


def check_computed(now: Published, refreshed: int, findings: Findings) -> None:
    """Look at the computed tables' files.

    Args:
        now: what belongs to the lake.
        refreshed: the last batch that the tables have; read before the manifests were.
        findings: where to say it.
    """
    current = _check_batch(now, refreshed, findings)
    lake = now.lake
    there = [file for table in DAY_TABLES for day in listed(lake.table(table)) for file in _files(day)]
    there += [file for table in WHOLE_TABLES for file in _files(lake.table(table))]
    expected = set(_expected(now, refreshed))
    missing = sorted(expected.difference(there))
    if missing:
        findings.wrong(
            f"{len(missing)} files of computed tables are not there: {named(missing, lake.root)}",
            _ADVICE.format(lake.root),
        )
    broken = [text for text in map(_reason, there) if text is not None]
    if broken:
        findings.wrong(
            f"{len(broken)} files of computed tables cannot be read: {shortened(broken)}",
            _ADVICE.format(lake.root),
        )
    if current and not missing and not broken:
        findings.fine(f"computed tables: {len(expected):,} files, and they have the last batch")


def _check_batch(now: Published, refreshed: int, findings: Findings) -> bool:
    """Whether the tables have what the lake has."""
    last = max(now.manifests, default=-1)
    if refreshed < last:
        tell = findings.note if is_being_written(now.lake) else findings.wrong
        tell(
            f"the computed tables lack the last {last - refreshed:,} batches",
            "Run `pipeline ingest`, which computes them. (One that stays, with --every, does so every five minutes.)",
        )
    elif refreshed > last:
        findings.wrong(
            f"the computed tables have batches up to {refreshed}, the lake only up to {last}",
            "A part of the lake was lost, or restored from an older backup than the rest.",
        )
    return refreshed == last


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in listed(directory) if path.suffix == ".parquet")


def _expected(now: Published, refreshed: int) -> Iterator[Path]:
    lake = now.lake
    done = [manifest for number, manifest in now.manifests.items() if number <= refreshed]
    days = {day for manifest in done for day in manifest.days}
    session_days = {day for manifest in done for day in manifest.session_days}
    for table in DAY_TABLES:
        for day in session_days if table == "sessions" else days:
            if table not in _OF_EVENTS or day not in now.retired:
                yield lake.day_file(table, day)
    if days or session_days:
        yield from map(lake.whole_file, WHOLE_TABLES)


def _reason(path: Path) -> str | None:
    """Why a file cannot be read."""
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        return f"{path} ({(str(error).splitlines() or ['?'])[0]})"
    return None
