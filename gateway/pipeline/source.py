"""The journal as an ingest finds it: whether it can be read, and which of its segments wait."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gateway.errors import PipelineError
from gateway.journal.schema import VERSION
from gateway.journal.segments import PATTERN, SegmentName


def require_readable(journal: Path) -> None:
    """See whether the journal is there.

    Args:
        journal: its directory.

    Raises:
        PipelineError: it is not, or one of its days cannot be read.
    """
    try:
        if not journal.is_dir():
            what = "is not a directory" if journal.exists() else "is not there"
            raise PipelineError(f"the journal {journal} {what}: give the directory that the gateway writes into.")
        for _ in journal.iterdir():
            break
        unreadable = next((path for path in journal.glob("d=*") if not _readable(path)), None)
    except OSError as error:
        raise PipelineError(f"the journal {journal} cannot be read: {error.strerror or error}.") from error
    if unreadable is not None:
        raise PipelineError(f"the journal cannot be read: no permission for {unreadable}.")


def waiting(journal: Path, known: Mapping[str, str]) -> list[Path]:
    """The finished segments that have not been read.

    Args:
        journal: its directory.
        known: the paths below the journal of segments that have been read, by name.
    """
    return [path for path in _segments(journal) if path.name not in known]


def misplaced(journal: Path, known: Mapping[str, str]) -> list[Path]:
    """The segments that share their name with one that has been read, and lie in the directory of another day.

    Args:
        journal: its directory.
        known: the paths below the journal of segments that have been read, by name.
    """
    return [path for path in _segments(journal) if known.get(path.name, _below(path)) != _below(path)]


def later_versions(journal: Path) -> int:
    """How many segments are of a schema version that is not known here."""
    names = (SegmentName.read(path.name) for path in journal.glob("d=*/[!.]*.jsonl"))
    return sum(name is not None and name.version > VERSION for name in names)


def is_segment(path: Path) -> bool:
    """Whether a file has the name of a segment."""
    return SegmentName.read(path.name) is not None


def _segments(journal: Path) -> list[Path]:
    return [path for path in journal.glob(f"d=*/{PATTERN}") if is_segment(path)]


def _below(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _readable(directory: Path) -> bool:
    try:
        next(directory.iterdir(), None)
    except PermissionError:
        return False
    return True
