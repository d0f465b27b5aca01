"""Splits what the broker sends: data for sessions, methods for their channels, the rest for the AMQP client library.

HOT: every delivery and every confirm passes through ``Splitter.receive``. On registered channels, deliveries with their
content, the broker's confirms, and messages that it returns go straight to the channel's sink, as slices of what was
read. All other methods of channels go to ``Watch``, in their order among the data. The frames of the connection come
out again untouched and in order; some of these are also reported to ``Watch``.

A whole message in one read, the normal case, takes the short way in ``_deliver``. A message in pieces, or with other
channels' frames between its own, is put together channel by channel. ``tests/property/test_amqp_splitter.py`` holds
both equal.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from gateway.amqp.codec import (
    ACK,
    BODY,
    CHANNEL_CLOSE,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_UNBLOCKED,
    DELIVER,
    FRAME_HEADER,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    NACK,
    RETURN,
)
from gateway.errors import CodecError

Deliver = Callable[[int, bool, bytes, bytes, bytes], None]
"""Takes delivery tag, redelivered, route, properties and body. The route is the exchange and the routing key, both as
short strings, one behind the other; the properties are the bytes behind the body size of the content header."""

Confirm = Callable[[int, bool, bool], None]
"""Takes publish sequence number, multiple, and whether the broker accepted the message."""

Returned = Callable[["Return"], None]
"""Takes a message that the broker gave back, as soon as its content header is there."""

Watch = Callable[[int, int, bytes], None]
"""Takes channel number, class and method as one number (see ``gateway.amqp.codec``), and the frame's bytes."""

_FRAME_END: Final = 0xCE
_CONTENT_START: Final = 19  # of a header frame, up to the property flags

_frame_header = FRAME_HEADER.unpack_from
_method_number = struct.Struct(">I").unpack_from
_tag_and_flag = struct.Struct(">QB").unpack_from
_content_start = struct.Struct(">BHIHHQ").unpack_from

_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_CLOSES: Final = frozenset((CHANNEL_CLOSE, CONNECTION_CLOSE))
_WATCHED: Final = frozenset((CONNECTION_CLOSE, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED))


@dataclass(frozen=True, slots=True)
class Return:
    """A mandatory message that reached no queue (basic.return): why, its route, its properties and its size.

    ``properties`` are the bytes behind the body size of the content header. The body itself is thrown away.
    """

    code: int
    text: bytes
    exchange: bytes
    routing_key: bytes
    properties: bytes = b""
    size: int = 0


def _no_returns(returned: Return) -> None:
    """A channel that publishes nothing gets no returns."""


@dataclass(slots=True, eq=False)
class Sink:
    """Where the data of one channel goes. Its ``owner`` enters ``Splitter.touched`` when there is some."""

    deliver: Deliver
    confirm: Confirm
    owner: object
    returned: Returned = _no_returns


@dataclass(slots=True)
class _Message:
    """A message whose frames are still coming."""

    tag: int
    redelivered: bool
    route: bytes
    properties: bytes = b""
    missing: int = -1  # bytes of the body still to come; -1 before the content header
    pieces: list[bytes] = field(default_factory=list)


