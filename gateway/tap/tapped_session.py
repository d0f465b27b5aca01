"""A session that passes through the tap: what client and server send after CONNECTED becomes lines of the journal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gateway.errors import CloseReason, StompError
from gateway.journal.counters import DeliveryLog
from gateway.journal.privacy import KIND_CODES, shown
from gateway.journal.schema import OTHER
from gateway.journal.session_lines import SubscriptionFields
from gateway.journal.session_recorder import (
    SessionRecorder,
    VirtualHostJournal,
    features_of_send,
    features_of_subscribe,
)
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import TEMP_QUEUE, DestinationKind, durable_queue_name, parse
from gateway.session.queues import QUEUE_ARGUMENTS
from gateway.session.traffic import SendCounter
from gateway.stomp.frame_scanner import ScannedFrame
from gateway.stomp.headers import read_boolean, read_integer
from gateway.tap import departures
from gateway.tap.tapped_subscription import TappedSubscription

_MODES: Final = {mode.value: mode for mode in AckMode}
_SESSION_PART: Final = b"@@"
_DURABLE: Final = (b"durable", b"persistent")

# Bounds of what the tap remembers of one session. What is beyond them is not recognised later.
_MAX_RECEIPTS: Final = 65_536
_MAX_UNACKED: Final = 65_536
_MAX_SUBSCRIPTIONS: Final = 10_000
_LONGEST_ID: Final = 1_024


@dataclass(frozen=True, slots=True)
class TapJournal:
    """The journal of a tap. ``is_plugin``: the server is RabbitMQ's plugin, whose rules are known."""

    virtual_host: VirtualHostJournal
    is_plugin: bool


@dataclass(slots=True)
class _Receipt:
    """A receipt that a client asked for, and the command of its frame; for SEND also its counter."""

    command: bytes
    errors_before: int
    counter: SendCounter | None = None
    sent_at: object = None


