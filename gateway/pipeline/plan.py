"""Which segments make up a batch, as the checkpoint has it, and whether the checkpoint fits to the lake.

Spark hands over rows, and leaves out without a word a file that is empty, or that has been deleted since the batch was
planned. What was planned is in the checkpoint: ``offsets/<batch>`` says up to which entry of the source's log the batch
goes, and ``sources/0/<entry>`` lists its files, or ``sources/0/<later entry>.compact`` those of all entries so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

from gateway.errors import PipelineError
from gateway.pipeline.lake import Lake


def planned(checkpoint: Path, batch: int) -> list[Path]:
    """The segments of a batch, sorted, whether they are still there or not.

    Args:
        checkpoint: of the stream.
        batch: its number; it has been planned, and neither it nor the one before is long ago.

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


def require_fitting(lake: Lake) -> None:
    """See whether the checkpoint and the manifests tell the same story.

    Batches are numbered without holes, each has a manifest before it is committed, and none is planned before the one
    before is committed. Where this does not hold one of both has been lost, or replaced by an older copy; to go on
    would pass over segments, or throw away rows.

    Args:
        lake: of both.

    Raises:
        PipelineError: it does not hold; nothing has been changed.
    """
    manifests = lake.batch_numbers()
    planned_ones, committed = _numbers(lake.checkpoint / "offsets"), _numbers(lake.checkpoint / "commits")
    anew = "or ingest into a new lake: segments that are still in the journal are read again."
    if manifests and not planned_ones:
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
    if manifests and planned_ones[-1] < manifests[-1]:
        raise behind(lake, manifests[-1])


def behind(lake: Lake, batch: int) -> PipelineError:
    """That a batch of the lake is not what the checkpoint makes of its number."""
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
