"""Files that a reader sees as a whole or not at all, also after a power failure."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def written_beside(path: Path, data: bytes, mode: int) -> Iterator[Path]:
    """A new file with these bytes, in the directory of ``path``: to be renamed or linked to it in the block.

    What is left of it is removed at the end of the block. A process that is killed leaves a hidden ``.part``.
    """
    new = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        with os.fdopen(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield new
    finally:
        with suppress(OSError):
            new.unlink()
