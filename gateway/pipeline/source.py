"""The journal as the source of an ingest: whether it can be read, its waiting segments, and what their bytes tell."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.errors import PipelineError
from gateway.journal.schema import VERSION
from gateway.journal.segments import PATTERN, SegmentName

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
    """The finished segments that have not been ingested.

    Args:
        journal: its directory.
        ingested: the paths below the journal of ingested segments, by name.
    """
    return [path for path in _segments(journal) if path.name not in ingested]


def misplaced(journal: Path, ingested: Mapping[str, str]) -> list[Path]:
    """The segments with the name of an ingested one that lie in the directory of another day.

    Args:
        journal: its directory.
        ingested: the paths below the journal of ingested segments, by name.
    """
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

    A JSON parser stops after the first object of a line. What follows shows here in most cases: a line that does not
    end with a brace, a brace in an unusual place, or braces that do not balance.
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
