"""The file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from gateway.errors import GatewayError, UsageError

_PRIVATE: Final = 0o600
_ORDINARY: Final = 0o644


def refuse_existing(file: Path) -> None:
    """Raise `UsageError` if there is such a file."""
    if file.exists():
        raise UsageError(f"{file} is there already. Give another name, or --force to replace it.")


def write(file: Path, text: str, *, secret: bool, force: bool) -> None:
    """Write a file.

    Args:
        file: its name.
        text: all of it.
        secret: whether only its owner may read it.
        force: whether it may replace another one.

    Raises:
        GatewayError: it cannot be written.
        UsageError: there is another one.
    """
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fchmod(opened.fileno(), _PRIVATE if secret else _ORDINARY & ~_umask())
        if force:
            os.replace(temporary, file)
            temporary = ""
        else:
            os.link(temporary, file)  # which never replaces anything
    except FileExistsError:
        refuse_existing(file)
    except OSError as error:
        raise GatewayError(f"{file} cannot be written: {error.strerror or error}.") from None
    finally:
        if temporary:
            Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
