"""Splits the broker's byte stream: data for sessions, methods for channels, and the rest for the AMQP library.

HOT: every delivery and every confirm passes through ``Splitter.receive``. On registered channels, deliveries, confirms
and returned messages go straight to the channel's `Sink`, as slices of what was read. All other methods of channels go
to ``Watch``, in their order among the data. The frames of the connection are returned in order, and unchanged, except
for the text of a close that is not UTF-8. ``Watch`` gets a copy of some of them.

A message that arrives whole in one read, the normal case, goes through ``_deliver``. If it differs from the last one of
its channel only in delivery tag and body, it takes the shorter path ``_deliver_repeats``. A message in several reads,
or with other channels' frames in between, is collected by channel (``_Message``).
``tests/property/test_amqp_splitter.py`` keeps all three paths equal.

If a sink raises, the splitter records owner and error in ``failures``, drops the channel's later data, and continues.
The ``try`` around each call costs nothing while nothing is raised. The splitter itself raises only CodecError.
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
from gateway.pieces import Body, Piece, body_of, part_of

Deliver = Callable[[int, bool, bytes, bytes, Body], None]
"""Takes delivery tag, redelivered, route, properties and body. The route is exchange and routing key, as two encoded
short strings in one value. The properties are the bytes of the content header after its body size."""

DeliverAlike = Callable[[int, list[bytes]], None]
"""Takes messages with consecutive tags that differ from the one just delivered only in tag and body: the first tag,
and all bodies."""

Confirm = Callable[[int, bool, bool], None]
"""Takes publish sequence number, multiple, and whether the broker accepted the message."""

Returned = Callable[["Return"], None]
"""Takes a message that the broker returned, as soon as its content header has arrived."""

Watch = Callable[[int, int, bytes], None]
"""Takes channel number, class and method as one number (see ``gateway.amqp.codec``), and the frame's bytes."""

_FRAME_END: Final = 0xCE
_CONTENT_START: Final = 19  # the offset of the property flags in the frame of a content header

# Bytes between a frame's header and its end marker: of the shortest method, a confirm, and the shortest content header.
_METHOD_SIZE: Final = 4
_METHOD_FRAME: Final = FRAME_OVERHEAD + _METHOD_SIZE
_CONFIRM_SIZE: Final = 13
_CONTENT_SIZE: Final = 14

# The bytes of basic.deliver up to the length of the consumer tag. They identify channel, frame size and the position
# of the delivery tag.
_KEY_SIZE: Final = 12

# A channel keeps at most this many bytes between tag and body of its last delivery.
_LARGEST_REPEAT: Final = 2048

# An incomplete body frame goes to its message once this many bytes have arrived. Other frames are completed first.
_MUCH: Final = 16 << 10

# The largest frame before both sides have agreed on one.
_LARGEST_FIRST_FRAME: Final = 1 << 20

_ENDS_EARLY: Final = "an AMQP frame ends within its fields"
_NO_END: Final = "an AMQP frame does not end with its end octet"
_WRONG_ORDER: Final = "the frames of a message came in the wrong order"

_frame_header = FRAME_HEADER.unpack_from
_method_header = struct.Struct(">BHII").unpack_from
_tag = struct.Struct(">Q").unpack_from
_pack_tag = struct.Struct(">Q").pack
_LARGEST_TAG: Final = (1 << 64) - 1
_tag_and_flag = struct.Struct(">QB").unpack_from
_tag_flag_and_size = struct.Struct(">QBB").unpack_from
_content_start = struct.Struct(">BHIHHQ").unpack_from

_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_CLOSES: Final = frozenset((CHANNEL_CLOSE, CONNECTION_CLOSE))
_WATCHED: Final = frozenset((CONNECTION_CLOSE, CONNECTION_BLOCKED, CONNECTION_UNBLOCKED))


@dataclass(frozen=True, slots=True)
class Return:
    """A mandatory message that reached no queue (basic.return). Its body is dropped.

    Args:
        code: the broker's reply code.
        text: the broker's reply text.
        properties: the bytes of the content header after its body size.
        size: the size of the body in bytes.
    """

    code: int
    text: bytes
    exchange: bytes
    routing_key: bytes
    properties: bytes = b""
    size: int = 0


