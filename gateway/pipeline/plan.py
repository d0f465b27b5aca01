"""Which segments make up a batch, as the checkpoint has it.

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
