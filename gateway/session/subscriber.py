"""The consuming part of a session: SUBSCRIBE and UNSUBSCRIBE, and what the broker answers to them."""

from __future__ import annotations

from hashlib import md5

from gateway.session import ops, refusals
from gateway.session.conversation import Conversation
from gateway.session.destinations import TEMP_QUEUE, parse, subscription_queue_name
from gateway.session.policy import NO_DESTINATION_RULES, DestinationRules
from gateway.session.queues import QueueRules
from gateway.session.sender import Sender
from gateway.session.subscribing import queue_to_delete, read_subscribe, read_unsubscribe
from gateway.session.subscription import AckMode
from gateway.stomp.frame import Frame


class Subscriber:
    """What a session subscribes to.

    Args:
        conversation: of the session.
        sender: knows the queues that the session has declared.
    """

    __slots__ = ("_conversation", "_destinations", "_queues_named", "_rules", "_sender")

    def __init__(self, conversation: Conversation, sender: Sender) -> None:
        self._conversation = conversation
        self._sender = sender
        self._rules = QueueRules()
        self._destinations = NO_DESTINATION_RULES
        self._queues_named = 0

    def start(self, rules: QueueRules, destinations: DestinationRules) -> None:
        """The client has logged in.

        Args:
            rules: how queues must look on the broker.
            destinations: what the client may subscribe to.
        """
        self._rules = rules
        self._destinations = destinations

    def subscribe(self, frame: Frame) -> None:
        """SUBSCRIBE."""
        conversation = self._conversation
        headers, fresh = conversation.headers(frame), self._fresh_queue_name()
        request = read_subscribe(headers, fresh, conversation.settings, self._rules, self._destinations)
        if request.tag in conversation.subscriptions:
            raise refusals.duplicate_subscription(request.tag)
        subscription = conversation.new_subscription(request.tag, request.identifier, request.mode)
        subscription.destination = request.text
        subscription.kind = parse(request.text).kind
        # A queue is declared once per session, by whichever frame touches it first; one of a topic every time.
        known = request.binding is None and self._sender.has_declared(request.queue_name)
        prefetch = conversation.settings.auto_ack_window if request.mode is AckMode.AUTO else request.prefetch
        queue = None if known else request.queue
        operation = ops.Subscribe(
            subscription,
            queue,
            request.queue_name,
            request.binding,
            prefetch,
            request.arguments,
            is_stream=request.is_stream,
        )
        conversation.ask(conversation.witnessed(operation, request.queue), frame)

    def _fresh_queue_name(self) -> bytes:
        """A name for the queue of a subscription that nobody shares; unguessable, because the session's identity is."""
        self._queues_named += 1
        seed = b"%b %d" % (self._conversation.identity, self._queues_named)
        return subscription_queue_name(md5(seed, usedforsecurity=False).digest())

    def subscribed(self, event: ops.Subscribed) -> None:
        """The consumer runs."""
        conversation, subscription = self._conversation, event.subscription
        operation = conversation.operation
        if isinstance(operation, ops.Subscribe) and operation.queue is not None and operation.binding is None:
            self._sender.note_declared(event.queue_name)
        conversation.subscriptions.add(subscription, event.queue_name)
        if conversation.witness is not None and isinstance(operation, ops.Subscribe):
            conversation.witness.subscribed(operation, event.queue_name)
        frame = conversation.answered()
        # The RECEIPT precedes the first MESSAGE, though the broker may deliver earlier.
        if frame is not None:
            conversation.send_receipt(frame)
        conversation.subscriptions.start(subscription)

    def unsubscribe(self, frame: Frame) -> None:
        """UNSUBSCRIBE."""
        conversation = self._conversation
        headers = conversation.headers(frame)
        request = read_unsubscribe(headers)
        subscription = conversation.subscriptions.get(request.tag)
        if subscription is None:
            raise refusals.no_subscription(request.description)
        delete = queue_to_delete(subscription.destination, headers, conversation.settings, self._destinations)
        conversation.settle_taken()
        if conversation.witness is not None:
            conversation.witness.unsubscribed(subscription, "unsubscribe" if delete is None else "deleted")
        conversation.subscriptions.forget(subscription)
        conversation.ask(ops.Unsubscribe(subscription, delete), frame)

    def unsubscribed(self) -> None:
        """The consumer is gone."""
        frame = self._conversation.answered()
        if frame is not None:
            self._conversation.send_receipt(frame)

    def cancelled(self, event: ops.ConsumerCancelled) -> None:
        """The broker has cancelled a consumer."""
        conversation, subscription = self._conversation, event.subscription
        if not conversation.subscriptions.is_current(subscription):
            return
        if conversation.witness is not None:
            conversation.witness.unsubscribed(subscription, "cancelled")
        conversation.subscriptions.forget(subscription)
        description: bytes | None
        if subscription.subscription is None:
            shown, description = subscription.destination, b"destination='%b'" % subscription.destination
        elif subscription.subscription.startswith(TEMP_QUEUE):
            shown, description = subscription.subscription, None
        else:
            shown, description = subscription.subscription, b"id='%b'" % subscription.subscription
        conversation.fail(refusals.subscription_cancelled(description, shown), None)
