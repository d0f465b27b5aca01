"""The consuming part of a session: SUBSCRIBE and UNSUBSCRIBE, and what the broker answers to them."""

from __future__ import annotations

from hashlib import md5

from gateway.session import error_frames, ops
from gateway.session.context import SessionContext
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.destinations import TEMP_QUEUE, parse, subscription_queue_name
from gateway.session.queues import QueueRules
from gateway.session.sender import Sender
from gateway.session.subscribing import queue_to_delete, read_subscribe, read_unsubscribe
from gateway.session.subscription import AckMode
from gateway.stomp.frame import Frame


class Subscriber:
    """What a session subscribes to.

    Args:
        context: of the session.
        sender: knows the queues that the session has declared.
    """

    __slots__ = ("_context", "_destinations", "_queues_named", "_rules", "_sender")

    def __init__(self, context: SessionContext, sender: Sender) -> None:
        self._context = context
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
        context = self._context
        headers, fresh = context.headers(frame), self._fresh_queue_name()
        request = read_subscribe(headers, fresh, context.settings, self._rules, self._destinations)
        if request.tag in context.subscriptions:
            raise error_frames.duplicate_subscription(request.tag)
        subscription = context.new_subscription(request.tag, request.identifier, request.mode)
        subscription.destination = request.text
        subscription.kind = parse(request.text).kind
        # A queue is declared once per session, by whichever frame touches it first; one of a topic every time.
        known = request.binding is None and self._sender.has_declared(request.queue_name)
        prefetch = context.settings.auto_ack_window if request.mode is AckMode.AUTO else request.prefetch
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
        context.ask(context.observed(operation, request.queue), frame)

    def _fresh_queue_name(self) -> bytes:
        """A name for the queue of a subscription that nobody shares; unguessable, because the session's identity is."""
        self._queues_named += 1
        seed = b"%b %d" % (self._context.identity, self._queues_named)
        return subscription_queue_name(md5(seed, usedforsecurity=False).digest())

    def subscribed(self, event: ops.Subscribed) -> None:
        """The consumer runs."""
        context, subscription = self._context, event.subscription
        operation = context.operation
        if isinstance(operation, ops.Subscribe) and operation.queue is not None and operation.binding is None:
            self._sender.note_declared(event.queue_name)
        context.subscriptions.add(subscription, event.queue_name)
        if context.observer is not None and isinstance(operation, ops.Subscribe):
            context.observer.subscribed(operation, event.queue_name)
        frame = context.answered()
        # The RECEIPT precedes the first MESSAGE, though the broker may deliver earlier.
        if frame is not None:
            context.send_receipt(frame)
        context.subscriptions.start(subscription)

    def unsubscribe(self, frame: Frame) -> None:
        """UNSUBSCRIBE."""
        context = self._context
        headers = context.headers(frame)
        request = read_unsubscribe(headers)
        subscription = context.subscriptions.get(request.tag)
        if subscription is None:
            raise error_frames.no_subscription(request.description)
        delete = queue_to_delete(subscription.destination, headers, context.settings, self._destinations)
        context.settle_taken()
        if context.observer is not None:
            context.observer.unsubscribed(subscription, "unsubscribe" if delete is None else "deleted")
        context.subscriptions.forget(subscription)
        context.ask(ops.Unsubscribe(subscription, delete), frame)

    def unsubscribed(self) -> None:
        """The consumer is gone."""
        frame = self._context.answered()
        if frame is not None:
            self._context.send_receipt(frame)

    def cancelled(self, event: ops.ConsumerCancelled) -> None:
        """The broker has cancelled a consumer."""
        context, subscription = self._context, event.subscription
        if not context.subscriptions.is_current(subscription):
            return
        if context.observer is not None:
            context.observer.unsubscribed(subscription, "cancelled")
        context.subscriptions.forget(subscription)
        description: bytes | None
        if subscription.subscription is None:
            shown, description = subscription.destination, b"destination='%b'" % subscription.destination
        elif subscription.subscription.startswith(TEMP_QUEUE):
            shown, description = subscription.subscription, None
        else:
            shown, description = subscription.subscription, b"id='%b'" % subscription.subscription
        context.fail(error_frames.subscription_cancelled(description, shown), None)
