"""What the journal writes of one session, whether a gateway serves it or `tap` observes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.journal_settings import JournalSettings
from gateway.errors import StompError
from gateway.journal import schema
from gateway.journal.counters import (
    CorrelatedDeliveryStats,
    CountedSubscription,
    DeliveryLog,
    DeliveryStats,
    SendLog,
    SendStats,
)
from gateway.journal.privacy import DestinationNames, UserNames, peer_name, shown
from gateway.journal.session_lines import SessionLines, SubscriptionFields
from gateway.journal.writer import Writer
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import KIND_NAMES, REPLY_QUEUE, DestinationKind
from gateway.session.queues import QUEUE_ARGUMENTS
from gateway.session.traffic import SendCounter
from gateway.stomp.frame import RECEIPT
from gateway.stomp.headers import read_boolean

# Microseconds between two lines of counts at level session.
_STAT_EVERY: Final = 10_000_000

# Destinations of one session whose counts are kept for later SENDs.
_MAX_SEND_STATS: Final = 1024


@dataclass(frozen=True, slots=True)
class VirtualHostJournal:
    """How the sessions of one virtual host are journalled."""

    writer: Writer
    settings: JournalSettings
    users: UserNames
    destinations: DestinationNames

    def peer(self, host: str) -> str | None:
        """A client's address as it is shown."""
        return peer_name(host, self.settings.peers)


class SessionRecorder:
    """The lines of one session; made when it has logged in."""

    __slots__ = ("_deliveries", "_journal", "_lines", "_sends", "_started", "_stat_at", "active", "writer")

    def __init__(self, journal: VirtualHostJournal, virtual_host: str, login: bytes, version: str) -> None:
        self.writer = writer = journal.writer
        host = shown(virtual_host.encode(errors="replace"))
        session_fields = (writer.next_session(), host, journal.users.name(login))
        self.active: list[SendStats] = []
        """The counters of SEND that have something to write."""
        self._lines = SessionLines(writer, session_fields, version, journal.settings.sample)
        self._journal = journal
        # By name and kind as the journal shows them: destinations of several kinds may share the name "other".
        self._sends: dict[tuple[str, str], SendStats] = {}
        self._deliveries: dict[CountedSubscription, DeliveryStats | DeliveryLog] = {}
        writer.clock.tick()
        self._started = writer.clock.now
        self._stat_at = self._started + _STAT_EVERY

    def begin(self, connected: int, peer: str | None, heart_beat: str, *, tls: bool) -> None:
        """Write that the session began.

        ``connected`` is when the client connected, on the journal's clock; ``peer`` is its address as it is shown.
        """
        lines, latency = self._lines, max(0, self._started - connected)
        lines.put(schema.ConnectLine(*lines.common(), peer, tls, lines.version, heart_beat, latency))
        if heart_beat != "0,0":
            self.used("heart-beat")
        if tls:
            self.used("tls")

    @property
    def number(self) -> int:
        """The session's number in the boot."""
        return self._lines.session_fields[0]

    def used(self, feature: str) -> None:
        """The session uses a feature."""
        self._lines.use((feature,))

    def send_counter(
        self, destination: bytes, kind: str, headers: Mapping[bytes, bytes], *, is_transacted: bool
    ) -> SendCounter:
        """The counter of SENDs with such headers to a destination; ``kind`` is one of `KIND_CODES`."""
        journal = self._journal
        name = journal.destinations.name(destination)
        if journal.settings.level == "message":
            given = {each: headers.get(each.encode()) for each in journal.settings.header_values}
            allowed = {each: shown(value) for each, value in given.items() if value is not None}
            persistent = read_boolean(headers.get(b"persistent")) is True
            return SendLog(self._lines, name, kind, (len(headers), persistent, is_transacted, allowed or None))
        stats = self._sends.get((name, kind))
        if stats is None:
            if len(self._sends) >= _MAX_SEND_STATS:
                # Their counts are written first, so that ``active`` stays bounded.
                self._write_stats()
                self._sends.clear()
            stats = self._sends[name, kind] = SendStats(self._lines, name, kind, self.active)
        return stats

    def delivery_counter(
        self, subscription: CountedSubscription, fields: SubscriptionFields
    ) -> DeliveryStats | DeliveryLog:
        """The counter of the deliveries of a subscription, until `unsubscribed`."""
        settings = self._journal.settings
        kind: type[DeliveryStats | DeliveryLog] = CorrelatedDeliveryStats if settings.correlate else DeliveryStats
        if settings.level == "message":
            kind = DeliveryLog
        counter = self._deliveries[subscription] = kind(self._lines, subscription, fields)
        return counter

    def subscription_begun(self, fields: SubscriptionFields, prefetch: int, features: Iterable[str]) -> None:
        """Write that a subscription began, and the features that it uses."""
        lines = self._lines
        fields.has_begun = True
        self.writer.clock.tick()
        line = schema.SubscribeLine(
            *lines.common(), fields.destination, fields.kind, fields.identifier, fields.mode, prefetch, fields.durable,
            fields.auto_delete, fields.exclusive, fields.queue,
        )  # fmt: skip
        lines.put(line)
        lines.use(features)

    def unsubscribed(self, subscription: CountedSubscription, how: str, *, is_left: bool = False) -> None:
        """Write the last counts of a subscription, and that it ended. ``is_left``: its deliveries did not go back."""
        counter = self._deliveries.pop(subscription, None)
        if counter is None:
            return
        fields, lines = counter.fields, self._lines
        self.writer.clock.tick()
        if isinstance(counter, DeliveryStats):
            lines.put(counter.take())
        is_nothing_returned = is_left or subscription.mode is AckMode.AUTO
        outstanding = 0 if is_nothing_returned else subscription.stats.outstanding
        lines.returned(outstanding)
        if fields.has_begun:
            destination, kind, identifier, queue = fields.destination, fields.kind, fields.identifier, fields.queue
            lines.put(schema.UnsubscribeLine(*lines.common(), destination, kind, identifier, how, outstanding, queue))

    def failed(self, error: StompError) -> None:
        """Write that the client got an ERROR."""
        self.writer.clock.tick()
        code = schema.error_code(error)
        self.writer.put(schema.ErrorLine(self.writer.clock.time, 0, code, *self._lines.session_fields))

    def time_passed(self) -> None:
        """Write the counts every ten seconds. Called about once a second."""
        if self.writer.clock.now >= self._stat_at:
            self._write_stats()

    def _write_stats(self) -> None:
        self.write_sends()
        for counter in self._deliveries.values():
            if isinstance(counter, DeliveryStats):
                self._lines.put(counter.take())

    def write_sends(self) -> None:
        """Write what was sent since the last time."""
        self.writer.clock.tick()
        self._stat_at = self.writer.clock.now + _STAT_EVERY
        active = self.active.copy()
        # Cleared and not replaced, since the counters keep a reference to the list.
        self.active.clear()
        for sends in active:
            self._lines.put(sends.take())

    @property
    def unacked(self) -> int:
        """Deliveries that the client has yet to acknowledge."""
        return self._lines.unacked

    def end(self, reason: str, frames: tuple[int, int], size: tuple[int, int], unacked: int) -> None:
        """Write the session's end: frames and bytes in and out, and how many deliveries go back to their queues."""
        lines = self._lines
        totals = schema.SessionTotals(*frames, *size, unacked, lines.max_unacked, self.writer.clock.now - self._started)
        self.writer.put(schema.EndLine(*lines.common(), reason, totals))


