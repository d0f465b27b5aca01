"""A subscription, as far as the frames of both sides tell: what was delivered, and what of it is acknowledged."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.session.delivery_ledger import AckMode
from gateway.session.traffic import TrafficCounter

if TYPE_CHECKING:
    from gateway.journal.counters import DeliveryLog, DeliveryStats


class TappedSubscription:
    """One of a session's. ``key`` is its id, or its destination where it has no id."""

    def __init__(self, key: bytes, mode: AckMode, *, is_stream: bool) -> None:
        self.key = key
        self.mode = mode
        self.is_stream = is_stream
        # Set once: it needs the subscription itself.
        self.counter: DeliveryStats | DeliveryLog | None = None
        # Numbers of deliveries by the id that an ACK names, the oldest first.
        self.unacked: OrderedDict[bytes, int] = OrderedDict()
        self._totals = TrafficCounter()

    @property
    def stats(self) -> TrafficCounter:
        """See `CountedSubscription`."""
        return replace(self._totals)

    def deliver(self, ack_id: bytes | None, size: int, *, redelivered: bool) -> None:
        """A MESSAGE passes; ``ack_id`` is how an ACK will name it, None if nobody waits for one."""
        totals, counter = self._totals, self.counter
        totals.delivered += 1
        totals.delivered_bytes += size
        totals.redelivered += redelivered
        if ack_id is not None:
            totals.outstanding += 1
            self.unacked[ack_id] = totals.delivered
        if counter is not None:
            counter.delivered(totals.delivered, redelivered, size)

    def settle(self, ack_ids: Sequence[bytes], requeue: bool | None) -> None:
        """Deliveries are acknowledged, or refused: then ``requeue`` says whether they return to their queue."""
        numbers = [self.unacked.pop(each) for each in ack_ids]
        totals, count = self._totals, len(numbers)
        totals.outstanding -= count
        if requeue is None:
            totals.acknowledged += count
        elif requeue:
            totals.requeued += count
        else:
            totals.discarded += count
        if self.counter is None:
            return
        if self.mode is AckMode.CLIENT:
            self.counter.settled(numbers[-1], count, requeue)
        else:
            for number in numbers:
                self.counter.settled(number, 1, requeue)
