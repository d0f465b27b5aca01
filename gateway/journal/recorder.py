"""What one session writes into the journal: it observes the session from its login to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gateway.errors import CloseReason, StompError
from gateway.journal import schema
from gateway.journal.counters import DeliveryLog, DeliveryStats, SendLog, SendStats
from gateway.journal.privacy import KIND_CODES, DestinationNames, UserNames, shown
from gateway.journal.session_lines import SessionLines, SubscriptionFields
from gateway.journal.writer import Writer
from gateway.session import ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.context import Hold
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import KIND_NAMES, REPLY_QUEUE, TEMP_QUEUE, DestinationKind, parse
from gateway.session.queues import QUEUE_ARGUMENTS, QueueSpec
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.session.traffic import DeliveryCounter, SendCounter
from gateway.stomp.frame import RECEIPT
from gateway.stomp.headers import read_boolean

# Holds that show pressure; the others are normal.
_HOLDS: Final = (
    Hold.CONFIRM_WINDOW, Hold.LINK_WRITE, Hold.LINK_LOST, Hold.BROKER_BLOCKED, Hold.RATE_LIMIT, Hold.CLIENT_WRITE,
)  # fmt: skip

# Microseconds between two lines of counts at level session.
_STAT_EVERY: Final = 10_000_000

# Subscriptions whose end is written in one go. That takes a few milliseconds.
_ENDS_AT_ONCE: Final = 100

# Destinations of one session whose counts are kept for later SENDs.
_MAX_SEND_STATS: Final = 1024


@dataclass(frozen=True, slots=True)
class VirtualHostJournal:
    """How the sessions of one virtual host are journalled.

    ``by_message`` is level message, otherwise it is level session. ``share`` of the messages is written.
    ``header_values`` are the names of headers whose values are written, and ``peers`` how addresses are.
    """

    writer: Writer
    users: UserNames
    destinations: DestinationNames
    by_message: bool
    share: float
    peers: str
    header_values: tuple[str, ...]


class Recorder:
    """Writes what one session does; made when it has logged in.

    ``connected`` is when the client connected, on the journal's clock; ``peer`` is its address as the journal shows it.
    """

    def __init__(
        self, journal: VirtualHostJournal, session: Session, virtual_host: str, connected: int, *, peer: str | None,
        tls: bool,
    ) -> None:  # fmt: skip
        writer = journal.writer
        session_fields = (
            writer.next_session(),
            shown(virtual_host.encode(errors="replace")),
            journal.users.name(session.login or b""),
        )
        self.writer = writer
        self.active: list[SendStats] = []
        """The counters of SEND that have something to write."""
        self._lines = SessionLines(writer, session_fields, session.version.decode(), journal.share)
        self._journal = journal
        self.header_values = frozenset([name.encode() for name in journal.header_values])
        self._session = session
        # ERRORs before the login belong to no session in the journal.
        self._errors_before = session.traffic.errors_sent
        # By name and kind as the journal shows them: destinations of several kinds may share the name "other".
        self._sends: dict[tuple[str, str], SendStats] = {}
        self._deliveries: dict[Subscription, DeliveryStats | DeliveryLog] = {}
        # The holds of the session, and when they were first seen.
        self._held: dict[Hold, int] = {}
        writer.clock.tick()
        now = self._started = writer.clock.now
        self._stat_at = now + _STAT_EVERY
        self._begin(max(0, now - connected), peer, tls=tls)

    def _begin(self, latency: int, peer: str | None, *, tls: bool) -> None:
        lines, session = self._lines, self._session
        heart_beat = session.heartbeats.header.decode()
        lines.put(schema.ConnectLine(*lines.common(), peer, tls, lines.version, heart_beat, latency))
        if heart_beat != "0,0":
            self.used("heart-beat")
        if tls:
            self.used("tls")
        if session.certificate_name is not None:
            self.used("certificate-login")

    @property
    def number(self) -> int:
        """The session's number in the boot."""
        return self._lines.session_fields[0]

    # For the session: see `SessionObserver`.

    def sends(self, cached_publish: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
        """See `SessionObserver`."""
        self._lines.use(_features_of_send(cached_publish, headers))
        journal = self._journal
        name, kind = journal.destinations.name(cached_publish.destination), KIND_CODES[cached_publish.kind]
        if journal.by_message:
            given = {each: headers.get(each.encode()) for each in journal.header_values}
            allowed = {each: shown(value) for each, value in given.items() if value is not None}
            persistent = read_boolean(headers.get(b"persistent")) is True
            shared = (len(headers), persistent, cached_publish.transaction is not None, allowed or None)
            return SendLog(self._lines, name, kind, shared)
        stats = self._sends.get((name, kind))
        if stats is None:
            if len(self._sends) >= _MAX_SEND_STATS:
                # Their counts are written first, so that ``active`` stays bounded.
                self._write_stats()
                self._sends.clear()
            stats = self._sends[name, kind] = SendStats(self._lines, name, kind, self.active)
        return stats

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """See `SessionObserver`."""
        subscription, fields = operation.subscription, self._fields(operation, queue)
        if self._journal.by_message:
            log = self._deliveries[subscription] = DeliveryLog(self._lines, subscription, fields)
            return log
        stats = self._deliveries[subscription] = DeliveryStats(self._lines, subscription, fields)
        return None if subscription.mode is AckMode.AUTO else stats

    def _fields(self, operation: ops.Subscribe, queue: QueueSpec | None) -> SubscriptionFields:
        subscription, address = operation.subscription, operation.subscription.address
        if address.startswith(TEMP_QUEUE):
            identifier = TEMP_QUEUE.decode() + "*"
        else:
            identifier = shown(address if subscription.identifier is None else subscription.identifier)
        name, kind = self._journal.destinations.name(address), KIND_CODES[parse(address).kind]
        fields = SubscriptionFields(name, kind, identifier, subscription.mode.value.decode())
        if queue is not None:
            fields.durable = queue.durable and operation.binding is not None
            fields.auto_delete, fields.exclusive = queue.auto_delete, queue.exclusive
            fields.has_arguments = bool(queue.arguments)
            # An auto-delete queue goes with its last consumer, whatever its other headers say.
            if fields.durable and not queue.auto_delete:
                fields.queue = operation.queue_name
        return fields

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """See `SessionObserver`."""
        counter = self._deliveries.get(operation.subscription)
        if counter is None:
            return
        fields, lines = counter.fields, self._lines
        fields.has_begun = True
        if fields.queue is not None:
            fields.queue = queue_name
        self.writer.clock.tick()
        # With ack:auto the prefetch is the gateway's, not the client's.
        prefetch = 0 if fields.mode == "auto" else operation.prefetch
        line = schema.SubscribeLine(
            *lines.common(), fields.destination, fields.kind, fields.identifier, fields.mode, prefetch, fields.durable,
            fields.auto_delete, fields.exclusive, fields.queue,
        )  # fmt: skip
        lines.put(line)
        lines.use(_features_of_subscribe(operation, fields))

    def unsubscribed(self, subscription: Subscription, how: str) -> None:
        """See `SessionObserver`."""
        counter = self._deliveries.pop(subscription, None)
        if counter is None:
            return
        fields, lines = counter.fields, self._lines
        self.writer.clock.tick()
        if isinstance(counter, DeliveryStats):
            lines.put(counter.take())
        outstanding = 0 if subscription.mode is AckMode.AUTO else subscription.stats.outstanding
        lines.returned(outstanding)
        if fields.has_begun:
            destination, kind, identifier, queue = fields.destination, fields.kind, fields.identifier, fields.queue
            lines.put(schema.UnsubscribeLine(*lines.common(), destination, kind, identifier, how, outstanding, queue))

    def used(self, feature: str) -> None:
        """See `SessionObserver`."""
        self._lines.use((feature,))

    # For the server.

    def failed(self, error: StompError) -> None:
        """Write that the client got an ERROR."""
        self.writer.clock.tick()
        code = schema.error_code(error)
        self.writer.put(schema.ErrorLine(self.writer.clock.time, 0, code, *self._lines.session_fields))

    def look(self, holds: set[Hold]) -> None:
        """Note the session's present holds, and write those that have ended."""
        if not holds and not self._held:
            return
        now = self.writer.clock.now
        for hold in _HOLDS:
            if hold in holds:
                self._held.setdefault(hold, now)
            elif hold in self._held:
                latency = now - self._held.pop(hold)
                self.writer.put(schema.HoldLine(*self._lines.common(), hold.value, latency))

    def time_passed(self) -> None:
        """Write the counts every ten seconds. Called about once a second."""
        if self.writer.clock.now >= self._stat_at:
            self._write_stats()

    def _write_stats(self) -> None:
        self._write_sends()
        for counter in self._deliveries.values():
            if isinstance(counter, DeliveryStats):
                self._lines.put(counter.take())

    def _write_sends(self) -> None:
        self.writer.clock.tick()
        self._stat_at = self.writer.clock.now + _STAT_EVERY
        active = self.active.copy()
        # Cleared and not replaced, since the counters keep a reference to the list.
        self.active.clear()
        for sends in active:
            self._lines.put(sends.take())

    def ended(self, reason: CloseReason | None, bytes_in: int, bytes_out: int) -> Iterator[None]:
        """Write the session's end: its last counts, its subscriptions and its totals.

        A part of it with each step of the iterator, because a session may have thousands of subscriptions.
        """
        self._write_sends()
        self.look(set())
        lines, session = self._lines, self._session
        unacked = lines.unacked
        subscriptions = session.subscriptions
        delivered = sum(counter.delivered for counter in subscriptions.past.values())
        for number, subscription in enumerate(tuple(self._deliveries), 1):
            if subscriptions.is_current(subscription):
                delivered += subscription.stats.delivered
            self.unsubscribed(subscription, "end")
            if number % _ENDS_AT_ONCE == 0:
                yield
        errors = session.traffic.errors_sent - self._errors_before
        totals = schema.SessionTotals(
            frames_in=session.traffic.frames_received,
            frames_out=1 + delivered + session.traffic.receipts_sent + errors,  # 1 is CONNECTED
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            unacked=unacked,
            max_unacked=lines.max_unacked,
            us=self.writer.clock.now - self._started,
        )
        self.writer.put(schema.EndLine(*lines.common(), reason.value if reason else schema.OTHER, totals))


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


def _features_of_send(cached_publish: CachedPublish, headers: Mapping[bytes, bytes]) -> Iterator[str]:
    yield KIND_NAMES[cached_publish.kind]
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
    if cached_publish.temp_queue is not None:
        yield "temp-queue"
    elif headers.get(b"reply-to", b"").startswith(REPLY_QUEUE):
        yield "reply-queue"


def _features_of_subscribe(operation: ops.Subscribe, fields: SubscriptionFields) -> Iterator[str]:
    subscription = operation.subscription
    kind = parse(subscription.address).kind
    yield KIND_NAMES[kind]
    if fields.exclusive and kind is DestinationKind.QUEUE:
        # Topics and reply queues are exclusive without being asked.
        yield "exclusive"
    if fields.durable:
        yield "durable-subscription"
    yield f"ack-{fields.mode}"
    if operation.prefetch and subscription.mode is not AckMode.AUTO:
        yield "prefetch"
    if operation.arguments and "x-stream-offset" in operation.arguments:
        yield "stream"
    if fields.has_arguments:
        yield "queue-arguments"
