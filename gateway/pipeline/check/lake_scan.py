"""Reads the events and bad lines of a lake, and keeps only counts, sums and fingerprints of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.journal.segments import SegmentName
from gateway.pipeline import line_numbers
from gateway.pipeline.check.check_output import CheckOutput, first_few, reason_of
from gateway.pipeline.line_numbers import Range
from gateway.pipeline.parquet_lake import BATCH_TABLES
from gateway.pipeline.snapshot import LakeSnapshot, parquet_files

_BATCH_ROWS: Final = 1 << 18
_ACKS: Final = pa.array(["ack", "nack"])
COUNTERS: Final = {
    "send": ("send",),
    "conf": ("conf", "rejected"),
    "dlv": ("dlv",),
    "ack": ("ack",),
    "nack": ("requeue", "discard"),
}
"""The counters of a stat line that make up ``n`` of an event in the roll-up."""

BYTE_COUNTERS: Final = {"send": ("send_bytes",), "dlv": ("dlv_bytes",)}
"""Those that make up ``bytes``."""


@dataclass
class ScannedBoot:
    """The lines that were found of a boot."""

    rows: int = 0
    largest: int = -1
    fingerprint: int = 0
    closed: bool = False
    dropped: int = 0
    retired: list[Range] = field(default_factory=list)
    bad_numbers: list[int] = field(default_factory=list)
    """Line numbers that could be read from bad lines."""
    unnumbered: Counter[str] = field(default_factory=Counter)
    """Bad lines whose number cannot be read, by segment."""

    def add(self, rows: int, largest: int, fingerprint: int) -> None:
        """Count some of its lines: how many, their largest number and their fingerprint."""
        self.rows += rows
        self.largest = max(self.largest, largest)
        self.fingerprint = (self.fingerprint + fingerprint) % (1 << 64)

    def is_complete(self) -> bool:
        """Whether all numbers from 0 to the largest are there once."""
        return self.rows == self.largest + 1 and self.fingerprint == line_numbers.fingerprint_of_range(0, self.largest)


@dataclass
class EventSums:
    """The totals of ``n`` and ``bytes`` by event."""

    n: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    body_bytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class LakeScan:
    """What was read of the lake."""

    boots: dict[str, ScannedBoot] = field(default_factory=lambda: defaultdict(ScannedBoot))
    days: dict[str, EventSums] = field(default_factory=lambda: defaultdict(EventSums))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BATCH_TABLES, 0))
    bad: Counter[str] = field(default_factory=Counter)
    """Bad lines by segment."""
    files: list[Path] = field(default_factory=list)
    """Readable files of the table events."""
    unreadable: bool = False
    """Whether a file could not be read, so that counts are too small."""


def file_name(path: str) -> str:
    """The file name of a segment, from its path in a journal."""
    return path.rsplit("/", 1)[-1]


def read_events(snapshot: LakeSnapshot, scan: LakeScan, output: CheckOutput) -> None:
    """Count and sum up all events; for deleted ones, use what was noted when they were deleted."""
    for partition in snapshot.partitions("events"):
        day = partition.parent.name[2:]
        columns = ["boot", "seq", "event", "weight", "n", "body_bytes"]
        columns += ["counters"] if partition.name == "level=session" else []
        for path in files_in(snapshot, partition):
            for batch in rows_of(path, columns, scan, output):
                _add_line_numbers(batch, scan)
                _add_sums(batch, scan.days[day])
                scan.rows["events"] += len(batch)
            scan.files.append(path)
    for day, retired in snapshot.retired.items():
        _add_retired(snapshot, day, scan)
        scan.rows["events"] += retired.rows


def files_in(snapshot: LakeSnapshot, partition: Path) -> Iterator[Path]:
    """The files of a partition that belong to the lake."""
    for directory in snapshot.batches_in(partition):
        yield from parquet_files(directory)


def rows_of(path: Path, columns: list[str], scan: LakeScan, output: CheckOutput) -> Iterator[pa.RecordBatch]:
    """Some columns of a file, a batch of rows at a time. Reports a file that cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as error:
        scan.unreadable = True
        output.wrong(
            f"{path} cannot be read: {reason_of(error)}",
            "Restore it from a backup, or ingest the journal into a new lake.",
        )


def _add_line_numbers(batch: pa.RecordBatch, scan: LakeScan) -> None:
    table = pa.table({"boot": batch["boot"], "seq": batch["seq"], "hash": line_numbers.hashed(batch["seq"])})
    wanted = [("seq", "count"), ("seq", "max"), ("hash", "sum")]
    for row in table.group_by("boot").aggregate(wanted).to_pylist():
        scan.boots[row["boot"]].add(row["seq_count"], row["seq_max"], row["hash_sum"])
    ends = batch.filter(pc.is_in(batch["event"], pa.array(["close", "drop"]))).select(["boot", "event", "n"])
    for row in ends.to_pylist():
        boot = scan.boots[row["boot"]]
        boot.closed |= row["event"] == "close"
        boot.dropped += (row["n"] or 0) if row["event"] == "drop" else 0


