"""Level session: counts instead of lines, one `Stat` per destination or subscription that had something to do.

HOT: ``sent``, ``confirmed``, ``delivered`` and ``settled`` are called for each message. Their cost is guarded by
``make bench-journal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.journal.histogram import bucket_of
from gateway.journal.moments import Moments, moments_for
from gateway.journal.schema import Stat

if TYPE_CHECKING:
    from gateway.journal.clock import Clock
    from gateway.journal.recorder import Recorder
    from gateway.session.subscription import Subscription


class Latencies:
    """Counts of latencies by bucket.

    What is confirmed or acknowledged together was mostly sent or delivered together, so the last bucket is remembered.
    """

    __slots__ = ("_bucket", "_latency", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self._latency = self._bucket = 0

    def add(self, latency: int, number: int = 1) -> None:
        """Count some of one latency. HOT."""
        if latency != self._latency:
            self._latency = latency
            self._bucket = bucket_of(latency)
        self.counts[self._bucket] = self.counts.get(self._bucket, 0) + number

    def take(self, name: str) -> dict[str, int]:
        """The counts since the last time, as a `Stat` has them."""
        counts, self.counts = self.counts, {}
        return {f"{name}:{bucket}": count for bucket, count in counts.items()}


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
        self._count = self._octets = self._confirmed = self._rejected = 0
        self._latencies = Latencies()

    def sent(self, size: int, receipt: bool) -> object:
        """See `SendCounter`. The ticket is the time."""
        if not self._is_noted:
            self._note()
        self._count += 1
        self._octets += size
        return self._clock.now

    def confirmed(self, sent_at: object, accepted: bool) -> None:
        """See `SendCounter`."""
        if not self._is_noted:
            self._note()
        if not accepted:
            self._rejected += 1
        elif isinstance(sent_at, int):
            self._confirmed += 1
            self._latencies.add(self._clock.now - sent_at)

    def _note(self) -> None:
        self._is_noted = True
        self._recorder.active.append(self)

    def take(self) -> Stat | None:
        """The counts since the last time, which begin anew."""
        counts = {
            "send": self._count,
            "send_bytes": self._octets,
            "conf": self._confirmed,
            "rejected": self._rejected,
        }
        self._is_noted = False
        self._count = self._octets = self._confirmed = self._rejected = 0
        return self._recorder.stat(self._destination, self._kind, counts, self._latencies.take("conf"))


class DeliveryTally:
    """What one subscription delivered since its last `Stat`.

    Args:
        recorder: of the session.
        subscription: it; messages and bytes are counted there.
        about: it, as the journal shows it.
    """

    __slots__ = (
        "_acked", "_clock", "_discarded", "_latencies", "_moments", "_recorder", "_requeued", "_told", "about",
        "subscription",
    )  # fmt: skip

    def __init__(self, recorder: Recorder, subscription: Subscription, about: About) -> None:
        self.subscription = subscription
        self.about = about
        self._moments = moments_for(about.mode)
        self._recorder = recorder
        self._clock: Clock = recorder.clock
        self._told = subscription.stats
        self._acked = self._requeued = self._discarded = 0
        self._latencies = Latencies()

    def delivered(self, tag: int, redelivered: bool, size: int) -> None:
        """See `DeliveryCounter`. Not called under ack:auto, where nobody acknowledges."""
        self._recorder.unacked += 1
        self._moments.note(tag, self._clock.now)

    def settled(self, tag: int, count: int, requeue: bool | None) -> None:
        """See `DeliveryCounter`."""
        moments, recorder = self._moments, self._recorder
        if requeue is None and isinstance(moments, Moments):
            # One ACK for one message, with as few calls as can be: the same as below.
            unacked = recorder.unacked
            if unacked > recorder.max_unacked:  # noqa: PLR1730 - a call costs more
                recorder.max_unacked = unacked
            recorder.unacked = unacked - 1
            self._acked += 1
            moment = moments.by_tag.pop(tag, None)
            if moment is not None:
                self._latencies.add(self._clock.now - moment)
            return
        recorder.settled(count, requeue)
        taken = moments.take(tag)
        if requeue is None:
            self._acked += count
            now = self._clock.now
            for _, number, at in taken:
                self._latencies.add(now - at, number)
        elif requeue:
            self._requeued += count
        else:
            self._discarded += count

    def take(self) -> Stat | None:
        """The counts since the last time, which begin anew."""
        stats, told = self.subscription.stats, self._told
        counts = {
            "dlv": stats.delivered - told.delivered,
            "dlv_bytes": stats.octets - told.octets,
            "redelivered": stats.redelivered - told.redelivered,
            "ack": self._acked,
            "requeue": self._requeued,
            "discard": self._discarded,
        }
        self._told = stats
        self._acked = self._requeued = self._discarded = 0
        about = self.about
        stat = self._recorder.stat(about.destination, about.kind, counts, self._latencies.take("ack"))
        if stat is not None:
            stat.s, stat.sn, stat.am = about.identifier, about.queue, about.mode
        return stat


@dataclass(slots=True)
class About:
    """A subscription as the journal shows it.

    ``queue`` is that of a durable one, which stays; ``auto_delete`` and ``exclusive`` are its queue's.
    """

    destination: str
    kind: str
    identifier: str
    mode: str
    queue: str | None
    auto_delete: bool = False
    exclusive: bool = False
    durable: bool = False
    has_arguments: bool = False
    has_begun: bool = False