# Which features a frame uses, out of `schema.FEATURES`.

_FEATURE_HEADERS: Final = {
    RECEIPT: "receipt",
    b"priority": "priority",
    b"expiration": "expiration",
    b"correlation-id": "correlation",
}
# Headers of SEND that mean something to STOMP or to RabbitMQ; all others are the users' own.
_KNOWN_HEADERS: Final = frozenset(
    (
        b"destination", b"content-length", b"content-type", b"content-encoding", b"correlation-id", b"reply-to",
        b"expiration", b"amqp-message-id", b"type", b"user-id", b"app-id", b"priority", b"timestamp", b"persistent",
        b"receipt", b"transaction", b"durable", b"auto-delete", b"exclusive", b"id", b"ack",
    )
)  # fmt: skip


def features_of_send(
    kind: DestinationKind | None, headers: Mapping[bytes, bytes], *, has_temp_queue: bool
) -> Iterator[str]:
    """The features that a SEND uses; ``kind`` is None for a destination that RabbitMQ does not know."""
    if kind is not None:
        yield KIND_NAMES[kind]
    for name in headers:
        if name in _FEATURE_HEADERS:
            yield _FEATURE_HEADERS[name]
        elif name in QUEUE_ARGUMENTS:
            yield "queue-arguments"
        elif name not in _KNOWN_HEADERS:
            yield "user-headers"
    for flag in (b"persistent", b"exclusive"):
        if read_boolean(headers.get(flag)):
            yield flag.decode()
    if has_temp_queue:
        yield "temp-queue"
    elif headers.get(b"reply-to", b"").startswith(REPLY_QUEUE):
        yield "reply-queue"


def features_of_subscribe(
    kind: DestinationKind | None, fields: SubscriptionFields, prefetch: int, *, has_offset: bool
) -> Iterator[str]:
    """The features that a subscription uses; ``has_offset``: the client said where to begin in a stream."""
    if kind is not None:
        yield KIND_NAMES[kind]
    if fields.exclusive and kind is DestinationKind.QUEUE:
        # Topics and reply queues are exclusive without being asked.
        yield "exclusive"
    if fields.durable:
        yield "durable-subscription"
    yield f"ack-{fields.mode}"
    if prefetch and fields.mode != "auto":
        yield "prefetch"
    if has_offset:
        yield "stream"
    if fields.has_arguments:
        yield "queue-arguments"
