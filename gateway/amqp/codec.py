"""Encodes AMQP 0-9-1 frames that carry and settle messages (section 4.2 of the specification; class basic).

HOT: every message passes through here in both directions. A method frame is encoded once per route, and a content
header once per STOMP header block. Each message then needs a length, a join and, with a receipt, one table entry.
The slow twin is pamqp; ``tests/property/test_amqp_codec.py`` checks that both encode the same bytes.
"""

from __future__ import annotations

import struct
from typing import Final

from gateway.amqp.properties import short_string
from gateway.errors import CodecError
from gateway.pieces import Body, LargeBody, Piece, parts

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
FRAME_END: Final = b"\xce"

# Type, channel and size take 7 bytes, and the end marker one.
FRAME_HEADER: Final = struct.Struct(">BHI")
FRAME_OVERHEAD: Final = 8

_BASIC: Final = 60
_METHOD_FRAME: Final = struct.Struct(">BHII")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_CONTENT_HEADER: Final = struct.Struct(">BHIHHQ")
_LENGTH: Final = struct.Struct(">I")
_LONG_STRING: Final = b"S"

# Class and method as one number, for received frames, and for the method that a close names.
PUBLISH: Final = 60 << 16 | 40
QUEUE_DECLARE: Final = 50 << 16 | 10
QUEUE_BIND: Final = 50 << 16 | 20
CONSUME: Final = 60 << 16 | 20
DELIVER: Final = 60 << 16 | 60
ACK: Final = 60 << 16 | 80
REJECT: Final = 60 << 16 | 90
NACK: Final = 60 << 16 | 120
RETURN: Final = 60 << 16 | 50
CANCEL: Final = 60 << 16 | 30
CHANNEL_CLOSE: Final = 20 << 16 | 40
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61

# Class, weight and body size: the bytes of a content header before its property flags.
_CONTENT_HEADER_START: Final = 12


def encode_ack(channel: int, tag: int, *, multiple: bool) -> bytes:
    """Encode the frame of basic.ack. ``multiple``: all deliveries up to the tag."""
    return _ACK_FRAME.pack(METHOD, channel, 13, ACK, tag, multiple, 0xCE)


def encode_nack(channel: int, tag: int, *, multiple: bool, requeue: bool) -> bytes:
    """Encode the frame of basic.nack, RabbitMQ's extension of reject. Without requeue: dead-lettered or dropped."""
    return _ACK_FRAME.pack(METHOD, channel, 13, NACK, tag, multiple | requeue << 1, 0xCE)


def encode_reject(channel: int, tag: int, *, requeue: bool) -> bytes:
    """Encode the frame of basic.reject, for one delivery."""
    return _ACK_FRAME.pack(METHOD, channel, 13, REJECT, tag, requeue, 0xCE)


def encode_publish(channel: int, exchange: bytes, routing_key: bytes, *, mandatory: bool = False) -> bytes:
    """Encode the method frame of basic.publish, before the content frames. Raises CodecError if a name is too long."""
    names = short_string(exchange, "exchange name") + short_string(routing_key, "routing key")
    payload = b"\0\0" + names + (b"\1" if mandatory else b"\0")
    return _METHOD_FRAME.pack(METHOD, channel, 4 + len(payload), PUBLISH) + payload + FRAME_END


# A publication keeps at most this many bytes of its last message, because a client may have many publications.
_LARGEST_KEPT: Final = 4096


