"""Spark's checkpoint of the ingest: which segments a batch has, and whether checkpoint and lake agree.

Spark hands over rows, and silently leaves out a file that is empty, or that was deleted after the batch was planned.
The checkpoint has the plan: ``offsets/<batch>`` names the last entry of the source's log that belongs to the batch, and
``sources/0/<entry>`` lists the files of an entry, or ``sources/0/<later entry>.compact`` those of all entries so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

from gateway.errors import PipelineError
from gateway.pipeline.lake import Lake


def planned_segments(checkpoint: Path, batch: int) -> list[Path]:
    """The segments of a batch, sorted, whether they still exist or not.

    Args:
        checkpoint: of the stream.
        batch: that has been planned recently: Spark deletes old offsets.

    Raises:
        PipelineError: the checkpoint does not say.
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


def require_consistent(lake: Lake) -> None:
    """Raise PipelineError if checkpoint and manifests contradict each other; nothing has been changed then.

    Batches are numbered without gaps, each has a manifest before it is committed, and none is planned before the one
    before it is committed. If this does not hold, one of both was lost, or replaced by an older copy; an ingest would
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


def outdated(lake: Lake, batch: int) -> PipelineError:
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
