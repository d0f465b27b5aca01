"""Tables: rows as written, a roll-up that adds up to the events, and all files of the computed tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.check.check_output import CheckOutput, first_few, first_paths, reason_of
from gateway.pipeline.check.lake_scan import BYTE_COUNTERS, COUNTERS, EventSums, LakeScan, files_in, rows_of
from gateway.pipeline.parquet_lake import DAY_TABLES, WHOLE_TABLES, listed
from gateway.pipeline.snapshot import LakeSnapshot, is_being_written, parquet_files

_COMPARED: Final = (*COUNTERS, "conn", "end", "use", "sub", "unsub", "err", "blk", "drop", "open", "close")
_FROM_EVENTS: Final = ("boots", "features_used", "durable_days", "sessions")
"""Tables that are not computed again for a day whose events were deleted."""

_RECOMPUTE: Final = (
    "Remove {}/_refreshed.json and run `pipeline ingest`: it computes all days again, but for the sessions and boots "
    "of those whose events were deleted."
)


def check_row_counts(snapshot: LakeSnapshot, scan: LakeScan, output: CheckOutput) -> None:
    """Compare the rows of events and bad_lines with those that the manifests say were written."""
    if scan.unreadable:
        return
    for table, written in (
        ("events", sum(manifest.events for manifest in snapshot.manifests.values())),
        ("bad_lines", sum(manifest.bad_lines for manifest in snapshot.manifests.values())),
    ):
        if scan.rows[table] == written:
            output.ok(f"{table}: {written:,} rows, as written")
            continue
        output.wrong(
            f"{table}: {scan.rows[table]:,} rows, but {written:,} were written{_differing_batches(snapshot, table)}",
            "Files were removed, changed or copied in: restore them, or ingest the journal into a new lake.",
        )


def _differing_batches(snapshot: LakeSnapshot, table: str) -> str:
    """The batches whose rows differ from their manifests; compacted ones cannot be told apart."""
    rows: Counter[int] = Counter()
    compacted = set()
    for partition in snapshot.partitions(table):
        for path in partition.glob("batch=*"):
            ids = snapshot.ids(path)
            if len(ids) == 1 and snapshot.is_current(path):
                rows[ids[0]] += sum(pq.read_metadata(file).num_rows for file in parquet_files(path))
            else:
                compacted.update(ids)
    wrong = [
        f"batch {number}: {rows[number]:,} of {written:,}"
        for number, manifest in snapshot.manifests.items()
        if number not in compacted
        and not any(day in snapshot.retired for day in manifest.days)
        and rows[number] != (written := manifest.events if table == "events" else manifest.bad_lines)
    ]
    return f" ({first_few(wrong)})" if wrong else ""


def check_rollup(snapshot: LakeSnapshot, scan: LakeScan, output: CheckOutput) -> None:
    """Compare the roll-up's sums with those of the events."""
    days: dict[str, EventSums] = defaultdict(EventSums)
    for partition in snapshot.partitions("rollup_10s"):
        sums = days[partition.name[2:]]
        for path in files_in(snapshot, partition):
            for batch in rows_of(path, ["event", "n", "bytes"], scan, output):
                totals = pa.Table.from_batches([batch]).group_by("event").aggregate([("n", "sum"), ("bytes", "sum")])
                for row in totals.to_pylist():
                    sums.n[row["event"]] += row["n_sum"] or 0.0
                    sums.body_bytes[row["event"]] += row["bytes_sum"] or 0.0
    if scan.unreadable:
        return
    wrong = [
        text
        for day in sorted({*days, *scan.days})
        if day not in snapshot.retired
        for text in _differences(day, scan.days[day], days[day])
    ]
    if wrong:
        output.wrong(
            f"the roll-up and the events differ: {first_few(wrong)}",
            "Files of one of them were removed or changed: restore them, or ingest the journal into a new lake.",
        )
    else:
        output.ok(f"the roll-up of {len(days):,} days has the same totals as the events")


def _differences(day: str, events: EventSums, rollup: EventSums) -> Iterable[str]:
    for event in _COMPARED:
        pairs = [("", events.n[event], rollup.n[event])]
        if event in BYTE_COUNTERS:
            pairs.append(("bytes of ", events.body_bytes[event], rollup.body_bytes[event]))
        for what, expected, found in pairs:
            if abs(expected - found) > 1e-9 * max(abs(expected), 1.0):
                yield f"{day} {what}{event}: {found:,.0f} instead of {expected:,.0f}"


def check_computed(snapshot: LakeSnapshot, refreshed: int, output: CheckOutput) -> None:
    """Check that the computed tables have the files of all days, up to the last batch. The figures are not checked.

    `refreshed` is the last batch that the tables have; read it before the snapshot.
    """
    current = _check_last_batch(snapshot, refreshed, output)
    lake = snapshot.lake
    present = [file for table in DAY_TABLES for day in listed(lake.table(table)) for file in _files(day)]
    present += [file for table in WHOLE_TABLES for file in _files(lake.table(table))]
    expected = set(_expected_files(snapshot, refreshed))
    missing = sorted(expected.difference(present))
    if missing:
        output.wrong(
            f"{len(missing)} files of computed tables are not there: {first_paths(missing, lake.root)}",
            _RECOMPUTE.format(lake.root),
        )
    broken = [text for text in map(_why_unreadable, present) if text is not None]
    if broken:
        output.wrong(
            f"{len(broken)} files of computed tables cannot be read: {first_few(broken)}",
            _RECOMPUTE.format(lake.root),
        )
    if current and not missing and not broken:
        output.ok(f"computed tables: {len(expected):,} files, and they have the last batch")


def _check_last_batch(snapshot: LakeSnapshot, refreshed: int, output: CheckOutput) -> bool:
    """Whether the computed tables have the lake's last batch, and no later one."""
    last = max(snapshot.manifests, default=-1)
    if refreshed < last:
        tell = output.note if is_being_written(snapshot.lake) else output.wrong
        tell(
            f"the computed tables lack the last {last - refreshed:,} batches",
            "Run `pipeline ingest`, which computes them. (With --every it does so every five minutes.)",
        )
    elif refreshed > last:
        output.wrong(
            f"the computed tables have batches up to {refreshed}, the lake only up to {last}",
            "A part of the lake was lost, or restored from an older backup than the rest.",
        )
    return refreshed == last


def _files(directory: Path) -> Iterator[Path]:
    return (path for path in listed(directory) if path.suffix == ".parquet")


def _expected_files(snapshot: LakeSnapshot, refreshed: int) -> Iterator[Path]:
    lake = snapshot.lake
    done = [manifest for number, manifest in snapshot.manifests.items() if number <= refreshed]
    days = {day for manifest in done for day in manifest.days}
    session_days = {day for manifest in done for day in manifest.session_days}
    for table in DAY_TABLES:
        for day in session_days if table == "sessions" else days:
            if table not in _FROM_EVENTS or day not in snapshot.retired:
                yield lake.day_file(table, day)
    if days or session_days:
        yield from map(lake.whole_file, WHOLE_TABLES)


def _why_unreadable(path: Path) -> str | None:
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError) as error:
        return f"{path} ({reason_of(error)})"
    return None
