"""What one session adds to its lines: their common fields, sampling, and the times of its deliveries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from gateway.journal.schema import Line, UseLine
from gateway.journal.writer import Writer
from gateway.session.delivery_ledger import AckMode

MAX_TIMES: Final = 65_536
"""Delivery times of one subscription that are kept; the acknowledgement of any other delivery has no latency."""

_HASH_RANGE: Final = 1 << 32
_NO_FEATURES: Final[frozenset[str]] = frozenset()


class Sampler:
    """Decides by a message's number whether it is written, so that either all of its events are written or none.

    ``share`` of the messages are written, above 0 and below 1. ``session`` is the session's number in the boot.
    """

    __slots__ = ("_bound", "_seed", "weight")

    def __init__(self, share: float, boot: str, session: int) -> None:
        self.weight = 1 / share
        self._bound = int(share * _HASH_RANGE)
        self._seed = crc32(f"{boot} {session}".encode())

    def takes(self, message: int) -> bool:
        """Whether the message with this number (in the session), or this delivery tag, is written."""
        return crc32(message.to_bytes(8, "big"), self._seed) < self._bound


class SessionLines:
    """What all lines of one session share: their common fields, the writer, and what is known of the whole session."""

    __slots__ = ("_used", "max_unacked", "sampler", "sent", "session_fields", "unacked", "version", "writer")

    def __init__(self, writer: Writer, session_fields: tuple[int, str, str], version: str, share: float) -> None:
        self.writer = writer
        self.session_fields = session_fields
        """The session's number in the boot, its virtual host and its login, as the journal shows them."""
        self.version = version
        self.sampler = Sampler(share, writer.boot, session_fields[0]) if share < 1 else None
        # Messages sent, counted at level message only; deliveries that the client has yet to acknowledge.
        self.sent = self.unacked = self.max_unacked = 0
        # Mostly empty, and then the same for all sessions.
        self._used = _NO_FEATURES

    def common(self) -> tuple[int, int, int, str, str]:
        """The fields that every line of the session begins with."""
        return (self.writer.clock.time, 0, *self.session_fields)

    def put(self, line: Line | None) -> None:
        """Write a line, if there is one."""
        if line is not None:
            self.writer.put(line)

    def use(self, features: Iterable[str]) -> None:
        """Write a line for each feature that the session uses for the first time."""
        for feature in features:
            if feature not in self._used:
                self._used |= {feature}
                self.writer.put(UseLine(*self.common(), feature, self.version))

    def settled(self, count: int, requeue: bool | None) -> None:
        """Count what the client acknowledged or refused. HOT: once per ACK and NACK."""
        self.max_unacked = max(self.max_unacked, self.unacked)
        self.unacked -= count
        if requeue is not None:
            self.use(("nack" if requeue else "nack-discard",))
        elif count > 1:
            self.use(("ack-cumulative",))

    def returned(self, count: int) -> None:
        """Count unacknowledged deliveries that go back to their queue, because their subscription ends."""
        self.max_unacked = max(self.max_unacked, self.unacked)
        self.unacked -= count


@dataclass(slots=True)
class SubscriptionFields:
    """A subscription as its lines show it.

    ``queue`` is that of a durable subscription, which stays; ``auto_delete`` and ``exclusive`` are its queue's.
    """

    destination: str
    kind: str
    identifier: str
    mode: str
    queue: str | None = None
    auto_delete: bool = False
    exclusive: bool = False
    durable: bool = False
    has_arguments: bool = False
    has_begun: bool = False


DeliveryGroup = tuple[int, int, int]
"""Deliveries made together: the last one's tag, how many, and when, in microseconds on the journal's clock."""


class DeliveryTimes:
    """Delivery times for messages that are acknowledged one by one: a time for each tag."""

    __slots__ = ("by_tag",)

    def __init__(self) -> None:
        self.by_tag: dict[int, int] = {}

    def note(self, tag: int, at: int) -> None:
        """A delivery was made. HOT: once per message."""
        if len(self.by_tag) < MAX_TIMES:
            self.by_tag[tag] = at

    def take(self, tag: int) -> list[DeliveryGroup]:
        """Remove one delivery and return it; empty if its time is not known."""
        at = self.by_tag.pop(tag, None)
        return [] if at is None else [(tag, 1, at)]


@dataclass(slots=True)
class _TagRange:
    first: int
    last: int
    at: int


class CumulativeDeliveryTimes:
    """Delivery times for cumulative acknowledgements: deliveries made together are one range of tags."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: deque[_TagRange] = deque()

    def note(self, tag: int, at: int) -> None:
        """A delivery was made, with a higher tag than all before. HOT: once per message."""
        ranges = self._ranges
        if ranges:
            newest = ranges[-1]
            if newest.at == at and newest.last == tag - 1:
                newest.last = tag
                return
        if len(ranges) < MAX_TIMES:
            ranges.append(_TagRange(tag, tag, at))

    def take(self, tag: int) -> list[DeliveryGroup]:
        """Remove all deliveries up to a tag and return them, oldest first, as far as their times are known."""
        ranges, taken = self._ranges, []
        while ranges and ranges[0].first <= tag:
            oldest = ranges[0]
            last = min(oldest.last, tag)
            taken.append((last, last - oldest.first + 1, oldest.at))
            if last < oldest.last:
                oldest.first = last + 1
                break
            ranges.popleft()
        return taken


def delivery_times(mode: AckMode) -> DeliveryTimes | CumulativeDeliveryTimes:
    """An empty store of delivery times, for the latency of the acknowledgements of a subscription."""
    return CumulativeDeliveryTimes() if mode is AckMode.CLIENT else DeliveryTimes()
