"""The publishing part of a session: SEND, the transactions that keep frames for COMMIT, and the broker's confirms."""

from __future__ import annotations

from typing import Final

from gateway.amqp.splitter import Return
from gateway.session import error_frames, ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.context import NO_SETTINGS, Hold, SessionContext
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.publisher import Commit, Publisher
from gateway.session.queues import QueueRules, temporary_queue
from gateway.session.subscription import AckMode
from gateway.session.transactions import Settlement, Transaction, Transactions
from gateway.session.transitions import State
from gateway.stomp.encoder import encode_receipt
from gateway.stomp.frame import Frame

# A session that replies to ever new queues must not remember them all.
_REMEMBERED_QUEUES: Final = 10_000


class Sender:
    """What a session publishes.

    Args:
        context: of the session.
    """

    __slots__ = (
        "_blocked", "_commit", "_context", "_declared", "_destinations", "_rules", "publisher", "transactions",
    )  # fmt: skip

    def __init__(self, context: SessionContext) -> None:
        self.publisher = Publisher(NO_SETTINGS)
        self.transactions = Transactions(NO_SETTINGS.transactions)
        # Queues that this session has declared; each once, by whichever frame touches it first. In order, oldest first.
        self._declared: dict[str, None] = {}
        self._context = context
        self._rules = QueueRules()
        self._destinations = NO_DESTINATION_RULES
        self._blocked = False
        self._commit: tuple[Commit, Transaction, Frame] | None = None

    def start(self, rules: QueueRules, destinations: DestinationRules) -> None:
        """The client has logged in.

        Args:
            rules: how queues must look on the broker.
            destinations: what the client may send where.
        """
        settings = self._context.settings
        self.publisher = Publisher(settings)
        self.transactions = Transactions(settings.transactions)
        self._rules = rules
        self._destinations = destinations

    @property
    def commits(self) -> bool:
        """Whether a COMMIT waits for confirms."""
        return self._commit is not None

    # Queues.

    def has_declared(self, queue: str) -> bool:
        """Whether this session need not declare a queue any more."""
        return queue in self._declared

    def note_declared(self, queue: str) -> None:
        """A queue was declared. Of very many the oldest is forgotten, and will be declared once more."""
        if len(self._declared) >= _REMEMBERED_QUEUES:
            del self._declared[next(iter(self._declared))]
        self._declared[queue] = None

    # SEND.

    def send(self, frame: Frame) -> None:
        """Publish, at once if everything is there.

        HOT: a look at the head's plan, an encode, an entry in the counter of confirms.
        """
        plan = frame.head.plan
        if not isinstance(plan, CachedPublish):
            plan = self._plan(frame)
        receipt = frame.receipt
        publisher = self.publisher
        publication = plan.publication
        if publication is None or not plan.is_plain or (receipt is not None and not publisher.confirms):
            self._send_slowly(frame, plan)
            return
        if receipt is not None:
            receipt = self._context.receipt_of(frame)
        publisher.publish(publication, frame.body, plan.values(receipt, frame), receipt, plan)
        if self._blocked or publisher.is_full:
            self._hold()

    def _plan(self, frame: Frame) -> CachedPublish:
        context = self._context
        exchange = context.settings.default_topic_exchange
        headers, volatile = context.headers(frame), frame.head.volatile
        plan = CachedPublish(
            headers,
            volatile,
            exchange,
            trims=context.trims,
            rules=self._rules,
            destinations=self._destinations,
        )
        frame.head.plan = plan
        plan.traffic = context.sends.counter(plan.destination, plan.kind)
        if context.observer is not None:
            plan.counter = context.observer.sends(plan, headers)
        return plan

    def _send_slowly(self, frame: Frame, plan: CachedPublish) -> None:
        """The slow twin of ``send``: whatever is missing is asked for first, and a transaction keeps the frame."""
        if not self._is_prepared(frame, plan):
            return
        if plan.transaction is not None:
            self.transactions.peek(plan.transaction)
            plan.check(self._context.receipt_of(frame), frame)
            self.transactions.join(plan.transaction, octets(frame)).sends.append(frame)
            return
        self._publish(frame, plan)
        if self._blocked or self.publisher.is_full:
            self._hold()

    def _is_prepared(self, frame: Frame, plan: CachedPublish) -> bool:
        """Whether everything a SEND needs is there; if not, the next thing has been asked for."""
        publisher, context = self.publisher, self._context
        temp_queues = context.subscriptions.temp_queues
        if plan.temp_queue is not None and plan.temp_queue not in temp_queues:
            context.ask(self._temp_queue_wanted(plan.temp_queue), frame, again=True)
            return False
        queue = plan.queue if plan.queue is not None and not self.has_declared(plan.queue.name) else None
        answered = (frame.receipt is not None or plan.mandatory) and plan.transaction is None
        confirms = publisher.confirms or answered
        if not publisher.channel or queue is not None or confirms is not publisher.confirms:
            context.ask(ops.PreparePublisher(confirms, queue), frame, again=True)
            return False
        reply_queue = temp_queues.get(plan.temp_queue or b"")
        if plan.publication is None or plan.reply_queue != reply_queue:
            plan.build(publisher, reply_queue)
        return True

    def _temp_queue_wanted(self, identifier: bytes) -> ops.Subscribe:
        """A queue that the broker names and this session alone reads: ``/temp-queue/<id>`` in a reply-to."""
        context = self._context
        subscription = context.new_subscription(b"T_" + identifier, identifier, AckMode.AUTO)
        queue = temporary_queue(identifier, self._rules)
        operation = ops.Subscribe(subscription, queue, "", None, context.settings.auto_ack_window)
        return context.observed(operation, queue)

    def _publish(self, frame: Frame, plan: CachedPublish, commit: Commit | None = None) -> None:
        """Publish a frame that ``_is_prepared``."""
        if plan.publication is not None:
            receipt = self._context.receipt_of(frame)
            self.publisher.publish(plan.publication, frame.body, plan.values(receipt, frame), receipt, plan, commit)

    def prepared(self, event: ops.PublisherPrepared) -> None:
        """The publishing channel is there, and the queue if one was to be declared."""
        operation = self._context.operation
        self.publisher.open(event.channel, event.frame_max, confirms=event.confirms)
        if isinstance(operation, ops.PreparePublisher) and operation.queue is not None:
            self.note_declared(operation.queue.name)
        self._context.answered()

    def _hold(self) -> None:
        holds = self._context.holds
        if self.publisher.is_full and self.publisher.unconfirmed:
            holds.add(Hold.CONFIRM_WINDOW)
        if self._blocked:
            holds.add(Hold.BROKER_BLOCKED)

    def set_blocked(self, blocked: bool) -> None:
        """Take note of an alarm on the broker: the next SEND is the last one until it is over."""
        self._blocked = blocked
        if not blocked:
            self._context.holds.discard(Hold.BROKER_BLOCKED)

    # Confirms.

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack or basic.nack of published messages.

        HOT: a receipt or nothing per message.

        Args:
            sequence: publish sequence number.
            multiple: whether all before it are meant too.
            accepted: ack or nack.
        """
        context = self._context
        output = context.output
        struck = self.publisher.confirm(sequence, multiple=multiple)
        if accepted:
            context.confirmed += len(struck)
        else:
            context.rejected += len(struck)
        for receipt, route, _, commit, sent_at in struck:
            if sent_at is not None and route.counter is not None:
                route.counter.confirmed(sent_at, accepted)
            if commit is not None:
                commit.waiting -= 1
                commit.rejected = commit.rejected or not accepted
            if not accepted:
                context.fail(error_frames.rejected(route.destination), receipt)
            elif receipt is not None:
                output.append(encode_receipt(receipt))
                context.receipts_sent += 1
        if Hold.CONFIRM_WINDOW in context.holds and self.publisher.has_room:
            context.holds.discard(Hold.CONFIRM_WINDOW)
        if self._commit is not None and self._commit[0].waiting == 0:
            self._finish_commit()

    def take_return(self, returned: Return) -> None:
        """Take a mandatory message that reached no queue. Its confirm is still to come.

        Args:
            returned: the broker's basic.return.
        """
        found = self.publisher.take_returned(returned)
        if found is None:
            return
        receipt, route, _, commit, sent_at = found
        context = self._context
        context.returned += 1
        if sent_at is not None and route.counter is not None:
            route.counter.confirmed(sent_at, False)
        if commit is not None:
            commit.returned = True
        context.fail(error_frames.unroutable(route.destination, returned.text), receipt)

    def receipt_of_failure(self, text: str) -> bytes | None:
        """The receipt of the frame that made the broker close the publishing channel, as far as that can be told.

        Args:
            text: the broker's reply text.
        """
        if self._commit is not None:
            return self._context.receipt_of(self._commit[2])
        return self.publisher.receipt_of_failure(text)

    # Transactions.

    def _transaction_name(self, frame: Frame) -> bytes:
        identifier = self._context.headers(frame).get(b"transaction")
        if identifier is None:
            raise error_frames.missing_transaction(frame.command)
        return identifier

    def begin(self, frame: Frame, now: float) -> None:
        """BEGIN.

        Args:
            frame: it.
            now: seconds on the session's clock.
        """
        self.transactions.begin(self._transaction_name(frame), now)
        self._context.used("transaction")
        self._context.send_receipt(frame)

    def abort(self, frame: Frame) -> None:
        """ABORT."""
        self.transactions.end(self._transaction_name(frame))
        self._context.send_receipt(frame)

    def commit(self, frame: Frame) -> None:
        """COMMIT: publish, wait for every confirm, then settle, then the receipt."""
        identifier = self._transaction_name(frame)
        transaction = self.transactions.peek(identifier)
        if transaction.sends and not self.publisher.confirms:
            self._context.ask(ops.PreparePublisher(confirms=True, queue=None), frame, again=True)
            return
        self.transactions.end(identifier)
        for settlement in transaction.settlements:
            self._check_settlement(settlement)
        commit = Commit(waiting=len(transaction.sends))
        self._commit = (commit, transaction, frame)
        for send in transaction.sends:
            if isinstance(send.head.plan, CachedPublish):
                self._publish(send, send.head.plan, commit)
        if transaction.sends:
            self._context.holds.add(Hold.COMMIT)
        else:
            self._finish_commit()

    def _check_settlement(self, settlement: Settlement) -> None:
        context = self._context
        if not context.subscriptions.is_current(settlement.subscription):
            raise error_frames.message_without_subscription(settlement.ack_id)
        if not settlement.is_outstanding:
            raise error_frames.unknown_delivery_tag(settlement.number, context.settings)

    def _finish_commit(self) -> None:
        if self._commit is None:
            return
        (commit, transaction, frame), self._commit = self._commit, None
        context = self._context
        subscriptions = context.subscriptions
        context.holds.discard(Hold.COMMIT)
        if context.state is State.CLOSED:
            return
        receipt = context.receipt_of(frame)
        if commit.returned:
            context.fail(error_frames.commit_unroutable(), receipt)
            return
        if commit.rejected:
            context.fail(error_frames.commit_rejected(), receipt)
            return
        lost = [each for each in transaction.settlements if not subscriptions.is_current(each.subscription)]
        if lost:
            # Cancelled by the broker while the confirms were awaited.
            context.fail(error_frames.message_without_subscription(lost[0].ack_id), receipt)
            return
        for settlement in transaction.settlements:
            subscriptions.settle(settlement)
        context.send_receipt(frame)


def octets(frame: Frame) -> int:
    """What keeping a frame costs, about."""
    return len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())
