"""BEGIN, ABORT and COMMIT.

COMMIT publishes the messages, waits for every confirm, settles the acknowledgements, and then sends its RECEIPT. So if
the broker refuses a message, nothing is acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final

from gateway.session import error_frames, ops
from gateway.session.cached_publish import CachedPublish
from gateway.session.confirms import Commit, CommitFailure
from gateway.session.context import Hold, SessionContext, State
from gateway.session.delivery_ledger import AckMode
from gateway.session.publish import Publisher
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Settlement
from gateway.session.transactions import Transaction
from gateway.stomp.frame import Frame

_ERRORS: Final = {
    CommitFailure.REJECTED: error_frames.commit_rejected,
    CommitFailure.RETURNED: error_frames.commit_unroutable,
    CommitFailure.INTERRUPTED: error_frames.commit_interrupted,
}


class TransactionHandler:
    """Handles BEGIN, ABORT and COMMIT."""

    __slots__ = ("_commit", "_context", "_publisher")

    def __init__(self, context: SessionContext, publisher: Publisher) -> None:
        self._context = context
        self._publisher = publisher
        # The COMMIT that waits for confirms, its transaction and its frame.
        self._commit: tuple[Commit, Transaction, Frame] | None = None

    @property
    def committing(self) -> Frame | None:
        """The frame of the COMMIT that waits for confirms."""
        return None if self._commit is None else self._commit[2]

    def time_passed(self, now: float) -> None:
        """Abort transactions that were open for too long at ``now``, in seconds, each with an ERROR."""
        if self._context.state is State.CONNECTED:
            for name in self._context.transactions.expire(now):
                self._context.fail(error_frames.transaction_too_old(name))

    def begin(self, frame: Frame) -> None:
        """Open a transaction."""
        self._context.transactions.begin(self._name_in(frame))
        if self._context.observer is not None:
            self._context.observer.used("transaction")
        self._context.send_receipt(frame)

    def abort(self, frame: Frame) -> None:
        """Drop a transaction."""
        self._context.transactions.end(self._name_in(frame))
        self._context.send_receipt(frame)

    def commit(self, frame: Frame) -> None:
        """Publish a transaction's messages. ``_finish`` settles its acknowledgements once they are confirmed."""
        name = self._name_in(frame)
        transaction = self._context.transactions.get(name)
        if transaction.sends and not self._publisher.has_confirms:
            self._context.ask(ops.PreparePublisher(confirms=True, queue=None), frame, retry=True)
            return
        if not all(self._publisher.is_ready(send, frame) for send in transaction.sends):
            return
        # Before the checks: a COMMIT that one of them refuses ends the transaction, too, and none of it takes effect.
        self._context.transactions.end(name)
        for settlement in transaction.settlements:
            self._check(settlement)
        if (contradicting := _contradiction(transaction.settlements)) is not None:
            raise error_frames.unknown_delivery_tag(contradicting.number, self._context.settings)
        if _cannot_be_whole(transaction):
            raise error_frames.commit_interrupted()
        commit = Commit(len(transaction.sends), self._finish)
        self._commit = (commit, transaction, frame)
        for send in transaction.sends:
            if isinstance(send.header_block.cached_publish, CachedPublish):
                sends = [(send.receipt, send.body)]
                self._publisher.publish(send.header_block.cached_publish, sends, send.length, commit)
        if transaction.sends:
            self._context.holds.add(Hold.COMMIT)
        else:
            self._finish()

    def deliveries_lost(self) -> None:
        """Note the loss of a link: a COMMIT under way whose acknowledgements are lost with it will get an ERROR."""
        if self._commit is not None:
            commit, transaction, _ = self._commit
            if _cannot_be_whole(transaction):
                commit.fail(CommitFailure.INTERRUPTED)

    def forget_commit(self) -> None:
        """Drop the COMMIT under way, at the end of the session."""
        self._commit = None

    def _name_in(self, frame: Frame) -> bytes:
        name = self._context.headers(frame).get(b"transaction")
        if name is None:
            raise error_frames.missing_transaction(frame.command)
        return name

    def _check(self, settlement: Settlement) -> None:
        context = self._context
        if not context.subscriptions.may_settle(settlement.subscription):
            raise error_frames.message_without_subscription(settlement.ack_id)
        if not settlement.is_acceptable:
            raise error_frames.unknown_delivery_tag(settlement.number, context.settings)

    def _finish(self) -> None:
        """End the COMMIT, after every message was confirmed, rejected or returned."""
        if self._commit is None:
            return
        (commit, transaction, frame), self._commit = self._commit, None
        context = self._context
        context.holds.discard(Hold.COMMIT)
        if context.state is State.CLOSED:
            return
        receipt, subscriptions = context.receipt_of(frame), context.subscriptions
        if commit.failure in _ERRORS:
            context.fail(_ERRORS[commit.failure](), receipt)
            return
        for settlement in transaction.settlements:
            if not subscriptions.may_settle(settlement.subscription):
                # The subscription has ended since the COMMIT began.
                context.fail(error_frames.message_without_subscription(settlement.ack_id), receipt)
                return
        for settlement in transaction.settlements:
            subscriptions.settle(settlement)
        context.send_receipt(frame)
        context.end_settled()


def _contradiction(settlements: Iterable[Settlement]) -> Settlement | None:
    """The first settlement of a message that an earlier one settles differently, such as a NACK after an ACK."""
    single: dict[tuple[Subscription, int], Settlement] = {}
    # For cumulative acknowledgement: by subscription, the settlements with ever higher numbers.
    cumulative: dict[Subscription, list[Settlement]] = {}
    for each in settlements:
        subscription = each.subscription
        if subscription.mode is AckMode.CLIENT:
            named = cumulative.setdefault(subscription, [])
            at = bisect_left(named, _up_to(each), key=_up_to)
            if at == len(named):
                named.append(each)
            first = named[at]
        else:
            first = single.setdefault((subscription, each.number), each)
        if first.requeue is not each.requeue:
            return each
    return None


def _up_to(settlement: Settlement) -> int:
    """The number of the last message that a cumulative acknowledgement settles: for 0, that of the last delivery."""
    return settlement.number or settlement.subscription.last_number


def _cannot_be_whole(transaction: Transaction) -> bool:
    """Whether messages would be published although a lost link has taken some of the transaction's acknowledgements.

    Without messages the rest may be settled: the broker delivers again what they do not settle.
    """
    return bool(transaction.sends) and any(settlement.is_lost for settlement in transaction.settlements)
