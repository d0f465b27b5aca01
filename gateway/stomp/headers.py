"""Header lines: escaping, splitting, and reading values as booleans and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.errors import FrameError
from gateway.texts import printable

# Swaps LF and backslash: `unescape` uses each in place of the other while it works.
_SWAPPED: Final = bytes.maketrans(b"\n\\", b"\\\n")
_ESCAPED: Final = b"\\:\n\r"
_INTEGER: Final = re.compile(rb"[+-]?[0-9]+")

# RabbitMQ's adapter reads numbers of any length. The gateway has a limit, because the time grows with the square.
_LONGEST_INTEGER: Final = 1000

_TRUE: Final = (b"true", b"True")
_FALSE: Final = (b"false", b"False")


def escape(value: bytes) -> bytes:
    """Encode a header name or value for the wire: colon, backslash, LF and CR become escapes.

    STOMP 1.2, "Value Encoding". Like RabbitMQ's adapter, the gateway does this in every version, and in CONNECT and
    CONNECTED, too, although the specification excludes them. Clients rely on it.
    """
    if value.isalnum():
        # True for most receipts and ids. For bytes, `isalnum` is about ASCII.
        return value
    return value.replace(b"\\", b"\\\\").replace(b":", b"\\c").replace(b"\n", b"\\n").replace(b"\r", b"\\r")


def needs_escape(text: bytes) -> bool:
    """Whether `escape` would change ``text``, which may be several values joined."""
    return len(text.translate(None, _ESCAPED)) != len(text)


def unescape(value: bytes) -> bytes:
    """Decode the escapes of a header name or value, which must not contain an LF (STOMP 1.2, "Value Encoding").

    Raises:
        FrameError: an escape that STOMP 1.2 does not define. The text does not show the value, which may be a passcode.
    """
    if b"\\" not in value:
        return value
    # One pass for each kind of escape, because a value may have a million of them. An LF, which no value has here,
    # stands in for the decoded backslash.
    text = value.replace(b"\\\\", b"\n").replace(b"\\c", b":").replace(b"\\r", b"\r")
    if text.count(b"\\") != text.count(b"\\n"):
        raise FrameError("undefined escape sequence")
    return text.replace(b"\\n", b"\\").translate(_SWAPPED)


def split_line(line: bytes) -> tuple[bytes, bytes]:
    """Split a header line, without its LF, at the first colon. Returns the unescaped name and value.

    Either may be empty. Nothing is trimmed except one trailing CR.

    Raises:
        FrameError: there is no colon, a CR within the line, or an undefined escape. The text shows at most the header's
            name. It does not show a line without a colon, which may be part of a passcode.
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
        raise FrameError(f"{error} in header {quoted(name)}") from None


def trim_values(headers: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Remove leading spaces from values, as a STOMP 1.0 client expects."""
    return {name: value.lstrip(b" ") for name, value in headers.items()}


def read_boolean(value: bytes | None) -> bool | None:
    """Read a boolean header: exactly ``true``, ``True``, ``false`` or ``False``; None for everything else."""
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    return None


def read_integer(value: bytes) -> int | None:
    """Read a decimal integer of at most 1000 bytes, with or without sign and spaces around it; None if malformed."""
    text = value.strip(b" ")
    return int(text) if _INTEGER.fullmatch(text) and len(text) <= _LONGEST_INTEGER else None


def quoted(raw: bytes, longest: int = 64) -> str:
    """Quote bytes of a client for an error text, cut after ``longest`` bytes, with control characters escaped."""
    shown = raw[:longest].decode("utf-8", "backslashreplace")
    return f"'{printable(shown)}{'...' if len(raw) > longest else ''}'"
