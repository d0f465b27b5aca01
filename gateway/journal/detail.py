"""Level message: a line for each message, confirm and acknowledgement.

HOT: every method is called for each message. Their cost is guarded by ``make bench-journal``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.journal.moments import Moments, moments_for
from gateway.journal.schema import Ack, Conf, Dlv, Nack, Send
from gateway.journal.tally import About
from gateway.journal.writer import BATCH

if TYPE_CHECKING:
    from gateway.journal.recorder import Recorder
    from gateway.journal.sample import Sample
    from gateway.session.subscription import Subscription


class SendDetail:
    """The messages of one plan of SEND.

    Args:
        recorder: of the session.
        destination: as the journal shows it.
        kind: of the destination.
        pattern: what all of its lines have: header count, persistent, in a transaction, allowed header values.
    """

    __slots__ = ("_about", "_destination", "_kind", "_pattern", "_recorder", "_sample", "_writer")

    def __init__(
        self, recorder: Recorder, destination: str, kind: str, pattern: tuple[int, bool, bool, dict[str, str] | None]
    ) -> None:
        self._recorder = recorder
        self._writer = recorder.writer
        self._sample: Sample | None = recorder.sample
        self._destination = destination
        self._kind = kind
        self._pattern = pattern
        self._about = (recorder.number, recorder.virtual_host, recorder.user)

    def sent(self, size: int, receipt: bool) -> object:
        """See `SendCounter`. The ticket is the time and the message's number."""
        recorder = self._recorder
        recorder.sent = message = recorder.sent + 1
        weight = None
        if self._sample is not None:
            if not self._sample.takes(message):
                return None
            weight = self._sample.weight
        writer = self._writer
        clock = writer.clock
        session, virtual_host, user = self._about
        headers, persistent, transacted, values = self._pattern
        line = Send(
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
        session, virtual_host, user = self._about
        weight = None if self._sample is None else self._sample.weight
        line = Conf(
            clock.now + clock.offset, 0, session, virtual_host, user, self._destination, self._kind, message,
            clock.now - at, None if accepted else "rejected", weight,
        )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()


class DeliveryDetail:
    """The messages of one subscription.

    Args:
        recorder: of the session.
        subscription: it.
        about: it, as the journal shows it.
    """

    __slots__ = ("_acknowledges", "_moments", "_recorder", "_sample", "_session", "_writer", "about", "subscription")

    def __init__(self, recorder: Recorder, subscription: Subscription, about: About) -> None:
        self.subscription = subscription
        self.about = about
        self._moments = moments_for(about.mode)
        # Under ack:auto nobody does.
        self._acknowledges = about.mode != "auto"
        self._recorder = recorder
        self._writer = recorder.writer
        self._sample: Sample | None = recorder.sample
        self._session = (recorder.number, recorder.virtual_host, recorder.user)

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`."""
        recorder = self._recorder
        recorder.delivered += 1
        writer = self._writer
        clock = writer.clock
        if self._acknowledges:
            recorder.unacked += 1
        weight = None
        if self._sample is not None:
            if not self._sample.takes(tag):
                return
            weight = self._sample.weight
        if self._acknowledges:
            self._moments.note(tag, clock.now)
        about = self.about
        session, virtual_host, user = self._session
        line = Dlv(
            clock.now + clock.offset, 0, session, virtual_host, user, about.destination, about.kind, about.identifier,
            about.mode, tag, size, redelivered, about.queue, weight,
        )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryCounter`. One line for all messages that were delivered at the same moment."""
        self._recorder.settled(count, requeue)
        now = self._writer.clock.now
        moments = self._moments
        if isinstance(moments, Moments):
            at = moments.by_tag.pop(tag, None)
            if at is not None or self._sample is None:
                self._write(tag, 1, None if at is None else now - at, requeue)
            return
        known = 0
        for last, number, at in moments.take(tag):
            self._write(last, number, now - at, requeue)
            known += number
        if self._sample is None and count > known:
            self._write(tag, count - known, None, requeue)

    def _write(self, tag: int, count: int, latency: int | None, requeue: bool | None) -> None:
        about, writer = self.about, self._writer
        clock = writer.clock
        now = clock.now + clock.offset
        session, virtual_host, user = self._session
        weight = None if self._sample is None else self._sample.weight
        line: Ack | Nack
        if requeue is None:
            line = Ack(
                now, 0, session, virtual_host, user, about.destination, about.kind, about.identifier, about.mode, tag,
                count, latency, about.queue, weight,
            )  # fmt: skip
        else:
            line = Nack(
                now, 0, session, virtual_host, user, about.destination, about.kind, about.identifier, about.mode, tag,
                "requeue" if requeue else "discard", count, latency, about.queue, weight,
            )  # fmt: skip
        writer.events.append(line)
        if len(writer.events) >= BATCH:
            writer.flush()
