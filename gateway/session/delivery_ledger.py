"""The ledger of one subscription's deliveries: which are settled, and which AMQP frames tell the broker.

Theory of operation. Each subscription has a channel of its own, and the delivery tags of a channel count 1, 2, 3, ...
So the ledger needs few numbers: all tags up to ``settled_up_to`` are settled, ``settled_out_of_order`` has the settled
tags above it, and ``last_tag`` is the last delivery. So delivered = settled + outstanding, and the ledger recognises
the acknowledgement of an unknown tag without asking the broker.

If a client keeps one message and settles all later ones, ``settled_out_of_order`` would grow without bound. So when it
is large compared to the outstanding deliveries, ``settled_up_to`` moves above it, and ``unsettled_below`` keeps the few
unsettled tags below.

Acknowledgements in the order of delivery, the normal case, only move ``settled_up_to``. One basic.ack with ``multiple``
tells the broker at the end of the batch. It must name a tag that the broker still knows. So its tag is
``pending_multiple``, the last one settled in this way: ``settled_up_to`` may have moved past tags that were settled one
by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from itertools import islice
from typing import Final

from gateway.amqp.codec import encode_ack, encode_nack, encode_reject
from gateway.errors import CodecError
from gateway.session.traffic import DeliveryCounter

# The most tags that are kept as settled out of order: this number, or if more, this multiple of the outstanding ones.
_MOST_OUT_OF_ORDER: Final = 1024
_RATIO: Final = 4

# The most basic.reject frames for one refusal. Only quorum queues count them, and none delivers more to a consumer
# without a prefetch.
_MOST_REJECTED: Final = 10_000

# The ledger relies on consecutive tags. With gaps its memory would not be bounded.
OUT_OF_ORDER: Final = "the delivery tags of a channel do not count 1, 2, 3, ..."


class AckMode(Enum):
    """The ack header of SUBSCRIBE (STOMP 1.2, "SUBSCRIBE ack Header")."""

    AUTO = b"auto"
    CLIENT = b"client"
    CLIENT_INDIVIDUAL = b"client-individual"


class DeliveryLedger:
    """The deliveries of one subscription, by delivery tag.

    ``last_tag`` is the last delivery, ``last_sent`` the last one that went to the client. `Subscription.deliver` checks
    and sets both itself, because a call for each message would cost too much. It also counts ``delivered_bytes``, of
    bodies, and the ``redelivered`` messages.
    """

    __slots__ = (
        "_dropped", "_frames", "_mode", "_pending_multiple", "_settled_out_of_order", "_settled_up_to",
        "_unsettled_below", "channel", "counter", "delivered_bytes", "discarded", "dropped", "filtered", "last_sent",
        "last_tag", "redelivered", "requeued",
    )  # fmt: skip

    def __init__(self, mode: AckMode) -> None:
        self.channel = 0
        self.counter: DeliveryCounter | None = None
        self.last_tag = self.last_sent = self.delivered_bytes = self.redelivered = 0
        # Counts of messages: refused by the client, with and without requeue; dropped for requeue; filtered out.
        self.requeued = self.discarded = self.dropped = self.filtered = 0
        self._mode = mode
        self._settled_up_to = 0
        self._settled_out_of_order: set[int] = set()
        self._unsettled_below: set[int] = set()
        self._pending_multiple = 0
        # The tags of messages that were dropped, and are not requeued yet.
        self._dropped: list[int] = []
        self._frames: list[bytes] = []

    @property
    def outstanding(self) -> int:
        """The number of deliveries that are not settled."""
        return self.last_tag - self._settled_up_to - len(self._settled_out_of_order) + len(self._unsettled_below)

    @property
    def settled_by_client(self) -> int:
        """The number of deliveries that went to the client and are settled."""
        return self.last_tag - self.outstanding - (self.dropped - len(self._dropped)) - self.filtered

    def is_outstanding(self, tag: int) -> bool:
        """Whether the client may settle a delivery. In mode client, tag 0 means everything delivered so far."""
        if tag == 0:
            return self._mode is AckMode.CLIENT
        if tag <= self._settled_up_to:
            return tag in self._unsettled_below
        return tag <= self.last_sent and tag not in self._settled_out_of_order

    # Settled by the client.

    def acknowledge(self, tag: int) -> None:
        """Acknowledge an outstanding delivery; in mode client, all before it, too. HOT: once per ACK."""
        tag = tag or self.last_sent
        if tag <= self._settled_up_to and not self._unsettled_below:
            return
        if self._mode is AckMode.CLIENT:
            self._pending_multiple = tag
            self._settle_up_to(tag, None)
            return
        if tag == self._settled_up_to + 1 and not self._unsettled_below:
            self._pending_multiple = tag
            self._move_up_to(tag)
        else:
            self._frames.append(encode_ack(self.channel, tag, multiple=False))
            self._settle_one(tag)
        if self.counter is not None:
            self.counter.settled(tag, 1, None)

    def in_order_after(self, tag: int) -> int:
        """The number of deliveries after this one, just acknowledged, for which ``acknowledge_up_to`` may be called.

        HOT: once per ACK. It is 0 if each of them must be looked at.
        """
        if tag != self._settled_up_to or self._settled_out_of_order or self._unsettled_below:
            return 0
        return self.last_sent - tag

    def acknowledge_up_to(self, tag: int) -> None:
        """Acknowledge each delivery up to this one, if ``in_order_after`` allows that. HOT: once for many ACKs."""
        if self.counter is not None:
            for each in range(self._settled_up_to + 1, tag + 1):
                self.counter.settled(each, 1, None)
        self._settled_up_to = self._pending_multiple = tag

    def refuse(self, tag: int, *, requeue: bool, counts: bool = False) -> None:
        """Refuse an outstanding delivery; in mode client, all before it, too.

        ``counts``: on every release of RabbitMQ, requeued messages count toward the delivery-limit of a quorum queue.
        """
        tag = tag or self.last_sent
        if tag <= self._settled_up_to and not self._unsettled_below:
            return
        self._encode_pending()
        multiple = self._mode is AckMode.CLIENT
        if counts and requeue:
            self._reject(tag, multiple=multiple)
        else:
            self._frames.append(encode_nack(self.channel, tag, multiple=multiple, requeue=requeue))
        before = self.outstanding
        if multiple:
            self._settle_up_to(tag, requeue)
        else:
            self._settle_one(tag)
        if requeue:
            self.requeued += before - self.outstanding
        else:
            self.discarded += before - self.outstanding
        if not multiple and self.counter is not None:
            self.counter.settled(tag, 1, requeue)

    def _reject(self, tag: int, *, multiple: bool) -> None:
        """Requeue with basic.reject, which counts toward the delivery-limit, but has no ``multiple``."""
        tags = list(islice(self._unsettled_up_to(tag), _MOST_REJECTED)) if multiple else [tag]
        self._frames += [encode_reject(self.channel, each, requeue=True) for each in tags]
        if len(tags) == _MOST_REJECTED and tags[-1] != tag:
            self._frames.append(encode_nack(self.channel, tag, multiple=True, requeue=True))

    def _unsettled_up_to(self, tag: int) -> Iterator[int]:
        yield from sorted(each for each in self._unsettled_below if each <= tag)
        settled = self._settled_out_of_order
        yield from (each for each in range(self._settled_up_to + 1, tag + 1) if each not in settled)

    # Settled by the gateway.

    def settle_delivered(self) -> bool:
        """In mode auto, settle everything delivered. False if messages were dropped: first call ``requeue_dropped``."""
        if self._dropped:
            return False
        if self.last_tag > self._settled_up_to:
            self._settled_up_to = self._pending_multiple = self.last_tag
        return True

    def drop(self, tag: int) -> None:
        """Drop a delivery until ``requeue_dropped``. Raises CodecError if the tag is not the next one."""
        if tag != self.last_tag + 1:
            raise CodecError(OUT_OF_ORDER)
        self.last_tag = tag
        self._dropped.append(tag)
        self.dropped += 1

    def requeue_dropped(self) -> None:
        """Requeue the dropped messages. The broker delivers them again in their old order.

        The nacks precede all acknowledgements: each makes room in the prefetch for one delivery, which must be the
        requeued message, and not a later one in the queue.
        """
        dropped, self._dropped = self._dropped, []
        if not dropped:
            return
        self._encode_pending()
        for tag in dropped:
            self._frames.append(encode_nack(self.channel, tag, multiple=False, requeue=True))
        if self._mode is AckMode.AUTO:
            # Earlier messages went to the client. One multiple with the last of their tags settles them.
            if dropped[0] - 1 > self._settled_up_to:
                self._pending_multiple = dropped[0] - 1
            self._settled_up_to = dropped[-1]
            return
        self._settled_out_of_order.update(dropped)
        self._move_up_to(self._settled_up_to)
        self._compact()

    def give_back_after(self, tag: int) -> None:
        """Requeue all deliveries after this one, because the client has ended the subscription."""
        late = range(tag + 1, self.last_tag + 1)
        self._dropped += late
        self.dropped += len(late)
        self.requeue_dropped()

    def take_frames(self) -> bytes:
        """Return the AMQP frames for what was settled since the last call."""
        self._encode_pending()
        if not self._frames:
            return b""
        taken = b"".join(self._frames)
        self._frames.clear()
        return taken

    # The arithmetic.

    def _settle_up_to(self, tag: int, requeue: bool | None) -> None:
        before = 0 if self.counter is None else self.outstanding
        if self._unsettled_below:
            self._unsettled_below = {each for each in self._unsettled_below if each > tag}
        if self._settled_out_of_order:
            self._settled_out_of_order = {each for each in self._settled_out_of_order if each > tag}
        self._move_up_to(max(tag, self._settled_up_to))
        if self.counter is not None and before > self.outstanding:
            self.counter.settled(tag, before - self.outstanding, requeue)

    def _settle_one(self, tag: int) -> None:
        if tag <= self._settled_up_to:
            self._unsettled_below.discard(tag)
        elif tag == self._settled_up_to + 1:
            self._move_up_to(tag)
        else:
            self._settled_out_of_order.add(tag)
            self._compact()

    def _compact(self) -> None:
        """Bound the memory, as the top of this file says."""
        settled = self._settled_out_of_order
        if len(settled) <= _MOST_OUT_OF_ORDER or len(settled) <= _RATIO * self.outstanding:
            return
        self._encode_pending()
        top = max(settled)
        self._unsettled_below.update(tag for tag in range(self._settled_up_to + 1, top) if tag not in settled)
        settled.clear()
        self._settled_up_to = top

    def _move_up_to(self, tag: int) -> None:
        """Settle up to a tag, and further as long as the next tags are already settled."""
        settled = self._settled_out_of_order
        while settled and tag + 1 in settled:
            tag += 1
            settled.remove(tag)
        self._settled_up_to = tag

    def _encode_pending(self) -> None:
        if self._pending_multiple:
            self._frames.append(encode_ack(self.channel, self._pending_multiple, multiple=True))
            self._pending_multiple = 0
