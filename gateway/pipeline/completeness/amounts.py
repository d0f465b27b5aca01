"""Amounts: as many rows as were written, and a roll-up that sums up to the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from gateway.pipeline.completeness.contents import COUNTED, OCTETS, files_of, rows_of
from gateway.pipeline.completeness.findings import Findings, shortened
from gateway.pipeline.completeness.seen import Seen, Sums
from gateway.pipeline.published import Published, parquet_files

_COMPARED: Final = (*COUNTED, "conn", "end", "use", "sub", "unsub", "err", "blk", "drop", "open", "close")


def check_amounts(now: Published, seen: Seen, findings: Findings) -> None:
    """Rows at hand against those that were written."""
    if seen.unreadable:
        return
    for table, written in (
        ("events", sum(manifest.events for manifest in now.manifests.values())),
        ("bad_lines", sum(manifest.bad_lines for manifest in now.manifests.values())),
    ):
        if seen.rows[table] == written:
            findings.fine(f"{table}: {written:,} rows, as written")
            continue
        findings.wrong(
            f"{table}: {seen.rows[table]:,} rows, but {written:,} were written{_where(now, table)}",
            "Files were removed, changed or copied in: restore them, or ingest the journal into a new lake.",
        )


def _where(now: Published, table: str) -> str:
    """The batches whose rows are not those of their manifests, as far as that can be told."""
    found: Counter[int] = Counter()
    blurred = set()
    for place in now.places(table):
        for path in place.glob("batch=*"):
            ids = now.ids(path)
            if len(ids) == 1 and now.belongs(path):
                found[ids[0]] += sum(pq.read_metadata(file).num_rows for file in parquet_files(path))
            else:
                blurred.update(ids)
    wrong = [
        f"batch {number}: {found[number]:,} of {rows:,}"
        for number, manifest in now.manifests.items()
        if number not in blurred
        and not any(day in now.retired for day in manifest.days)
        and found[number] != (rows := manifest.events if table == "events" else manifest.bad_lines)
    ]
    return f" ({shortened(wrong)})" if wrong else ""


def check_rollup(now: Published, seen: Seen, findings: Findings) -> None:
    """The roll-up's sums against those of the events."""
    days: dict[str, Sums] = defaultdict(Sums)
    for place in now.places("rollup_10s"):
        sums = days[place.name[2:]]
        for path in files_of(now, place):
            for batch in rows_of(path, ["event", "n", "bytes"], seen, findings):
                totals = pa.Table.from_batches([batch]).group_by("event").aggregate([("n", "sum"), ("bytes", "sum")])
                for row in totals.to_pylist():
                    sums.n[row["event"]] += row["n_sum"] or 0.0
                    sums.octets[row["event"]] += row["bytes_sum"] or 0.0
    if seen.unreadable:
        return
    wrong = [
        text
        for day in sorted({*days, *seen.days})
        if day not in now.retired
        for text in _differences(day, seen.days[day], days[day])
    ]
    if wrong:
        findings.wrong(
            f"the roll-up and the events differ: {shortened(wrong)}",
            "Files of one of them were removed or changed: restore them, or ingest the journal into a new lake.",
        )
    else:
        findings.fine(f"the roll-up of {len(days):,} days has the same totals as the events")


def _differences(day: str, events: Sums, rollup: Sums) -> Iterable[str]:
    for event in _COMPARED:
        for what, expected, found in (
            ("", events.n[event], rollup.n[event]),
            (
                "octets of ",
                events.octets[event] if event in OCTETS else 0.0,
                rollup.octets[event] if event in OCTETS else 0.0,
            ),
        ):
            if abs(expected - found) > 1e-9 * max(abs(expected), 1.0):
                yield f"{day} {what}{event}: {found:,.0f} instead of {expected:,.0f}"
