"""What an ingest reads: the segments of a journal, and Spark's checkpoint, which says which segments a batch has.

Spark hands over rows, and silently leaves out a file that is empty, or that was deleted after the batch was planned.
The checkpoint has the plan: ``offsets/<batch>`` names the last entry of the source's log that belongs to the batch, and
``sources/0/<entry>`` lists the files of an entry, or ``sources/0/<later entry>.compact`` those of all entries so far.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlparse

from gateway.errors import PipelineError
from gateway.journal.schema import VERSION
from gateway.journal.segments import PATTERN, SegmentName
from gateway.pipeline.parquet_lake import ParquetLake

_CHUNK: Final = 1 << 20
_AFTER_BRACE: Final = (b"\n", b"}", b",")
_SUSPICIOUS: Final = re.compile(rb"\}(?:[^},\n]|,\{)")
"""A brace with something behind it that may begin a second object. In a string, or from a later gateway, it is fine."""


def require_readable(journal: Path) -> None:
    """Raise PipelineError if the journal is not there, or one of its days cannot be read."""
    try:
        if not journal.is_dir():
            what = "is not a directory" if journal.exists() else "is not there"
            raise PipelineError(f"the journal {journal} {what}: give the directory that the gateway writes into.")
        for _ in journal.iterdir():
            break
        unreadable = next((path for path in journal.glob("d=*") if not _is_readable(path)), None)
    except OSError as error:
        raise PipelineError(f"the journal {journal} cannot be read: {error.strerror or error}.") from error
    if unreadable is not None:
        raise PipelineError(f"the journal cannot be read: no permission for {unreadable}.")


def waiting(journal: Path, ingested: Mapping[str, str]) -> list[Path]:
    """The finished segments that are not among those `ingested`: paths below the journal's directory, by name."""
    return [path for path in _segments(journal) if path.name not in ingested]


def misplaced(journal: Path, ingested: Mapping[str, str]) -> list[Path]:
    """The segments with the name of an `ingested` one that lie in the directory of another day, see `waiting`."""
    return [path for path in _segments(journal) if ingested.get(path.name, _below(path)) != _below(path)]


def later_versions(journal: Path) -> int:
    """How many segments have a schema version that this release cannot read."""
    names = (SegmentName.read(path.name) for path in journal.glob("d=*/[!.]*.jsonl"))
    return sum(name is not None and name.version > VERSION for name in names)


def is_segment(path: Path) -> bool:
    """Whether a file has the name of a segment."""
    return SegmentName.read(path.name) is not None


def _segments(journal: Path) -> list[Path]:
    return [path for path in journal.glob(f"d=*/{PATTERN}") if is_segment(path)]


def _below(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _is_readable(directory: Path) -> bool:
    try:
        next(directory.iterdir(), None)
    except PermissionError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The lines of a segment, and whether one of them may be more than one JSON object."""

    lines: int
    suspicious: bool


def scan_segment(path: Path) -> SegmentScan:
    """Look through a segment without parsing it.

    A JSON parser stops after the first object of a line. This finds most lines with more than that: they do not end
    with a brace, or have a brace in an unusual place, or braces that do not balance.
    """
    lines = objects = braces = 0
    suspicious, last = False, b"\n"
    for chunk in _chunks(path):
        lines += chunk.count(b"\n")
        objects += chunk.count(b"}\n") + (last == b"}" and chunk[:1] == b"\n")
        braces += chunk.count(b"{") - chunk.count(b"}")
        suspicious = (
            suspicious or _SUSPICIOUS.search(chunk) is not None or (last == b"}" and chunk[:1] not in _AFTER_BRACE)
        )
        last = chunk[-1:]
    return SegmentScan(lines + (last != b"\n"), suspicious or objects != lines or braces != 0 or last != b"\n")


def count_lines(path: Path) -> int:
    """The lines of a file; the last one counts even if it does not end with LF."""
    lines, last = 0, b"\n"
    for chunk in _chunks(path):
        lines += chunk.count(b"\n")
        last = chunk[-1:]
    return lines + (last != b"\n")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def planned_segments(checkpoint: Path, batch: int) -> list[Path]:
    """The segments of a batch, sorted, whether they still exist or not.

    Raises PipelineError if the checkpoint does not know the batch any more: Spark deletes old offsets.
    """
    first, last = _log_offset(checkpoint, batch - 1) + 1, _log_offset(checkpoint, batch)
    try:
        return sorted(
            {path for entry in range(first, last + 1) for path in _files(checkpoint / "sources" / "0", entry)}
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(checkpoint, batch) from error


def planned_batches(checkpoint: Path) -> list[int]:
    """The numbers of the planned batches that the checkpoint still has, in order."""
    return _numbers(checkpoint / "offsets")


def require_consistent(lake: ParquetLake) -> None:
    """Raise PipelineError if checkpoint and manifests contradict each other. This changes nothing.

    Batches are numbered without gaps. Each has a manifest before it is committed, and is committed before the next one
    is planned. Otherwise the checkpoint or the manifests were lost, or replaced by an older copy, and an ingest would
    skip segments or discard rows.
    """
    manifests = lake.batch_numbers()
    planned, committed = planned_batches(lake.checkpoint), _numbers(lake.checkpoint / "commits")
    anew = "or ingest into a new lake: segments that are still in the journal are read again."
    if manifests and not planned:
        raise PipelineError(
            f"the lake {lake.root} has batches, but its checkpoint {lake.checkpoint} is gone, which remembers what was "
            f"read. Restore it, {anew}"
        )
    lost = sorted({*committed, *range(max(manifests, default=-1))} - {*manifests})
    if lost and not manifests:
        raise PipelineError(
            f"the lake {lake.root} has a checkpoint, but the manifests in {lake.batches} are gone. Restore them, {anew}"
        )
    if lost:
        raise PipelineError(
            f"the manifest {lake.manifest(lost[0])} of a batch that was completed is gone. Restore it, {anew}"
        )
    if manifests and planned[-1] < manifests[-1]:
        raise outdated(lake, manifests[-1])


def outdated(lake: ParquetLake, batch: int) -> PipelineError:
    """The error for a checkpoint that is older than the lake, so that it does not know a batch of it."""
    return PipelineError(
        f"the checkpoint {lake.checkpoint} is older than the lake: it knows nothing of batch {batch} as it is. Restore "
        "the one that belongs to this lake, or ingest into a new lake: segments that are still in the journal are read "
        "again."
    )


def _numbers(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in directory.glob("[0-9]*") if path.name.isdigit())


def _log_offset(checkpoint: Path, batch: int) -> int:
    if batch < 0:
        return -1
    try:
        return int(json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])["logOffset"])
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _unreadable(checkpoint, batch) from error


def _files(log: Path, entry: int) -> Iterator[Path]:
    plain = log / str(entry)
    source = plain if plain.exists() else _compacted(log, entry)
    for line in source.read_text().splitlines()[1:]:
        found = json.loads(line)
        if found["batchId"] == entry:
            yield Path(unquote(urlparse(found["path"]).path))


def _compacted(log: Path, entry: int) -> Path:
    numbers = (path.stem for path in log.glob("*.compact"))
    return log / f"{min(int(number) for number in numbers if number.isdigit() and int(number) >= entry)}.compact"


def _unreadable(checkpoint: Path, batch: int) -> PipelineError:
    return PipelineError(
        f"the checkpoint {checkpoint} does not say which segments batch {batch} has. Restore it, or ingest into a new "
        "lake: segments that are still in the journal are read again."
    )
