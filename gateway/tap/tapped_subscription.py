"""A subscription as the tap sees it: the deliveries that pass, and their acknowledgements."""

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
    """One subscription. ``key``: its id, or its destination if it has no id."""

    def __init__(self, key: bytes, mode: AckMode, *, is_stream: bool) -> None:
        self.key = key
        self.mode = mode
        self.is_stream = is_stream
        # Set later, because it refers to the subscription.
        self.counter: DeliveryStats | DeliveryLog | None = None
        # The numbers of deliveries by the id that an ACK names, oldest first.
        self.unacked: OrderedDict[bytes, int] = OrderedDict()
        self._totals = TrafficCounter()

    @property
    def stats(self) -> TrafficCounter:
        """See `CountedSubscription`."""
        return replace(self._totals)

    def deliver(self, ack_id: bytes | None, size: int, *, redelivered: bool) -> None:
        """Count a MESSAGE. ``ack_id``: the name that its ACK will use; None if the client sends none."""
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
        """Count an ACK, or a NACK. ``requeue``: None for an ACK; for a NACK, whether the messages are requeued."""
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