class Splitter:
    """Splits the byte stream of one AMQP connection.

    ``watch`` is called for the methods of channels that are no data, the closed connection, and broker alarms.
    """

    __slots__ = ("_messages", "_missing", "_rest", "_returns", "_watch", "sinks", "touched")

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.sinks: dict[int, Sink] = {}
        self.touched: set[object] = set()
        self._messages: dict[int, _Message] = {}
        # Returned messages whose content is still coming, with the bytes of the body to come; -1 before the header.
        self._returns: dict[int, tuple[Return, int]] = {}
        self._rest: list[bytes] = []
        self._missing = 0

    def register(self, channel: int, sink: Sink) -> None:
        """Send the data of a channel to a sink from now on."""
        self.sinks[channel] = sink

    def unregister(self, channel: int) -> None:
        """Forget a channel. To be called once it is closed: until then the broker may send deliveries."""
        self.sinks.pop(channel, None)
        self._messages.pop(channel, None)
        self._returns.pop(channel, None)

    def receive(self, data: bytes) -> bytes:
        """Take what one read of the socket gave.

        Returns:
            The frames that neither a sink nor ``watch`` took, whole, in order. Owners of sinks that got something
            are in ``touched``; the caller empties it.

        Raises:
            CodecError: when the bytes are not AMQP frames, or the frames of a message come in an impossible order.
        """
        if self._rest:
            self._rest.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._rest)
            self._rest = []
        at, others = self._split(data)
        if at < len(data):
            self._rest.append(data[at:])
        return b"".join(others)

    def _split(self, data: bytes) -> tuple[int, list[bytes]]:
        """Handle the whole frames; the position behind them, and the frames that pass."""
        size = len(data)
        at = passed = 0
        others: list[bytes] = []
        sinks = self.sinks
        while at + FRAME_OVERHEAD <= size:
            kind, channel, length = _frame_header(data, at)
            end = at + FRAME_OVERHEAD + length
            if end > size:
                if kind not in _KINDS:  # or another protocol's text would be taken for the size of a very long frame
                    raise CodecError(f"no AMQP frame is of type {kind}")
                self._missing = end - size
                break
            if data[end - 1] != _FRAME_END:
                raise CodecError("an AMQP frame does not end with its end octet")
            method = _method_number(data, at + 7)[0] if kind == METHOD else 0
            sink = sinks.get(channel)
            taken = self._data(sink, method, data, channel, at, end) if sink is not None else 0
            if taken:
                if passed < at:
                    others.append(data[passed:at])
                passed = at = taken
                continue
            if channel or method in _WATCHED:
                others += (data[passed:at], self._report(channel, method, data[at:end]))
                passed = end
            at = end
        else:
            self._missing = FRAME_OVERHEAD - (size - at)
        if passed < at:
            others.append(data[passed:at])
        return at, others

    def _report(self, channel: int, method: int, frame: bytes) -> bytes:
        """Report a method; the frame as it passes, which is nothing if it belongs to a channel."""
        if method in _CLOSES:
            frame = _with_readable_text(frame)
        if method:
            self._watch(channel, method, frame)
        return b"" if channel else frame

    def _data(self, sink: Sink, method: int, data: bytes, channel: int, at: int, end: int) -> int:
        """Handle a frame of a registered channel. The position behind what was taken, or 0 when it is no data."""
        if method == DELIVER:
            self.touched.add(sink.owner)
            return self._deliver(sink, data, channel, at, end)
        if method in (ACK, NACK):
            tag, bits = _tag_and_flag(data, at + 11)
            self.touched.add(sink.owner)
            sink.confirm(tag, bits & 1 == 1, method == ACK)
            return end
        if method == RETURN:
            self._returns[channel] = (_read_return(data, at + 11), -1)
            return end
        if method:
            return 0
        if channel in self._messages:
            self._continue(sink, data, channel, at, end)
        elif channel in self._returns:
            self._take_returned(sink, data, channel, at, end)
        else:
            return 0
        return end

    def _deliver(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> int:
        """Read basic.deliver, and its content with it if that has arrived whole."""
        # Each registered channel has one consumer, so the consumer tag is skipped.
        tag_at = at + 12 + data[at + 11]
        tag, redelivered = _tag_and_flag(data, tag_at)
        route = data[tag_at + 9 : end - 1]
        size = len(data)
        if end + _CONTENT_START < size:
            kind, owner, length, _, _, body_size = _content_start(data, end)
            body_at: int = end + FRAME_OVERHEAD + length
            if kind == HEADER and owner == channel and body_at <= size and data[body_at - 1] == _FRAME_END:
                properties = data[end + _CONTENT_START : body_at - 1]
                if not body_size:
                    sink.deliver(tag, redelivered == 1, route, properties, b"")
                    return body_at
                stop: int = body_at + FRAME_OVERHEAD + body_size
                if (
                    stop <= size
                    and _frame_header(data, body_at) == (BODY, channel, body_size)
                    and data[stop - 1] == _FRAME_END
                ):
                    sink.deliver(tag, redelivered == 1, route, properties, data[body_at + 7 : stop - 1])
                    return stop
        self._messages[channel] = _Message(tag, redelivered == 1, route)
        return end

    def _continue(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> None:
        """Add a content frame to a message that comes in pieces."""
        message = self._messages[channel]
        kind = data[at]
        if kind == HEADER and message.missing < 0:
            message.missing = _content_start(data, at)[5]
            message.properties = data[at + _CONTENT_START : end - 1]
        elif kind == BODY and message.missing > 0:
            piece = data[at + 7 : end - 1]
            message.pieces.append(piece)
            message.missing -= len(piece)
        else:
            raise CodecError("the frames of a message came in the wrong order")
        if message.missing < 0:
            raise CodecError("a message is longer than its content header says")
        if message.missing == 0:
            del self._messages[channel]
            self.touched.add(sink.owner)
            body = b"".join(message.pieces)
            sink.deliver(message.tag, message.redelivered, message.route, message.properties, body)

    def _take_returned(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> None:
        """Report a returned message when its content header is there, and skip its body."""
        returned, missing = self._returns[channel]
        kind = data[at]
        if kind == HEADER and missing < 0:
            missing = _content_start(data, at)[5]
            properties = data[at + _CONTENT_START : end - 1]
            self.touched.add(sink.owner)
            sink.returned(replace(returned, properties=properties, size=missing))
        elif kind == BODY and missing > 0:
            missing -= end - at - FRAME_OVERHEAD
        else:
            raise CodecError("the frames of a returned message came in the wrong order")
        if missing < 0:
            raise CodecError("a returned message is longer than its content header says")
        if missing:
            self._returns[channel] = (returned, missing)
        else:
            del self._returns[channel]


def _read_return(data: bytes, at: int) -> Return:
    """The fields of basic.return, which begin here."""
    code = int.from_bytes(data[at : at + 2], "big")
    text, at = _read_short_string(data, at + 2)
    exchange, at = _read_short_string(data, at)
    routing_key, _ = _read_short_string(data, at)
    return Return(code, text, exchange, routing_key)


def _read_short_string(data: bytes, at: int) -> tuple[bytes, int]:
    """A short string that begins here, and the position behind it."""
    end = at + 1 + data[at]
    return data[at + 1 : end], end


def _with_readable_text(frame: bytes) -> bytes:
    """Replace each byte of a close frame's reply text that is not UTF-8 by a question mark.

    RabbitMQ quotes clients' names there as they are, and cuts the text at 255 bytes, perhaps within a character. The
    client library cannot decode such a text and gives up the connection, with every session on it.
    """
    start = 14  # behind the reply code and the length byte
    end = start + frame[start - 1]
    text = frame[start:end].decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    return frame[:start] + text + frame[end:]
