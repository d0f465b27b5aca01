"""Reads the text of a file of RabbitMQ's."""

import re
from pathlib import Path
from typing import Final

from gateway.errors import UsageError
from gateway.migrate.broker_settings import printable

_MAX_SIZE: Final = 4 << 20
_LATIN_1: Final = re.compile(rb"(?:[^\n]*\n)?[^\n]*%[^\n]*coding[:=]\s*latin-1")


def read_text(file: Path) -> str:
    """The text. Raises UsageError, with the file's name, if it cannot be read or is no text."""
    name = printable(str(file))
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_SIZE + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from None
    if len(data) > _MAX_SIZE:
        raise UsageError(f"{name} is larger than any configuration ({_MAX_SIZE >> 20} MiB).")
    try:
        return data.decode("latin-1" if _LATIN_1.match(data) else "utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = data.count(b"\n", 0, error.start) + 1, error.start - data.rfind(b"\n", 0, error.start)
        text = f"{name}: line {line}, byte {column}: This is not UTF-8. Save the file as UTF-8."
        raise UsageError(text) from None
