"""The properties of a message and their headers table (AMQP 0-9-1, section 4.2.6.1).

Texts are bytes. AMQP does not define their encoding, and STOMP headers pass through unchanged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.errors import CodecError

LONGEST_SHORT_STRING: Final = 255

_CONTENT_TYPE: Final = 1 << 15
_CONTENT_ENCODING: Final = 1 << 14
_HEADERS: Final = 1 << 13
_CLUSTER_ID: Final = 1 << 2
_MORE_FLAGS: Final = 1

# The properties after the headers table, in the order on the wire: flag, field of Properties, and the size of a number
# in bytes; 0 for a short string.
_AFTER_TABLE: Final = (
    (1 << 12, "delivery_mode", 1),
    (1 << 11, "priority", 1),
    (1 << 10, "correlation_id", 0),
    (1 << 9, "reply_to", 0),
    (1 << 8, "expiration", 0),
    (1 << 7, "message_id", 0),
    (1 << 6, "timestamp", 8),
    (1 << 5, "type", 0),
    (1 << 4, "user_id", 0),
    (1 << 3, "app_id", 0),
)

_ANY_AFTER_TABLE: Final = (1 << 13) - (1 << 3)

# The sizes in bytes of field values of fixed size, by type letter. In RabbitMQ's dialect "s" is a signed short, and
# both "l" and "L" are signed.
_FIXED_SIZES: Final = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4, ord("f"): 4,
    ord("l"): 8, ord("L"): 8, ord("d"): 8, ord("T"): 8, ord("D"): 5, ord("V"): 0,
}  # fmt: skip
_LONG_STRING: Final = ord("S")
_SIZED: Final = frozenset(b"xFA")
_SHOWN_NUMBERS: Final = frozenset(b"IlL")

_length = struct.Struct(">I").unpack_from
_pack_length = struct.Struct(">I").pack

# For each size, the bytes before the name of an entry, and those before its long string.
_LENGTHS: Final = tuple(bytes((size,)) for size in range(LONGEST_SHORT_STRING + 1))
_LONG_STRINGS: Final = tuple(b"S" + _pack_length(size) for size in range(LONGEST_SHORT_STRING + 1))


@dataclass(slots=True)
class Properties:
    """The properties of one message; None where absent.

    Args:
        headers: the entries of the headers table that a STOMP header can show, in table order: long strings as bytes,
            and signed integers of 32 and 64 bits.
        timestamp: in seconds since the epoch, unsigned 64 bits.
    """

    content_type: bytes | None = None
    content_encoding: bytes | None = None
    headers: list[tuple[bytes, bytes | int]] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: bytes | None = None
    reply_to: bytes | None = None
    expiration: bytes | None = None
    message_id: bytes | None = None
    timestamp: int | None = None
    type: bytes | None = None
    user_id: bytes | None = None
    app_id: bytes | None = None


def short_string(value: bytes, what: str = "text") -> bytes:
    """Encode a short string: the length byte and the value (AMQP 0-9-1 section 4.2.5.3).

    Raises CodecError, which names ``what``, if the value has more than 255 bytes.
    """
    if len(value) > LONGEST_SHORT_STRING:
        raise CodecError(f"the {what} has {len(value)} octets; AMQP allows {LONGEST_SHORT_STRING}")
    return bytes((len(value),)) + value


def table_name(name: bytes) -> bytes:
    """Encode the name and type of a table entry with a long string. Its length and bytes must follow."""
    return short_string(name, "name of a header") + b"S"


def number_name(name: bytes) -> bytes:
    """Encode the name and type of a table entry with a signed 64-bit integer. Its eight bytes must follow."""
    return short_string(name, "name of a header") + b"l"


def table_entries(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode long-string entries of a headers table, without the table's length. HOT: once per SEND with new headers.

    Raises:
        CodecError: a name has more than 255 bytes.
    """
    parts: list[bytes] = []
    lengths, long_strings = _LENGTHS, _LONG_STRINGS
    for name, value in headers:
        try:
            parts += (lengths[len(name)], name, long_strings[len(value)], value)
        except IndexError:
            parts += (table_name(name), _pack_length(len(value)), value)
    return b"".join(parts)