def _add_sums(batch: pa.RecordBatch, sums: EventSums) -> None:
    """Add up what the roll-up ought to contain."""
    weight = pc.fill_null(batch["weight"], 1.0)
    times = pc.if_else(pc.is_in(batch["event"], _ACKS), pc.fill_null(batch["n"], 1), 1)
    times = pc.if_else(pc.equal(batch["event"], "drop"), pc.fill_null(batch["n"], 0), times)
    body_bytes = pc.multiply(weight, pc.cast(pc.fill_null(batch["body_bytes"], 0), pa.float64()))
    amounts = pa.table(
        {"event": batch["event"], "n": pc.multiply(weight, pc.cast(times, pa.float64())), "bytes": body_bytes}
    )
    for row in amounts.group_by("event").aggregate([("n", "sum"), ("bytes", "sum")]).to_pylist():
        sums.n[row["event"]] += row["n_sum"]
        sums.body_bytes[row["event"]] += row["bytes_sum"]
    if "counters" in batch.schema.names:
        _add_counters(batch, sums)


def _add_counters(batch: pa.RecordBatch, sums: EventSums) -> None:
    counters = batch.filter(pc.equal(batch["event"], "stat"))["counters"]
    table = pa.table({"name": counters.keys, "count": counters.items})
    totals = {row["name"]: row["count_sum"] for row in table.group_by("name").aggregate([("count", "sum")]).to_pylist()}
    for where, names in ((sums.n, COUNTERS), (sums.body_bytes, BYTE_COUNTERS)):
        for event, parts in names.items():
            where[event] += sum(totals.get(part) or 0 for part in parts)


def _add_retired(snapshot: LakeSnapshot, day: str, scan: LakeScan) -> None:
    """Count the deleted events of a day as present."""
    for boot, ranges in snapshot.retired[day].boots.items():
        scan.boots[boot].retired += ranges
        for first, last in ranges:
            scan.boots[boot].add(last - first + 1, last, line_numbers.fingerprint_of_range(first, last))
    try:
        columns = ["boot", "closed", "dropped"]
        table = pq.read_table(snapshot.lake.day_file("boots", day), columns=columns, partitioning=None)
    except (pa.ArrowException, OSError):  # it only says how the boots ended
        return
    for row in table.to_pylist():
        scan.boots[row["boot"]].closed |= bool(row["closed"])
        scan.boots[row["boot"]].dropped += row["dropped"] or 0


def read_bad_lines(snapshot: LakeSnapshot, scan: LakeScan, output: CheckOutput) -> None:
    """Count all bad lines, and compare with what the manifests say of each segment."""
    for path in (path for partition in snapshot.partitions("bad_lines") for path in files_in(snapshot, partition)):
        for batch in rows_of(path, ["file", "line"], scan, output):
            scan.rows["bad_lines"] += len(batch)
            for row in batch.to_pylist():
                _add_bad_line(row["file"], row["line"], scan)
    expected: Counter[str] = Counter()
    for manifest in snapshot.manifests.values():
        for segment in manifest.segments:
            expected[file_name(segment.path)] += segment.bad
    wrong = [name for name in {*expected, *scan.bad} if expected[name] != scan.bad[name]]
    if wrong and not scan.unreadable:
        output.wrong(
            f"{len(wrong)} segments have other bad lines than their manifests say: {first_few(sorted(wrong))}",
            "Files of bad_lines were changed: restore them, or ingest the journal into a new lake.",
        )
    if scan.rows["bad_lines"]:
        output.note(
            f"{scan.rows['bad_lines']:,} bad lines in {len(scan.bad):,} segments",
            "The table bad_lines has them, with reasons. Usual causes are disks, power cuts, and other programs that "
            "wrote into the journal.",
        )


def _add_bad_line(file: str, line: str | None, scan: LakeScan) -> None:
    scan.bad[file_name(file)] += 1
    name = SegmentName.read(file_name(file))
    if name is None:
        return
    boot = scan.boots[name.boot]
    number = _number_in(line)
    if number is None:
        boot.unnumbered[str(name)] += 1
    else:
        boot.bad_numbers.append(number)
        boot.add(1, number, line_numbers.fingerprint_of([number]))


def _number_in(line: str | None) -> int | None:
    """The line number of a bad line, if it can be read."""
    try:
        decoded = msgspec.json.decode(line or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    number = decoded.get("q") if isinstance(decoded, dict) else None
    return number if type(number) is int and 0 <= number < 1 << 62 else None
