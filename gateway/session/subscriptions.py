"""The subscriptions of a session, and the settlements of their deliveries."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import TEMP_QUEUE
from gateway.session.subscription import PendingAutoAcks, Subscription
from gateway.session.traffic import TrafficByDestination

_TEMP_TAG: Final = b"T_" + TEMP_QUEUE

# The most ended subscriptions of a session whose messages the client may still settle.
_MOST_UNSETTLED: Final = 16

# At the end of a session, this many subscriptions are dropped at a time.
_AT_ONCE: Final = 200


class Settlement(NamedTuple):
    """One ACK or NACK.

    Args:
        number: the number in the message-id; 0 means everything delivered so far.
        requeue: None for an ACK; for a NACK, whether the message is requeued.
        counts: see `DeliveryLedger.refuse`.
    """

    subscription: Subscription
    number: int
    ack_id: bytes
    requeue: bool | None = None
    counts: bool = False

    @property
    def is_lost(self) -> bool:
        """Whether the delivery came on a lost channel. The broker delivers it again, with another number."""
        return 0 < self.number <= self.subscription.base

    @property
    def tag(self) -> int:
        """The delivery tag, on the subscription's present channel."""
        return max(0, self.number - self.subscription.base)

    @property
    def is_acceptable(self) -> bool:
        """Whether there is something to settle, or was before the channel was lost. With ack:auto there never is."""
        subscription = self.subscription
        if subscription.mode is AckMode.AUTO:
            return False
        return self.is_lost or subscription.ledger.is_outstanding(self.tag)

    def carry_out(self) -> None:
        """Settle the delivery, unless it is settled already, or its channel is lost."""
        if self.is_lost or not self.is_acceptable:
            return
        if self.requeue is None:
            self.subscription.ledger.acknowledge(self.tag)
        else:
            self.subscription.ledger.refuse(self.tag, requeue=self.requeue, counts=self.counts)


class Subscriptions:
    """The subscriptions of one session, by tag."""

    __slots__ = ("_by_tag", "_to_settle", "_unsettled", "auto_acks", "base", "past", "temp_queues")

    def __init__(self) -> None:
        self._by_tag: dict[bytes, Subscription] = {}
        # The ended ones whose messages the client may still settle, with the highest number of their message-ids.
        self._unsettled: dict[Subscription, int] = {}
        # The highest number in a message-id of an ended subscription.
        self.base = 0
        # The traffic of ended subscriptions.
        self.past = TrafficByDestination()
        self.auto_acks = PendingAutoAcks()
        self._to_settle: list[Subscription] = []
        # The queue of each /temp-queue/<id> of this session.
        self.temp_queues: dict[bytes, bytes] = {}

    def __contains__(self, tag: bytes) -> bool:
        return tag in self._by_tag

    @property
    def all(self) -> Collection[Subscription]:
        """The active subscriptions."""
        return self._by_tag.values()

    def get(self, tag: bytes) -> Subscription | None:
        """The subscription with this tag, if there is one."""
        return self._by_tag.get(tag)

    def is_current(self, subscription: Subscription) -> bool:
        """Whether this very subscription is active under its tag."""
        return self._by_tag.get(subscription.tag) is subscription

    def find(self, tag: bytes, number: int) -> Subscription | None:
        """The ended subscription that delivered this number, if the client may still settle it; else the active one."""
        current = self._by_tag.get(tag)
        if self._unsettled and (current is None or 0 < number <= current.first_base):
            for each, last in self._unsettled.items():
                if each.tag == tag and each.first_base < number <= last:
                    return each
        return current

    def may_settle(self, subscription: Subscription) -> bool:
        """Whether the client may settle deliveries of this very subscription."""
        return self.is_current(subscription) or subscription in self._unsettled

    def may_end_unsettled(self, subscription: Subscription) -> bool:
        """Whether the client may settle its messages after its end. At most 16 may, because each keeps its channel."""
        return (
            subscription.mode is not AckMode.AUTO
            and not subscription.selects
            and not subscription.is_stream
            and subscription.has_channel
            and not subscription.awaits_queue
            and subscription.ledger.outstanding > 0
            and len(self._unsettled) < _MOST_UNSETTLED
        )

    def end_unsettled(self, subscription: Subscription) -> None:
        """End a subscription whose messages the client may still settle."""
        last = subscription.last_number
        self.remove(subscription)
        self._unsettled[subscription] = last

    def take_settled(self) -> Subscription | None:
        """Remove and return an ended subscription whose messages are all settled by now; None if there is none."""
        for subscription in self._unsettled:
            if subscription.ledger.outstanding == 0:
                del self._unsettled[subscription]
                return subscription
        return None

    def add(self, subscription: Subscription, queue_name: str) -> None:
        """Add a subscription whose consumer runs on this queue. Its messages go to the client after ``start``."""
        self._by_tag[subscription.tag] = subscription
        subscription.queue = queue_name
        if subscription.tag.startswith(_TEMP_TAG):
            self.temp_queues[subscription.tag[2:]] = queue_name.encode()

    def remove(self, subscription: Subscription) -> None:
        """End a subscription, and drop its messages from now on."""
        del self._by_tag[subscription.tag]
        self.base = max(self.base, subscription.last_number)
        if subscription.tag.startswith(_TEMP_TAG):
            self.temp_queues.pop(subscription.tag[2:], None)
        subscription.stop()
        stats = subscription.stats
        stats.outstanding = 0  # they return to their queue
        self.past.counter(subscription.address, subscription.kind).add(stats)
        if subscription in self.auto_acks.subscriptions:
            self.auto_acks.subscriptions.remove(subscription)

    def stop_deliveries(self) -> None:
        """Drop the messages of all subscriptions from now on, because the session is ending."""
        for subscription in self._by_tag.values():
            subscription.stop()

    def dismantle(self) -> Iterator[None]:
        """Drop all subscriptions of a session that has ended and is counted, 200 per step."""
        self.auto_acks.subscriptions.clear()
        self._to_settle.clear()
        self._unsettled.clear()
        while self._by_tag:
            for _ in range(min(_AT_ONCE, len(self._by_tag))):
                self._by_tag.popitem()
            yield

    # Settling.

    def settle(self, settlement: Settlement) -> None:
        """Carry out an acknowledgement."""
        settlement.carry_out()
        self.note_settled(settlement.subscription)

    def note_settled(self, subscription: Subscription) -> None:
        """Note that a subscription has settlements for the broker. HOT: once per ACK, or once for many."""
        to_settle = self._to_settle
        if not to_settle or to_settle[-1] is not subscription:
            to_settle.append(subscription)

    def settle_auto_acks(self) -> None:
        """Settle deliveries under ack:auto. Call it once their bytes are on their way to the client."""
        auto_acks = self.auto_acks
        auto_acks.is_urgent = False
        if auto_acks.subscriptions:
            pending, auto_acks.subscriptions = auto_acks.subscriptions, []
            for subscription in pending:
                is_settled = subscription.settle_delivered()
                (self._to_settle if is_settled else auto_acks.subscriptions).append(subscription)

    def take_settlements(self) -> list[tuple[Subscription, bytes]]:
        """Return the AMQP frames that settle deliveries, by subscription, since the last call."""
        if not self._to_settle:
            return []
        taken, self._to_settle = self._to_settle, []
        # A subscription that is in the list twice has no frames the second time.
        settlements = [(subscription, subscription.ledger.take_frames()) for subscription in taken]
        return [(subscription, frames) for subscription, frames in settlements if frames]
