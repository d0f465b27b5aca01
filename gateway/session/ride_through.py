"""The loss of a link: the session is held, everything is restored, and the session continues.

Theory of operation. With a link go its channels: the publishing channel, those of subscriptions, or both. Each part of
the session discards the state of its channel at once, and keeps the state of the session:

* `Publisher` keeps the unconfirmed messages and publishes them again, in order. The client is held until then, so they
  precede all new messages. A message is published at least once, and each receipt is sent once.
* `Subscription` continues its numbers in message-ids. The broker delivers unsettled messages again. The gateway accepts
  an acknowledgement of a delivery on the lost channel, and ignores it.
* `DeclaredQueues` forgets everything, because the broker may have lost the queues.
* An operation that was under way is asked for again, and its frame waits.

If the broker refuses messages while its nodes change, or returns them because their queue is gone, `Publisher`
publishes them again in the same way on a new channel. The gateway declares a deleted queue again, and waits for one
whose node is away. If only the queue of a subscription is away, that subscription alone is restored, and the rest of
the session continues (`queue_away`).

State of two channels is never mixed: data encoded for the lost one is dropped, and a link delivers nothing after it has
reported its end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.errors import CloseReason, CodecError
from gateway.session import error_frames, ops
from gateway.session.commit import TransactionHandler
from gateway.session.context import Hold, SessionContext, State
from gateway.session.destinations import SUBSCRIPTION_QUEUE
from gateway.session.publish import Publisher
from gateway.session.subscription import Subscription

_CONNECTION_FORCED: Final = 320
_NOT_FOUND: Final = 404

_STREAM_OFFSET: Final = "x-stream-offset"


class RideThrough:
    """Has a session restored after the loss of a link if its virtual host rides through; otherwise ends the session."""

    __slots__ = ("_cause", "_context", "_is_refusal", "_publisher", "_transactions")

    def __init__(self, context: SessionContext, publisher: Publisher, transactions: TransactionHandler) -> None:
        self._context = context
        self._publisher = publisher
        self._transactions = transactions
        # Code and text of the first loss, until everything is restored.
        self._cause: tuple[int, str] | None = None
        # Whether only the publishing channel is lost, because of a message that is not published again.
        self._is_refusal = False

    @property
    def is_under_way(self) -> bool:
        """Whether something that was lost is not restored yet."""
        return self._cause is not None

    def link_lost(self, event: ops.LinkLost) -> None:
        """Discard what was lost with a link, and hold the session."""
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
            if not subscription.is_exclusive and _consumes_its_queue(subscription):
                rename_queue(context, subscription)
        context.pending.lose(event)
        self._transactions.deliveries_lost()

    def interrupted(self, code: int, text: str) -> None:
        """Keep an operation that failed with its link, or because no broker answers, to ask for it again."""
        context = self._context
        if not context.rides_through or isinstance(context.operation, ops.CloseUpstream):
            self._fail(code, text)
            return
        self._hold(code, text)
        if isinstance(context.operation, ops.Subscribe):
            context.operation.subscription.lost()
        context.pending.interrupt()

    def is_virtual_host_going(self, code: int) -> bool:
        """Whether the broker refused a message for lack of an exchange that disappears only with its virtual host.

        RabbitMQ deletes the exchanges of a virtual host some time before it closes its connections.
        """
        confirms = self._publisher.confirms
        return self._context.rides_through and code == _NOT_FOUND and confirms.are_for_predeclared_exchanges

    def publish_refused(self, code: int, text: str) -> bool:
        """Continue after the broker closed the publishing channel because of a message.

        Returns whether the session continues: it may do so, and it is known which message the broker means.
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
        """Note that a subscription lost its consumer, perhaps because its queue is away. The session is not held."""
        context = self._context
        if context.subscriptions.is_current(event.subscription):
            event.subscription.awaits_queue = True
            self._transactions.deliveries_lost()
            if context.observer is not None:
                context.observer.queue_away(event.subscription)

    def queue_back(self, event: ops.QueueBack) -> None:
        """Note that such a subscription has a consumer again."""
        context, subscription = self._context, event.subscription
        if context.subscriptions.is_current(subscription):
            subscription.awaits_queue = False
            context.subscriptions.add(subscription, event.subscribed.queue_name)
            if context.observer is not None:
                context.observer.queue_back(subscription)

    def channel_lost(self, code: int, text: str, hold: Hold = Hold.LINK_LOST) -> None:
        """Give up the publishing channel, which the broker closed, or which is to be replaced."""
        self._hold(code, text, hold)
        if not self._publisher.is_lost:
            self._publisher.lost()

    def refused(self) -> None:
        """Have refused messages published again, for example because their queue is electing a leader."""
        publisher = self._publisher
        if not publisher.confirms.has_refused or isinstance(self._context.pending.last, ops.FindQueues):
            return
        if publisher.is_in_doubt and not self.is_under_way:
            self._context.ask(ops.FindQueues(publisher.confirms.refused_queues), None)
            return
        # On the old channel the broker may refuse everything for that queue.
        self.channel_lost(_CONNECTION_FORCED, "CONNECTION_FORCED - the broker accepted no messages", Hold.QUEUE_AWAY)
        self.advance()

    def queues_found(self, event: ops.QueuesFound) -> None:
        """Learn whether the queues of rejected messages are missing, or exist and accept no messages."""
        self._context.operation_done()
        publisher = self._publisher
        if publisher.is_in_doubt and not event.is_any_missing and not publisher.is_lost:
            publisher.give_up_refused()
        # Otherwise a queue is missing, or the broker has returned messages meanwhile.
        publisher.is_in_doubt = False
        self.refused()

    def _hold(self, code: int, text: str, hold: Hold = Hold.LINK_LOST) -> None:
        self._is_refusal = self._is_refusal and hold is Hold.QUEUE_AWAY
        self._cause = self._cause or (code, text)
        self._context.holds.add(hold)

    def advance(self) -> None:
        """Ask for a recovery, if something is lost and nothing else is under way. Call it after every event."""
        context = self._context
        if self._cause is None or context.pending.is_under_way or context.state is State.CLOSED:
            return
        lost = self.recovery_request()
        if not (lost.subscriptions or lost.publishing or context.pending.is_interrupted):
            self._end()
        else:
            context.pending.recover(lost)

    def recovery_request(self) -> ops.Recover:
        """The request to restore everything that is lost by now. It may grow while a recovery runs."""
        context = self._context
        publishing = self._publisher.is_lost
        lost = [each for each in context.subscriptions.all if each.awaits_recovery]
        if context.state is State.DRAINING:
            # The session is ending. It needs no subscriptions, and a channel only for unconfirmed messages.
            publishing, lost = publishing and bool(self._publisher.confirms), []
        requests = [request_of(each) for each in lost]
        queues = self._publisher.queues_of_unconfirmed if publishing else ()
        is_again = self._publisher.is_stuck or context.pending.is_interrupted_again
        has_refused = self._publisher.confirms.has_refused
        is_refusal = self._is_refusal
        return ops.Recover(
            tuple(filter(None, requests)), publishing, queues, is_again and not is_refusal, has_refused, is_refusal
        )

    def recovered(self, event: ops.Recovered) -> None:
        """Take the restored channels. If another link was lost meanwhile, ``advance`` asks for another recovery."""
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
                # This broker has a smaller limit for frames than the one before.
                refusal = error_frames.not_for_amqp(str(error))
                context.fail(error_frames.closed_for(refusal, CloseReason.LINK_LOST))
                return
        if not any(each.awaits_recovery for each in context.subscriptions.all) and not self._publisher.is_lost:
            self._end()
            context.pending.resume()

    def _end(self) -> None:
        """End the ride-through: everything is restored, or no longer needed."""
        self._cause, self._is_refusal = None, False
        self._context.holds -= {Hold.LINK_LOST, Hold.QUEUE_AWAY}

    def failed(self, event: ops.RecoveryFailed) -> None:
        """End the session, unless only refused messages made the recovery take too long: these get an ERROR."""
        if not event.code and not event.is_down and self._publisher.confirms.has_refused:
            # The recovery was waiting only for these messages to be accepted. ``advance`` restores the channel.
            self._context.pending.recovered()
            self._publisher.give_up_refused()
            return
        code, text = (event.code, event.text) if event.code else self._cause or (event.code, event.text)
        self._fail(code, text)

    def _fail(self, code: int, text: str) -> None:
        context = self._context
        context.fail(error_frames.broker_error(code, text, context.settings, CloseReason.LINK_LOST))


def rename_queue(context: SessionContext, subscription: Subscription) -> bool:
    """Let a topic's subscription use a new queue name, unless its queue is durable or named by the client.

    RabbitMQ deletes the queues of a lost node by name, sometimes after the node is back. A queue declared again under
    its old name would be deleted, too, and its consumer would not be told. With a new name, the session need not wait
    for the old queue either.

    Returns:
        Whether the name was changed.
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
    """Whether the subscription's consumer has run.

    If not, the queue must keep its name. It may have been declared already, and RabbitMQ never deletes an auto-delete
    queue that has had no consumer.
    """
    return subscription.request is not None and subscription.queue == subscription.request.queue_name


def request_of(subscription: Subscription) -> ops.Subscribe | None:
    """The operation that restores a subscription. A stream continues with the first message that did not arrive."""
    request = subscription.request
    if request is None or subscription.next_offset is None:
        return request
    return replace(request, arguments={**request.arguments, _STREAM_OFFSET: subscription.next_offset})
