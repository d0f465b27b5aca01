"""The loss of a link: the session is held, has everything restored, and goes on.

Theory of operation. A link that is lost takes channels with it: the publishing channel, those of subscriptions, or
both. Each part of the session forgets at once what was true of its channel, and keeps what is true of the session:

* `Publisher` keeps the unconfirmed messages and publishes them again, in order and before anything new, because the
  client is held until then. So a message is published at least once, and each receipt is sent once.
* `Subscription` keeps its place in the numbers of message-ids. The broker delivers again what was not settled. An
  acknowledgement of a delivery of the lost channel is accepted and does nothing.
* What the broker does not take while its nodes change, or returns because its queue is gone, is published again in the
  same way, on another channel. A queue that was deleted is declared again; one whose node is away is waited for.
* A subscription whose queue alone is away comes back by itself, and the rest of the session goes on (`queue_away`).
* `DeclaredQueues` forgets everything, because the broker may have.
* An operation that was under way is asked for again, with the frame that waits for it.

Two channels are never mixed: what was encoded for the lost one is thrown away, and the link delivers nothing any more
once it has reported its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.errors import CloseReason, CodecError
from gateway.session import error_frames, ops
from gateway.session.commit import TransactionHandler
from gateway.session.context import Hold, SessionContext, State
from gateway.session.destinations import SUBSCRIPTION_QUEUE
from gateway.session.pending_operations import PendingOperation
from gateway.session.publish import Publisher
from gateway.session.subscription import Subscription

_CONNECTION_FORCED: Final = 320
_NOT_FOUND: Final = 404

_STREAM_OFFSET: Final = "x-stream-offset"


class RideThrough:
    """Takes a session through the loss of a link, if its virtual host wants that; else the session ends."""

    __slots__ = ("_cause", "_context", "_interrupted", "_is_refusal", "_publisher", "_transactions")

    def __init__(self, context: SessionContext, publisher: Publisher, transactions: TransactionHandler) -> None:
        self._context = context
        self._publisher = publisher
        self._transactions = transactions
        # The first loss, until everything is back.
        self._cause: tuple[int, str] | None = None
        # Nothing is lost but the publishing channel, because of a message that is not published again.
        self._is_refusal = False
        # The operation that was interrupted before the last recovery.
        self._interrupted: PendingOperation | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether something is lost and not back yet."""
        return self._cause is not None

    def link_lost(self, event: ops.LinkLost) -> None:
        """A link is lost."""
        context = self._context
        error = error_frames.broker_error(event.code, event.text, context.settings, CloseReason.LINK_LOST)
        if not context.rides_through or error.close is CloseReason.TOKEN_EXPIRED:
            context.fail(error)
            return
        self._hold(event.code, event.text)
        context.declared_queues.clear()
        if event.publishing:
            self._publisher.lost()
        for subscription in event.subscriptions:
            subscription.lost()
            subscription.awaits_queue = False
            if not is_exclusive(subscription) and _consumes_its_queue(subscription):
                rename_queue(context, subscription)
        context.pending.lose(event)
        self._transactions.deliveries_lost()

    def interrupted(self, event: ops.OperationInterrupted) -> None:
        """The operation under way failed with its link, or because no broker answers."""
        context = self._context
        if not context.rides_through or isinstance(context.operation, ops.CloseUpstream):
            self._fail(event.code, event.text)
            return
        self._hold(event.code, event.text)
        if isinstance(context.operation, ops.Subscribe):
            context.operation.subscription.lost()
        context.pending.interrupt()

    def is_virtual_host_going(self, code: int) -> bool:
        """Whether the broker, which refused a message, misses an exchange that only goes with its virtual host.

        RabbitMQ deletes a virtual host's exchanges some time before it closes the connections.
        """
        confirms = self._publisher.confirms
        return self._context.rides_through and code == _NOT_FOUND and confirms.are_for_predeclared_exchanges

    def publish_refused(self, code: int, text: str) -> bool:
        """The broker has closed the publishing channel because of a message; whether the session goes on without it.

        It goes on if it is to, and if it is known which message the broker means.
        """
        context = self._context
        if not context.keeps_after_send_error or context.state is State.CLOSED:
            return False
        if self._publisher.is_lost:
            return True
        if not self._publisher.give_up_blamed(code, text):
            return False
        self._is_refusal = self._cause is None
        self.channel_lost(code, text, Hold.QUEUE_AWAY)
        return True

    def queue_away(self, event: ops.QueueAway) -> None:
        """A subscription has lost its consumer, perhaps because its queue is away. The session waits for nothing."""
        context = self._context
        if context.subscriptions.is_current(event.subscription):
            event.subscription.awaits_queue = True
            self._transactions.deliveries_lost()
            if context.observer is not None:
                context.observer.queue_away(event.subscription)

    def queue_back(self, event: ops.QueueBack) -> None:
        """Such a subscription has a consumer again."""
        context, subscription = self._context, event.subscription
        if context.subscriptions.is_current(subscription):
            subscription.awaits_queue = False
            context.subscriptions.add(subscription, event.subscribed.queue_name)
            if context.observer is not None:
                context.observer.queue_back(subscription)

    def channel_lost(self, code: int, text: str, hold: Hold = Hold.LINK_LOST) -> None:
        """The broker closed the publishing channel, but not because of the client."""
        self._hold(code, text, hold)
        if not self._publisher.is_lost:
            self._publisher.lost()

    @property
    def _is_again(self) -> bool:
        """Whether the operation in front was interrupted before, too."""
        asked = self._context.pending.asked
        return bool(asked) and asked[0] is self._interrupted

    def refused(self) -> None:
        """The broker did not take messages that it may take later, for a queue that elects its leader for example."""
        publisher = self._publisher
        if not publisher.confirms.has_refused or isinstance(self._context.pending.last, ops.FindQueues):
            return
        if publisher.is_in_doubt and not self.is_under_way:
            self._context.ask(ops.FindQueues(publisher.confirms.refused_queues), None)
            return
        # On this channel it may refuse everything for that queue from now on.
        self.channel_lost(_CONNECTION_FORCED, "CONNECTION_FORCED - the broker took no message", Hold.QUEUE_AWAY)
        self.advance()

    def queues_found(self, event: ops.QueuesFound) -> None:
        """It is known why the broker rejected messages: their queue is away, or it takes none."""
        self._context.operation_done()
        publisher = self._publisher
        if publisher.is_in_doubt and not event.is_any_missing and not publisher.is_lost:
            publisher.give_up_refused()
        # Else they are away, or the broker has returned others meanwhile.
        publisher.is_in_doubt = False
        self.refused()

    def _hold(self, code: int, text: str, hold: Hold = Hold.LINK_LOST) -> None:
        self._is_refusal = self._is_refusal and hold is Hold.QUEUE_AWAY
        self._cause = self._cause or (code, text)
        self._context.holds.add(hold)

    def advance(self) -> None:
        """Ask for a recovery once nothing else is under way. Called after every event."""
        context = self._context
        if context.pending.is_under_way or context.state is State.CLOSED:
            return
        if self._cause is None:
            self._interrupted = None
            return
        lost = self.what_is_lost()
        if not (lost.subscriptions or lost.publishing or context.pending.is_interrupted):
            self._end()
            return
        self._interrupted = context.pending.asked[0] if context.pending.is_interrupted else None
        context.pending.recover(lost)

    def forget_operation(self) -> None:
        """The session is over."""
        self._interrupted = None

    def what_is_lost(self) -> ops.Recover:
        """The request to restore everything lost by now, perhaps more than before: another link may have been lost."""
        context = self._context
        publishing = self._publisher.is_lost
        lost = [each for each in context.subscriptions.all if each.must_return]
        if context.state is State.DRAINING:
            # A publishing channel is needed only for unconfirmed messages, and subscriptions are not needed at all.
            publishing, lost = publishing and bool(self._publisher.confirms), []
        requests = [request_of(each) for each in lost]
        queues = self._publisher.queues_of_unconfirmed if publishing else ()
        is_again = self._publisher.is_stuck or (self._is_again and context.pending.is_interrupted)
        has_refused = self._publisher.confirms.has_refused
        is_refusal = self._is_refusal
        return ops.Recover(
            tuple(filter(None, requests)), publishing, queues, is_again and not is_refusal, has_refused, is_refusal
        )

    def recovered(self, event: ops.Recovered) -> None:
        """Everything is back, unless another link was lost meanwhile; then ``advance`` asks again."""
        context = self._context
        if event.publisher is not None:
            for queue in self._publisher.queues_of_unconfirmed:
                context.declared_queues.add(queue.name, queue)
        context.pending.recovered()
        for subscribed in event.subscribed:
            if context.subscriptions.is_current(subscribed.subscription):
                context.subscriptions.add(subscribed.subscription, subscribed.queue_name)
        if event.publisher is not None:
            try:
                self._publisher.restored(event.publisher)
            except CodecError as error:
                # The broker that answers now takes shorter frames than the one before.
                refusal = error_frames.not_for_amqp(str(error))
                context.fail(error_frames.closed_for(refusal, CloseReason.LINK_LOST))
                return
        if not any(each.must_return for each in context.subscriptions.all) and not self._publisher.is_lost:
            self._end()
            context.pending.resume()

    def _end(self) -> None:
        """Everything is back, or not needed any more."""
        self._cause, self._is_refusal = None, False
        self._context.holds -= {Hold.LINK_LOST, Hold.QUEUE_AWAY}

    def failed(self, event: ops.RecoveryFailed) -> None:
        """It took too long, or the broker refuses something, or closes the link because of it."""
        if not event.code and not event.is_down and self._publisher.confirms.has_refused:
            # That was all that the time was for. The channel still comes back.
            self._context.pending.recovered()
            self._publisher.give_up_refused()
            return
        code, text = (event.code, event.text) if event.code else self._cause or (event.code, event.text)
        self._fail(code, text)

    def _fail(self, code: int, text: str) -> None:
        context = self._context
        context.fail(error_frames.broker_error(code, text, context.settings, CloseReason.LINK_LOST))


