"""Reading a lake: its events and bad lines, of which only counts, sums and fingerprints are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.journal.segments import SegmentName
from gateway.pipeline import numbering
from gateway.pipeline.completeness.findings import Findings, shortened
from gateway.pipeline.completeness.seen import Seen, Sums, file_of
from gateway.pipeline.published import Published, parquet_files

_BATCH_ROWS: Final = 1 << 18
_ACKS: Final = pa.array(["ack", "nack"])
COUNTED: Final = {
    "send": ("send",),
    "conf": ("conf", "rejected"),
    "dlv": ("dlv",),
    "ack": ("ack",),
    "nack": ("requeue", "discard"),
}
"""What of a stat line's counters goes into which event of the roll-up."""

OCTETS: Final = {"send": ("send_bytes",), "dlv": ("dlv_bytes",)}
"""The same for octets."""


def read_events(now: Published, seen: Seen, findings: Findings) -> None:
    """Count and sum up all events, deleted ones with what was noted of them."""
    for place in now.places("events"):
        day = place.parent.name[2:]
        columns = ["boot", "seq", "event", "weight", "n", "body_bytes"]
        columns += ["counters"] if place.name == "level=session" else []
        for path in files_of(now, place):
            batches = rows_of(path, columns, seen, findings)
            for batch in batches:
                _tally(batch, seen)
                _sum(batch, seen.days[day])
                seen.rows["events"] += len(batch)
            seen.files.append(path)
    for day, retired in now.retired.items():
        _add_retired(now, day, seen)
        seen.rows["events"] += retired.rows


def files_of(now: Published, place: Path) -> Iterator[Path]:
    """The files of a place that belong to the lake."""
    for directory in now.in_place(place):
        yield from parquet_files(directory)


def rows_of(path: Path, columns: list[str], seen: Seen, findings: Findings) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, a batch of rows at a time; says so where it cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as error:
        seen.unreadable = True
        reason = (str(error).splitlines() or ["?"])[0]
        findings.wrong(
            f"{path} cannot be read: {reason}", "Restore it from a backup, or ingest the journal into a new lake."
        )


def _tally(batch: pa.RecordBatch, seen: Seen) -> None:
    """Count the numbers of each boot."""
    table = pa.table({"boot": batch["boot"], "seq": batch["seq"], "mixed": numbering.mixed(batch["seq"])})
    wanted = [("seq", "count"), ("seq", "max"), ("mixed", "sum")]
    for row in table.group_by("boot").aggregate(wanted).to_pylist():
        seen.boots[row["boot"]].add(row["seq_count"], row["seq_max"], row["mixed_sum"])
    ends = batch.filter(pc.is_in(batch["event"], pa.array(["close", "drop"]))).select(["boot", "event", "n"])
    for row in ends.to_pylist():
        boot = seen.boots[row["boot"]]
        boot.closed |= row["event"] == "close"
        boot.dropped += (row["n"] or 0) if row["event"] == "drop" else 0


def _sum(batch: pa.RecordBatch, sums: Sums) -> None:
    """Add up what the roll-up ought to say."""
    weight = pc.fill_null(batch["weight"], 1.0)
    times = pc.if_else(pc.is_in(batch["event"], _ACKS), pc.fill_null(batch["n"], 1), 1)
    times = pc.if_else(pc.equal(batch["event"], "drop"), pc.fill_null(batch["n"], 0), times)
    octets = pc.multiply(weight, pc.cast(pc.fill_null(batch["body_bytes"], 0), pa.float64()))
    amounts = pa.table(
        {"event": batch["event"], "n": pc.multiply(weight, pc.cast(times, pa.float64())), "bytes": octets}
    )
    for row in amounts.group_by("event").aggregate([("n", "sum"), ("bytes", "sum")]).to_pylist():
        sums.n[row["event"]] += row["n_sum"]
        sums.octets[row["event"]] += row["bytes_sum"]
    if "counters" in batch.schema.names:
        _sum_counters(batch, sums)


def _sum_counters(batch: pa.RecordBatch, sums: Sums) -> None:
    counters = batch.filter(pc.equal(batch["event"], "stat"))["counters"]
    table = pa.table({"name": counters.keys, "count": counters.items})
    totals = {row["name"]: row["count_sum"] for row in table.group_by("name").aggregate([("count", "sum")]).to_pylist()}
    for where, names in ((sums.n, COUNTED), (sums.octets, OCTETS)):
        for event, parts in names.items():
            where[event] += sum(totals.get(part) or 0 for part in parts)


def _add_retired(now: Published, day: str, seen: Seen) -> None:
    """Count deleted events as present."""
    for boot, found in now.retired[day].boots.items():
        seen.boots[boot].retired += found
        for first, last in found:
            seen.boots[boot].add(last - first + 1, last, numbering.fingerprint_of_range(first, last))
    try:
        table = pq.read_table(now.lake.day_file("boots", day), columns=["boot", "closed", "dropped"], partitioning=None)
    except (pa.ArrowException, OSError):  # it only says how the boot ended
        return
    for row in table.to_pylist():
        seen.boots[row["boot"]].closed |= bool(row["closed"])
        seen.boots[row["boot"]].dropped += row["dropped"] or 0


def read_bad_lines(now: Published, seen: Seen, findings: Findings) -> None:
    """Count all bad lines, and compare with what the manifests say of each segment."""
    for path in (path for place in now.places("bad_lines") for path in files_of(now, place)):
        for batch in rows_of(path, ["file", "line"], seen, findings):
            seen.rows["bad_lines"] += len(batch)
            for row in batch.to_pylist():
                _add_bad_line(row["file"], row["line"], seen)
    counted: Counter[str] = Counter()
    for manifest in now.manifests.values():
        for source in manifest.segments:
            counted[file_of(source.path)] += source.bad
    wrong = [name for name in {*counted, *seen.bad} if counted[name] != seen.bad[name]]
    if wrong and not seen.unreadable:
        findings.wrong(
            f"{len(wrong)} segments have other bad lines than their manifests say: {shortened(sorted(wrong))}",
            "Files of bad_lines were changed: restore them, or ingest the journal into a new lake.",
        )
    if seen.rows["bad_lines"]:
        findings.note(
            f"{seen.rows['bad_lines']:,} bad lines in {len(seen.bad):,} segments",
            "The table bad_lines has them, with reasons. They come from disks, power cuts or other hands.",
        )


def _add_bad_line(file: str, line: str | None, seen: Seen) -> None:
    seen.bad[file_of(file)] += 1
    name = SegmentName.read(file_of(file))
    if name is None:
        return
    boot = seen.boots[name.boot]
    number = _number_in(line)
    if number is None:
        boot.unnumbered[str(name)] += 1
    else:
        boot.bad_numbers.append(number)
        boot.add(1, number, numbering.fingerprint_of([number]))


def _number_in(line: str | None) -> int | None:
    """The number of a bad line, where it can be read."""
    try:
        found = msgspec.json.decode(line or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    number = found.get("q") if isinstance(found, dict) else None
    return number if type(number) is int and 0 <= number < 1 << 62 else None
