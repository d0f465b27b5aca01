"""A subscription: it encodes its MESSAGE frames, and keeps a ledger of its deliveries."""

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
"""Bytes of route and properties. What is known of messages that share both is kept by each subscription, unless the two
are larger than this."""
_MOST_BYTES: Final = 300_000

# An entry of the headers table, a number, that RabbitMQ adds to everything that a stream delivers.
_STREAM_OFFSET: Final = b"x-stream-offset"

# The name of an entry of the headers table. A SEND with a receipt becomes a message with that header, and no other
# message has the same receipt: it is not worth caching.
RECEIPT_FIELD: Final = b"\x07receipt"

# Above every delivery tag: tags have 64 bits.
_NEVER: Final = 1 << 64

# The pieces in which ``Subscription.deliver`` puts out a MESSAGE: what stands before the delivery's number, the number,
# the rest of the headers with the blank line, the body, the end. With an ack header the rest is in two pieces, and
# between them is the number again.
_MESSAGE: Final = b"MESSAGE\n"
_BLANK_LINE: Final = b"\n\n"
_END: Final = b"\0\n"
_PIECES: Final = 5
_PIECES_WITH_ACK: Final = 7


@dataclass(slots=True)
class PendingAutoAcks:
    """The subscriptions that have deliveries to settle without the client, most of them with ack:auto.

    ``is_urgent``: one of them has so many that settling should not wait for the next round.
    """

    subscriptions: list[Subscription] = field(default_factory=list)
    is_urgent: bool = False