class TappedSession:
    """One session. ``identity``: the session header of CONNECTED."""

    def __init__(self, journal: TapJournal, recorder: SessionRecorder, identity: bytes) -> None:
        self.recorder = recorder
        self._journal = journal
        self._identity = identity
        self._receipts: dict[bytes, _Receipt] = {}
        # By id, or by destination without one.
        self._subscriptions: dict[bytes, TappedSubscription] = {}
        # By the id that an ACK names, in the order of the deliveries. Unlike a dict, it finds its first entry at once
        # after others were removed from the front.
        self._unacked: OrderedDict[bytes, TappedSubscription] = OrderedDict()
        # The headers and the counter of the last SEND: a producer repeats its headers.
        self._last_send: tuple[Mapping[bytes, bytes], SendCounter] | None = None
        self._has_prefetch = self._is_leaving = False
        self._errors = 0

    def used(self, rule: str) -> None:
        """Note that the client relies on a rule that the gateway answers differently than the plugin."""
        if self._journal.is_plugin:
            self.recorder.used(rule)

    def end(
        self, by_client: bool, is_stopping: bool, frames: tuple[int, int], sizes: tuple[int, int]
    ) -> Iterator[None]:
        """Write the end. Each step of the iterator ends one subscription.

        Args:
            by_client: the client closed its connection first.
            is_stopping: the tap stops.
            frames: the numbers of frames of client and server.
            sizes: the bytes of client and server.
        """
        recorder = self.recorder
        if is_stopping:
            reason = CloseReason.SHUTDOWN.value
        elif self._is_leaving:
            reason = CloseReason.DISCONNECT.value
        elif by_client:
            reason = CloseReason.CLIENT_GONE.value
        else:
            reason = CloseReason.BROKER_ERROR.value if self._errors else OTHER
        recorder.write_sends()
        unacked = recorder.unacked
        for subscription in tuple(self._subscriptions.values()):
            recorder.unsubscribed(subscription, "end")
            yield
        self._journal.virtual_host.writer.clock.tick()
        recorder.end(reason, frames, sizes, unacked)

    # The client's frames.

    def client_frame(self, frame: ScannedFrame) -> None:
        """Take a frame of the client, other than CONNECT."""
        command, headers, size = frame
        receipt = headers.get(b"receipt")
        asked = None if receipt is None else _Receipt(command, self._errors)
        if command == b"SEND":
            self._send(headers, size, asked)
        elif command == b"SUBSCRIBE":
            self._subscribe(headers)
        elif command == b"UNSUBSCRIBE":
            self._unsubscribe(headers)
        elif command in (b"ACK", b"NACK"):
            self._acknowledge(command, headers)
        elif command == b"DISCONNECT":
            # Once per session, because there may be many receipts and many DISCONNECTs.
            if not self._is_leaving and any(each.command == b"SEND" for each in self._receipts.values()):
                self.used(departures.EARLY_DISCONNECT)
            self._is_leaving = True
        elif command == b"BEGIN":
            self.recorder.used("transaction")
        has_room = len(self._receipts) < _MAX_RECEIPTS
        if receipt is not None and asked is not None and has_room and len(receipt) <= _LONGEST_ID:
            self._receipts[receipt] = asked

    def _send(self, headers: Mapping[bytes, bytes], size: int, asked: _Receipt | None) -> None:
        destination = headers.get(b"destination")
        if destination is None:
            return
        if self._last_send is not None and self._last_send[0] is headers:
            counter = self._last_send[1]
        else:
            counter = self._send_counter(destination, headers)
            self._last_send = headers, counter
        sent_at = counter.sent(size, asked is not None)
        if asked is not None:
            asked.counter, asked.sent_at = counter, sent_at

    def _send_counter(self, destination: bytes, headers: Mapping[bytes, bytes]) -> SendCounter:
        kind = departures.kind_if_valid(destination)
        has_temp_queue = headers.get(b"reply-to", b"").startswith(TEMP_QUEUE)
        for feature in features_of_send(kind, headers, has_temp_queue=has_temp_queue):
            self.recorder.used(feature)
        for rule in departures.of_send(headers):
            self.used(rule)
        return self.recorder.send_counter(destination, _code(kind), headers, is_transacted=b"transaction" in headers)

    def _subscribe(self, headers: Mapping[bytes, bytes]) -> None:
        destination = headers.get(b"destination")
        key = headers.get(b"id", destination)
        if destination is None or key is None or key in self._subscriptions:
            return
        mode = _MODES.get(headers.get(b"ack", b"auto"), AckMode.AUTO)
        subscription = TappedSubscription(key, mode, is_stream=departures.reads_stream(headers))
        fields = self._fields(destination, key, mode, headers)
        prefetch = read_integer(headers.get(b"prefetch-count", b"")) or 0
        if self._has_prefetch and not prefetch:
            self.used(departures.NEXT_PREFETCH)
        self._has_prefetch = self._has_prefetch or bool(prefetch)
        for rule in departures.of_subscribe(headers, is_durable=fields.durable):
            self.used(rule)
        kind, has_offset = departures.kind_if_valid(destination), b"x-stream-offset" in headers
        self._add(subscription, fields, kind, max(0, prefetch), has_offset=has_offset)

    def _add(
        self, subscription: TappedSubscription, fields: SubscriptionFields, kind: DestinationKind | None,
        prefetch: int = 0, *, has_offset: bool = False,
    ) -> None:  # fmt: skip
        if len(self._subscriptions) >= _MAX_SUBSCRIPTIONS or len(subscription.key) > _LONGEST_ID:
            return
        is_auto = subscription.mode is AckMode.AUTO
        counter = self.recorder.delivery_counter(subscription, fields)
        if isinstance(counter, DeliveryLog) or not is_auto:
            subscription.counter = counter
        self._subscriptions[subscription.key] = subscription
        prefetch = 0 if is_auto else prefetch
        features = features_of_subscribe(kind, fields, prefetch, has_offset=has_offset)
        self.recorder.subscription_begun(fields, prefetch, features)

    def _fields(
        self, destination: bytes, key: bytes, mode: AckMode, headers: Mapping[bytes, bytes]
    ) -> SubscriptionFields:
        kind = departures.kind_if_valid(destination)
        name = self._journal.virtual_host.destinations.name(destination)
        fields = SubscriptionFields(name, _code(kind), shown(key), mode.value.decode())
        is_bound = kind in (DestinationKind.TOPIC, DestinationKind.EXCHANGE)
        fields.durable = is_bound and any(read_boolean(headers.get(each)) for each in _DURABLE)
        fields.auto_delete = read_boolean(headers.get(b"auto-delete")) is True
        fields.exclusive = read_boolean(headers.get(b"exclusive")) is True
        fields.has_arguments = not QUEUE_ARGUMENTS.isdisjoint(headers)
        if fields.durable and not fields.auto_delete and self._journal.is_plugin:
            computed = durable_queue_name(parse(destination).binding_key, headers.get(b"id", b""))
            fields.queue = shown(headers.get(b"x-queue-name", computed))
        return fields

    def _unsubscribe(self, headers: Mapping[bytes, bytes]) -> None:
        subscription = self._subscriptions.pop(headers.get(b"id", headers.get(b"destination", b"")), None)
        if subscription is None:
            return
        if subscription.unacked:
            self.used(departures.UNACKNOWLEDGED)
        for ack_id in subscription.unacked:
            self._unacked.pop(ack_id, None)
        is_deleted = any(read_boolean(headers.get(each)) for each in _DURABLE)
        self.recorder.unsubscribed(subscription, "deleted" if is_deleted else "unsubscribe")

    def _acknowledge(self, command: bytes, headers: Mapping[bytes, bytes]) -> None:
        ack_id = headers.get(b"id", headers.get(b"message-id", b""))
        subscription = self._unacked.get(ack_id)
        if subscription is None:
            if _SESSION_PART in ack_id and self._identity and self._identity not in ack_id.split(_SESSION_PART):
                self.used(departures.OTHER_SESSION)
            return
        requeue = None
        if command == b"NACK":
            requeue = read_boolean(headers.get(b"requeue")) is not False
            if subscription.is_stream:
                self.used(departures.STREAM_NACK)
        settled = [ack_id]
        if subscription.mode is AckMode.CLIENT:
            # RabbitMQ's plugin settles all earlier deliveries of the whole connection.
            among: Mapping[bytes, object] = self._unacked if self._journal.is_plugin else subscription.unacked
            settled = [*takewhile(lambda each: each != ack_id, among), ack_id]
        by_subscription: dict[TappedSubscription, list[bytes]] = {}
        for each in settled:
            by_subscription.setdefault(self._unacked.pop(each), []).append(each)
        for owner, ids in by_subscription.items():
            owner.settle(ids, requeue)
        if len(by_subscription) > 1:
            self.used(departures.OTHER_SUBSCRIPTIONS)

    # The server's frames.

    def server_frame(self, frame: ScannedFrame) -> None:
        """Take a frame of the server, other than the first CONNECTED."""
        command, headers, size = frame
        if command == b"MESSAGE":
            self._message(headers, size)
        elif command == b"RECEIPT":
            self._receipt(headers.get(b"receipt-id", b""))
        elif command == b"ERROR":
            self._errors += 1
            self.recorder.failed(StompError(shown(headers.get(b"message", b"")), b""))
            if self._receipts and b"receipt-id" not in headers:
                self.used(departures.ERROR_TO_RECEIPT)

    def _message(self, headers: Mapping[bytes, bytes], size: int) -> None:
        subscription = self._subscription_of(headers)
        if subscription is None:
            return
        ack_id = headers.get(b"ack", headers.get(b"message-id", b""))
        if b":" in ack_id:
            # It contains the subscription's id, which the plugin does not escape.
            self.used(departures.UNESCAPED)
        is_known = ack_id in self._unacked or len(ack_id) > _LONGEST_ID or len(self._unacked) >= _MAX_UNACKED
        is_kept = not is_known and subscription.mode is not AckMode.AUTO
        redelivered = read_boolean(headers.get(b"redelivered")) is True
        subscription.deliver(ack_id if is_kept else None, size, redelivered=redelivered)
        if is_kept:
            self._unacked[ack_id] = subscription

    def _subscription_of(self, headers: Mapping[bytes, bytes]) -> TappedSubscription | None:
        key = headers.get(b"subscription")
        if key is None:
            return self._subscriptions.get(headers.get(b"destination", b""))
        found = self._subscriptions.get(key)
        if found is None and key.startswith(TEMP_QUEUE):
            # A SEND with such a reply-to began the subscription.
            found = TappedSubscription(key, AckMode.AUTO, is_stream=False)
            fields = self._fields(key, TEMP_QUEUE + b"*", AckMode.AUTO, {})
            self._add(found, fields, DestinationKind.TEMP_QUEUE)
        return found

    def _receipt(self, receipt: bytes) -> None:
        asked = self._receipts.pop(receipt, None)
        if asked is None:
            return
        if asked.counter is not None:
            asked.counter.confirmed(asked.sent_at, True)
        if asked.command == b"SUBSCRIBE" and asked.errors_before < self._errors:
            self.used(departures.REFUSED_SUBSCRIBE)


def _code(kind: DestinationKind | None) -> str:
    return OTHER if kind is None else KIND_CODES[kind]
