"""A subscription: encodes its MESSAGE frames and keeps the counter of what was delivered and settled.

The counter. Delivery tags of a channel count 1, 2, 3, ..., and a subscription has its channel to itself. ``_floor`` is
the tag up to which everything is settled, ``_ahead`` holds the settled tags above it, ``_last`` is the last one
delivered. So delivered = settled + outstanding at any time, and an acknowledgement of nothing is known without asking
the broker.

A client that keeps one message and settles all that follow would make ``_ahead`` grow for ever. So before it gets large
beside what is outstanding, the floor rises above it, and the few tags below that are not settled are kept instead, in
``_behind``.

Acknowledgements in the order of delivery, the normal case, only move the floor; one basic.ack with ``multiple`` says so
when the batch is flushed. A multiple must name a tag that the broker still knows, so it names the last one settled
that way (``_run``) and not the floor, which may have moved past tags settled one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from gateway.amqp import properties as amqp
from gateway.amqp.codec import encode_ack, encode_nack
from gateway.session import translate
from gateway.session.destinations import Kind, show
from gateway.session.traffic import DeliveryCounter, TrafficCounter
from gateway.stomp.headers import escape

# Messages with the same route and properties share their encoded headers; this many blocks are remembered per
# subscription.
_REMEMBERED_HEADS: Final = 128
_REMEMBERED_OCTETS: Final = 2048

# So many tags may be settled ahead of the floor, and more only as this multiple of the outstanding ones.
_AHEAD: Final = 1024
_RATIO: Final = 4

# An entry of the headers table, a number, that RabbitMQ adds to everything that a stream delivers.
_STREAM_OFFSET: Final = b"x-stream-offset"
# Above every delivery tag, which have 64 bits.
_NEVER: Final = 1 << 64


class AckMode(Enum):
    """The ack header of SUBSCRIBE (STOMP 1.2, "SUBSCRIBE ack Header")."""

    AUTO = b"auto"
    CLIENT = b"client"
    CLIENT_INDIVIDUAL = b"client-individual"


@dataclass(slots=True)
class Unsettled:
    """The subscriptions with ack:auto that have something to settle, and whether one of them has much."""

    waiting: list[Subscription] = field(default_factory=list)
    urgent: bool = False


class _Afterwards:
    """An counter when nothing reaches the client any more: only what the client settles counts."""

    __slots__ = ("_counter", "acknowledged_since", "settled_since")

    def __init__(self, counter: DeliveryCounter | None) -> None:
        self._counter = counter
        self.settled_since = self.acknowledged_since = 0

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`."""

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryCounter`."""
        self.settled_since += count
        if requeue is None:
            self.acknowledged_since += count
        if self._counter is not None:
            self._counter.settled(tag, count, requeue)


class Subscription:
    """One subscription of a session.

    Args:
        tag: its identity within the session, ``T_<id>`` or ``Q_<destination>``.
        subscription: value of the subscription header of its MESSAGE frames, None without one.
        mode: how its messages are acknowledged.
        session: the session header, part of every message-id.
        shows_ack: whether MESSAGE carries an ack header, as it does in STOMP 1.2 unless the mode is auto.
        window: the prefetch of a subscription with ack:auto; it asks to be settled once a quarter of it was delivered.
        base: what is added to delivery tags to make the number of a message-id, so that the numbers of an earlier
            subscription of the same tag do not come again.
    """

    __slots__ = (
        "_ack_prefix",
        "_afterwards",
        "_ahead",
        "_behind",
        "_discarded",
        "_early",
        "_figures",
        "_floor",
        "_given",
        "_heads",
        "_id_prefix",
        "_is_noted",
        "_last",
        "_notice",
        "_octets",
        "_redelivered",
        "_requeued",
        "_run",
        "_settlements",
        "_shed",
        "_shed_in_all",
        "_start",
        "base",
        "channel",
        "counter",
        "destination",
        "is_stream",
        "kind",
        "mode",
        "output",
        "queue",
        "subscription",
        "tag",
        "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        tag: bytes,
        subscription: bytes | None,
        mode: AckMode,
        session: bytes,
        *,
        shows_ack: bool = False,
        window: int = 2000,
        base: int = 0,
    ) -> None:
        self.tag = tag
        self.base = base
        self.subscription = subscription
        self.mode = mode
        self.channel = 0
        self.destination = b""
        self.kind = Kind.TEMP_QUEUE
        # What it consumes, once the broker said so.
        self.queue = ""
        # Whether its messages come from a stream, which takes none back: RabbitMQ before 4.3 answers a basic.nack by
        # closing the whole link, other sessions' channels included. Only the messages tell, and the first one decides:
        # later ones may have such an entry because they came out of a stream once.
        self.is_stream: bool | None = None
        # Who is told of every message, and what is counted anyway.
        self.counter: DeliveryCounter | None = None
        self._octets = 0
        self._redelivered = self._requeued = self._discarded = 0
        self._shed_in_all = 0
        self._figures: TrafficCounter | None = None
        self._afterwards: _Afterwards | None = None
        # Where MESSAGE frames go, in pieces. Until the subscription is confirmed to the client they collect here.
        self.output: list[bytes] = []
        # A subscription with ack:auto notes here that it has something to settle: when a tag is above ``_notice``.
        self.unsettled = Unsettled()
        self._is_noted = False
        self._early = max(1, window // 4)
        self._notice = 0 if mode is AckMode.AUTO else _NEVER
        named = b"subscription:%b\n" % escape(subscription) if subscription is not None else b""
        identity = b"%b@@%b@@" % (escape(tag), escape(session))
        self._start = b"MESSAGE\n" + named
        self._id_prefix = b"message-id:" + identity
        self._ack_prefix = b"\nack:" + identity if shows_ack and mode is not AckMode.AUTO else b""
        self._heads: dict[bytes, tuple[bytes, bytes, bytes]] = {}
        self._floor = 0
        self._last = 0
        # The last one that went to the client; what was shed since did not.
        self._given = 0
        self._run = 0
        self._ahead: set[int] = set()
        self._behind: set[int] = set()
        self._settlements: list[bytes] = []
        self._shed: list[int] = []

    @property
    def outstanding(self) -> int:
        """Messages delivered to the client and not settled."""
        return self._last - self._floor - len(self._ahead) + len(self._behind)

    @property
    def last_number(self) -> int:
        """The number in the message-id of the last delivery."""
        return self.base + self._last

    @property
    def stats(self) -> TrafficCounter:
        """What went to the client so far."""
        stats, afterwards = self._figures, self._afterwards
        if stats is not None and afterwards is not None:
            return replace(
                stats,
                outstanding=max(0, stats.outstanding - afterwards.settled_since),
                acknowledged=stats.acknowledged + afterwards.acknowledged_since,
                requeued=self._requeued,
                discarded=self._discarded,
            )
        delivered, outstanding, returned = self._last - self._shed_in_all, self.outstanding, len(self._shed)
        acknowledged = delivered - (outstanding - returned) - self._requeued - self._discarded
        return TrafficCounter(
            delivered=delivered,
            delivered_bytes=self._octets,
            redelivered=self._redelivered,
            outstanding=outstanding,
            acknowledged=acknowledged,
            requeued=self._requeued,
            discarded=self._discarded,
        )

    @property
    def address(self) -> bytes:
        """Its destination; for the queue behind a reply-to, its name there."""
        return self.destination or self.tag[2:]

    def silence(self) -> None:
        """From now on its messages reach nobody, and count for nothing."""
        self.output = []
        self.unsettled = Unsettled()
        if self._figures is None:
            self._figures = self.stats
            # What the client sent before it went is carried out still.
            self.counter = self._afterwards = _Afterwards(self.counter)

    # Deliveries.

    def deliver(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
        """Encode one delivery as MESSAGE, in pieces that are joined once per batch.

        HOT. Messages of one publisher share route and properties; their headers are encoded once and found again by the
        bytes of both. ``gateway.stomp.encoder.encode`` is the slow twin.

        Args:
            tag: delivery tag.
            redelivered: the broker's flag.
            route: exchange and routing key as short strings.
            properties: property flags and list.
            body: the message.
        """
        key = route + properties
        head = self._heads.get(key)
        if head is None:
            head = self._encode_head(key, route, properties)
        before, middle, after = head
        self._last = self._given = tag
        if tag > self._notice:
            self._note_unsettled(tag)
        number = b"%d" % (tag + self.base)
        flag = b"\nredelivered:false"
        if redelivered:
            flag = b"\nredelivered:true"
            self._redelivered += 1
        self._octets += len(body)
        if middle:
            self.output += (before, number, flag, middle, number, after)
        else:
            self.output += (before, number, flag, after)
        if self.counter is not None:
            self.counter.delivered(tag, redelivered, len(body))
        if body:
            self.output += (b"content-length:%d\n\n" % len(body), body, b"\0\n")
        else:
            self.output.append(b"\n\0\n")

    def _encode_head(self, key: bytes, route: bytes, properties: bytes) -> tuple[bytes, bytes, bytes]:
        split = route[0] + 1
        destination = show(route[1:split], route[split + 1 :])
        before = b"%bdestination:%b\n%b" % (self._start, escape(destination), self._id_prefix)
        if self.is_stream is None:
            self.is_stream = _is_from_stream(properties)
        after = b"\n" + translate.message_headers(amqp.decode(properties))
        head = (before, self._ack_prefix, after)
        if len(key) <= _REMEMBERED_OCTETS:
            if len(self._heads) >= _REMEMBERED_HEADS:
                self._heads.clear()
            self._heads[key] = head
        return head

    def drop_for_requeue(self, tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
        """Take a delivery for a client that has more waiting than it may: keep its tag and nothing else.

        It stands in for ``deliver`` until the client has caught up and ``requeue_dropped`` returns the messages to
        their queue. The prefetch bounds how many there can be. What comes from a stream cannot be returned, so it waits
        for the client all the same.
        """
        if self.is_stream is None:
            self.is_stream = _is_from_stream(properties)
        if self.is_stream:
            self.deliver(tag, redelivered, route, properties, body)
            return
        self._last = tag
        self._shed.append(tag)
        self._shed_in_all += 1

    def requeue_dropped(self) -> None:
        """Return what was shed to its queue; the broker delivers it again, in its old order.

        For that the order matters here: each message returned makes room for one delivery, which is the message just
        returned. An acknowledgement before would make room for messages that stand behind it.
        """
        drop_for_requeue, self._shed = self._shed, []
        if not drop_for_requeue:
            return
        self._end_run()
        for tag in drop_for_requeue:
            self._settlements.append(encode_nack(self.channel, tag, multiple=False, requeue=True))
        if self.mode is AckMode.AUTO:
            # What went to the client before is settled with it, in one multiple that names the last of them.
            if drop_for_requeue[0] - 1 > self._floor:
                self._run = drop_for_requeue[0] - 1
            self._floor = drop_for_requeue[-1]
            return
        self._ahead.update(drop_for_requeue)
        self._raise_floor(self._floor)
        self._keep_small()

    # Settling.

    def holds(self, tag: int) -> bool:
        """Whether a delivery is outstanding. Tag 0 of a cumulative acknowledgement means everything so far."""
        if tag == 0:
            return self.mode is AckMode.CLIENT
        if tag <= self._floor:
            return tag in self._behind
        return tag <= self._given and tag not in self._ahead

    def acknowledge(self, tag: int) -> None:
        """Settle an outstanding delivery, and in mode client all before it."""
        tag = tag or self._given
        if tag <= self._floor and not self._behind:
            return
        if self.mode is AckMode.CLIENT:
            self._run = tag
            self._settle_up_to(tag, None)
            return
        if tag == self._floor + 1 and not self._behind:
            self._run = tag
            self._raise_floor(tag)
        else:
            self._settlements.append(encode_ack(self.channel, tag, multiple=False))
            self._settle_one(tag)
        if self.counter is not None:
            self.counter.settled(tag, 1, None)

    def refuse(self, tag: int, *, requeue: bool) -> None:
        """Give an outstanding delivery back, and in mode client all before it."""
        tag = tag or self._given
        if tag <= self._floor and not self._behind:
            return
        self._end_run()
        multiple = self.mode is AckMode.CLIENT
        self._settlements.append(encode_nack(self.channel, tag, multiple=multiple, requeue=requeue))
        before = self.outstanding
        if multiple:
            self._settle_up_to(tag, requeue)
        else:
            self._settle_one(tag)
        if requeue:
            self._requeued += before - self.outstanding
        else:
            self._discarded += before - self.outstanding
        if not multiple and self.counter is not None:
            self.counter.settled(tag, 1, requeue)

    def settle_delivered(self) -> bool:
        """Mode auto: everything delivered counts as settled.

        Returns:
            False when some of it was shed, so that settling has to wait for ``requeue_dropped``.
        """
        if self._shed:
            return False
        if self._last > self._floor:
            self._floor = self._run = self._last
        self._is_noted = False
        self._notice = self._floor
        return True

    def _note_unsettled(self, tag: int) -> None:
        """The first message since everything was settled, or so many that settling should not wait any longer."""
        if self._is_noted:
            self.unsettled.urgent = True
            self._notice = _NEVER
        else:
            self._is_noted = True
            self.unsettled.waiting.append(self)
            self._notice = tag + self._early

    def take_settlements(self) -> bytes:
        """The AMQP frames that settle what was settled since the last call."""
        self._end_run()
        if not self._settlements:
            return b""
        taken = b"".join(self._settlements)
        self._settlements.clear()
        return taken

    def _settle_up_to(self, tag: int, requeue: bool | None) -> None:
        before = 0 if self.counter is None else self.outstanding
        if self._behind:
            self._behind = {behind for behind in self._behind if behind > tag}
        if self._ahead:
            self._ahead = {ahead for ahead in self._ahead if ahead > tag}
        self._raise_floor(max(tag, self._floor))
        if self.counter is not None and before > self.outstanding:
            self.counter.settled(tag, before - self.outstanding, requeue)

    def _settle_one(self, tag: int) -> None:
        if tag <= self._floor:
            self._behind.discard(tag)
        elif tag == self._floor + 1:
            self._raise_floor(tag)
        else:
            self._ahead.add(tag)
            self._keep_small()

    def _keep_small(self) -> None:
        """See at the top of the file: the floor rises over what is settled, and what is not stays behind."""
        ahead = self._ahead
        if len(ahead) <= _AHEAD or len(ahead) <= _RATIO * self.outstanding:
            return
        self._end_run()
        top = max(ahead)
        self._behind.update(tag for tag in range(self._floor + 1, top) if tag not in ahead)
        ahead.clear()
        self._floor = top

    def _raise_floor(self, tag: int) -> None:
        ahead = self._ahead
        while ahead and tag + 1 in ahead:
            tag += 1
            ahead.remove(tag)
        self._floor = tag

    def _end_run(self) -> None:
        if self._run:
            self._settlements.append(encode_ack(self.channel, self._run, multiple=True))
            self._run = 0


def _is_from_stream(properties: bytes) -> bool:
    """Whether a message was delivered by a stream. No STOMP client can send such an entry: theirs are all texts."""
    headers = amqp.decode(properties).headers or ()
    return any(name == _STREAM_OFFSET and isinstance(value, int) for name, value in headers)
