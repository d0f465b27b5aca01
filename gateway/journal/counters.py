"""The counters that a journalled session calls for each message: one per kind of SEND, one per subscription.

At level session the counters count: `SendStats` and `DeliveryStats` make a `StatLine` of what happened since the last
one. At level message they write: `SendLog` and `DeliveryLog` append a line for each message, confirm and
acknowledgement. With ``journal.correlate`` deliveries also know when their messages were published. The clocks of two
gateways may differ: a message that seems to be delivered before it was published has a wait of 0.

HOT: ``sent``, ``confirmed``, ``delivered`` and ``settled`` are called for each message. ``make bench-journal`` measures
their cost.
"""

from __future__ import annotations

from typing import Protocol

from gateway.journal.histogram import Latencies
from gateway.journal.schema import AckLine, ConfirmLine, DeliveryLine, NackLine, SendLine, StatLine
from gateway.journal.session_lines import DeliveryTimes, SessionLines, SubscriptionFields, delivery_times
from gateway.journal.writer import BATCH
from gateway.session.delivery_ledger import AckMode
from gateway.session.traffic import TrafficCounter


class CountedSubscription(Protocol):
    """A subscription that counts its own messages."""

    @property
    def mode(self) -> AckMode:
        """How its messages are acknowledged."""

    @property
    def stats(self) -> TrafficCounter:
        """A copy of its counts so far."""


# Level session.


class SendStats:
    """Counts what a session sends to one destination. It is in ``active`` while it has something to write.

    The session's own counter is by the client's destination, this one by the destination as the journal shows it.
    """

    __slots__ = (
        "_active", "_clock", "_destination", "_is_active", "_kind", "_latencies", "_lines", "_rejected", "_sent",
        "_sent_bytes",
    )  # fmt: skip

    def __init__(self, lines: SessionLines, destination: str, kind: str, active: list[SendStats]) -> None:
        self._lines = lines
        self._clock = lines.writer.clock
        self._destination = destination
        self._kind = kind
        self._active = active
        self._is_active = False
        self._sent = self._sent_bytes = self._rejected = 0
        self._latencies = Latencies()

    def sent(self, size: int, _receipt: bool) -> object:
        """See `SendCounter`."""
        if not self._is_active:
            self._activate()
        self._sent += 1
        self._sent_bytes += size
        return self._clock.now

    def confirmed(self, sent_at: object, accepted: bool) -> None:
        """See `SendCounter`."""
        if not self._is_active:
            self._activate()
        if not accepted:
            self._rejected += 1
        elif isinstance(sent_at, int):
            self._latencies.add(self._clock.now - sent_at)

    def _activate(self) -> None:
        self._is_active = True
        self._active.append(self)

    def take(self) -> StatLine | None:
        """The counts since the last call; None if there are none."""
        latencies = self._latencies.take()
        counts = {
            "send": self._sent,
            "send_bytes": self._sent_bytes,
            "conf": sum(latencies.values()),
            "rejected": self._rejected,
        }
        self._is_active = False
        self._sent = self._sent_bytes = self._rejected = 0
        return _stat_line(self._lines, self._destination, self._kind, counts, "conf", latencies)


