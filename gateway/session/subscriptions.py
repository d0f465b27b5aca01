"""All subscriptions of a session: who is there, what waits to be settled, which delivery an acknowledgement means."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from gateway.session import error_frames
from gateway.session.destinations import TEMP_QUEUE
from gateway.session.subscription import Subscription, Unsettled
from gateway.session.traffic import TrafficByDestination
from gateway.session.transactions import Settlement

# A delivery tag has 64 bits, at most 20 decimal digits.
_LONGEST_NUMBER: Final = 20
_TEMP_TAG: Final = b"T_" + TEMP_QUEUE


class Subscriptions:
    """The subscriptions of one session.

    Args:
        identity: the session header; part of every message-id.
        output: where MESSAGE frames go.
    """

    __slots__ = (
        "_by_tag",
        "_identity",
        "_output",
        "_settling",
        "base",
        "past",
        "streams_take_nack",
        "temp_queues",
        "unsettled",
    )

    def __init__(self, identity: bytes, output: list[bytes]) -> None:
        self._identity = identity
        self._output = output
        self._by_tag: dict[bytes, Subscription] = {}
        # Whether the broker lets messages of streams be refused; it takes them for acknowledged then.
        self.streams_take_nack = False
        # The highest number in a message-id of a subscription that has ended.
        self.base = 0
        # What its subscriptions brought that have ended.
        self.past = TrafficByDestination()
        self.unsettled = Unsettled()
        self._settling: list[Subscription] = []
        # The queue behind each /temp-queue/<id> of this session.
        self.temp_queues: dict[bytes, bytes] = {}

    def __contains__(self, tag: bytes) -> bool:
        return tag in self._by_tag

    @property
    def all(self) -> Collection[Subscription]:
        """Those that are active."""
        return self._by_tag.values()

    def get(self, tag: bytes) -> Subscription | None:
        """The subscription of this tag, if there is one."""
        return self._by_tag.get(tag)

    def is_current(self, subscription: Subscription) -> bool:
        """Whether it is this very subscription that is active under its tag."""
        return self._by_tag.get(subscription.tag) is subscription

    def add(self, subscription: Subscription, queue_name: str) -> None:
        """Take in a subscription whose consumer runs.

        Args:
            subscription: its messages that arrived already follow with ``start``.
            queue_name: what it consumes.
        """
        self._by_tag[subscription.tag] = subscription
        subscription.queue = queue_name
        if subscription.tag.startswith(_TEMP_TAG):
            self.temp_queues[subscription.tag[2:]] = queue_name.encode()

    def start(self, subscription: Subscription) -> None:
        """Let messages go to the client: first those that arrived before the client knew of the subscription."""
        self._output += subscription.output
        subscription.output = self._output
        self.unsettled.waiting += subscription.unsettled.waiting
        self.unsettled.urgent |= subscription.unsettled.urgent
        subscription.unsettled = self.unsettled

    def forget(self, subscription: Subscription) -> None:
        """From now on its messages reach nobody."""
        del self._by_tag[subscription.tag]
        self.base = max(self.base, subscription.last_number)
        if subscription.tag.startswith(_TEMP_TAG):
            self.temp_queues.pop(subscription.tag[2:], None)
        subscription.silence()
        stats = subscription.stats
        stats.outstanding = 0  # they return to their queue
        self.past.counter(subscription.address, subscription.kind).add(stats)
        if subscription in self.unsettled.waiting:
            self.unsettled.waiting.remove(subscription)

    def silence(self) -> None:
        """The session is about to end: no message reaches the client any more."""
        for subscription in self._by_tag.values():
            subscription.silence()

    # Settling.

    def settlement(self, command: bytes, name: bytes, ack_id: bytes | None, requeue: bool | None) -> Settlement:
        """Find the delivery that an ACK or NACK means.

        Args:
            command: ACK or NACK, for the words of an error.
            name: the header that the version asks for.
            ack_id: its value; None when absent.
            requeue: of a NACK; None for an ACK.

        Raises:
            StompError: when the value is not one of ours, or its subscription is not there.
        """
        if ack_id is None:
            raise error_frames.missing_header(command, name)
        # From the right, since a subscription's id may hold the separator too.
        parts = ack_id.rsplit(b"@@", 2)
        if len(parts) != 3:  # noqa: PLR2004 - tag, session, number
            raise error_frames.invalid_ack_id(command, name)
        tag, session, number = parts
        if not number.isdigit() or len(number) > _LONGEST_NUMBER:
            raise error_frames.processing_error()
        subscription = self._by_tag.get(tag)
        if subscription is None or session != self._identity:
            raise error_frames.message_without_subscription(ack_id)
        if requeue is not None and subscription.is_stream and not self.streams_take_nack:
            raise error_frames.stream_takes_nothing_back(subscription.destination)
        count, base = int(number), subscription.base
        if 0 < count <= base:
            # It was delivered to an earlier subscription of that name. (0 is no message's number.)
            raise error_frames.message_without_subscription(ack_id)
        return Settlement(subscription, max(0, count - base), ack_id, requeue)

    def settle(self, settlement: Settlement) -> None:
        """Carry out an acknowledgement and note that there is something to tell the broker."""
        settlement.carry_out()
        settling = self._settling
        if not settling or settling[-1] is not settlement.subscription:
            settling.append(settlement.subscription)

    def settle_auto(self) -> None:
        """Count what was delivered under ack:auto as settled, once its bytes are on their way to the client."""
        unsettled = self.unsettled
        unsettled.urgent = False
        if unsettled.waiting:
            waiting, unsettled.waiting = unsettled.waiting, []
            for subscription in waiting:
                settled = subscription.settle_delivered()
                (self._settling if settled else unsettled.waiting).append(subscription)

    def take_settling(self) -> list[Subscription]:
        """The subscriptions with settlements for the broker since the last call."""
        if not self._settling:
            return []
        taken, self._settling = self._settling, []
        return taken