def encode_around_table(properties: Properties) -> tuple[bytes, bytes]:
    """Encode the properties around a headers table, which the flags announce. ``headers`` are ignored.

    Returns:
        The bytes from the flags up to the table's length, and those after the table.

    Raises:
        CodecError: a text is longer than 255 bytes, or a number does not fit. The text names the property.
    """
    flags = _HEADERS
    before = after = b""
    if properties.content_type is not None:
        flags |= _CONTENT_TYPE
        before = short_string(properties.content_type, "content-type")
    if properties.content_encoding is not None:
        flags |= _CONTENT_ENCODING
        before += short_string(properties.content_encoding, "content-encoding")
    for flag, field, size in _AFTER_TABLE:
        value = getattr(properties, field)
        if value is not None:
            flags |= flag
            name = field.replace("_", "-")
            after += _number(value, size, name) if size else short_string(value, name)
    return flags.to_bytes(2, "big") + before, after


def _number(value: int, size: int, name: str) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError as error:
        raise CodecError(f"the {name} {value} is not a number of {8 * size} bits without a sign") from error


def decode(data: bytes) -> Properties:
    """Decode the properties of a message from ``data``, the bytes of a content header after its body size.

    Raises:
        CodecError: the bytes end early, or contain a type that neither AMQP nor RabbitMQ defines.
    """
    try:
        return _PropertyReader(data).properties()
    except (IndexError, struct.error) as error:
        raise CodecError("the properties of a message end too early") from error


class _PropertyReader:
    """Reads a property list byte by byte."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def properties(self) -> Properties:
        flags = self._number(2)
        if flags & _MORE_FLAGS:
            raise CodecError("a second word of property flags")
        found = Properties()
        if flags & _CONTENT_TYPE:
            found.content_type = self._text()
        if flags & _CONTENT_ENCODING:
            found.content_encoding = self._text()
        if flags & _HEADERS:
            found.headers = self._table()
        for flag, field, size in _AFTER_TABLE if flags & _ANY_AFTER_TABLE else ():
            if flags & flag:
                setattr(found, field, self._number(size) if size else self._text())
        if flags & _CLUSTER_ID:
            self._text()
        return found

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError(size)
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "big", signed=signed)

    def _text(self) -> bytes:
        return self._take(self._take(1)[0])

    def _table(self) -> list[tuple[bytes, bytes | int]]:
        """The entries of the headers table. HOT: once per message with new headers; most values are long strings."""
        end = self._number(4) + self._at
        data, at = self._data, self._at
        shown: list[tuple[bytes, bytes | int]] = []
        while at < end:
            kind_at = at + 1 + data[at]
            if data[kind_at] == _LONG_STRING:
                start = kind_at + 5
                name, at = data[at + 1 : kind_at], start + _length(data, kind_at + 1)[0]
                shown.append((name, data[start:at]))
            else:
                self._at = kind_at
                value = self._field()
                if value is not None:
                    shown.append((data[at + 1 : kind_at], value))
                at = self._at
        if at > len(data):
            raise IndexError(at)
        if at != end:
            raise CodecError("the last entry of a headers table is longer than the table")
        self._at = at
        return shown

    def _field(self) -> bytes | int | None:
        """Read a field value that is not a long string. Returns None for types that a STOMP header cannot show."""
        kind = self._take(1)[0]
        if kind in _SIZED:
            self._take(self._number(4))
            return None
        size = _FIXED_SIZES.get(kind)
        if size is None:
            raise CodecError(f"unknown type {chr(kind)!r} in a headers table")
        taken = self._take(size)
        return int.from_bytes(taken, "big", signed=True) if kind in _SHOWN_NUMBERS else None
