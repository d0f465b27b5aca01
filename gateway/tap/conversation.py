"""One client and its server, as the tap hears them: what they say becomes lines of the journal.

It hears bytes after they have been passed on, and can delay or change nothing. What it cannot read ends its part: the
connection goes on, and the journal has what came before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from gateway.errors import CloseReason, StompError
from gateway.journal.counters import DeliveryLog
from gateway.journal.privacy import KIND_CODES, peer_name, shown
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
from gateway.stomp.frame_scanner import FrameScanner, ScannedFrame, UnreadableStreamError
from gateway.stomp.headers import read_boolean, read_integer, trim_values
from gateway.tap import departures
from gateway.tap.tapped_subscription import TappedSubscription

_MODES: Final = {mode.value: mode for mode in AckMode}
_CONNECTS: Final = (b"CONNECT", b"STOMP")
_SESSION_PART: Final = b"@@"

# What one session may make the tap remember; beyond that something is not recognised later.
_MAX_RECEIPTS: Final = 65_536
_MAX_UNACKED: Final = 65_536
_MAX_SUBSCRIPTIONS: Final = 10_000
_LONGEST_ID: Final = 1_024
# Frames that a client sends before CONNECTED, and bytes of their headers: they are looked at when it has come.
_MAX_EARLY: Final = 1_000
_MAX_EARLY_BYTES: Final = 65_536
_FRAMES_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class TapJournal:
    """Where conversations are written. ``is_plugin``: the server is RabbitMQ's plugin, whose rules are known."""

    virtual_host: VirtualHostJournal
    is_plugin: bool


@dataclass(slots=True)
class _Receipt:
    """A receipt that a client asked for, with a frame of this command; for SEND with what counts it."""

    command: bytes
    errors_before: int
    counter: SendCounter | None = None
    sent_at: object = None


@dataclass(slots=True)
class _Side:
    """What was heard of the client, or of the server; ``scanner`` is None once it cannot be read."""

    scanner: FrameScanner | None
    frames: int = 0
    size: int = 0


