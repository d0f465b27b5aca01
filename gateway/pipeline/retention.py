"""What may go: journal segments that are in the lake, and events that are older than anybody wants to know."""

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
from gateway.pipeline import numbering
from gateway.pipeline.compact import recover
from gateway.pipeline.lake import Lake, Segment, remove, sync_directory
from gateway.pipeline.published import (
    Published,
    Retired,
    now_in_words,
    parquet_files,
    write_json,
    writing,
)
from gateway.pipeline.staged import count_lines

_DAY: Final = 86_400


def collect(
    lake: Lake, journal: Path, retain_days: float, events_days: float | None, out: TextIO, *, quiet: bool = False
) -> None:
    """Delete what is old enough.

    Args:
        lake: in which the journal is.
        journal: directory of which segments are deleted, once they are ingested and as they were then.
        retain_days: since their last write; 0 for all that are ingested.
        events_days: how old days of events may become in the lake, with the roll-up and all derived tables kept;
            None for ever.
        out: where to say what was done.
        quiet: say only what could not be done as it ought to have been.

    Raises:
        PipelineError: another process writes into the lake, something in it cannot be read, or there is no journal.
    """
    if not journal.is_dir():
        raise PipelineError(f"there is no journal at {journal}. Give the directory that `pipeline ingest` reads.")
    said = _Said(StringIO() if quiet else out, out)
    with writing(lake):
        recover(lake, said.progress)
        now = Published.of(lake)
        now.require_readable()
        _collect_segments(now, journal, retain_days, said)
        if events_days is not None:
            _collect_events(now, events_days, said)


class _Said(NamedTuple):
    """Where things are said: what was done, and what somebody has to look after."""

    progress: TextIO
    trouble: TextIO


def _collect_segments(now: Published, journal: Path, retain_days: float, said: _Said) -> None:
    ingested = {source.path: source for manifest in now.manifests.values() for source in manifest.segments}
    deleted, octets, kept_young, kept_new = 0, 0, 0, 0
    for path in _finished(journal):
        source = ingested.get(path.relative_to(journal).as_posix())
        if source is None:
            kept_new += 1
        elif time.time() - path.stat().st_mtime < retain_days * _DAY:
            kept_young += 1
        elif not _as_ingested(path, source):
            print(
                f"kept {path}: it has other lines than when it was ingested; see `pipeline check --journal`",
                file=said.trouble,
            )
        else:
            octets += path.stat().st_size
            path.unlink()
            deleted += 1
    _remove_empty_days(journal)
    kept = ", ".join(
        f"{number:,} {why}"
        for number, why in ((kept_new, "not ingested yet"), (kept_young, f"younger than {retain_days:g} days"))
        if number
    )
    kept = f"; kept {kept}" if kept else ""
    print(f"journal: deleted {deleted:,} segments, {octets:,} octets{kept}", file=said.progress)


def _finished(journal: Path) -> Iterator[Path]:
    """Finished segments of the version that is ingested."""
    for path in sorted(journal.glob("d=*/*.v1.jsonl")):
        name = SegmentName.read(path.name)
        if name is not None and str(name) == path.name:
            yield path


def _as_ingested(path: Path, source: Segment) -> bool:
    return count_lines(path) == source.lines


def _remove_empty_days(journal: Path) -> None:
    # A gateway makes the directory of a day, and then a file in it: those of yesterday and today are not to be touched.
    last = f"d={datetime.now(UTC) - timedelta(days=1):%Y-%m-%d}"
    for day in journal.glob("d=*"):
        if day.name < last and day.is_dir() and not any(day.iterdir()):
            day.rmdir()


def _collect_events(now: Published, events_days: float, said: _Said) -> None:
    lake = now.lake
    first_kept = f"{datetime.now(UTC) - timedelta(days=events_days):%Y-%m-%d}"
    needed = _needed(now)
    for place in sorted(lake.table("events").glob("d=*")):
        day = place.name[2:]
        if day >= first_kept:
            continue
        if day in needed:
            print(
                f"events of {day}: kept, since tables that are computed from them lack a batch; run `pipeline ingest`",
                file=said.trouble,
            )
            continue
        living = [path for level in sorted(place.glob("level=*")) for path in now.in_place(level)]
        if living:
            retired = _retirement(day, place, living)
            known = now.retired.get(day)
            # From here on these directories do not belong to the lake, removed or not.
            write_json(lake.retired / f"{day}.json", known.merged(retired) if known else retired)
            octets = sum(path.stat().st_size for directory in living for path in parquet_files(directory))
            print(f"events of {day}: deleted {retired.rows:,} rows, {octets:,} octets", file=said.progress)
        _remove_retired(Published.of(lake), place)
    sync_directory(lake.root)


def _needed(now: Published) -> set[str]:
    """Days of whose events the computed tables do not have all yet."""
    refreshed = now.lake.refreshed()
    pending = [manifest for number, manifest in now.manifests.items() if number > refreshed]
    return {day for manifest in pending for day in (*manifest.days, *manifest.session_days)}


def _retirement(day: str, place: Path, directories: list[Path]) -> Retired:
    files = [path for directory in directories for path in parquet_files(directory)]
    boots: set[str] = set()
    rows = 0
    for path in files:
        with pq.ParquetFile(path) as file:
            rows += file.metadata.num_rows
            for batch in file.iter_batches(columns=["boot"]):
                boots.update(pc.unique(batch.column("boot")).to_pylist())
    ranges = {boot: numbering.joined(numbering.ranges(files, boot)) for boot in sorted(boots)}
    removed = [path.relative_to(place).as_posix() for path in directories]
    return Retired(day, ranges, rows, removed, now_in_words())


def _remove_retired(now: Published, place: Path) -> None:
    """Remove what a day's file of retired events names, as well as what an earlier run left of it."""
    for path in sorted(place.glob("level=*/batch=*")):
        if now.is_retired(path):
            aside = now.lake.staging / "retired"
            remove(aside)
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.rename(path, aside)
            remove(aside)
    for directory in (*sorted(place.glob("level=*")), place):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()