def rename_queue(context: SessionContext, subscription: Subscription) -> bool:
    """Give a topic's subscription another queue, unless it is durable or named by the client. Returns whether it did.

    A queue that ends with its node need not be waited for. And RabbitMQ deletes what a lost node had by name, also some
    time after it is back: a queue that was declared again under its old name goes, too, and its consumer is not told.
    """
    request = subscription.request
    if request is None or request.queue is None or request.binding is None:
        return False
    queue = request.queue
    if queue.durable or not queue.name.startswith(SUBSCRIPTION_QUEUE.decode()):
        return False
    name = context.fresh_queue_name().decode()
    subscription.request = replace(request, queue=replace(queue, name=name), queue_name=name)
    return True


def _consumes_its_queue(subscription: Subscription) -> bool:
    """Whether the broker has answered that the consumer runs.

    A queue that was perhaps declared and never consumed is declared again under its name: RabbitMQ deletes an
    auto-delete queue with its last consumer, and so one that never had any stays for ever.
    """
    return subscription.request is not None and subscription.queue == subscription.request.queue_name


def is_exclusive(subscription: Subscription) -> bool:
    """Whether a subscription's queue belongs to its session, which declares it again itself."""
    queue = None if subscription.request is None else subscription.request.queue
    return queue is not None and queue.exclusive


def request_of(subscription: Subscription) -> ops.Subscribe | None:
    """The operation that brings a subscription back; of a stream, from the first message that the client has not."""
    request = subscription.request
    if request is None or subscription.next_offset is None:
        return request
    return replace(request, arguments={**request.arguments, _STREAM_OFFSET: subscription.next_offset})
