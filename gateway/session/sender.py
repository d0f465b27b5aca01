"""The publishing part of a session: SEND, the transactions that keep frames for COMMIT, and the broker's confirms."""

from __future__ import annotations

from typing import Final

from gateway.amqp.splitter import Return
from gateway.session import ops, refusals
from gateway.session.conversation import NO_SETTINGS, Conversation, Hold
from gateway.session.policy import NO_DESTINATION_RULES, DestinationRules
from gateway.session.publisher import Commit, Publisher
from gateway.session.queues import QueueRules, temporary_queue
from gateway.session.sending import SendPlan
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
        conversation: of the session.
    """

    __slots__ = (
        "_blocked", "_commit", "_conversation", "_declared", "_destinations", "_rules", "publisher", "transactions",
    )  # fmt: skip

    def __init__(self, conversation: Conversation) -> None:
        self.publisher = Publisher(NO_SETTINGS)
        self.transactions = Transactions(NO_SETTINGS.transactions)
        # Queues that this session has declared; each once, by whichever frame touches it first. In order, oldest first.
        self._declared: dict[str, None] = {}
        self._conversation = conversation
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
        settings = self._conversation.settings
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

        HOT: a look at the head's plan, an encode, an entry in the account of confirms.
        """
        plan = frame.head.plan
        if not isinstance(plan, SendPlan):
            plan = self._plan(frame)
        receipt = frame.receipt
        publisher = self.publisher
        publication = plan.publication
        if publication is None or not plan.is_plain or (receipt is not None and not publisher.confirms):
            self._send_slowly(frame, plan)
            return
        if receipt is not None:
            receipt = self._conversation.receipt_of(frame)
        publisher.publish(publication, frame.body, plan.values(receipt, frame), receipt, plan)
        if self._blocked or publisher.is_full:
            self._hold()

    def _plan(self, frame: Frame) -> SendPlan:
        conversation = self._conversation
        exchange = conversation.settings.default_topic_exchange
        headers, volatile = conversation.headers(frame), frame.head.volatile
        plan = SendPlan(
            headers,
            volatile,
            exchange,
            trims=conversation.trims,
            rules=self._rules,
            destinations=self._destinations,
        )
        frame.head.plan = plan
        plan.count = conversation.sends.count(plan.destination, plan.kind)
        if conversation.witness is not None:
            plan.account = conversation.witness.sends(plan, headers)
        return plan

    def _send_slowly(self, frame: Frame, plan: SendPlan) -> None:
        """The slow twin of ``send``: whatever is missing is asked for first, and a transaction keeps the frame."""
        if not self._is_prepared(frame, plan):
            return
        if plan.transaction is not None:
            self.transactions.peek(plan.transaction)
            plan.check(self._conversation.receipt_of(frame), frame)
            self.transactions.join(plan.transaction, octets(frame)).sends.append(frame)
            return
        self._publish(frame, plan)
        if self._blocked or self.publisher.is_full:
            self._hold()

    def _is_prepared(self, frame: Frame, plan: SendPlan) -> bool:
        """Whether everything a SEND needs is there; if not, the next thing has been asked for."""
        publisher, conversation = self.publisher, self._conversation
        temp_queues = conversation.subscriptions.temp_queues
        if plan.temp_queue is not None and plan.temp_queue not in temp_queues:
            conversation.ask(self._temp_queue_wanted(plan.temp_queue), frame, again=True)
            return False
        queue = plan.queue if plan.queue is not None and not self.has_declared(plan.queue.name) else None
        answered = (frame.receipt is not None or plan.mandatory) and plan.transaction is None
        confirms = publisher.confirms or answered
        if not publisher.channel or queue is not None or confirms is not publisher.confirms:
            conversation.ask(ops.PreparePublisher(confirms, queue), frame, again=True)
            return False
        reply_queue = temp_queues.get(plan.temp_queue or b"")
        if plan.publication is None or plan.reply_queue != reply_queue:
            plan.build(publisher, reply_queue)
        return True

    def _temp_queue_wanted(self, identifier: bytes) -> ops.Subscribe:
        """A queue that the broker names and this session alone reads: ``/temp-queue/<id>`` in a reply-to."""
        conversation = self._conversation
        subscription = conversation.new_subscription(b"T_" + identifier, identifier, AckMode.AUTO)
        queue = temporary_queue(identifier, self._rules)
        operation = ops.Subscribe(subscription, queue, "", None, conversation.settings.auto_ack_window)
        return conversation.witnessed(operation, queue)

    def _publish(self, frame: Frame, plan: SendPlan, commit: Commit | None = None) -> None:
        """Publish a frame that ``_is_prepared``."""
        if plan.publication is not None:
            receipt = self._conversation.receipt_of(frame)
            self.publisher.publish(plan.publication, frame.body, plan.values(receipt, frame), receipt, plan, commit)

    def prepared(self, event: ops.PublisherPrepared) -> None:
        """The publishing channel is there, and the queue if one was to be declared."""
        operation = self._conversation.operation
        self.publisher.open(event.channel, event.frame_max, confirms=event.confirms)
        if isinstance(operation, ops.PreparePublisher) and operation.queue is not None:
            self.note_declared(operation.queue.name)
        self._conversation.answered()

    def _hold(self) -> None:
        holds = self._conversation.holds
        if self.publisher.is_full and self.publisher.unconfirmed:
            holds.add(Hold.CONFIRM_WINDOW)
        if self._blocked:
            holds.add(Hold.BROKER_BLOCKED)

    def set_blocked(self, blocked: bool) -> None:
        """Take note of an alarm on the broker: the next SEND is the last one until it is over."""
        self._blocked = blocked
        if not blocked:
            self._conversation.holds.discard(Hold.BROKER_BLOCKED)

    # Confirms.

    def confirm(self, sequence: int, multiple: bool, accepted: bool) -> None:
        """Take the broker's basic.ack or basic.nack of published messages.

        HOT: a receipt or nothing per message.

        Args:
            sequence: publish sequence number.
            multiple: whether all before it are meant too.
            accepted: ack or nack.
        """
        conversation = self._conversation
        output = conversation.output
        struck = self.publisher.confirm(sequence, multiple=multiple)
        if accepted:
            conversation.confirmed += len(struck)
        else:
            conversation.rejected += len(struck)
        for receipt, route, _, commit, ticket in struck:
            if ticket is not None and route.account is not None:
                route.account.confirmed(ticket, accepted)
            if commit is not None:
                commit.waiting -= 1
                commit.rejected = commit.rejected or not accepted
            if not accepted:
                conversation.fail(refusals.rejected(route.destination), receipt)
            elif receipt is not None:
                output.append(encode_receipt(receipt))
                conversation.receipts_sent += 1
        if Hold.CONFIRM_WINDOW in conversation.holds and self.publisher.has_room:
            conversation.holds.discard(Hold.CONFIRM_WINDOW)
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
        receipt, route, _, commit, ticket = found
        conversation = self._conversation
        conversation.returned += 1
        if ticket is not None and route.account is not None:
            route.account.confirmed(ticket, False)
        if commit is not None:
            commit.returned = True
        conversation.fail(refusals.unroutable(route.destination, returned.text), receipt)

    def receipt_of_failure(self, text: str) -> bytes | None:
        """The receipt of the frame that made the broker close the publishing channel, as far as that can be told.

        Args:
            text: the broker's reply text.
        """
        if self._commit is not None:
            return self._conversation.receipt_of(self._commit[2])
        return self.publisher.receipt_of_failure(text)

    # Transactions.

    def _transaction_name(self, frame: Frame) -> bytes:
        identifier = self._conversation.headers(frame).get(b"transaction")
        if identifier is None:
            raise refusals.missing_transaction(frame.command)
        return identifier

    def begin(self, frame: Frame, now: float) -> None:
        """BEGIN.

        Args:
            frame: it.
            now: seconds on the session's clock.
        """
        self.transactions.begin(self._transaction_name(frame), now)
        self._conversation.used("transaction")
        self._conversation.send_receipt(frame)

    def abort(self, frame: Frame) -> None:
        """ABORT."""
        self.transactions.end(self._transaction_name(frame))
        self._conversation.send_receipt(frame)

    def commit(self, frame: Frame) -> None:
        """COMMIT: publish, wait for every confirm, then settle, then the receipt."""
        identifier = self._transaction_name(frame)
        transaction = self.transactions.peek(identifier)
        if transaction.sends and not self.publisher.confirms:
            self._conversation.ask(ops.PreparePublisher(confirms=True, queue=None), frame, again=True)
            return
        self.transactions.end(identifier)
        for settlement in transaction.settlements:
            self._check_settlement(settlement)
        commit = Commit(waiting=len(transaction.sends))
        self._commit = (commit, transaction, frame)
        for send in transaction.sends:
            if isinstance(send.head.plan, SendPlan):
                self._publish(send, send.head.plan, commit)
        if transaction.sends:
            self._conversation.holds.add(Hold.COMMIT)
        else:
            self._finish_commit()

    def _check_settlement(self, settlement: Settlement) -> None:
        conversation = self._conversation
        if not conversation.subscriptions.is_current(settlement.subscription):
            raise refusals.message_without_subscription(settlement.ack_id)
        if not settlement.is_outstanding:
            raise refusals.unknown_delivery_tag(settlement.number, conversation.settings)

    def _finish_commit(self) -> None:
        if self._commit is None:
            return
        (commit, transaction, frame), self._commit = self._commit, None
        conversation = self._conversation
        subscriptions = conversation.subscriptions
        conversation.holds.discard(Hold.COMMIT)
        if conversation.state is State.CLOSED:
            return
        receipt = conversation.receipt_of(frame)
        if commit.returned:
            conversation.fail(refusals.commit_unroutable(), receipt)
            return
        if commit.rejected:
            conversation.fail(refusals.commit_rejected(), receipt)
            return
        lost = [each for each in transaction.settlements if not subscriptions.is_current(each.subscription)]
        if lost:
            # Cancelled by the broker while the confirms were awaited.
            conversation.fail(refusals.message_without_subscription(lost[0].ack_id), receipt)
            return
        for settlement in transaction.settlements:
            subscriptions.settle(settlement)
        conversation.send_receipt(frame)


def octets(frame: Frame) -> int:
    """What keeping a frame costs, about."""
    return len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())
