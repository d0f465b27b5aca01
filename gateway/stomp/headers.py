"""Header lines: escapes, lines to names and values, and the readers of typed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.errors import FrameError

# Swaps the two bytes: while a value is decoded, each stands for the other.
_SWAPPED: Final = bytes.maketrans(b"\n\\", b"\\\n")
_ESCAPED: Final = b"\\:\n\r"
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")

# RabbitMQ's adapter reads numbers of any length. The time to read one grows with the square of its length, so there
# must be a limit.
_LONGEST_INTEGER: Final = 1000

_TRUE: Final = (b"true", b"True")
_FALSE: Final = (b"false", b"False")


def escape(value: bytes) -> bytes:
    """Encode a header name or value for the wire: colon, backslash, LF and CR become escapes.

    STOMP 1.2, "Value Encoding". RabbitMQ's adapter decodes and encodes these in every version, and in CONNECT and
    CONNECTED too. Clients that moved between versions rely on it.
    """
    if value.isalnum():
        # As most receipts and ids are; for bytes it means ASCII.
        return value
    return value.replace(b"\\", b"\\\\").replace(b":", b"\\c").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def needs_escape(text: bytes) -> bool:
    """Whether `escape` would change a text, which may be several values joined."""
    return len(text.translate(None, _ESCAPED)) != len(text)


def unescape(value: bytes) -> bytes:
    """Decode the escapes of a header name or value, which has no line end in it.

    Raises:
        FrameError: for any escape that STOMP 1.2 does not define ("Undefined escape sequences ... MUST be treated as a
            fatal protocol error"). The text does not show the value, which may be a passcode.
    """
    if b"\\" not in value:
        return value
    # One pass for each kind of escape: a value may have a million of them. LF stands in for the decoded backslash,
    # because no value has one here.
    text = value.replace(b"\\\\", b"\n").replace(b"\\c", b":").replace(b"\\r", b"\r")
    if text.count(b"\\") != text.count(b"\\n"):
        raise FrameError("undefined escape sequence")
    return text.replace(b"\\n", b"\\").translate(_SWAPPED)


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Split one header line, without its LF, at the first colon; name and value, unescaped.

    Either may be empty, and nothing is trimmed. One trailing CR is part of the line's end.

    Raises:
        FrameError: when there is no colon, a carriage return inside, or an undefined escape. The text shows at most a
            header's name: a line without a colon may be part of a passcode.
    """
    if b"\r" in line:
        line = line.removesuffix(b"\r")
        if b"\r" in line:
            raise FrameError("a carriage return that is not followed by a line feed in a header")
    name, colon, value = line.partition(b":")
    if not colon:
        raise FrameError(f"a header line without a colon, {len(line)} octets long")
    if b"\\" not in line:
        return name, value
    try:
        return unescape(name), unescape(value)
    except FrameError as error:
        raise FrameError(f"{error} in header {printable(name)}") from None


def trim_values(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Headers as STOMP 1.0 reads them: without leading spaces in the values."""
    return {name: value.lstrip(b" ") for name, value in headers.items()}


def read_boolean(value: bytes | None) -> bool | None:
    """Read a boolean header: exactly ``true``, ``True``, ``false`` or ``False``; None for everything else."""
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    return None


def read_integer(value: bytes) -> int | None:
    """Read a decimal integer header; spaces around it and a sign are allowed. None when it is malformed."""
    text = value.strip(b" ")
    return int(text) if _INTEGER.fullmatch(text) and len(text) <= _LONGEST_INTEGER else None


def printable(raw: bytes, longest: int = 64) -> str:
    """Bytes from a client for an error text: quoted, cut after ``longest`` bytes, without control characters."""
    shown = raw[:longest].decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
    return f"'{text}{'...' if len(raw) > longest else ''}'"
