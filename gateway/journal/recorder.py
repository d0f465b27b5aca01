"""What one session of this gateway writes into the journal: it observes the session from its login to its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.errors import CloseReason
from gateway.journal import schema
from gateway.journal.counters import DeliveryStats
from gateway.journal.privacy import KIND_CODES, shown
from gateway.journal.session_lines import SubscriptionFields
from gateway.journal.session_recorder import (
    SessionRecorder,
    VirtualHostJournal,
    features_of_send,
    features_of_subscribe,
)
from gateway.session import ops
from gateway.session.cached_publish import SendRequest
from gateway.session.context import Hold
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import TEMP_QUEUE, DestinationKind
from gateway.session.queues import QueueSpec
from gateway.session.session import Session
from gateway.session.subscription import Subscription
from gateway.session.traffic import DeliveryCounter, SendCounter

# Holds that show pressure; the others are normal.
_HOLDS: Final = (
    Hold.CONFIRM_WINDOW, Hold.LINK_WRITE, Hold.LINK_LOST, Hold.QUEUE_AWAY, Hold.REPLAY, Hold.BROKER_BLOCKED,
    Hold.RATE_LIMIT, Hold.CLIENT_WRITE,
)  # fmt: skip

# Subscriptions whose end is written in one go. That takes a few milliseconds.
_ENDS_AT_ONCE: Final = 100


class Recorder(SessionRecorder):
    """Writes what one session does; made when it has logged in.

    ``connected`` is when the client connected, on the journal's clock; ``peer`` is its address as the journal shows it.
    """

    __slots__ = ("_awaited", "_away", "_errors_before", "_held", "_session", "header_values", "stamp")

    def __init__(
        self, journal: VirtualHostJournal, session: Session, virtual_host: str, connected: int, *, peer: str | None,
        tls: bool,
    ) -> None:  # fmt: skip
        super().__init__(journal, virtual_host, session.login or b"", session.version.decode())
        self.header_values = tuple([name.encode() for name in journal.settings.header_values])
        self.stamp = self.writer.clock.stamp if journal.settings.correlate else None
        self._session = session
        # ERRORs before the login belong to no session in the journal.
        self._errors_before = session.traffic.errors_sent
        # The holds of the session, and when they were first seen.
        self._held: dict[Hold, int] = {}
        # When subscriptions began to wait for their queues, and the queue that the session was held for last.
        self._away: dict[Subscription, int] = {}
        self._awaited: str | None = None
        self.begin(connected, peer, session.heartbeats.header.decode(), tls=tls)
        if session.certificate_name is not None:
            self.used("certificate-login")

    # For the session: see `SessionObserver`.

    def sends(self, request: SendRequest, headers: Mapping[bytes, bytes]) -> SendCounter:
        """See `SessionObserver`."""
        self._lines.use(features_of_send(request.kind, headers, has_temp_queue=request.temp_queue is not None))
        is_transacted = request.transaction is not None
        return self.send_counter(request.destination, KIND_CODES[request.kind], headers, is_transacted=is_transacted)

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """See `SessionObserver`."""
        subscription = operation.subscription
        counter = self.delivery_counter(subscription, self._fields(operation, queue))
        counts_itself = type(counter) is DeliveryStats and subscription.mode is AckMode.AUTO
        return None if counts_itself else counter

    def _fields(self, operation: ops.Subscribe, queue: QueueSpec | None) -> SubscriptionFields:
        subscription, address = operation.subscription, operation.subscription.address
        if address.startswith(TEMP_QUEUE):
            identifier = TEMP_QUEUE.decode() + "*"
        else:
            identifier = shown(address if subscription.identifier is None else subscription.identifier)
        name, kind = self._journal.destinations.name(address), KIND_CODES[subscription.kind]
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
        fields = counter.fields
        if fields.queue is not None:
            fields.queue = queue_name
        # With ack:auto the prefetch is the gateway's, not the client's.
        prefetch = 0 if fields.mode == "auto" else operation.prefetch
        has_offset = bool(operation.arguments) and "x-stream-offset" in operation.arguments
        kind = operation.subscription.kind
        self.subscription_begun(fields, prefetch, features_of_subscribe(kind, fields, prefetch, has_offset=has_offset))

    def queue_away(self, subscription: Subscription) -> None:
        """See `SessionObserver`."""
        self._away[subscription] = self.writer.clock.now

    def queue_back(self, subscription: Subscription) -> None:
        """See `SessionObserver`."""
        began, counter = self._away.pop(subscription, None), self._deliveries.get(subscription)
        if began is not None and counter is not None:
            fields, latency = counter.fields, self.writer.clock.now - began
            whose = fields.destination, fields.kind, fields.identifier
            self.writer.put(schema.HoldLine(*self._lines.common(), Hold.QUEUE_AWAY.value, latency, *whose))

    # For the server.

    def look(self, holds: set[Hold]) -> None:
        """Note the session's present holds, and write those that have ended."""
        if not holds and not self._held:
            return
        now = self.writer.clock.now
        for queue in self._session.awaited_for_sends:
            self._awaited = self._journal.destinations.name(b"/queue/" + queue.encode())
        for hold in _HOLDS:
            if hold in holds:
                self._held.setdefault(hold, now)
            elif hold in self._held:
                line = schema.HoldLine(*self._lines.common(), hold.value, now - self._held.pop(hold))
                if hold is Hold.QUEUE_AWAY and self._awaited is not None:
                    line.d, line.dk, self._awaited = self._awaited, KIND_CODES[DestinationKind.QUEUE], None
                self.writer.put(line)

    def ended(self, reason: CloseReason | None, bytes_in: int, bytes_out: int) -> Iterator[None]:
        """Write the session's end: its last counts, its subscriptions and its totals.

        A part of it with each step of the iterator, because a session may have thousands of subscriptions.
        """
        self.write_sends()
        self.look(set())
        session, unacked = self._session, self.unacked
        subscriptions = session.subscriptions
        delivered = sum(counter.delivered for counter in subscriptions.past.values())
        for number, subscription in enumerate(tuple(self._deliveries), 1):
            if isinstance(subscription, Subscription) and subscriptions.is_current(subscription):
                delivered += subscription.stats.delivered
            self.unsubscribed(subscription, "end")
            if number % _ENDS_AT_ONCE == 0:
                yield
        errors = session.traffic.errors_sent - self._errors_before
        frames_out = 1 + delivered + session.traffic.receipts_sent + errors  # 1 is CONNECTED
        frames = session.traffic.frames_received, frames_out
        self.end(reason.value if reason else schema.OTHER, frames, (bytes_in, bytes_out), unacked)