def _no_returns(returned: Return) -> None:
    """For channels that do not publish."""


def _drop(*data: object) -> None:
    """For sinks that have raised, or whose data is to be dropped."""


@dataclass(slots=True, eq=False)
class Sink:
    """The receiver of one channel's data.

    Args:
        owner: added to ``Splitter.touched`` when the sink gets data.
        deliver_alike: if None, each message goes to ``deliver``.
    """

    deliver: Deliver
    confirm: Confirm
    owner: object
    returned: Returned = _no_returns
    deliver_alike: DeliverAlike | None = None
    # For the splitter: the bytes between tag and body of the last delivery, and the key of the sink's `_Repeat`.
    between: bytes = b""
    repeat_key: bytes = b""

    def drop(self) -> None:
        """Drop the channel's data from now on."""
        self.deliver = self.confirm = self.returned = _drop
        self.deliver_alike = None


@dataclass(slots=True)
class _Message:
    """A message whose frames are still arriving."""

    tag: int
    redelivered: bool
    route: bytes
    properties: bytes = b""
    missing: int = -1  # bytes of the body that have not arrived; -1 before the content header
    pieces: list[Piece] = field(default_factory=list)

    def add(self, data: bytes, start: int, stop: int) -> None:
        """Add this part of ``data`` to the body."""
        if self.missing <= 0:
            raise CodecError(_WRONG_ORDER)
        self.missing -= stop - start
        if self.missing < 0:
            raise CodecError("a message is longer than its content header says")
        self.pieces.append(part_of(data, start, stop))


@dataclass(slots=True, eq=False)
class _Repeat:
    """The common parts of a channel's last deliveries."""

    sink: Sink
    head: bytes  # from the beginning of the method frame up to the delivery tag
    between: bytes  # from the delivery tag up to the body
    size: int  # of all frames of the message
    redelivered: bool
    route: bytes
    properties: bytes


