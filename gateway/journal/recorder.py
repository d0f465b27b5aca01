"""What one session writes into the journal: the witness of its traffic, and of its beginning, holds and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from gateway.errors import CloseReason, StompError
from gateway.journal import schema
from gateway.journal.codes import code_of
from gateway.journal.detail import DeliveryDetail, SendDetail
from gateway.journal.privacy import KIND_CODES, shown
from gateway.journal.sample import Sample
from gateway.journal.tally import About, DeliveryTally, SendTally
from gateway.journal.use import of_send, of_subscribe
from gateway.session.context import Hold
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import TEMP_QUEUE, Kind, parse
from gateway.session.traffic import DeliveryCounter, SendCounter
from gateway.stomp.headers import read_boolean

if TYPE_CHECKING:
    from gateway.journal.book import Book
    from gateway.session import ops
    from gateway.session.cached_publish import CachedPublish
    from gateway.session.queues import QueueSpec
    from gateway.session.session import Session
    from gateway.session.subscription import Subscription

# Holds that tell of pressure; the others are a session's everyday.
_HOLDS: Final = (Hold.CONFIRM_WINDOW, Hold.LINK_WRITE, Hold.BROKER_BLOCKED, Hold.RATE_LIMIT, Hold.CLIENT_WRITE)

# Microseconds between two lines of counts of a session at level session.
_STAT_EVERY: Final = 10_000_000

# Destinations of one session that share a tally with later plans.
_REMEMBERED: Final = 1024

_Delivery = DeliveryTally | DeliveryDetail


class Recorder:
    """Writes what one session does; made when it has logged in.

    Args:
        book: of its virtual host.
        session: whom it looks at.
        virtual_host: by its STOMP name.
        born: when the client connected, in microseconds on the journal's clock.
        peer: the client's address as the journal shows it, or None.
        tls: whether the connection is encrypted.
    """

    def __init__(
        self, book: Book, session: Session, virtual_host: str, born: int, *, peer: str | None, tls: bool
    ) -> None:
        writer = book.writer
        self.writer = writer
        self.clock = writer.clock
        self.number = writer.next_session()
        self.virtual_host = shown(virtual_host.encode(errors="replace"))
        self.user = book.users.name(session.login or b"")
        self.sample = Sample(book.share, writer.boot, self.number) if book.share < 1 else None
        # Tallies with something to tell; and for both levels what the last line sums up.
        self.active: list[SendTally] = []
        self.sent = self.delivered = self.unacked = 0
        self.max_unacked = 0
        self._errors = 0
        self._book = book
        self._session = session
        self._tallies: dict[str, SendTally] = {}
        self._accounts: dict[Subscription, _Delivery] = {}
        self._held: dict[Hold, int] = {}
        self._used: set[str] = set()
        self._version = session.version.decode()
        self._begin(born, peer, tls=tls)

    def _begin(self, born: int, peer: str | None, *, tls: bool) -> None:
        self.clock.tick()
        self._started = self.clock.now
        self._stat_at = self.clock.now + _STAT_EVERY
        heart_beat = self._session.heartbeats.header.decode()
        self.writer.put(
            schema.Conn(*self._about(), peer, tls, self._version, heart_beat, max(0, self.clock.now - born))
        )
        if heart_beat != "0,0":
            self.used("heart-beat")
        if tls:
            self.used("tls")
        if self._session.certificate_name is not None:
            self.used("certificate-login")

    def _about(self) -> tuple[int, int, int, str, str]:
        return self.clock.time, 0, self.number, self.virtual_host, self.user

    # The witness.

    def sends(self, plan: CachedPublish, headers: Mapping[bytes, bytes]) -> SendCounter:
        """See `SessionObserver`."""
        self._use_all(of_send(plan, headers))
        name, kind = self._book.destinations.name(plan.destination), KIND_CODES[plan.kind]
        if self._book.detailed:
            allowed = {
                each: shown(headers[each.encode()]) for each in self._book.header_values if each.encode() in headers
            }
            persistent = read_boolean(headers.get(b"persistent")) is True
            pattern = (len(headers), persistent, plan.transaction is not None, allowed or None)
            return SendDetail(self, name, kind, pattern)
        tally = self._tallies.get(name)
        if tally is None:
            if len(self._tallies) >= _REMEMBERED:
                # What is forgotten here would otherwise wait, and grow, until the next line is due.
                self._write_stats()
                self._tallies.clear()
            tally = self._tallies[name] = SendTally(self, name, kind)
        return tally

    def subscribing(self, operation: ops.Subscribe, queue: QueueSpec | None) -> DeliveryCounter | None:
        """See `SessionObserver`."""
        subscription, about = operation.subscription, self._about_subscription(operation, queue)
        if self._book.detailed:
            detail = self._accounts[subscription] = DeliveryDetail(self, subscription, about)
            return detail
        tally = self._accounts[subscription] = DeliveryTally(self, subscription, about)
        return None if subscription.mode is AckMode.AUTO else tally

    def _about_subscription(self, operation: ops.Subscribe, queue: QueueSpec | None) -> About:
        subscription = operation.subscription
        text = _text_of(operation)
        if text.startswith(TEMP_QUEUE):
            identifier = TEMP_QUEUE.decode() + "*"
        else:
            identifier = shown(text if subscription.identifier is None else subscription.identifier)
        about = About(
            self._book.destinations.name(text),
            KIND_CODES[_kind_of(operation)],
            identifier,
            subscription.mode.value.decode(),
            None,
        )
        if queue is not None:
            about.durable = queue.durable and operation.binding is not None
            about.auto_delete, about.exclusive = queue.auto_delete, queue.exclusive
            about.has_arguments = bool(queue.arguments)
            # With auto-delete, as without a header that denies it, the queue goes with its last consumer all the same.
            if about.durable and not queue.auto_delete:
                about.queue = operation.queue_name
        return about

    def subscribed(self, operation: ops.Subscribe, queue_name: str) -> None:
        """See `SessionObserver`."""
        account = self._accounts.get(operation.subscription)
        if account is None:
            return
        about = account.about
        about.has_begun = True
        if about.queue is not None:
            about.queue = queue_name
        self.clock.tick()
        # Under ack:auto the prefetch is the gateway's own and not the client's.
        prefetch = 0 if about.mode == "auto" else operation.prefetch
        line = schema.Sub(
            *self._about(), about.destination, about.kind, about.identifier, about.mode, prefetch, about.durable,
            about.auto_delete, about.exclusive, about.queue,
        )  # fmt: skip
        self.writer.put(line)
        self._use_all(of_subscribe(operation, _kind_of(operation), about))

    def unsubscribed(self, subscription: Subscription, how: str) -> None:
        """See `SessionObserver`."""
        account = self._accounts.get(subscription)
        if account is None:
            return
        del self._accounts[subscription]
        self.clock.tick()
        if isinstance(account, DeliveryTally):
            self._put(account.take())
        outstanding = 0 if subscription.mode is AckMode.AUTO else subscription.stats.outstanding
        self._note_unacked()
        self.unacked -= outstanding
        about = account.about
        if not about.has_begun:
            return
        self.writer.put(
            schema.Unsub(*self._about(), about.destination, about.kind, about.identifier, how, outstanding, about.queue)
        )

    def used(self, feature: str) -> None:
        """See `SessionObserver`."""
        if feature not in self._used:
            self._used.add(feature)
            self.writer.put(schema.Use(*self._about(), feature, self._version))

    def _use_all(self, features: Iterable[str]) -> None:
        for feature in features:
            self.used(feature)

    # For the accounts.

    def settled(self, count: int, requeue: bool | None) -> None:
        """The client acknowledged or refused so many messages. HOT: once per frame that does."""
        self.max_unacked = max(self.max_unacked, self.unacked)
        self.unacked -= count
        if requeue is not None:
            self.used("nack" if requeue else "nack-discard")
        elif count > 1:
            self.used("ack-cumulative")

    def _note_unacked(self) -> None:
        self.max_unacked = max(self.max_unacked, self.unacked)

    def stat(
        self, destination: str, kind: str, counts: dict[str, int], latencies: dict[str, int]
    ) -> schema.Stat | None:
        """A line of counts; None where there is nothing to count."""
        counts = {name: count for name, count in counts.items() if count}
        if not counts:
            return None
        self.delivered += counts.get("dlv", 0)
        return schema.Stat(*self._about(), destination, kind, counts, latencies or None)

    # For the server.

    def failed(self, error: StompError) -> None:
        """The client got an ERROR."""
        self._errors += 1
        self.clock.tick()
        self.writer.put(schema.Err(self.clock.time, 0, code_of(error), self.number, self.virtual_host, self.user))

    @property
    def looks(self) -> bool:
        """Whether a hold has been seen that may be over."""
        return bool(self._held)

    def look(self, holds: set[Hold]) -> None:
        """See which holds have begun, and write those that are over.

        Args:
            holds: of the session, now.
        """
        for hold in _HOLDS:
            if hold in holds:
                self._held.setdefault(hold, self.clock.now)
            elif hold in self._held:
                held = self.clock.now - self._held.pop(hold)
                self.writer.put(schema.Blk(*self._about(), hold.value, held))

    def time_passed(self) -> None:
        """Write what was counted, every ten seconds. Called about once a second."""
        if self.clock.now >= self._stat_at:
            self._write_stats()

    def _write_stats(self) -> None:
        self.clock.tick()
        self._stat_at = self.clock.now + _STAT_EVERY
        active, self.active = self.active, []
        tallies: list[SendTally | DeliveryTally] = [*active]
        tallies += [each for each in self._accounts.values() if isinstance(each, DeliveryTally)]
        for tally in tallies:
            self._put(tally.take())

    def _put(self, line: schema.Line | None) -> None:
        if line is not None:
            self.writer.put(line)

    def ended(self, reason: CloseReason | None, bytes_in: int, bytes_out: int) -> None:
        """The session is over.

        Args:
            reason: why.
            bytes_in: from the client.
            bytes_out: to the client.
        """
        self._write_stats()
        self.clock.tick()
        self.look(set())
        self._note_unacked()
        unacked = self.unacked
        for subscription in tuple(self._accounts):
            self.unsubscribed(subscription, "end")
        session = self._session
        totals = schema.Totals(
            frames_in=session.traffic.frames_received,
            # CONNECTED, and whatever was said since.
            frames_out=1 + self.delivered + session.traffic.receipts_sent + self._errors,
            bytes_in=bytes_in,
            bytes_out=bytes_out,
            unacked=unacked,
            max_unacked=self.max_unacked,
            us=self.clock.now - self._started,
        )
        self.writer.put(schema.End(*self._about(), reason.value if reason else schema.OTHER, totals))


def _text_of(operation: ops.Subscribe) -> bytes:
    """The destination of a subscription; for the queue behind a reply-to, its name there."""
    return operation.subscription.destination or operation.subscription.tag[2:]


def _kind_of(operation: ops.Subscribe) -> Kind:
    return parse(_text_of(operation)).kind
