"""Inputs that broke a promise: kept in files, told with the way to see it again, and made smaller first."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.fuzz.targets import TARGETS

DIRECTORY: Final = Path("var/fuzz")
"""Where findings and the inputs that atheris keeps lie, from the repository's root."""

# Runs of the target that making an input smaller may take.
_TRIES: Final = 4000


def broken(target: str, data: bytes) -> Exception | None:
    """What an input makes a target raise; None where it keeps every promise."""
    try:
        TARGETS[target](data)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return error
    return None


def save(target: str, data: bytes, directory: Path = DIRECTORY) -> Path:
    """Write an input to a file that bears the target's name."""
    directory.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(data).hexdigest()[:12]
    path = directory / f"{target}-{name}"
    path.write_bytes(data)
    return path


def tell(path: Path, target: str, error: Exception) -> str:
    """A finding in words: what happened where, and how to see it again."""
    where = "".join(traceback.format_exception(error))
    return f"{where}\nThe input is in {path}; see it again with: python -m tests.fuzz --target {target} {path}"


def replay(path: Path, target: str | None) -> str | None:
    """Run the input of a file.

    Args:
        path: the file.
        target: through which target; by the file's name where None, and through all where that tells nothing.

    Returns:
        What broke, in words; None where nothing did.
    """
    data = path.read_bytes()
    named = [name for name in TARGETS if path.name.startswith(f"{name}-")]
    for name in [target] if target else named or list(TARGETS):
        error = broken(name, data)
        if error is not None:
            return tell(path, name, error)
    return None


def smaller(data: bytes, still_breaks: Callable[[bytes], bool]) -> bytes:
    """Leave out of an input what it does not need, in pieces that become smaller and smaller."""
    tries = 0
    size = max(1, len(data) // 2)
    while size and tries < _TRIES:
        at = 1  # the setting stays
        while at < len(data) and tries < _TRIES:
            tries += 1
            shorter = data[:at] + data[at + size :]
            if still_breaks(shorter):
                data = shorter
            else:
                at += size
        size //= 2
    return data


def reduced(target: str, data: bytes, error: Exception) -> bytes:
    """A smaller input that makes the target raise the same kind of error at the same place."""

    def still_breaks(candidate: bytes) -> bool:
        found = broken(target, candidate)
        return found is not None and _place(found) == _place(error)

    return smaller(data, still_breaks)


def _place(error: Exception) -> tuple[type[Exception], str, int]:
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if "/tests/fuzz/violation" not in frame.filename][-1]
    return type(error), last.filename, last.lineno or 0