@dataclass(frozen=True, slots=True)
class Subscribe:
    """An operation, as those of ``ops``: open a channel for a subscription, declare its queue, consume, bind.

    Answered by Subscribed or OperationFailed.

    ``queue`` is declared when given; ``queue_name`` is consumed (empty: the declared one). ``binding`` is the exchange
    and the routing key, or None. ``arguments`` are those of basic.consume. ``prefetch`` 0 asks for no limit.
    ``is_stream``: the client or the operator asks for a stream.
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
        """The request in words, for an ERROR."""
        return f"to start a subscription to '{self.subscription.destination.decode(errors='replace')}'"

    @property
    def needs_pausable_link(self) -> bool:
        """Whether the gateway may have to stop reading from the broker when the client is slow.

        Nothing else bounds the messages when there is no prefetch, or when the queue is a stream, which takes no
        message back.
        """
        return not self.prefetch or self.is_stream


class Subscription:
    """One subscription of a session.

    It has more attributes than other classes because every message passes through ``deliver``, and each attribute that
    ``deliver`` reads is one look-up away.

    Args:
        tag: its identity within the session, ``T_<id>`` or ``Q_<destination>``.
        identifier: value of the subscription header of its MESSAGE frames, None without one.
        session: the session header, part of every message-id.
        destination: as the client wrote it; empty for the queue of a reply-to.
        shows_ack: whether MESSAGE carries an ack header, as it does in STOMP 1.2 unless the mode is auto.
        window: the prefetch of a subscription with ack:auto. Settling is urgent after a quarter of it.
        base: the number in a message-id is the delivery tag plus this, so that the numbers of an earlier subscription
            with the same tag, or of a channel that was lost, do not come again.
    """

    __slots__ = (
        "_auto_acks", "_body_bytes", "_counter", "_header_cache", "_is_pending", "_is_redelivered", "_is_started",
        "_layout", "_notify_above", "_prefixes", "_properties", "_redelivered", "_route", "_size", "_stats_before",
        "_stopped_at", "_urgent_after", "awaits_queue", "base", "destination", "first_base", "identifier",
        "is_lost", "is_stream", "kind", "ledger", "mode", "next_offset", "output", "queue", "request", "tag",
    )  # fmt: skip

    # Whether it has a selector, so that a message may cost much.
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
        # ``first_base`` stays; ``base`` grows with each channel that is lost.
        self.base = self.first_base = base
        self.destination = destination
        self.kind = kind_of(destination) if destination else DestinationKind.TEMP_QUEUE
        # The name of the queue that it consumes, once the broker has answered.
        self.queue = ""
        # Whether its messages come from a stream, which takes none back: RabbitMQ before 4.0 answers a basic.nack by
        # closing the whole link, with other sessions' channels. Only the headers of the messages show it. The first
        # message decides, because any later one may have passed through a stream before and kept that header.
        self.is_stream: bool | None = None
        # For a stream: the offset after the last message that arrived.
        self.next_offset: int | None = None
        # The operation that brings it back when its channel is lost, and whether that is so now.
        self.request: Subscribe | None = None
        self.is_lost = False
        # Whether it comes back by itself, once its queue does; the rest of the session goes on.
        self.awaits_queue = False
        self.ledger = self._ledger_type(mode)
        # Where MESSAGE frames go, in pieces. Until ``start`` they collect here.
        self.output: list[Body] = []
        self._counter: DeliveryCounter | None = None
        self._body_bytes = self._redelivered = 0
        # The traffic on channels that were lost: the ledger counts by delivery tags, of the present channel only.
        self._stats_before = TrafficCounter()
        # True while messages may go to the client.
        self._is_started = False
        # The stats when deliveries stopped, and how much the client had settled by then.
        self._stopped_at: tuple[TrafficCounter, int] | None = None
        # With ack:auto it enters itself here when a tag above ``_notify_above`` is delivered, and asks for urgency at
        # the next one.
        self._auto_acks = PendingAutoAcks()
        self._is_pending = False
        self._notify_above = 0 if mode is AckMode.AUTO else _NEVER
        self._urgent_after = max(1, window // 4)
        # What MESSAGE begins with, what stands before the number in message-id and ack, which is empty without ack, and
        # whether topics are shown with slashes.
        named = b"subscription:%b\n" % escape(identifier) if identifier is not None else b""
        delivery = b"%b@@%b@@" % (escape(tag), escape(session))
        ack = b"\nack:" + delivery if shows_ack and mode is not AckMode.AUTO else b""
        self._prefixes = (_MESSAGE + named, b"message-id:" + delivery, ack, False)
        self._header_cache = BlockCache[tuple[bytes, bytes, bytes]](_MOST_BYTES, _size_of_block)
        # What stands before the number, between the two numbers of a MESSAGE with an ack header, and behind; and what
        # that is for: route, properties, size of the body, redelivered.
        self._layout = (b"", b"", b"")
        self._route = self._properties = b""
        self._size = -1
        self._is_redelivered = False

    @property
    def last_number(self) -> int:
        """The number in the message-id of the last delivery."""
        return self.base + self.ledger.last_tag

    def show_slashes(self) -> None:
        """Write the topics of MESSAGEs with slashes in place of dots."""
        self._prefixes = (*self._prefixes[:3], True)

    @property
    def address(self) -> bytes:
        """Its destination; for the queue of a reply-to, its name there."""
        return self.destination or self.tag[2:]

    @property
    def must_return(self) -> bool:
        """Whether its channel is lost, and the session waits for it."""
        return self.is_lost and not self.awaits_queue and self._stopped_at is None

    @property
    def stats(self) -> TrafficCounter:
        """What went to the client so far."""
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
        """Note the channel on which its deliveries are settled from now on; what another one delivered is lost."""
        if self.ledger.channel:
            self.lost()
        self.ledger.channel = number
        self.is_lost = False

    def queue_gone(self) -> None:
        """The queue does not exist. If it is a stream, read a later one of that name from its beginning."""
        if self.next_offset is not None:
            self.next_offset = 0

    def lost(self) -> None:
        """Its channel is gone. The broker delivers unsettled messages again.

        Delivery tags start again at 1 on the next channel. So the client's numbers continue above those already used,
        which always belong to lost channels (`Settlement.is_lost`) and are not in the new ledger.
        """
        self.is_lost = True
        if not self._is_started:
            # The client has seen nothing of it.
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
        """Let a counter see every message and every settlement."""
        self._counter = self.ledger.counter = counter

    def start(self, output: list[Body], auto_acks: PendingAutoAcks) -> None:
        """Let messages go to the client, first those that arrived before the RECEIPT of its SUBSCRIBE."""
        output += self.output
        self.output = output
        self._is_started = True
        auto_acks.subscriptions += self._auto_acks.subscriptions
        auto_acks.is_urgent |= self._auto_acks.is_urgent
        self._auto_acks = auto_acks

    def stop(self) -> None:
        """Discard messages from now on. Earlier acknowledgements of the client are still settled, and counted."""
        self.output = []
        self._auto_acks = PendingAutoAcks()
        # It will not be restored. The operation refers to the subscription: left in that cycle, thousands of them would
        # wait for Python's search for garbage, during which nobody is served.
        self.request = None
        if self._stopped_at is None:
            self._stopped_at = (self.stats, self.ledger.settled_by_client)
            self._counter = None

    # Deliveries.

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """Encode one delivery as MESSAGE, in pieces that are joined once per batch.

        HOT: once per message. What repeats is laid out once: the splitter hands the very same ``route`` and
        ``properties`` out again as long as they come again. ``gateway.stomp.frame.encode`` is the slow twin. The
        route is exchange and routing key as short strings; the properties are flags and list, as in the content header.
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
            # Before the frame: if this raises, no half of a frame goes to the client.
            self._counter.delivered(tag, redelivered, size)
        number = b"%d" % (tag + self.base)
        before, middle, after = layout
        if middle:
            self.output += (before, number, middle, number, after, body, _END)
        else:
            self.output += (before, number, after, body, _END)

    def deliver_alike(self, tag: int, bodies: list[bytes]) -> None:
        """Encode the messages that follow one just delivered, from this tag on, if they differ in nothing but the body.

        HOT: once for many messages. ``deliver`` is the slow twin.
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
        """Put together what stands around the delivery's number in MESSAGEs with this route and the like.

        Messages of one publisher share route and properties; their headers are encoded once and found again by the
        bytes of both. What is large is not kept: one message may reach thousands of subscriptions.
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
        """The parts of MESSAGE that do not change: before the number, before the ack's number, and after that."""
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
        """Learn from the first message whether it is a stream's, and of a stream where it stands."""
        offset = _stream_offset(properties)
        if self.is_stream is None:
            self.is_stream = offset is not None
        if self.is_stream and offset is not None:
            # Messages of a stream are not cached, because each has another offset among its properties.
            self.next_offset = offset + 1

    def drop_for_requeue(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """Take a delivery for a client that is too slow, and keep nothing but its tag.

        It stands in for ``deliver`` until the client has caught up; then ``DeliveryLedger.requeue_dropped`` gives the
        messages back to their queue. The prefetch bounds how many there can be. What comes from a stream cannot be
        given back, so it is delivered all the same.
        """
        if self.is_stream is None:
            self.is_stream = _stream_offset(properties) is not None
        if self.is_stream:
            self.deliver(tag, redelivered, route, properties, body)
        else:
            self.ledger.drop(tag)

    # Automatic acknowledgement.

    def _note_auto_ack(self, tag: int) -> None:
        """The first message since everything was settled, or so many that settling should not wait any longer."""
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
    """The place of a message in its stream; None if no stream delivered it.

    No STOMP client can send such an entry: theirs are all texts.
    """
    headers = amqp.decode(properties).headers or ()
    return next((value for name, value in headers if name == _STREAM_OFFSET and isinstance(value, int)), None)


def split_frames(pieces: list[Body]) -> list[bytes]:
    """Join the pieces of a session's output to frames, for WebSocket, which carries each frame as a message.

    A body may hold anything, so the end of a frame cannot be found in its bytes. The pieces tell: ``deliver`` puts out
    a MESSAGE in several, and every other frame is one piece. Each frame keeps the LF that follows it.

    HOT: once per batch on WebSocket, and a few tests for each frame.
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
    """The bytes that a cached route with its properties takes, as measured."""
    return 300 + 3 * len(block)