class Publication:
    """Encodes the messages of one channel that share route and properties, except for some header values.

    Args:
        frame_max: the largest frame in bytes, as agreed with the broker; 0 for no limit.
        method: the basic.publish frame, see ``encode_publish``.
        before: the property flags, and the properties before the headers table.
        table: the encoded entries of the headers table, cut at each value that differs from message to message. Each
            piece but the last ends with the type letter of such a value.
        after: the properties after the table.
    """

    __slots__ = (
        "_around_table", "_before", "_body_max", "_channel", "_first", "_last_size", "_last_sizes", "_last_start",
        "_last_values", "_method", "_parts", "_pieces", "_table_size",
    )  # fmt: skip

    def __init__(
        self, channel: int, frame_max: int, method: bytes, before: bytes, table: tuple[bytes, ...], after: bytes
    ) -> None:
        self._channel = channel
        self._body_max = frame_max - FRAME_OVERHEAD if frame_max else 0xFFFFFFFF
        self._method = method
        self._before = before
        self._first, *self._pieces = (*table[:-1], table[-1] + after + FRAME_END)
        # The sizes of the table without the values, and of the rest of the content header.
        self._table_size = sum(map(len, table))
        for piece in table[:-1]:
            self._table_size += 4 * piece.endswith(_LONG_STRING)
        self._around_table = _CONTENT_HEADER_START + len(before) + 4 + len(after)
        # The last message: the size of its body, its values, and all bytes before the body.
        self._last_size = -1
        self._last_values: tuple[bytes, ...] = ()
        self._last_start = b""
        # The sizes of body and values, and the parts of which the start is joined. Every second part is a value.
        self._last_sizes: tuple[int, ...] = ()
        self._parts: list[bytes] = []

    def encode(self, body: bytes, values: tuple[bytes, ...] = ()) -> bytes:
        """Encode one message: the frames of method, content header and body.

        HOT: once per SEND. Mostly the values and the size of the body are as in the last message, or the sizes are.

        ``values``: the bytes of the header values at which the table is cut, strings without their length.

        Raises:
            CodecError: the content header does not fit into one frame, and AMQP cannot split it.
        """
        size, start = len(body), self._last_start
        if size != self._last_size or values != self._last_values:
            start = self._start(size, values)
            if len(start) <= _LARGEST_KEPT:
                self._last_start, self._last_size, self._last_values = start, size, values
        if size <= self._body_max:
            return b"".join((start, body, FRAME_END)) if size else start
        return b"".join(self.pieces(body, values))

    def pieces(self, body: Body, values: tuple[bytes, ...] = ()) -> list[Piece]:
        """Encode one message as `encode` does, without copying the body. HOT: once per SEND of a large body."""
        size, most = len(body), self._body_max
        pieces: list[Piece] = [self._start(size, values)]
        if size <= most:
            if size:  # an empty body has no frame
                pieces += (*body.pieces, FRAME_END) if isinstance(body, LargeBody) else (body, FRAME_END)
        else:
            for at, part in zip(range(0, size, most), parts(body, most), strict=True):
                pieces += (FRAME_HEADER.pack(BODY, self._channel, min(most, size - at)), *part, FRAME_END)
        return pieces

    def _start(self, size: int, values: tuple[bytes, ...]) -> bytes:
        """All bytes before the body. If the body fits into one frame, they include the header of that frame."""
        sizes, parts = (size, *map(len, values)), self._parts
        if sizes != self._last_sizes:
            parts = self._lay_out(*sizes)
            if sum(sizes[1:]) <= _LARGEST_KEPT:
                self._parts, self._last_sizes = parts, sizes
        parts[1::2] = values
        return b"".join(parts)

    def _lay_out(self, size: int, *value_sizes: int) -> list[bytes]:
        """The parts of the bytes before a body of this size. Every second part is a place for a value."""
        if len(value_sizes) != len(self._pieces):
            raise ValueError(f"{len(value_sizes)} values for {len(self._pieces)} gaps")
        table_size = self._table_size + sum(value_sizes)
        header_size = self._around_table + table_size
        if header_size > self._body_max:
            limit = self._body_max + FRAME_OVERHEAD
            raise CodecError(f"the headers of the message make an AMQP frame of more than {limit} octets")
        content_header = _CONTENT_HEADER.pack(HEADER, self._channel, header_size, _BASIC, 0, size)
        parts = [self._method + content_header + self._before + _LENGTH.pack(table_size) + self._first]
        for value_size, piece in zip(value_sizes, self._pieces, strict=True):
            if parts[-1].endswith(_LONG_STRING):
                parts[-1] += _LENGTH.pack(value_size)
            parts += (b"", piece)
        if 0 < size <= self._body_max:
            parts[-1] += FRAME_HEADER.pack(BODY, self._channel, size)
        return parts
