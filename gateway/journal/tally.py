"""Level session: counts instead of lines, one `Stat` per destination or subscription that had something to do.

HOT: ``sent``, ``confirmed``, ``delivered`` and ``settled`` are called for each message. Their cost is guarded by
``make bench-journal``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.journal.histogram import bucket_of
from gateway.journal.schema import Stat

if TYPE_CHECKING:
    from gateway.journal.clock import Clock
    from gateway.journal.recorder import Recorder

TIMED: Final = 65_536
"""Deliveries of one subscription whose time is remembered; acknowledging any more of them counts, without a latency."""


class SendTally:
    """What a session sent to one destination since its last `Stat`.

    Args:
        recorder: of the session.
        destination: as the journal shows it.
        kind: of the destination.
    """

    __slots__ = (
        "_clock", "_confirmed", "_count", "_destination", "_is_noted", "_kind", "_latencies", "_octets", "_recorder",
        "_rejected",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, destination: str, kind: str) -> None:
        self._recorder = recorder
        self._clock: Clock = recorder.clock
        self._destination = destination
        self._kind = kind
        self._is_noted = False
        self._clear()

    def _clear(self) -> None:
        self._count = self._octets = self._confirmed = self._rejected = 0
        # By latency in microseconds: messages of one batch are confirmed in one batch, so there are few.
        self._latencies: dict[int, int] = {}

    def sent(self, size: int, receipt: bool) -> object:
        """See `SendAccount`. The ticket is the time."""
        if not self._is_noted:
            self._note()
        self._count += 1
        self._octets += size
        return self._clock.now

    def confirmed(self, ticket: object, accepted: bool) -> None:
        """See `SendAccount`."""
        if not self._is_noted:
            self._note()
        if not accepted:
            self._rejected += 1
            return
        self._confirmed += 1
        if isinstance(ticket, int):
            bucket = bucket_of(self._clock.now - ticket)
            self._latencies[bucket] = self._latencies.get(bucket, 0) + 1

    def _note(self) -> None:
        self._is_noted = True
        self._recorder.active.append(self)

    def take(self) -> Stat | None:
        """The counts since the last time, which begin anew."""
        self._is_noted = False
        counts = {
            "send": self._count,
            "send_bytes": self._octets,
            "conf": self._confirmed,
            "rejected": self._rejected,
        }
        latencies = {f"conf:{bucket}": count for bucket, count in self._latencies.items()}
        self._clear()
        return self._recorder.stat(self._destination, self._kind, counts, latencies)


class DeliveryTally:
    """What one subscription delivered since its last `Stat`; under ack:auto nobody acknowledges.

    Args:
        recorder: of the session.
        about: the subscription: destination, kind, id, ack mode, and the queue's name if it is durable.
    """

    __slots__ = (
        "_acked", "_clock", "_count", "_discarded", "_is_noted", "_latencies", "_octets", "_recorder", "_redelivered",
        "_requeued", "about", "outstanding", "times",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, about: About) -> None:
        self.about = about
        # When each outstanding delivery was made, oldest first; None where no acknowledgement is expected.
        self.times: dict[int, int] | None = None if about.mode == "auto" else {}
        self.outstanding = 0
        self._recorder = recorder
        self._clock: Clock = recorder.clock
        self._is_noted = False
        self._clear()

    def _clear(self) -> None:
        self._count = self._octets = self._redelivered = self._acked = self._requeued = self._discarded = 0
        self._latencies: dict[int, int] = {}

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryAccount`."""
        if not self._is_noted:
            self._note()
        self._count += 1
        self._octets += size
        if redelivered:
            self._redelivered += 1
        times = self.times
        if times is not None:
            self.outstanding += 1
            self._recorder.unacked += 1
            if len(times) < TIMED:
                times[tag] = self._clock.now

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryAccount`."""
        if not self._is_noted:
            self._note()
        self.outstanding -= count
        self._recorder.settled(count, requeue)
        taken = take_times(self.times, tag, count)
        if requeue is None:
            self._acked += count
            now, latencies = self._clock.now, self._latencies
            for at in taken:
                bucket = bucket_of(now - at)
                latencies[bucket] = latencies.get(bucket, 0) + 1
        elif requeue:
            self._requeued += count
        else:
            self._discarded += count

    def _note(self) -> None:
        self._is_noted = True
        self._recorder.active.append(self)

    def take(self) -> Stat | None:
        """The counts since the last time, which begin anew."""
        self._is_noted = False
        counts = {
            "dlv": self._count,
            "dlv_bytes": self._octets,
            "redelivered": self._redelivered,
            "ack": self._acked,
            "requeue": self._requeued,
            "discard": self._discarded,
        }
        latencies = {f"ack:{bucket}": count for bucket, count in self._latencies.items()}
        self._clear()
        about = self.about
        stat = self._recorder.stat(about.destination, about.kind, counts, latencies)
        if stat is not None:
            stat.s, stat.sn, stat.am = about.identifier, about.queue, about.mode
        return stat


class About:
    """A subscription as the journal shows it."""

    __slots__ = ("destination", "identifier", "kind", "mode", "queue")

    def __init__(self, destination: str, kind: str, identifier: str, mode: str, queue: str | None) -> None:
        self.destination = destination
        self.kind = kind
        self.identifier = identifier
        self.mode = mode
        self.queue = queue


def take_times(times: dict[int, int] | None, tag: int, count: int) -> list[int]:
    """Take out when acknowledged deliveries were made.

    Args:
        times: by delivery tag, oldest first.
        tag: the last one acknowledged.
        count: how many; with more than one all up to the tag are meant.

    Returns:
        Those that are known, oldest first.
    """
    if not times:
        return []
    if count == 1:
        at = times.pop(tag, None)
        return [] if at is None else [at]
    taken = []
    while times:
        first = next(iter(times))
        if first > tag:
            break
        taken.append(times.pop(first))
    return taken
