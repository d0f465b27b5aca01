"""The counters of deliveries that know when their messages were published (``journal.correlate``).

Clocks of two gateways may differ. A message that seems to be delivered before it was published has waited for nothing.
"""

from __future__ import annotations

from gateway.journal.counters import CountedSubscription, DeliveryLog, DeliveryStats, Latencies
from gateway.journal.schema import DeliveryLine, StatLine
from gateway.journal.session_lines import SessionLines, SubscriptionFields
from gateway.journal.writer import BATCH
from gateway.session.delivery_ledger import AckMode


class CorrelatedDeliveryStats(DeliveryStats):
    """Counts how long the messages of one subscription have waited."""

    __slots__ = ("_is_acknowledged", "_waits", "published")

    def __init__(self, lines: SessionLines, subscription: CountedSubscription, fields: SubscriptionFields) -> None:
        super().__init__(lines, subscription, fields)
        self.published: int | None = None
        self._is_acknowledged = subscription.mode is not AckMode.AUTO
        self._waits = Latencies()

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`. With ack:auto, too."""
        if self._is_acknowledged:
            super().delivered(tag, redelivered, size)
        if self.published is not None:
            self._waits.add(max(0, self._clock.time - self.published))

    def lost(self, last_tag: int, outstanding: int) -> None:
        """See `DeliveryCounter`."""
        if self._is_acknowledged:
            super().lost(last_tag, outstanding)

    def take(self) -> StatLine | None:
        """What was counted since the last call."""
        line, waits = super().take(), self._waits.take()
        if line is not None and waits:
            line.h = {**{f"queue:{bucket}": count for bucket, count in waits.items()}, **(line.h or {})}
        return line


class CorrelatedDeliveryLog(DeliveryLog):
    """Writes for each message of one subscription how long it has waited."""

    __slots__ = ("published",)

    def __init__(self, lines: SessionLines, subscription: CountedSubscription, fields: SubscriptionFields) -> None:
        super().__init__(lines, subscription, fields)
        self.published: int | None = None

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`."""
        writer = self._writer
        if len(writer.events) >= BATCH - 1:
            # Or the line would be handed over before it is complete.
            writer.flush()
        before = len(writer.events)
        super().delivered(tag, redelivered, size)
        line = writer.events[-1] if len(writer.events) > before else None
        if self.published is not None and isinstance(line, DeliveryLine):
            line.ql = max(0, line.t - self.published)
