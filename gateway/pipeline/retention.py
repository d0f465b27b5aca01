"""Deletes what is old: journal segments that are in the lake, and old days of the table events."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple, TextIO

import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName
from gateway.pipeline import line_numbers
from gateway.pipeline.compact import recover
from gateway.pipeline.parquet_lake import ParquetLake, remove, sync_directory
from gateway.pipeline.snapshot import (
    LakeSnapshot,
    RetiredDay,
    exclusive_write,
    parquet_files,
    timestamp,
    total_size,
    write_json,
)
from gateway.pipeline.source import count_lines

_DAY: Final = 86_400


class _Output(NamedTuple):
    """Where messages go: what was done, and what needs attention."""

    progress: TextIO
    warnings: TextIO


def collect(
    lake: ParquetLake, journal: Path, retain_days: float, events_days: float | None, out: TextIO, *, quiet: bool = False
) -> None:
    """Delete what is old enough.

    Args:
        lake: that the journal was ingested into.
        journal: directory of the segments. Only segments that are ingested and have not changed since are deleted.
        retain_days: the least age of a deleted segment, since its last write; 0 for all that are ingested.
        events_days: the age from which days of events are deleted; the roll-up and all computed tables stay. None: keep
            all events.
        out: receives the messages.
        quiet: print only what needs attention.

    Raises:
        PipelineError: another process writes into the lake, something in it cannot be read, or there is no journal.
    """
    if not journal.is_dir():
        raise PipelineError(f"there is no journal at {journal}. Give the directory that `pipeline ingest` reads.")
    output = _Output(StringIO() if quiet else out, out)
    with exclusive_write(lake):
        recover(lake, output.progress)
        snapshot = LakeSnapshot.read(lake)
        snapshot.require_readable()
        _collect_segments(snapshot, journal, retain_days, output)
        if events_days is not None:
            _collect_events(snapshot, events_days, output)


def _collect_segments(snapshot: LakeSnapshot, journal: Path, retain_days: float, output: _Output) -> None:
    ingested = {segment.path: segment for manifest in snapshot.manifests.values() for segment in manifest.segments}
    deleted, size, kept_young, kept_new = 0, 0, 0, 0
    for path in _finished(journal):
        segment = ingested.get(path.relative_to(journal).as_posix())
        if segment is None:
            kept_new += 1
        elif time.time() - path.stat().st_mtime < retain_days * _DAY:
            kept_young += 1
        elif count_lines(path) != segment.lines:
            print(
                f"kept {path}: it has other lines than when it was ingested; see `pipeline check --journal`",
                file=output.warnings,
            )
        else:
            size += path.stat().st_size
            path.unlink()
            deleted += 1
    _remove_empty_days(journal)
    kept = ", ".join(
        f"{number:,} {why}"
        for number, why in ((kept_new, "not ingested yet"), (kept_young, f"younger than {retain_days:g} days"))
        if number
    )
    kept = f"; kept {kept}" if kept else ""
    print(f"journal: deleted {deleted:,} segments, {size:,} bytes{kept}", file=output.progress)


def _finished(journal: Path) -> Iterator[Path]:
    """Finished segments of the version that is ingested."""
    for path in sorted(journal.glob("d=*/*.v1.jsonl")):
        name = SegmentName.read(path.name)
        if name is not None and str(name) == path.name:
            yield path


def _remove_empty_days(journal: Path) -> None:
    # A gateway creates the directory of a day before the first file in it: leave those of yesterday and today alone.
    last = f"d={datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    for day in journal.glob("d=*"):
        if day.name < last and day.is_dir() and not any(day.iterdir()):
            day.rmdir()


def _collect_events(snapshot: LakeSnapshot, events_days: float, output: _Output) -> None:
    lake = snapshot.lake
    first_kept = f"{datetime.now(UTC) - timedelta(days=events_days):%Y-%m-%d}"
    pending = _days_not_computed(snapshot)
    for directory in sorted(lake.table("events").glob("d=*")):
        day = directory.name[2:]
        if day >= first_kept:
            continue
        if day in pending:
            print(
                f"events of {day}: kept, since tables that are computed from them lack a batch; run `pipeline ingest`",
                file=output.warnings,
            )
            continue
        batches = [path for level in sorted(directory.glob("level=*")) for path in snapshot.batches_in(level)]
        if batches:
            retired = _retirement(day, directory, batches)
            known = snapshot.retired.get(day)
            # From here on these directories do not belong to the lake, removed or not.
            write_json(lake.retired / f"{day}.json", known.merged(retired) if known else retired)
            print(
                f"events of {day}: deleted {retired.rows:,} rows, {total_size(batches):,} bytes", file=output.progress
            )
        _remove_retired(LakeSnapshot.read(lake), directory)
    sync_directory(lake.root)


def _days_not_computed(snapshot: LakeSnapshot) -> set[str]:
    """Days whose computed tables still need their events."""
    refreshed = snapshot.lake.refreshed()
    pending = [manifest for number, manifest in snapshot.manifests.items() if number > refreshed]
    return {day for manifest in pending for day in (*manifest.days, *manifest.session_days)}


def _retirement(day: str, directory: Path, batches: list[Path]) -> RetiredDay:
    files = [path for batch in batches for path in parquet_files(batch)]
    boots: set[str] = set()
    rows = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            rows += file.metadata.num_rows
            for batch in file.iter_batches(columns=["boot"]):
                boots.update(pc.unique(batch.column("boot")).to_pylist())
    ranges = {boot: line_numbers.joined(line_numbers.ranges(files, boot)) for boot in sorted(boots)}
    removed = [path.relative_to(directory).as_posix() for path in batches]
    return RetiredDay(day, ranges, rows, removed, timestamp())


def _remove_retired(snapshot: LakeSnapshot, directory: Path) -> None:
    """Remove the retired batches of a day, those that an earlier run left behind too."""
    for path in sorted(directory.glob("level=*/batch=*")):
        if snapshot.is_retired(path):
            aside = snapshot.lake.staging / "retired"
            remove(aside)
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(path, aside)
            remove(aside)
    for empty in (*sorted(directory.glob("level=*")), directory):
        if empty.is_dir() and not any(empty.iterdir()):
            empty.rmdir()
