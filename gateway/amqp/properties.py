"""The properties of a message: basic class, AMQP 0-9-1 section 4.2.6.1, and their table of headers.

Values are bytes as received; AMQP does not say what encoding a short string has, and STOMP's headers pass through
untouched.
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
_DELIVERY_MODE: Final = 1 << 12
_PRIORITY: Final = 1 << 11
_CORRELATION_ID: Final = 1 << 10
_REPLY_TO: Final = 1 << 9
_EXPIRATION: Final = 1 << 8
_MESSAGE_ID: Final = 1 << 7
_TIMESTAMP: Final = 1 << 6
_TYPE: Final = 1 << 5
_USER_ID: Final = 1 << 4
_APP_ID: Final = 1 << 3
_CLUSTER_ID: Final = 1 << 2
_MORE_FLAGS: Final = 1

# Bytes of the table's field values whose size is fixed, by type letter. RabbitMQ's dialect: "s" is a signed short, and
# "l" and "L" are both signed.
_FIXED_SIZES: Final = {
    ord("t"): 1, ord("b"): 1, ord("B"): 1, ord("s"): 2, ord("u"): 2, ord("I"): 4, ord("i"): 4, ord("f"): 4,
    ord("l"): 8, ord("L"): 8, ord("d"): 8, ord("T"): 8, ord("D"): 5, ord("V"): 0,
}  # fmt: skip
_SIZED: Final = frozenset(b"SxFA")
_SHOWN_NUMBERS: Final = frozenset(b"IlL")


@dataclass(slots=True)
class Properties:
    """The properties of one message; None where absent.

    ``headers`` holds the entries of the headers table that STOMP can show: long strings as bytes, signed 32-bit and
    64-bit integers as numbers, in table order. ``timestamp`` is in seconds since 1970 (POSIX), unsigned 64 bits.
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
    """Encode a short string (AMQP 0-9-1 section 4.2.5.3).

    Args:
        value: at most 255 bytes.
        what: what it is, for the error.

    Returns:
        The length byte and the value.

    Raises:
        CodecError: when the value is longer.
    """
    if len(value) > LONGEST_SHORT_STRING:
        raise CodecError(f"the {what} has {len(value)} octets; AMQP allows {LONGEST_SHORT_STRING}")
    return bytes((len(value),)) + value


def table_name(name: bytes) -> bytes:
    """Encode the name of a long-string table entry and its type; the entry's length and value must follow."""
    return short_string(name, "name of a header") + b"S"


def table_entries(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode long-string entries of a headers table, without the table's length."""
    return b"".join([table_name(name) + struct.pack(">I", len(value)) + value for name, value in headers])


def encode_around_table(properties: Properties) -> tuple[bytes, bytes]:
    """Encode everything but the headers table, which is present in any case.

    Args:
        properties: their ``headers`` are ignored.

    Returns:
        The bytes that stand before the table's length (flags first), and those behind the table.

    Raises:
        CodecError: when a text is longer than 255 bytes or a number does not fit; it names the property.
    """
    flags = _HEADERS
    before: list[bytes] = []
    behind: list[bytes] = []

    def text(parts: list[bytes], flag: int, value: bytes | None, name: str) -> int:
        if value is None:
            return 0
        parts.append(short_string(value, name))
        return flag

    def number(flag: int, value: int | None, size: int, name: str) -> int:
        if value is None:
            return 0
        try:
            behind.append(value.to_bytes(size, "big"))
        except OverflowError as error:
            raise CodecError(f"the {name} {value} is not a number of {8 * size} bits without a sign") from error
        return flag

    flags |= text(before, _CONTENT_TYPE, properties.content_type, "content-type")
    flags |= text(before, _CONTENT_ENCODING, properties.content_encoding, "content-encoding")
    flags |= number(_DELIVERY_MODE, properties.delivery_mode, 1, "delivery-mode")
    flags |= number(_PRIORITY, properties.priority, 1, "priority")
    flags |= text(behind, _CORRELATION_ID, properties.correlation_id, "correlation-id")
    flags |= text(behind, _REPLY_TO, properties.reply_to, "reply-to")
    flags |= text(behind, _EXPIRATION, properties.expiration, "expiration")
    flags |= text(behind, _MESSAGE_ID, properties.message_id, "message-id")
    flags |= number(_TIMESTAMP, properties.timestamp, 8, "timestamp")
    flags |= text(behind, _TYPE, properties.type, "type")
    flags |= text(behind, _USER_ID, properties.user_id, "user-id")
    flags |= text(behind, _APP_ID, properties.app_id, "app-id")
    return flags.to_bytes(2, "big") + b"".join(before), b"".join(behind)


def decode(data: bytes) -> Properties:
    """Decode the property flags and the property list of a content header.

    Args:
        data: everything behind the body size in a content header's payload.

    Returns:
        The properties; of the headers table only what STOMP can show.

    Raises:
        CodecError: when the bytes end early or hold a type that AMQP and RabbitMQ do not define.
    """
    try:
        return _PropertyReader(data).properties()
    except IndexError as error:
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
        if flags & _DELIVERY_MODE:
            found.delivery_mode = self._number(1)
        if flags & _PRIORITY:
            found.priority = self._number(1)
        self._texts_and_times(flags, found)
        return found

    def _texts_and_times(self, flags: int, found: Properties) -> None:
        if flags & _CORRELATION_ID:
            found.correlation_id = self._text()
        if flags & _REPLY_TO:
            found.reply_to = self._text()
        if flags & _EXPIRATION:
            found.expiration = self._text()
        if flags & _MESSAGE_ID:
            found.message_id = self._text()
        if flags & _TIMESTAMP:
            found.timestamp = self._number(8)
        if flags & _TYPE:
            found.type = self._text()
        if flags & _USER_ID:
            found.user_id = self._text()
        if flags & _APP_ID:
            found.app_id = self._text()
        if flags & _CLUSTER_ID:
            self._text()

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
        return self._take(self._number(1))

    def _table(self) -> list[tuple[bytes, bytes | int]]:
        end = self._number(4) + self._at
        shown: list[tuple[bytes, bytes | int]] = []
        while self._at < end:
            name = self._text()
            value = self._field()
            if value is not None:
                shown.append((name, value))
        if self._at != end:
            raise CodecError("the last entry of a headers table is longer than the table")
        return shown

    def _field(self) -> bytes | int | None:
        """One field value; None for the types that a STOMP header cannot show."""
        kind = self._number(1)
        if kind in _SIZED:
            value = self._take(self._number(4))
            return value if kind == ord("S") else None
        size = _FIXED_SIZES.get(kind)
        if size is None:
            raise CodecError(f"unknown type {chr(kind)!r} in a headers table")
        taken = self._take(size)
        return int.from_bytes(taken, "big", signed=True) if kind in _SHOWN_NUMBERS else None
