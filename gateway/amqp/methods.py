"""AMQP 0-9-1 methods that open and close channels and declare queues and consumers, and the answers to them.

A subscription needs five of them, and pamqp takes ten times as long to encode them. pamqp also refuses names outside
the alphabet of AMQP 0-9-1, but RabbitMQ takes any UTF-8, and real queues have names with spaces, percent signs and
umlauts (docs/adr/0009-names-are-for-the-broker-to-judge.md). ``tests/property/test_amqp_methods.py`` checks that both
encode the same bytes.

The functions raise CodecError if a name is longer than 255 bytes in UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import pamqp.encode

from gateway.amqp.codec import CHANNEL_CLOSE, CONNECTION_BLOCKED, CONSUME, FRAME_END, METHOD, QUEUE_DECLARE
from gateway.amqp.properties import short_string
from gateway.errors import CodecError

# Type, channel, size, and class and method as one number.
_METHOD_START: Final = struct.Struct(">BHII")
_ARGUMENTS_AT: Final = _METHOD_START.size
_QOS: Final = struct.Struct(">IHB")
_PAIR: Final = struct.Struct(">HH")
_TICKET: Final = b"\0\0"
_NO_ENTRIES: Final = b"\0\0\0\0"

DECLARE_OK: Final = QUEUE_DECLARE + 1
CHANNEL_CLOSE_OK: Final = CHANNEL_CLOSE + 1


class Method(NamedTuple):
    """A method: ``number`` is class << 16 | method, ``arguments`` are encoded."""

    number: int
    arguments: bytes = b""

    def frame(self, channel: int) -> bytes:
        """Encode its frame."""
        arguments = self.arguments
        return _METHOD_START.pack(METHOD, channel, 4 + len(arguments), self.number) + arguments + FRAME_END


class Close(NamedTuple):
    """The fields of channel.close or connection.close. ``refused`` is a `Method.number`, or 0 for none."""

    code: int
    text: str
    refused: int


OPEN: Final = Method(20 << 16 | 10, b"\x010")
CLOSE: Final = Method(CHANNEL_CLOSE, _PAIR.pack(200, 0) + b"\0\0\0")
CLOSE_OK: Final = Method(CHANNEL_CLOSE_OK)
SELECT_CONFIRMS: Final = Method(85 << 16 | 10, b"\0")


def qos(prefetch: int) -> Method:
    """basic.qos: the prefetch of the channel's later consumers; 0 for no limit."""
    return Method(60 << 16 | 10, _QOS.pack(0, prefetch, 0))


def consume(queue: str, tag: str, arguments: Mapping[str, Any], *, nowait: bool = False) -> Method:
    """basic.consume, with acknowledgements, not exclusive."""
    return Method(CONSUME, b"%b%b%b%c%b" % (_TICKET, _name(queue), _name(tag), nowait << 3, _table(arguments)))


def cancel(tag: str) -> Method:
    """basic.cancel."""
    return Method(60 << 16 | 30, _name(tag) + b"\0")


def cancel_ok(tag: str) -> Method:
    """basic.cancel-ok."""
    return Method(60 << 16 | 31, _name(tag))


def declare(
    queue: str,
    arguments: Mapping[str, Any],
    *,
    passive: bool = False,
    durable: bool = False,
    exclusive: bool = False,
    auto_delete: bool = False,
    nowait: bool = False,
) -> Method:
    """queue.declare."""
    flags = passive | durable << 1 | exclusive << 2 | auto_delete << 3 | nowait << 4
    return Method(QUEUE_DECLARE, b"%b%b%c%b" % (_TICKET, _name(queue), flags, _table(arguments)))


def bind(queue: str, exchange: str, routing_key: str) -> Method:
    """queue.bind."""
    names = _name(queue) + _name(exchange) + _name(routing_key)
    return Method(50 << 16 | 20, b"%b%b\0%b" % (_TICKET, names, _NO_ENTRIES))


def unbind(queue: str, exchange: str, routing_key: str, arguments: Mapping[str, Any]) -> Method:
    """queue.unbind."""
    names = _name(queue) + _name(exchange) + _name(routing_key)
    return Method(50 << 16 | 50, b"%b%b%b" % (_TICKET, names, _table(arguments)))


def delete(queue: str, *, if_unused: bool = False, if_empty: bool = False) -> Method:
    """queue.delete."""
    return Method(50 << 16 | 40, b"%b%b%c" % (_TICKET, _name(queue), if_unused | if_empty << 1))


def _name(text: str) -> bytes:
    return short_string(text.encode())


def _table(entries: Mapping[str, Any]) -> bytes:
    return pamqp.encode.field_table(dict(entries)) if entries else _NO_ENTRIES


def read_method(number: int, frame: bytes) -> Close | str | None:
    """Read the part of a received method that the gateway uses: of the method with this `Method.number`, in this frame.

    Returns:
        A `Close` for channel.close, the queue's name for queue.declare-ok, the reason for connection.blocked, and None
        for every other method.

    Raises:
        CodecError: the frame is malformed.
    """
    if number == CHANNEL_CLOSE:
        return read_close(frame)
    return _text(frame, _ARGUMENTS_AT)[0] if number in (DECLARE_OK, CONNECTION_BLOCKED) else None


def read_close(frame: bytes) -> Close:
    """Read the frame of channel.close or connection.close. Raises CodecError if it is malformed."""
    text, at = _text(frame, _ARGUMENTS_AT + 2)
    if at + _PAIR.size >= len(frame):
        raise CodecError("a close does not have the size of its fields")
    refused_class, refused = _PAIR.unpack_from(frame, at)
    return Close(int.from_bytes(frame[_ARGUMENTS_AT : _ARGUMENTS_AT + 2], "big"), text, refused_class << 16 | refused)


def _text(frame: bytes, at: int) -> tuple[str, int]:
    """Read a short string. Returns it, and the position after it."""
    start = at + 1
    end = start + frame[at] if at < len(frame) else start
    if end >= len(frame):
        raise CodecError("a text is longer than its method")
    try:
        return frame[start:end].decode(), end
    except UnicodeDecodeError as error:
        raise CodecError("a text of the broker is not UTF-8") from error
