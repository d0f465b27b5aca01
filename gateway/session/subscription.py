"""Subscriptions: each writes its MESSAGE frames, and has a ledger of its deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from gateway.errors import CodecError
from gateway.pieces import Body, joined
from gateway.session.correlation import note_published
from gateway.session.delivery_ledger import OUT_OF_ORDER, AckMode, DeliveryLedger
from gateway.session.destinations import DestinationKind, kind_of
from gateway.session.message_headers import MESSAGE, MessageHeaders, stream_offset
from gateway.session.queues import Argument, QueueSpec
from gateway.session.traffic import DeliveryCounter, TrafficCounter

# Larger than every delivery tag, which has 64 bits.
_NEVER: Final = 1 << 64

# The pieces of a MESSAGE in ``Subscription.deliver``: the headers up to the delivery's number, the number, the other
# headers with the blank line, the body, and the end. With an ack header, which repeats the number, the other headers
# are two pieces with the number in between.
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

        Nothing else bounds the messages if there is no prefetch. Those of a stream cannot be returned to it.
        """
        return not self.prefetch or self.is_stream


class Subscription:
    """One subscription of a session.

    Args:
        tag: its identity within the session, ``T_<id>`` or ``Q_<destination>``. It is no delivery tag; those are what
            ``deliver`` and the ledger call a tag.
        identifier: the subscription header of its MESSAGE frames; None without one.
        session: the session's identity, a part of every message-id.
        destination: as the client wrote it; empty for the queue of a reply-to.
        shows_ack: MESSAGE has an ack header, unless the mode is auto.
        window: the prefetch with ack:auto. Settling is urgent after a quarter of it.
        base: added to the delivery tag for the number in a message-id, so that a number is never used again for
            another subscription with the same tag, or after the loss of a channel.
    """

    __slots__ = (
        "_auto_acks", "_counter", "_is_pending", "_is_started", "_notify_above", "_stats_before", "_stopped_at",
        "_urgent_after", "awaits_queue", "base", "correlates", "destination", "first_base", "headers", "identifier",
        "is_stream", "kind", "ledger", "mode", "next_offset", "output", "queue", "request", "tag",
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
        # The operation that restores it if its channel is lost.
        self.request: Subscribe | None = None
        # True while it waits for its queue by itself, so that the session is not held.
        self.awaits_queue = False
        self.ledger = self._ledger_type(mode)
        # The pieces of MESSAGE frames: until ``start`` its own list, and then the session's output.
        self.output: list[Body] = []
        self.headers = MessageHeaders(tag, identifier, session, shows_ack=shows_ack and mode is not AckMode.AUTO)
        self._counter: DeliveryCounter | None = None
        # Whether the observer's counters are `CorrelatedCounter`.
        self.correlates = False
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

    @property
    def last_number(self) -> int:
        """The number in the message-id of the last delivery."""
        return self.base + self.ledger.last_tag

    @property
    def address(self) -> bytes:
        """The destination as the client wrote it, also for the queue of a reply-to."""
        return self.destination or self.tag[2:]

    @property
    def _declared(self) -> QueueSpec | None:
        return None if self.request is None else self.request.queue

    @property
    def is_exclusive(self) -> bool:
        """Whether its queue is exclusive to its session."""
        return self._declared is not None and self._declared.exclusive

    @property
    def outlives_consumers(self) -> bool:
        """Whether its queue is known to survive without a consumer."""
        return self._declared is not None and not (self._declared.auto_delete or self._declared.exclusive)

    @property
    def has_channel(self) -> bool:
        """Whether it has a channel: false before the first one, and after a loss until it has another."""
        return self.ledger.channel != 0

    @property
    def awaits_recovery(self) -> bool:
        """Whether its channel is lost, and the session is held until it is restored."""
        return not (self.has_channel or self.awaits_queue) and self._stopped_at is None

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
            delivered_bytes=before.delivered_bytes + ledger.delivered_bytes,
            redelivered=before.redelivered + ledger.redelivered,
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

    def queue_gone(self) -> None:
        """Note that its queue does not exist. If it was a stream, read a new one with its name from the beginning."""
        if self.next_offset is not None:
            self.next_offset = 0

    def lost(self) -> None:
        """Note that its channel is lost. The broker will deliver unsettled messages again.

        Delivery tags start again at 1 on the next channel. The numbers in message-ids continue: those at or below the
        new ``base`` belong to lost channels (`Settlement.is_lost`), and are not in the new ledger.
        """
        if not self._is_started:
            # Nothing has gone to the client.
            self.output.clear()
            self._auto_acks = PendingAutoAcks()
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

        HOT: once per message. ``gateway.stomp.frame.encode`` is the slow twin. The layout is kept as long as ``route``
        (exchange and routing key, as encoded short strings) and ``properties`` (flags and list, as in the content
        header) are the same objects, which the splitter passes again for similar messages.

        Raises CodecError if the tag is not the next one.
        """
        size, headers, ledger = len(body), self.headers, self.ledger
        if (
            route is not headers.route
            or properties is not headers.properties
            or size != headers.size
            or redelivered is not headers.redelivered
        ):
            if self.is_stream is not False:
                self._follow_stream(properties)
            if self.correlates and self._counter is not None:
                note_published(self._counter, properties)
            before, middle, after = headers.lay_out(route, properties, size, redelivered)
        else:
            before, middle, after = headers.layout
        if tag != ledger.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        ledger.last_tag = ledger.last_sent = tag
        if tag > self._notify_above:
            self._note_auto_ack(tag)
        if redelivered:
            ledger.redelivered += 1
        ledger.delivered_bytes += size
        if self._counter is not None:
            # Before the output is extended: if this raises, the client gets no part of the frame.
            self._counter.delivered(tag, redelivered, size)
        output, number = self.output, b"%d" % (tag + self.base)
        if middle:
            output += (before, number, middle, number, after, body, _END)
        else:
            output += (before, number, after, body, _END)

    def deliver_alike(self, tag: int, bodies: list[bytes]) -> None:
        """Encode consecutive messages, from this tag on, that differ from the last one only in the body.

        HOT: once for many messages. ``deliver`` is the slow twin. Raises CodecError if the tag is not the next one.
        """
        headers, ledger = self.headers, self.ledger
        if tag != ledger.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        count, size = len(bodies), headers.size
        ledger.last_tag = ledger.last_sent = last = tag + count - 1
        while last > self._notify_above:
            self._note_auto_ack(self._notify_above + 1)
        if headers.redelivered:
            ledger.redelivered += count
        ledger.delivered_bytes += count * size
        if self._counter is not None:
            for each in range(tag, last + 1):
                self._counter.delivered(each, headers.redelivered, size)
        before, middle, after = headers.layout
        output, number = self.output, tag + self.base
        for body in bodies:
            if middle:
                text = b"%d" % number
                output += (before, text, middle, text, after, body, _END)
            else:
                output += (before, b"%d" % number, after, body, _END)
            number += 1

    def _follow_stream(self, properties: bytes) -> None:
        """Find out from the first message whether the queue is a stream, and from each message of one, the offset."""
        offset = stream_offset(properties)
        if self.is_stream is None:
            self.is_stream = offset is not None
        if self.is_stream and offset is not None:
            self.next_offset = offset + 1

    def drop_for_requeue(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: Body) -> None:
        """Take a delivery for a client that is too slow, and keep only its tag.

        The server calls it instead of ``deliver`` until the client has caught up, and then
        ``DeliveryLedger.requeue_dropped``. The prefetch bounds the number of messages. Those of a stream cannot be
        requeued, and are delivered.
        """
        if self.is_stream is None:
            self.is_stream = stream_offset(properties) is not None
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


def split_frames(pieces: list[Body]) -> list[bytes]:
    """Join the pieces of a session's output to frames, each with its LF, because WebSocket sends them one by one.

    HOT: once per batch on WebSocket. A body may contain any bytes, so frames are told apart by the pieces: a MESSAGE
    has several, and every other frame is one piece.
    """
    frames: list[bytes] = []
    begin, count = 0, len(pieces)
    while begin < count:
        end = begin + 1
        if pieces[begin].startswith(MESSAGE):  # type: ignore[union-attr]  # only a body is in pieces
            end = begin + (_PIECES if pieces[begin + 2].endswith(_BLANK_LINE) else _PIECES_WITH_ACK)  # type: ignore[union-attr]
        frames.append(joined(pieces[begin:end]))
        begin = end
    return frames
