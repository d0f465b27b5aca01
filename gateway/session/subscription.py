"""Subscriptions: each encodes its MESSAGE frames, and has a ledger of its deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from gateway.amqp import properties as amqp
from gateway.errors import CodecError
from gateway.pieces import Body, joined
from gateway.session import translate
from gateway.session.delivery_ledger import OUT_OF_ORDER, AckMode, DeliveryLedger
from gateway.session.destinations import DestinationKind, kind_of, message_destination, with_slashes
from gateway.session.queues import Argument, QueueSpec
from gateway.session.traffic import DeliveryCounter, TrafficCounter
from gateway.stomp.block_cache import BlockCache
from gateway.stomp.frame import encode_headers
from gateway.stomp.headers import escape

LARGEST_CACHED_BLOCK: Final = 2048
"""The most bytes of route and properties for which a subscription caches anything."""
_MOST_BYTES: Final = 300_000

# RabbitMQ adds this entry, an integer, to the headers table of every message from a stream.
_STREAM_OFFSET: Final = b"x-stream-offset"

# The encoded name of an entry of the headers table. A SEND with a receipt becomes a message with this entry. Receipts
# differ from message to message, so nothing is cached for these.
RECEIPT_FIELD: Final = b"\x07receipt"

# Larger than every delivery tag, which has 64 bits.
_NEVER: Final = 1 << 64

# The pieces of a MESSAGE in ``Subscription.deliver``: the headers up to the delivery's number, the number, the other
# headers with the blank line, the body, and the end. With an ack header, which repeats the number, the other headers
# are two pieces with the number in between.
_MESSAGE: Final = b"MESSAGE\n"
_BLANK_LINE: Final = b"\n\n"
_END: Final = b"\0\n"
_PIECES: Final = 5
_PIECES_WITH_ACK: Final = 7


@dataclass(slots=True)
class PendingAutoAcks:
    """The subscriptions with deliveries that the gateway has to settle, most of them with ack:auto.

    ``is_urgent``: one of them has so many that they must be settled before the next round of `AutoAckFlusher`.
    """

    subscriptions: list[Subscription] = field(default_factory=list)
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """An operation, like those in ``ops``: open a channel for a subscription, declare, bind and consume its queue.

    Answered by Subscribed or OperationFailed.

    Args:
        queue: the queue to declare, or None.
        queue_name: the queue to consume; if empty, the declared one.
        binding: the exchange and routing key to bind it with, or None.
        prefetch: 0 for no limit.
        arguments: those of basic.consume.
        is_stream: the declaration, by client or operator, is that of a stream.
    """

    subscription: Subscription
    queue: QueueSpec | None
    queue_name: str
    binding: tuple[str, str] | None
    prefetch: int
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    is_stream: bool = False

    @property
    def purpose(self) -> str:
        """See ``ops``."""
        return f"to start a subscription to '{self.subscription.destination.decode(errors='replace')}'"

    @property
    def needs_pausable_link(self) -> bool:
        """Whether the gateway must stop reading from the broker if the client is slow.

        Nothing else bounds the messages without a prefetch, or of a stream, to which they cannot be returned.
        """
        return not self.prefetch or self.is_stream


class Subscription:
    """One subscription of a session.

    It has many attributes, so that each one that ``deliver`` reads for every message is one look-up away.

    Args:
        tag: its identity within the session, ``T_<id>`` or ``Q_<destination>``.
        identifier: the subscription header of its MESSAGE frames; None without one.
        session: the session's identity, a part of every message-id.
        destination: as the client wrote it; empty for the queue of a reply-to.
        shows_ack: MESSAGE has an ack header, unless the mode is auto.
        window: the prefetch with ack:auto. Settling is urgent after a quarter of it.
        base: added to the delivery tag for the number in a message-id, so that a number is never used again for
            another subscription with the same tag, or after the loss of a channel.
    """

    __slots__ = (
        "_auto_acks", "_body_bytes", "_counter", "_header_cache", "_is_pending", "_is_redelivered", "_is_started",
        "_layout", "_notify_above", "_prefixes", "_properties", "_redelivered", "_route", "_size", "_stats_before",
        "_stopped_at", "_urgent_after", "awaits_queue", "base", "destination", "first_base", "identifier",
        "is_lost", "is_stream", "kind", "ledger", "mode", "next_offset", "output", "queue", "request", "tag",
    )  # fmt: skip

    # Whether it has a selector, so that a delivery may take long.
    selects: ClassVar[bool] = False

    _ledger_type: ClassVar[type[DeliveryLedger]] = DeliveryLedger

    def __init__(
        self,
        tag: bytes,
        identifier: bytes | None,
        mode: AckMode,
        session: bytes,
        *,
        destination: bytes = b"",
        shows_ack: bool = False,
        window: int = 2000,
        base: int = 0,
    ) -> None:
        self.tag = tag
        self.identifier = identifier
        self.mode = mode
        # ``base`` grows with each channel that is lost; ``first_base`` does not.
        self.base = self.first_base = base
        self.destination = destination
        self.kind = kind_of(destination) if destination else DestinationKind.TEMP_QUEUE
        # The name of the queue that it consumes, once the broker has answered.
        self.queue = ""
        # Whether its queue is a stream; None before the first message. RabbitMQ before 4.0 answers a basic.nack for a
        # stream by closing the whole link, with the channels of other sessions. Only an entry of the headers table
        # shows a stream. The first message decides, because a later one may have kept the entry of another stream.
        self.is_stream: bool | None = None
        # For a stream, the offset of the next message.
        self.next_offset: int | None = None
        # The operation that restores it if its channel is lost, and whether the channel is lost now.
        self.request: Subscribe | None = None
        self.is_lost = False
        # True while it waits for its queue alone, and does not hold the session.
        self.awaits_queue = False
        self.ledger = self._ledger_type(mode)
        # The pieces of MESSAGE frames: until ``start`` its own list, and then the session's output.
        self.output: list[Body] = []
        self._counter: DeliveryCounter | None = None
        self._body_bytes = self._redelivered = 0
        # The traffic on channels that were lost, because the ledger has only that of the present channel.
        self._stats_before = TrafficCounter()
        # True while messages may go to the client.
        self._is_started = False
        # The stats when deliveries stopped, and the number of deliveries that were settled by then.
        self._stopped_at: tuple[TrafficCounter, int] | None = None
        # With ack:auto it adds itself to _auto_acks when a tag above ``_notify_above`` is delivered. The next time that
        # happens, it makes settling urgent.
        self._auto_acks = PendingAutoAcks()
        self._is_pending = False
        self._notify_above = 0 if mode is AckMode.AUTO else _NEVER
        self._urgent_after = max(1, window // 4)
        # The beginning of MESSAGE, the lines up to the number in message-id and in ack (empty without ack), and whether
        # topics are shown with slashes.
        named = b"subscription:%b\n" % escape(identifier) if identifier is not None else b""
        delivery = b"%b@@%b@@" % (escape(tag), escape(session))
        ack = b"\nack:" + delivery if shows_ack and mode is not AckMode.AUTO else b""
        self._prefixes = (_MESSAGE + named, b"message-id:" + delivery, ack, False)
        self._header_cache = BlockCache[tuple[bytes, bytes, bytes]](_MOST_BYTES, _size_of_block)
        # The last layout: the bytes before the number, between the two numbers if there is an ack header, and after
        # them. It is for messages with this route, these properties, this size of the body, and this redelivered.
        self._layout = (b"", b"", b"")
        self._route = self._properties = b""
        self._size = -1
        self._is_redelivered = False

    @property
    def last_number(self) -> int:
        """The number in the message-id of the last delivery."""
        return self.base + self.ledger.last_tag

    def show_slashes(self) -> None:
        """Show topics in MESSAGE frames with slashes instead of dots."""
        self._prefixes = (*self._prefixes[:3], True)

    @property
    def address(self) -> bytes:
        """The destination as the client wrote it, also for the queue of a reply-to."""
        return self.destination or self.tag[2:]

    @property
    def must_return(self) -> bool:
        """Whether its channel is lost, and the session is held until it is restored."""
        return self.is_lost and not self.awaits_queue and self._stopped_at is None

    @property
    def stats(self) -> TrafficCounter:
        """The traffic so far. See `TrafficCounter`."""
        ledger, before, settled = self.ledger, self._stats_before, self.ledger.settled_by_client
        if self._stopped_at is not None:
            stats, settled_before = self._stopped_at
            settled = 0 if self.mode is AckMode.AUTO else settled - settled_before
            requeued, discarded = before.requeued + ledger.requeued, before.discarded + ledger.discarded
            refused = requeued - stats.requeued + discarded - stats.discarded
            return replace(
                stats,
                outstanding=max(0, stats.outstanding - settled),
                acknowledged=stats.acknowledged + settled - refused,
                requeued=requeued,
                discarded=discarded,
            )
        return TrafficCounter(
            delivered=before.delivered + ledger.last_tag - ledger.dropped - ledger.filtered,
            delivered_bytes=self._body_bytes,
            redelivered=self._redelivered,
            outstanding=ledger.outstanding,
            acknowledged=before.acknowledged + settled - ledger.requeued - ledger.discarded,
            requeued=before.requeued + ledger.requeued,
            discarded=before.discarded + ledger.discarded,
            filtered=before.filtered + ledger.filtered,
        )

    def set_channel(self, number: int) -> None:
        """Set its new channel, by number. Deliveries of an earlier channel are lost."""
        if self.ledger.channel:
            self.lost()
        self.ledger.channel = number
        self.is_lost = False

    def queue_gone(self) -> None:
        """Note that its queue does not exist. If it was a stream, read a new one with its name from the beginning."""
        if self.next_offset is not None:
            self.next_offset = 0

    def lost(self) -> None:
        """Note that its channel is lost. The broker will deliver unsettled messages again.

        Delivery tags start again at 1 on the next channel. The numbers in message-ids continue: those at or below the
        new ``base`` belong to lost channels (`Settlement.is_lost`), and are not in the new ledger.
        """
        self.is_lost = True
        if not self._is_started:
            # Nothing has gone to the client.
            self.output.clear()
            self._auto_acks = PendingAutoAcks()
            self._body_bytes = self._redelivered = 0
        else:
            stats = replace(self.stats, outstanding=0)
            self._stats_before = stats
            if self._stopped_at is not None:
                self._stopped_at = (stats, 0)
            self.base = self.last_number
            if self in self._auto_acks.subscriptions:
                self._auto_acks.subscriptions.remove(self)
        if self._counter is not None:
            self._counter.lost(self.ledger.last_tag, self.ledger.outstanding)
        self.ledger = self._ledger_type(self.mode)
        self.ledger.counter = self._counter
        self._is_pending = False
        self._notify_above = 0 if self.mode is AckMode.AUTO else _NEVER

    def set_counter(self, counter: DeliveryCounter | None) -> None:
        """Set the observer's counter of deliveries and settlements, or None."""
        self._counter = self.ledger.counter = counter

    def start(self, output: list[Body], auto_acks: PendingAutoAcks) -> None:
        """Let messages go to the client, beginning with those that arrived before the RECEIPT of its SUBSCRIBE."""
        output += self.output
        self.output = output
        self._is_started = True
        auto_acks.subscriptions += self._auto_acks.subscriptions
        auto_acks.is_urgent |= self._auto_acks.is_urgent
        self._auto_acks = auto_acks

    def stop(self) -> None:
        """Drop messages from now on. The client may still settle those it has, and that is counted."""
        self.output = []
        self._auto_acks = PendingAutoAcks()
        # It will not be restored. Dropping the operation, which refers to the subscription, breaks the reference cycle.
        # Otherwise the garbage collector, which blocks the event loop, would have to find thousands of them.
        self.request = None
        if self._stopped_at is None:
            self._stopped_at = (self.stats, self.ledger.settled_by_client)
            self._counter = None

    # Deliveries.

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """Encode one delivery as MESSAGE, in pieces that are joined once per batch.

        HOT: once per message. ``gateway.stomp.frame.encode`` is the slow twin. The layout is kept as long as
        ``route`` and ``properties`` are the same objects, which the splitter passes again for similar messages.

        ``route``: exchange and routing key, as encoded short strings. ``properties``: flags and list, as in the content
        header.

        Raises:
            CodecError: the delivery tags of the channel are not consecutive.
        """
        size, layout = len(body), self._layout
        if (
            route is not self._route
            or properties is not self._properties
            or size != self._size
            or redelivered is not self._is_redelivered
        ):
            layout = self._lay_out(route, properties, size, redelivered)
        ledger = self.ledger
        if tag != ledger.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        ledger.last_tag = ledger.last_sent = tag
        if tag > self._notify_above:
            self._note_auto_ack(tag)
        if redelivered:
            self._redelivered += 1
        self._body_bytes += size
        if self._counter is not None:
            # Before the output is extended: if this raises, the client gets no part of the frame.
            self._counter.delivered(tag, redelivered, size)
        number = b"%d" % (tag + self.base)
        before, middle, after = layout
        if middle:
            self.output += (before, number, middle, number, after, body, _END)
        else:
            self.output += (before, number, after, body, _END)

    def deliver_alike(self, tag: int, bodies: list[bytes]) -> None:
        """Encode consecutive messages, from this tag on, that differ from the last one only in the body.

        HOT: once for many messages. ``deliver`` is the slow twin.

        Raises:
            CodecError: the delivery tags of the channel are not consecutive.
        """
        ledger = self.ledger
        if tag != ledger.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        count, size = len(bodies), self._size
        ledger.last_tag = ledger.last_sent = last = tag + count - 1
        while last > self._notify_above:
            self._note_auto_ack(self._notify_above + 1)
        if self._is_redelivered:
            self._redelivered += count
        self._body_bytes += count * size
        if self._counter is not None:
            for each in range(tag, last + 1):
                self._counter.delivered(each, self._is_redelivered, size)
        before, middle, after = self._layout
        output, number = self.output, tag + self.base
        for body in bodies:
            if middle:
                text = b"%d" % number
                output += (before, text, middle, text, after, body, _END)
            else:
                output += (before, b"%d" % number, after, body, _END)
            number += 1

    def _lay_out(self, route: bytes, properties: bytes, size: int, redelivered: bool) -> tuple[bytes, bytes, bytes]:
        """The bytes of a MESSAGE around the delivery's number.

        Messages of one publisher share route and properties, so the headers are cached by the bytes of both. Large ones
        are not kept, because one message may reach thousands of subscriptions.
        """
        key = route + properties
        headers = self._header_cache.get(key)
        if headers is None:
            headers = self._encode_headers(key, route, properties)
        before, ack, after = headers
        middle = b"\nredelivered:%b" % (b"true" if redelivered else b"false")
        after += b"content-length:%d\n\n" % size if size else b"\n"
        layout = (before, middle + ack, after) if ack else (before, b"", middle + after)
        if len(key) <= LARGEST_CACHED_BLOCK:
            self._layout = layout
            self._route, self._properties, self._size, self._is_redelivered = route, properties, size, redelivered
        return layout

    def _encode_headers(self, key: bytes, route: bytes, properties: bytes) -> tuple[bytes, bytes, bytes]:
        """Encode the headers of MESSAGE: up to the number, up to the ack's number, and the rest."""
        split = route[0] + 1
        destination = message_destination(route[1:split], route[split + 1 :])
        start, message_id, ack, shows_slashes = self._prefixes
        if shows_slashes:
            destination = with_slashes(destination)
        before = b"%bdestination:%b\n%b" % (start, escape(destination), message_id)
        if self.is_stream is not False:
            self._follow_stream(properties)
        headers = (before, ack, b"\n" + encode_headers(translate.shown_headers(amqp.decode(properties))))
        if len(key) <= LARGEST_CACHED_BLOCK and not self.is_stream and RECEIPT_FIELD not in properties:
            self._header_cache.enter(key, headers)
        return headers

    def _follow_stream(self, properties: bytes) -> None:
        """Find out from the first message whether the queue is a stream, and from each message of one, the offset."""
        offset = _stream_offset(properties)
        if self.is_stream is None:
            self.is_stream = offset is not None
        if self.is_stream and offset is not None:
            # Properties of a stream's messages are not cached, because each has another offset.
            self.next_offset = offset + 1

    def drop_for_requeue(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """Take a delivery for a client that is too slow, and keep only its tag.

        The server calls it instead of ``deliver`` until the client has caught up, and then
        ``DeliveryLedger.requeue_dropped`` requeues the messages. The prefetch bounds their number. Messages of a stream
        cannot be requeued, and are delivered.
        """
        if self.is_stream is None:
            self.is_stream = _stream_offset(properties) is not None
        if self.is_stream:
            self.deliver(tag, redelivered, route, properties, body)
        else:
            self.ledger.drop(tag)

    # Automatic acknowledgement.

    def _note_auto_ack(self, tag: int) -> None:
        """Register for settling at the first message since everything was settled; later make it urgent."""
        if self._is_pending:
            self._auto_acks.is_urgent = True
            self._notify_above = _NEVER
        else:
            self._is_pending = True
            self._auto_acks.subscriptions.append(self)
            self._notify_above = tag + self._urgent_after

    def settle_delivered(self) -> bool:
        """See `DeliveryLedger.settle_delivered`."""
        if not self.ledger.settle_delivered():
            return False
        self._is_pending = False
        self._notify_above = self.ledger.last_tag
        return True


def _stream_offset(properties: bytes) -> int | None:
    """The offset of a message in its stream; None if it does not come from a stream.

    STOMP clients cannot forge it, because their headers become strings.
    """
    headers = amqp.decode(properties).headers or ()
    return next((value for name, value in headers if name == _STREAM_OFFSET and isinstance(value, int)), None)


def split_frames(pieces: list[Body]) -> list[bytes]:
    """Join the pieces of a session's output to frames, because WebSocket sends each frame as a message.

    A body may contain any bytes, so frames are told apart by the pieces: a MESSAGE has several, and every other frame
    is one piece. Each frame keeps the LF after it.

    HOT: once per batch on WebSocket.
    """
    frames: list[bytes] = []
    begin, count = 0, len(pieces)
    while begin < count:
        end = begin + 1
        if pieces[begin].startswith(_MESSAGE):  # type: ignore[union-attr]  # only a body is in pieces
            end = begin + (_PIECES if pieces[begin + 2].endswith(_BLANK_LINE) else _PIECES_WITH_ACK)  # type: ignore[union-attr]
        frames.append(joined(pieces[begin:end]))
        begin = end
    return frames


def _size_of_block(block: bytes) -> int:
    """The memory in bytes, as measured, that the cached headers for a route and properties take."""
    return 300 + 3 * len(block)