class Splitter:
    """Splits the byte stream of one AMQP connection.

    Args:
        watch: gets the methods of channels that are not data, and connection.close, blocked and unblocked.

    ``frame_max``: the largest frame in bytes, 0 for no limit; the owner sets it once it is agreed.
    ``touched``: the owners of sinks that got data; ``failures``: owners of sinks that raised, with the error. The
    caller of ``receive`` empties both.
    """

    __slots__ = (
        "_begun", "_messages", "_missing", "_repeats", "_rest", "_returns", "_watch", "failures", "frame_max", "sinks",
        "touched",
    )  # fmt: skip

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.frame_max = _LARGEST_FIRST_FRAME
        self.sinks: dict[int, Sink] = {}
        self.touched: set[object] = set()
        self.failures: list[tuple[object, Exception]] = []
        self._messages: dict[int, _Message] = {}
        # By the first bytes of the delivery, at most one for each sink.
        self._repeats: dict[bytes, _Repeat] = {}
        # Returned messages whose content is still arriving, with the missing bytes of the body; -1 before the header.
        self._returns: dict[int, tuple[Return, int]] = {}
        # An incomplete frame: the bytes that have arrived, and the number that is missing. The bytes of a large body
        # frame are with its message, and _begun is its channel.
        self._rest: list[bytes] = []
        self._begun = 0
        self._missing = 0

    def register(self, channel: int, sink: Sink) -> None:
        """Send the data of a channel to a sink from now on."""
        self._forget_sink(channel)
        self.sinks[channel] = sink

    def drop(self, channel: int) -> None:
        """Drop the data of a channel from now on, if it has a sink."""
        if (sink := self.sinks.get(channel)) is not None:
            sink.drop()

    def unregister(self, channel: int) -> None:
        """Forget a channel. Call it only after the channel is closed: until then the broker may send deliveries."""
        self._forget_sink(channel)
        self._messages.pop(channel, None)
        self._returns.pop(channel, None)

    def _forget_sink(self, channel: int) -> None:
        sink = self.sinks.pop(channel, None)
        if sink is not None:
            self._repeats.pop(sink.repeat_key, None)

    def receive(self, data: bytes) -> bytes:
        """Take the bytes of one read.

        Returns:
            The complete frames for the AMQP library, in order.

        Raises:
            CodecError: the bytes are not AMQP frames, or the frames of a message come in an impossible order.
        """
        at = 0
        if self._begun:
            at = self._go_on(data)
        elif self._rest:
            self._rest.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._rest)
            self._rest.clear()
        at = self._deliver_repeats(data, at)
        if at == len(data):
            return b""
        try:
            at, others = self._split(data, at)
        except (IndexError, struct.error) as error:
            # From the splitter itself: errors of sinks are caught where they are called.
            raise CodecError(_ENDS_EARLY) from error
        if at < len(data):
            self._keep(data, at)
        return b"".join(others)

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of an incomplete frame."""
        if len(data) - at >= _MUCH:
            kind, channel, _ = _frame_header(data, at)
            if kind == BODY and channel in self._messages:
                self._begun = channel
                self._messages[channel].add(data, at + 7, len(data))
                return
        self._rest.append(data[at:])

    def _split(self, data: bytes, at: int) -> tuple[int, list[bytes]]:
        """Handle the complete frames from ``at`` on. Returns the position after them, and the library's frames."""
        size = len(data)
        # What is before ``passed`` is handled, or is in ``others``, which are for the library.
        passed = at
        others: list[bytes] = []
        find_sink, touched = self.sinks.get, self.touched
        while at + FRAME_OVERHEAD <= size:
            # One unpacking reads the method, too, except perhaps in the last frame of a read.
            has_room = at + _METHOD_FRAME <= size
            kind, channel, length, method = _method_header(data, at) if has_room else (*_frame_header(data, at), 0)
            end = at + FRAME_OVERHEAD + length
            if end > size:
                self._check_size(kind, end - at)
                self._missing = end - size
                break
            if data[end - 1] != _FRAME_END:
                raise CodecError(_NO_END)
            if kind != METHOD or length < _METHOD_SIZE:
                method = _no_method(kind)
            sink = find_sink(channel)
            if sink is None:
                taken = 0
            elif method == DELIVER:
                touched.add(sink.owner)
                taken = self._deliver_repeats(data, self._deliver(sink, data, channel, at, end))
            else:
                taken = self._data(sink, method, data, channel, at, end)
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
        others.append(data[passed:at])
        return at, others

    def _check_size(self, kind: int, size: int) -> None:
        """Check an incomplete frame: bytes of another protocol may look like the size of a very long frame."""
        if kind not in _KINDS:
            raise CodecError(f"{kind} is not a type of AMQP frame")
        if 0 < self.frame_max < size:
            raise CodecError(f"an AMQP frame has {size} bytes, more than the negotiated {self.frame_max}")

    def _report(self, channel: int, method: int, frame: bytes) -> bytes:
        """Report a method to ``watch``. Returns the frame for the library, or nothing if it belongs to a channel."""
        if method in _CLOSES:
            frame = _with_readable_text(frame)
        if method:
            self._watch(channel, method, frame)
        return b"" if channel else frame

    def _data(self, sink: Sink, method: int, data: bytes, channel: int, at: int, end: int) -> int:
        """Handle a frame of a registered channel, except basic.deliver. Returns the position after it; 0 if no data."""
        if method in (ACK, NACK):
            if end - at != _CONFIRM_SIZE + FRAME_OVERHEAD:
                raise CodecError("a confirm does not have the size of its fields")
            tag, bits = _tag_and_flag(data, at + 11)
            self.touched.add(sink.owner)
            try:
                sink.confirm(tag, bits & 1 == 1, method == ACK)
            except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                self._failed(sink, error)
            return end
        if method == RETURN:
            self._returns[channel] = (_read_return(data[at + 11 : end - 1]), -1)
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

    def _deliver_repeats(self, data: bytes, at: int) -> int:
        """Deliver messages as long as each differs from the last of its channel only in tag and body.

        HOT: once per message, or once for many. ``_deliver`` is the slow twin. Returns the position after them.
        """
        if self._messages or not self._repeats:
            return at
        find, touched, size = self._repeats.get, self.touched, len(data)
        while True:
            repeat = find(data[at : at + _KEY_SIZE])
            if repeat is None:
                return at
            stop, tag_at, between = at + repeat.size, at + len(repeat.head), repeat.between
            if stop > size or data[stop - 1] != _FRAME_END or not data.startswith(between, tag_at + 8):
                return at
            (tag,) = _tag(data, tag_at)
            body = data[tag_at + 8 + len(between) : stop - 1]
            sink = repeat.sink
            touched.add(sink.owner)
            try:
                sink.deliver(tag, repeat.redelivered, repeat.route, repeat.properties, body)
            except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                self._failed(sink, error)
            at = stop
            if sink.deliver_alike is not None and data.startswith(repeat.head, at):
                at = self._deliver_run(repeat, sink.deliver_alike, data, at, tag + 1)

    def _deliver_run(self, repeat: _Repeat, deliver: DeliverAlike, data: bytes, at: int, tag: int) -> int:
        """Deliver consecutive messages of one channel together. HOT: see ``_deliver_repeats``."""
        head, between, size = repeat.head, repeat.between, repeat.size
        body_at, stop = len(head) + 8 + len(between), at + size
        first, bodies = tag, list[bytes]()
        while stop <= len(data) and data[stop - 1] == _FRAME_END and tag <= _LARGEST_TAG:
            if not data.startswith(head + _pack_tag(tag) + between, at):
                break
            bodies.append(data[at + body_at : stop - 1])
            tag += 1
            at, stop = stop, stop + size
        if bodies:
            try:
                deliver(first, bodies)
            except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                self._failed(repeat.sink, error)
        return at

    def _deliver(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> int:
        """Read basic.deliver, and its content if that has arrived. Returns the position after what was read."""
        if self._messages and channel in self._messages:
            raise CodecError(_WRONG_ORDER)
        # Each registered channel has one consumer, so the consumer tag is skipped.
        tag_at = at + 12 + data[at + 11]
        tag, flag, exchange_size = _tag_flag_and_size(data, tag_at)
        redelivered = flag == 1
        key_at = tag_at + 10 + exchange_size
        if key_at + 2 + data[key_at] != end:
            raise CodecError("a delivery does not have the size of its fields")
        route = data[tag_at + 9 : end - 1]
        size = len(data)
        if end + _CONTENT_START < size:
            kind, owner, length, _, _, body_size = _content_start(data, end)
            body_at: int = end + FRAME_OVERHEAD + length
            stop: int = body_at + FRAME_OVERHEAD + body_size if body_size else body_at
            if (
                stop <= size
                and kind == HEADER
                and owner == channel
                and length >= _CONTENT_SIZE
                and data[body_at - 1] == _FRAME_END
                and (not body_size or _frame_header(data, body_at) == (BODY, channel, body_size))
                and data[stop - 1] == _FRAME_END
            ):
                properties = data[end + _CONTENT_START : body_at - 1]
                try:
                    sink.deliver(tag, redelivered, route, properties, data[body_at + 7 : stop - 1])
                except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                    self._failed(sink, error)
                between = data[tag_at + 8 : body_at + 7 if body_size else stop]
                if between == sink.between:
                    # The second message with the same bytes: more may follow.
                    self._expect(_Repeat(sink, data[at:tag_at], between, stop - at, redelivered, route, properties))
                sink.between = between if len(between) <= _LARGEST_REPEAT else b""
                return stop
        self._messages[channel] = _Message(tag, redelivered, route)
        return end

    def _expect(self, repeat: _Repeat) -> None:
        """Look for further messages like this one on its channel."""
        sink = repeat.sink
        self._repeats.pop(sink.repeat_key, None)
        sink.repeat_key = repeat.head[:_KEY_SIZE]
        self._repeats[sink.repeat_key] = repeat

    def _continue(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> None:
        """Add a content frame to an incomplete message."""
        message = self._messages[channel]
        kind = data[at]
        if kind == HEADER and message.missing < 0:
            message.missing = _body_size(data, at, end)
            message.properties = data[at + _CONTENT_START : end - 1]
        elif kind == BODY:
            message.add(data, at + 7, end - 1)
        else:
            raise CodecError(_WRONG_ORDER)
        if message.missing == 0:
            self._complete(sink, channel)

    def _complete(self, sink: Sink, channel: int) -> None:
        """Deliver a message that arrived in several frames or reads."""
        message = self._messages.pop(channel)
        self.touched.add(sink.owner)
        body = body_of(message.pieces)
        try:
            sink.deliver(message.tag, message.redelivered, message.route, message.properties, body)
        except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
            self._failed(sink, error)

    def _go_on(self, data: bytes) -> int:
        """Continue a body frame that has begun in an earlier read. Returns the position after it."""
        channel, missing = self._begun, self._missing
        self._missing -= len(data)
        message, sink = self._messages.get(channel), self.sinks.get(channel)
        if message is not None and missing > 1:  # None: the channel was closed meanwhile
            message.add(data, 0, min(missing - 1, len(data)))
        if self._missing > 0:
            return len(data)
        self._begun = 0
        if data[missing - 1] != _FRAME_END:
            raise CodecError(_NO_END)
        if message is not None and sink is not None and message.missing == 0:
            self._complete(sink, channel)
        return missing

    def _take_returned(self, sink: Sink, data: bytes, channel: int, at: int, end: int) -> None:
        """Report a returned message when its content header has arrived, and skip its body."""
        returned, missing = self._returns[channel]
        kind = data[at]
        if kind == HEADER and missing < 0:
            missing = _body_size(data, at, end)
            properties = data[at + _CONTENT_START : end - 1]
            self.touched.add(sink.owner)
            try:
                sink.returned(replace(returned, properties=properties, size=missing))
            except Exception as error:  # noqa: BLE001 - it belongs to one session, and not to the link
                self._failed(sink, error)
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

    def _failed(self, sink: Sink, error: Exception) -> None:
        """Record the error of a sink, and drop the channel's data from now on."""
        sink.drop()
        self.failures.append((sink.owner, error))


def _body_size(data: bytes, at: int, end: int) -> int:
    """The size of the body in bytes, as the content header says."""
    if end - at < _CONTENT_SIZE + FRAME_OVERHEAD:
        raise CodecError("a content header ends within its fields")
    return int(_content_start(data, at)[5])


def _no_method(kind: int) -> int:
    """Return 0 for a complete frame without a method. Raises CodecError if its type needs one or is unknown."""
    if kind == METHOD:
        raise CodecError(_ENDS_EARLY)
    if kind not in _KINDS:
        raise CodecError(f"{kind} is not a type of AMQP frame")
    return 0


def _read_return(arguments: bytes) -> Return:
    """The fields of basic.return."""
    code = int.from_bytes(arguments[:2], "big")
    text, at = _read_short_string(arguments, 2)
    exchange, at = _read_short_string(arguments, at)
    routing_key, at = _read_short_string(arguments, at)
    if at != len(arguments):
        raise CodecError("a basic.return does not have the size of its fields")
    return Return(code, text, exchange, routing_key)


def _read_short_string(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a short string. Returns it, and the position after it."""
    end = at + 1 + data[at]
    return data[at + 1 : end], end


def _with_readable_text(frame: bytes) -> bytes:
    """Replace each byte of a close frame's reply text that is not UTF-8 by a question mark.

    RabbitMQ quotes clients' names there, and cuts the text at 255 bytes, perhaps within a character. The AMQP library
    cannot decode such a text, and would give up the connection with all its sessions.
    """
    start = 14  # after the reply code and the length byte
    end = start + frame[start - 1]
    if end + 5 != len(frame):  # class and method that caused the close, and the frame's end
        raise CodecError("a close does not have the size of its fields")
    text = frame[start:end].decode("utf-8", "surrogateescape").encode("utf-8", "replace")
    return frame[:start] + text + frame[end:]