class DeliveryStats:
    """Times the acknowledgements of one subscription; the subscription itself counts its messages."""

    __slots__ = ("_before", "_clock", "_latencies", "_lines", "_subscription", "_times", "fields")

    def __init__(self, lines: SessionLines, subscription: CountedSubscription, fields: SubscriptionFields) -> None:
        self.fields = fields
        self._subscription = subscription
        self._before = subscription.stats
        self._times = delivery_times(subscription.mode)
        self._lines = lines
        self._clock = lines.writer.clock
        self._latencies = Latencies()

    def delivered(self, tag: int, _redelivered: bool, _size: int) -> None:
        """See `DeliveryCounter`. Not called with ack:auto, where the client acknowledges nothing."""
        self._lines.unacked += 1
        self._times.note(tag, self._clock.now)

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryCounter`."""
        times, lines = self._times, self._lines
        if requeue is None and isinstance(times, DeliveryTimes):
            # The same as below for one ACK of one message, with as few calls as possible.
            unacked = lines.unacked
            if unacked > lines.max_unacked:  # noqa: PLR1730 - a call costs more
                lines.max_unacked = unacked
            lines.unacked = unacked - 1
            at = times.by_tag.pop(tag, None)
            if at is not None:
                self._latencies.add(self._clock.now - at)
            return
        lines.settled(count, requeue)
        taken = times.take(tag)
        if requeue is None:
            now = self._clock.now
            for _, number, at in taken:
                self._latencies.add(now - at, number)

    def lost(self, _last_tag: int, outstanding: int) -> None:
        """See `DeliveryCounter`."""
        self._lines.returned(outstanding)
        self._times = delivery_times(self._subscription.mode)

    def take(self) -> StatLine | None:
        """The counts since the last call; None if there are none."""
        stats = self._subscription.stats
        new, self._before = stats.since(self._before), stats
        counts = {"dlv": new.delivered, "dlv_bytes": new.delivered_bytes, "redelivered": new.redelivered}
        if self._subscription.mode is not AckMode.AUTO:
            counts |= {"ack": new.acknowledged, "requeue": new.requeued, "discard": new.discarded}
        fields = self.fields
        line = _stat_line(self._lines, fields.destination, fields.kind, counts, "ack", self._latencies.take())
        if line is not None:
            line.s, line.sn, line.am = fields.identifier, fields.queue, fields.mode
        return line


class CorrelatedDeliveryStats(DeliveryStats):
    """Also counts how long the messages have waited since they were published."""

    __slots__ = ("_is_acknowledged", "_waits", "properties", "published")

    def __init__(self, lines: SessionLines, subscription: CountedSubscription, fields: SubscriptionFields) -> None:
        super().__init__(lines, subscription, fields)
        self.published: int | None = None
        self.properties = b""
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
        """The counts since the last call; None if there are none."""
        line, waits = super().take(), self._waits.take()
        if line is not None and waits:
            line.h = {**{f"queue:{bucket}": count for bucket, count in waits.items()}, **(line.h or {})}
        return line


def _stat_line(
    lines: SessionLines, destination: str, kind: str, counts: dict[str, int], what: str, latencies: dict[int, int]
) -> StatLine | None:
    counts = {name: count for name, count in counts.items() if count}
    if not counts:
        return None
    histogram = {f"{what}:{bucket}": count for bucket, count in latencies.items()}
    return StatLine(*lines.common(), destination, kind, counts, histogram or None)


# Level message.


class SendLog:
    """Writes a line for each message of one kind of SEND, and for each confirm.

    ``headers`` is what these SENDs share: header count, persistent, in a transaction, values of allowed headers.
    """

    __slots__ = ("_destination", "_headers", "_kind", "_lines", "_sampler", "_writer")

    def __init__(
        self, lines: SessionLines, destination: str, kind: str, headers: tuple[int, bool, bool, dict[str, str] | None]
    ) -> None:
        self._lines = lines
        self._writer = lines.writer
        self._sampler = lines.sampler
        self._destination = destination
        self._kind = kind
        self._headers = headers

    def sent(self, size: int, receipt: bool) -> object:
        """See `SendCounter`. Returns the time and the message's number in the session."""
        lines = self._lines
        lines.sent = message = lines.sent + 1
        weight = None
        if self._sampler is not None:
            if not self._sampler.takes(message):
                return None
            weight = self._sampler.weight
        writer = self._writer
        clock = writer.clock
        session, virtual_host, user = lines.session_fields
        headers, persistent, transacted, values = self._headers
        line = SendLine(
            clock.now + clock.offset, 0, session, virtual_host, user, self._destination, self._kind, message, size,
            headers, persistent, transacted, receipt, weight, values,
        )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()
        return (clock.now, message)

    def confirmed(self, sent_at: object, accepted: bool) -> None:
        """See `SendCounter`."""
        if not isinstance(sent_at, tuple):
            return
        at, message = sent_at
        writer = self._writer
        clock = writer.clock
        session, virtual_host, user = self._lines.session_fields
        weight = None if self._sampler is None else self._sampler.weight
        line = ConfirmLine(
            clock.now + clock.offset, 0, session, virtual_host, user, self._destination, self._kind, message,
            clock.now - at, None if accepted else "rejected", weight,
        )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()


class DeliveryLog:
    """Writes a line for each message of one subscription, and for each acknowledgement."""

    __slots__ = (
        "_base", "_is_acknowledged", "_lines", "_mode", "_sampler", "_times", "_writer", "fields", "properties",
        "published",
    )  # fmt: skip

    def __init__(self, lines: SessionLines, subscription: CountedSubscription, fields: SubscriptionFields) -> None:
        self.fields = fields
        self.published: int | None = None
        self.properties = b""
        # Added to delivery tags, so that those of the next channel are above those of one that was lost.
        self._base = 0
        self._mode = subscription.mode
        self._times = delivery_times(subscription.mode)
        self._is_acknowledged = subscription.mode is not AckMode.AUTO
        self._lines = lines
        self._writer = lines.writer
        self._sampler = lines.sampler

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`."""
        tag += self._base
        lines = self._lines
        writer = self._writer
        clock = writer.clock
        if self._is_acknowledged:
            lines.unacked += 1
        weight = None
        if self._sampler is not None:
            if not self._sampler.takes(tag):
                return
            weight = self._sampler.weight
        if self._is_acknowledged:
            self._times.note(tag, clock.now)
        fields = self.fields
        session, virtual_host, user = lines.session_fields
        now, published = clock.now + clock.offset, self.published
        line = DeliveryLine(
            now, 0, session, virtual_host, user, fields.destination, fields.kind, fields.identifier, fields.mode, tag,
            size, redelivered, fields.queue, weight, None if published is None else max(0, now - published),
        )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryCounter`. Writes one line for all messages that were delivered together."""
        tag += self._base
        self._lines.settled(count, requeue)
        now = self._writer.clock.now
        times = self._times
        if isinstance(times, DeliveryTimes):
            at = times.by_tag.pop(tag, None)
            if at is not None or self._sampler is None:
                self._write(tag, 1, None if at is None else now - at, requeue)
            return
        known = 0
        for last, number, at in times.take(tag):
            self._write(last, number, now - at, requeue)
            known += number
        if self._sampler is None and count > known:
            self._write(tag, count - known, None, requeue)

    def lost(self, last_tag: int, outstanding: int) -> None:
        """See `DeliveryCounter`."""
        if self._is_acknowledged:
            self._lines.returned(outstanding)
        self._times = delivery_times(self._mode)
        self._base += last_tag

    def _write(self, tag: int, count: int, latency: int | None, requeue: bool | None) -> None:
        fields, writer = self.fields, self._writer
        clock = writer.clock
        session, virtual_host, user = self._lines.session_fields
        weight = None if self._sampler is None else self._sampler.weight
        now = clock.now + clock.offset
        line: AckLine | NackLine
        # Written out twice, because unpacking what both share costs more.
        if requeue is None:
            line = AckLine(
                now, 0, session, virtual_host, user, fields.destination, fields.kind, fields.identifier, fields.mode,
                tag, count, latency, fields.queue, weight,
            )  # fmt: skip
        else:
            line = NackLine(
                now, 0, session, virtual_host, user, fields.destination, fields.kind, fields.identifier, fields.mode,
                tag, "requeue" if requeue else "discard", count, latency, fields.queue, weight,
            )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()