class Conversation:
    """What is known of one connection. ``note`` is called with what cannot be read: whose words, and why."""

    def __init__(self, journal: TapJournal, host: str, *, tls: bool, note: Callable[[str, str], None]) -> None:
        self._journal = journal
        self._host = host
        self._tls = tls
        self._note = note
        self._clock = journal.virtual_host.writer.clock
        self._clock.tick()
        self._connected_at = self._clock.now
        self._client = _Side(FrameScanner(from_client=True))
        self._server = _Side(FrameScanner(from_client=False))
        self._recorder: SessionRecorder | None = None
        self._connect: dict[bytes, bytes] = {}
        self._connect_rules: set[str] = set()
        self._trims = False
        self._session = b""
        self._early: list[tuple[int, ScannedFrame]] = []
        self._early_bytes = 0
        self._receipts: dict[bytes, _Receipt] = {}
        # By id, or by destination without one.
        self._subscriptions: dict[bytes, TappedSubscription] = {}
        # By the id that an ACK names, in the order of the deliveries. Unlike a dict's, its front is found at once when
        # what was in front is gone.
        self._unacked: OrderedDict[bytes, TappedSubscription] = OrderedDict()
        # Of the last SEND: a producer repeats its headers.
        self._last_send: tuple[Mapping[bytes, bytes], SendCounter] | None = None
        self._has_prefetch = self._is_leaving = False
        self._errors = 0

    def heard(self, data: bytes, *, from_client: bool) -> Iterator[None]:
        """Bytes have passed: hear some frames with each step of the iterator. HOT: once per read."""
        self._clock.tick()
        return self._hear(data, from_client, self._clock.now)

    def _hear(self, data: bytes, from_client: bool, at: int) -> Iterator[None]:
        """Hear what has passed ``at`` that time."""
        side = self._client if from_client else self._server
        side.size += len(data)
        scanner = side.scanner
        if scanner is None:
            return
        take, clock = self._from_client if from_client else self._from_server, self._clock
        clock.now = at
        try:
            for frame in scanner.scan(data):
                side.frames += 1
                if self._trims:
                    frame = frame._replace(headers=trim_values(frame.headers))  # noqa: PLW2901
                take(frame)
                if not side.frames % _FRAMES_AT_ONCE:
                    yield
                    # Others were heard meanwhile.
                    if side.scanner is not scanner:
                        return
                    clock.now = at
        except UnreadableStreamError as error:
            self.give_up(from_client=from_client, reason=str(error))

    def give_up(self, *, from_client: bool, reason: str) -> None:
        """Listen no more to one side."""
        (self._client if from_client else self._server).scanner = None
        if from_client:
            self._used(departures.MALFORMED)
        self._note("client" if from_client else "server", reason)

    def time_passed(self) -> None:
        """Write counts every ten seconds. Called about once a second."""
        if self._recorder is not None:
            self._recorder.time_passed()

    def ended(self, *, by_client: bool, is_stopping: bool = False) -> Iterator[None]:
        """The connection is over; ``by_client``: the client closed first. A subscription ends with each step."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
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
        self._clock.tick()
        client, server = self._client, self._server
        recorder.end(reason, (client.frames, server.frames), (client.size, server.size), unacked)

    def _used(self, rule: str) -> None:
        """The client did what the gateway answers differently."""
        if self._recorder is not None and self._journal.is_plugin:
            self._recorder.used(rule)

    # The client's frames.

    def _from_client(self, frame: ScannedFrame) -> None:
        if frame.command in _CONNECTS:
            self._client_connects(frame.headers)
        elif self._recorder is not None:
            self._of_session(frame)
        else:
            self._early_bytes += sum(len(name) + len(value) for name, value in frame.headers.items())
            if len(self._early) < _MAX_EARLY and self._early_bytes <= _MAX_EARLY_BYTES:
                self._early.append((self._clock.now, frame))

    def _client_connects(self, headers: Mapping[bytes, bytes]) -> None:
        if self._recorder is not None:
            self._used(departures.SECOND_CONNECT)
            return
        versions = headers.get(b"accept-version", b"1.0").split(b",")
        self._trims = versions == [b"1.0"]
        headers = trim_values(headers) if self._trims else headers
        # What is kept has no passcode.
        self._connect = {name: headers[name] for name in (b"login", b"host") if name in headers}
        # One that the server refuses counts, too.
        self._connect_rules.update(departures.of_connect(self._connect))

    def _of_session(self, frame: ScannedFrame) -> None:
        command, headers, size = frame
        receipt = headers.get(b"receipt")
        asked = None if receipt is None else _Receipt(command, self._errors)
        if command == b"SEND":
            self._sends(headers, size, asked)
        elif command == b"SUBSCRIBE":
            self._subscribes(headers)
        elif command == b"UNSUBSCRIBE":
            self._unsubscribes(headers)
        elif command in (b"ACK", b"NACK"):
            self._acknowledges(command, headers)
        elif command == b"DISCONNECT":
            # Looked at once: there may be many of both.
            if not self._is_leaving and any(each.command == b"SEND" for each in self._receipts.values()):
                self._used(departures.EARLY_DISCONNECT)
            self._is_leaving = True
        elif command == b"BEGIN" and self._recorder is not None:
            self._recorder.used("transaction")
        has_room = len(self._receipts) < _MAX_RECEIPTS
        if receipt is not None and asked is not None and has_room and len(receipt) <= _LONGEST_ID:
            self._receipts[receipt] = asked

    def _sends(self, headers: Mapping[bytes, bytes], size: int, asked: _Receipt | None) -> None:
        recorder, destination = self._recorder, headers.get(b"destination")
        if recorder is None or destination is None:
            return
        if self._last_send is not None and self._last_send[0] is headers:
            counter = self._last_send[1]
        else:
            counter = self._send_counter(recorder, destination, headers)
            self._last_send = headers, counter
        sent_at = counter.sent(size, asked is not None)
        if asked is not None:
            asked.counter, asked.sent_at = counter, sent_at

    def _send_counter(
        self, recorder: SessionRecorder, destination: bytes, headers: Mapping[bytes, bytes]
    ) -> SendCounter:
        kind = departures.kind_of(destination)
        has_temp_queue = headers.get(b"reply-to", b"").startswith(TEMP_QUEUE)
        for feature in features_of_send(kind, headers, has_temp_queue=has_temp_queue):
            recorder.used(feature)
        for rule in departures.of_send(headers):
            self._used(rule)
        return recorder.send_counter(destination, _code(kind), headers, is_transacted=b"transaction" in headers)

    def _subscribes(self, headers: Mapping[bytes, bytes]) -> None:
        destination = headers.get(b"destination")
        key = headers.get(b"id", destination)
        if destination is None or key is None or key in self._subscriptions:
            return
        mode = _MODES.get(headers.get(b"ack", b"auto"), AckMode.AUTO)
        subscription = TappedSubscription(key, mode, is_stream=departures.reads_stream(headers))
        fields = self._fields(destination, key, mode, headers)
        prefetch = read_integer(headers.get(b"prefetch-count", b"")) or 0
        if self._has_prefetch and not prefetch:
            self._used(departures.NEXT_PREFETCH)
        self._has_prefetch = self._has_prefetch or bool(prefetch)
        for rule in departures.of_subscribe(headers, is_durable=fields.durable):
            self._used(rule)
        kind, has_offset = departures.kind_of(destination), b"x-stream-offset" in headers
        self._begin(subscription, fields, kind, max(0, prefetch), has_offset=has_offset)

    def _begin(
        self, subscription: TappedSubscription, fields: SubscriptionFields, kind: DestinationKind | None,
        prefetch: int = 0, *, has_offset: bool = False,
    ) -> None:  # fmt: skip
        has_room = len(self._subscriptions) < _MAX_SUBSCRIPTIONS and len(subscription.key) <= _LONGEST_ID
        if self._recorder is None or not has_room:
            return
        is_auto = subscription.mode is AckMode.AUTO
        counter = self._recorder.delivery_counter(subscription, fields)
        if isinstance(counter, DeliveryLog) or not is_auto:
            subscription.counter = counter
        self._subscriptions[subscription.key] = subscription
        if is_auto:
            prefetch = 0
        features = features_of_subscribe(kind, fields, prefetch, has_offset=has_offset)
        self._recorder.subscription_begun(fields, prefetch, features)

    def _fields(
        self, destination: bytes, key: bytes, mode: AckMode, headers: Mapping[bytes, bytes]
    ) -> SubscriptionFields:
        kind = departures.kind_of(destination)
        name = self._journal.virtual_host.destinations.name(destination)
        fields = SubscriptionFields(name, _code(kind), shown(key), mode.value.decode())
        is_bound = kind in (DestinationKind.TOPIC, DestinationKind.EXCHANGE)
        fields.durable = is_bound and any(read_boolean(headers.get(each)) for each in (b"durable", b"persistent"))
        fields.auto_delete = read_boolean(headers.get(b"auto-delete")) is True
        fields.exclusive = read_boolean(headers.get(b"exclusive")) is True
        fields.has_arguments = not QUEUE_ARGUMENTS.isdisjoint(headers)
        if fields.durable and not fields.auto_delete and self._journal.is_plugin:
            computed = durable_queue_name(parse(destination).binding_key, headers.get(b"id", b""))
            fields.queue = shown(headers.get(b"x-queue-name", computed))
        return fields

    def _unsubscribes(self, headers: Mapping[bytes, bytes]) -> None:
        key = headers.get(b"id", headers.get(b"destination", b""))
        subscription = self._subscriptions.pop(key, None)
        if subscription is None or self._recorder is None:
            return
        if subscription.unacked:
            self._used(departures.UNACKNOWLEDGED)
        for ack_id in subscription.unacked:
            self._unacked.pop(ack_id, None)
        is_deleted = any(read_boolean(headers.get(each)) for each in (b"durable", b"persistent"))
        self._recorder.unsubscribed(subscription, "deleted" if is_deleted else "unsubscribe")

    def _acknowledges(self, command: bytes, headers: Mapping[bytes, bytes]) -> None:
        ack_id = headers.get(b"id", headers.get(b"message-id", b""))
        subscription = self._unacked.get(ack_id)
        if subscription is None:
            if _SESSION_PART in ack_id and self._session and self._session not in ack_id.split(_SESSION_PART):
                self._used(departures.OTHER_SESSION)
            return
        requeue = None
        if command == b"NACK":
            requeue = read_boolean(headers.get(b"requeue")) is not False
            if subscription.is_stream:
                self._used(departures.STREAM_NACK)
        settled = [ack_id]
        if subscription.mode is AckMode.CLIENT:
            # For RabbitMQ's plugin all that was delivered before counts, on the whole connection.
            among: Mapping[bytes, object] = self._unacked if self._journal.is_plugin else subscription.unacked
            settled = [*takewhile(lambda each: each != ack_id, among), ack_id]
        by_subscription: dict[TappedSubscription, list[bytes]] = {}
        for each in settled:
            by_subscription.setdefault(self._unacked.pop(each), []).append(each)
        for owner, ids in by_subscription.items():
            owner.settle(ids, requeue)
        if len(by_subscription) > 1:
            self._used(departures.OTHER_SUBSCRIPTIONS)

    # The server's frames.

    def _from_server(self, frame: ScannedFrame) -> None:
        command, headers, size = frame
        if command == b"CONNECTED":
            self._begin_session(headers)
        elif self._recorder is None:
            if command != b"ERROR" and self._early:
                # The server asks for no CONNECT.
                self._begin_session({})
                self._used_implicitly()
                self._from_server(frame)
        elif command == b"MESSAGE":
            self._message(headers, size)
        elif command == b"RECEIPT":
            self._receipt(headers.get(b"receipt-id", b""))
        elif command == b"ERROR":
            self._error(headers)

    def _used_implicitly(self) -> None:
        if self._recorder is not None:
            self._recorder.used("implicit-connect")

    def _begin_session(self, headers: Mapping[bytes, bytes]) -> None:
        if self._recorder is not None:
            return
        version = headers.get(b"version", b"1.0")
        self._trims = version == b"1.0"
        self._session = headers.get(b"session", b"")
        host, journal = self._connect.get(b"host", b"/"), self._journal.virtual_host
        self._recorder = SessionRecorder(journal, shown(host), self._connect.get(b"login", b""), shown(version))
        heart_beat = shown(headers.get(b"heart-beat", b"0,0"))
        self._recorder.begin(self._connected_at, peer_name(self._host, journal.peers), heart_beat, tls=self._tls)
        for rule in self._connect_rules:
            self._used(rule)
        early, self._early = self._early, []
        now = self._clock.now
        for at, frame in early:
            self._clock.now = at
            self._of_session(frame)
        self._clock.now = now

    def _message(self, headers: Mapping[bytes, bytes], size: int) -> None:
        subscription = self._subscription_of(headers)
        if subscription is None:
            return
        ack_id = headers.get(b"ack", headers.get(b"message-id", b""))
        if b":" in ack_id:
            # It has the subscription's id in it, and the plugin does not escape that.
            self._used(departures.UNESCAPED)
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
            # Nobody subscribes to those: a SEND with such a reply-to does.
            found = TappedSubscription(key, AckMode.AUTO, is_stream=False)
            fields = self._fields(key, TEMP_QUEUE + b"*", AckMode.AUTO, {})
            self._begin(found, fields, DestinationKind.TEMP_QUEUE)
        return found

    def _receipt(self, receipt: bytes) -> None:
        asked = self._receipts.pop(receipt, None)
        if asked is None:
            return
        if asked.counter is not None:
            asked.counter.confirmed(asked.sent_at, True)
        if asked.command == b"SUBSCRIBE" and asked.errors_before < self._errors:
            self._used(departures.REFUSED_SUBSCRIBE)

    def _error(self, headers: Mapping[bytes, bytes]) -> None:
        if self._recorder is None:
            return
        self._errors += 1
        self._recorder.failed(StompError(shown(headers.get(b"message", b"")), b""))
        if self._receipts and b"receipt-id" not in headers:
            self._used(departures.ERROR_TO_RECEIPT)


def _code(kind: DestinationKind | None) -> str:
    return OTHER if kind is None else KIND_CODES[kind]
