"""The headers of a subscription's MESSAGE frames, encoded once for similar messages."""

from __future__ import annotations

from typing import Final

from gateway.amqp import properties as amqp
from gateway.session import translate
from gateway.session.destinations import message_destination, with_slashes
from gateway.stomp.block_cache import BlockCache
from gateway.stomp.frame import encode_headers
from gateway.stomp.headers import escape

MESSAGE: Final = b"MESSAGE\n"

LARGEST_CACHED_BLOCK: Final = 2048
"""The most bytes of route and properties for which anything is cached."""
_MOST_BYTES: Final = 300_000

# RabbitMQ adds this entry, an integer, to the headers table of every message from a stream.
_STREAM_OFFSET: Final = b"x-stream-offset"

# The encoded names of entries of the headers table that differ from message to message: a SEND with a receipt becomes a
# message with this entry, and each message of a stream has another offset. So nothing is cached for these.
RECEIPT_ENTRY: Final = b"\x07receipt"
_OFFSET_ENTRY: Final = b"\x0f" + _STREAM_OFFSET


def stream_offset(properties: bytes) -> int | None:
    """The offset of a message in its stream; None if it does not come from a stream.

    STOMP clients cannot forge it, because their headers become strings.
    """
    headers = amqp.decode(properties).headers or ()
    return next((value for name, value in headers if name == _STREAM_OFFSET and isinstance(value, int)), None)


def destination_of(route: bytes) -> bytes:
    """The destination header for a route: exchange and routing key, as encoded short strings."""
    split = route[0] + 1
    return message_destination(route[1:split], route[split + 1 :])


class MessageHeaders:
    """Encodes the headers of MESSAGE for one subscription. The arguments are those of `Subscription`.

    ``layout`` is the result of the last ``lay_out``, for messages with this ``route``, these ``properties``, this
    ``size`` of the body, and this ``redelivered``.
    """

    __slots__ = (
        "_ack", "_cache", "_message_id", "_start", "layout", "properties", "redelivered", "route", "shows_slashes",
        "size",
    )  # fmt: skip

    def __init__(self, tag: bytes, identifier: bytes | None, session: bytes, *, shows_ack: bool) -> None:
        delivery = b"%b@@%b@@" % (escape(tag), escape(session))
        self._start = MESSAGE if identifier is None else b"%bsubscription:%b\n" % (MESSAGE, escape(identifier))
        # The beginnings of the lines that end with the delivery's number.
        self._message_id = b"message-id:" + delivery
        self._ack = b"\nack:" + delivery if shows_ack else b""
        # Whether topics are shown with slashes instead of dots.
        self.shows_slashes = False
        self._cache = BlockCache[tuple[bytes, bytes, bytes]](_MOST_BYTES, _size_of_block)
        self.layout = (b"", b"", b"")
        self.route = self.properties = b""
        self.size = -1
        self.redelivered = False

    def lay_out(self, route: bytes, properties: bytes, size: int, redelivered: bool) -> tuple[bytes, bytes, bytes]:
        """The bytes of a MESSAGE before the delivery's number, between its two places if there is an ack, and after it.

        Messages of one publisher share route and properties, so the headers are cached by the bytes of both. Large ones
        are not kept, because one message may reach thousands of subscriptions.
        """
        block = route + properties
        headers, is_small = self._cache.get(block), len(block) <= LARGEST_CACHED_BLOCK
        if headers is None:
            headers = self._encode(route, properties)
            if is_small and RECEIPT_ENTRY not in properties and _OFFSET_ENTRY not in properties:
                self._cache.enter(block, headers)
        before, ack, after = headers
        middle = b"\nredelivered:%b" % (b"true" if redelivered else b"false")
        after += b"content-length:%d\n\n" % size if size else b"\n"
        layout = (before, middle + ack, after) if ack else (before, b"", middle + after)
        if is_small:
            self.layout = layout
            self.route, self.properties, self.size, self.redelivered = route, properties, size, redelivered
        return layout

    def _encode(self, route: bytes, properties: bytes) -> tuple[bytes, bytes, bytes]:
        """Encode the headers: up to the number, up to the ack's number, and the rest."""
        destination = destination_of(route)
        if self.shows_slashes:
            destination = with_slashes(destination)
        before = b"%bdestination:%b\n%b" % (self._start, escape(destination), self._message_id)
        return before, self._ack, b"\n" + encode_headers(translate.shown_headers(amqp.decode(properties)))


def _size_of_block(block: bytes) -> int:
    """The memory in bytes, as measured, that the cached headers for a route and properties take."""
    return 300 + 3 * len(block)
