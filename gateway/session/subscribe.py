"""Handles SUBSCRIBE and UNSUBSCRIBE. They ask for operations, and the broker's answers come back here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason, CodecError, SelectorError, StompError
from gateway.message_selectors.selector import Selector, read_selector
from gateway.session import error_frames, ops
from gateway.session.context import SessionContext
from gateway.session.delivery_ledger import AckMode
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.destinations import TEMP_QUEUE, Destination, DestinationKind, not_for
from gateway.session.queues import (
    QUEUE_TYPE,
    Argument,
    QueueRules,
    QueueSpec,
    bound_queue_name,
    consumer_arguments,
    is_durable,
    name_for_broker,
    queue_arguments,
    subscribed_queue,
)
from gateway.session.subscription import Subscription
from gateway.stomp.frame import Frame
from gateway.stomp.headers import read_integer

# AMQP's prefetch-count has 16 bits.
_LARGEST_PREFETCH: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A valid SUBSCRIBE. The fields are those of `Subscription` and of ``ops.Subscribe``."""

    tag: bytes
    identifier: bytes | None
    destination: bytes
    mode: AckMode
    queue: QueueSpec | None
    queue_name: str
    binding: tuple[str, str] | None
    prefetch: int
    arguments: dict[str, Argument]
    selector: Selector | None = None

    @property
    def is_stream(self) -> bool:
        """Whether the declaration, by client or operator, is that of a stream."""
        declared = {} if self.queue is None else self.queue.arguments
        return "x-stream-offset" in self.arguments or declared.get(QUEUE_TYPE) == "stream"


def read_subscribe(
    headers: Mapping[bytes, bytes],
    fresh_queue_name: bytes,
    settings: VirtualHost,
    rules: QueueRules,
    destinations: DestinationRules = NO_DESTINATION_RULES,
) -> SubscribeRequest:
    """Read the headers of SUBSCRIBE (STOMP 1.2, "SUBSCRIBE").

    ``fresh_queue_name``: the queue's name for ``/topic`` and ``/exchange`` if the headers give none.

    Raises:
        StompError: a header is missing or invalid, or the destination is denied.
    """
    identifier = headers.get(b"id")
    if identifier is None and b"true" in (headers.get(b"durable"), headers.get(b"persistent")):
        raise error_frames.durable_needs_id()
    text = headers.get(b"destination")
    if text is None:
        raise error_frames.missing_destination(b"SUBSCRIBE")
    admission = destinations.for_subscribe(text)
    destination = admission.destination
    mode = _ack_mode(headers.get(b"ack"))
    prefetch = _prefetch(headers.get(b"prefetch-count"), settings)
    if admission.asked.kind is DestinationKind.TEMP_QUEUE:
        queue_arguments(headers)  # RabbitMQ's adapter checks them first
        raise not_for(b"SUBSCRIBE", text)
    if identifier is None and destination.is_bound and is_durable(headers):
        # Like the adapter's check, the one above overlooks "True". All such clients would share one queue.
        raise error_frames.processing_error()
    if identifier is not None and identifier.startswith(TEMP_QUEUE):
        raise error_frames.processing_error()
    tag = b"Q_" + text if identifier is None else b"T_" + identifier
    arguments = consumer_arguments(headers)
    if destination.is_bound and b"x-queue-name" in headers:
        destinations.check_queue(headers[b"x-queue-name"])
    queue = subscribed_queue(destination, headers, fresh_queue_name, settings, rules)
    if queue is not None:
        destinations.check_dead_letters(headers, queue.arguments)
    selector = _selector(destination, headers) if settings.selectors else None
    queue_name, binding = _consumed(destination, queue, settings.default_topic_exchange)
    return SubscribeRequest(tag, identifier, text, mode, queue, queue_name, binding, prefetch, arguments, selector)


def _selector(destination: Destination, headers: Mapping[bytes, bytes]) -> Selector | None:
    """Parse the selector, or None without one. Only a subscription with a queue of its own may have one."""
    try:
        selector = read_selector(headers.get(b"selector", b""))
    except SelectorError as error:
        raise error_frames.invalid_selector(str(error)) from error
    if selector is not None and (b"x-queue-name" in headers or not destination.is_bound):
        raise error_frames.selector_on_queue()
    return selector


def _consumed(
    destination: Destination, queue: QueueSpec | None, topic_exchange: bytes
) -> tuple[str, tuple[str, str] | None]:
    if queue is None or not destination.is_bound:
        return name_for_broker(b"destination", destination.name), None
    exchange, key = destination.route(topic_exchange)
    return queue.name, (name_for_broker(b"destination", exchange), name_for_broker(b"destination", key))


def read_unsubscribe(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    """Read the headers of UNSUBSCRIBE (STOMP 1.2, "UNSUBSCRIBE"). Returns the tag, and its description for an ERROR.

    Raises:
        StompError: the headers name no subscription, or a reply queue.
    """
    identifier = headers.get(b"id")
    text = headers.get(b"destination")
    if identifier is None and is_durable(headers):
        raise error_frames.durable_needs_id()
    if identifier is not None:
        if identifier.startswith(TEMP_QUEUE):
            raise error_frames.temporary_unsubscribe()
        return b"T_" + identifier, b"id='%b'" % identifier
    if text is None:
        raise error_frames.missing_subscription_name()
    return b"Q_" + text, b"destination='%b'" % text


def queue_to_delete(
    subscription: Subscription,
    headers: Mapping[bytes, bytes],
    settings: VirtualHost,
    destinations: DestinationRules = NO_DESTINATION_RULES,
) -> str | None:
    """The name of the queue that a durable UNSUBSCRIBE from a topic deletes; otherwise None.

    By the setting ``unsubscribe_deletes``, the headers of the UNSUBSCRIBE name it, or it is the subscription's.

    Raises:
        StompError: a rule denies the client that queue.
    """
    destination = destinations.for_subscribe(subscription.destination).destination
    if destination.kind is not DestinationKind.TOPIC or not is_durable(headers):
        return None
    if settings.deletes_own_queue:
        return subscription.queue
    if b"x-queue-name" in headers:
        destinations.check_queue(headers[b"x-queue-name"])
    return name_for_broker(b"x-queue-name", bound_queue_name(destination, headers, b"", settings))


def _ack_mode(text: bytes | None) -> AckMode:
    try:
        return AckMode.AUTO if text is None else AckMode(text)
    except ValueError:
        raise error_frames.processing_error() from None


def _prefetch(text: bytes | None, settings: VirtualHost) -> int:
    number = None if text is None else read_integer(text)
    if text is None or (number is None and settings.next_release):
        number = settings.prefetch.default or 0
    if number is None or number < 0:
        raise error_frames.processing_error()
    most = settings.prefetch.max or 0
    # Both are 0 for no limit.
    return min(number or most, most or _LARGEST_PREFETCH)


class SubscribeHandler:
    """Begins and ends the subscriptions of a session."""

    __slots__ = ("_context",)

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def subscribe(self, frame: Frame) -> None:
        """Ask for a subscription."""
        try:
            self._ask(frame)
        except (StompError, CodecError):
            if not self._context.pending.asked:
                raise
            # Its ERROR must follow the answers to earlier frames.
            self._context.postpone(frame)

    def _ask(self, frame: Frame) -> None:
        context = self._context
        headers, fresh = context.headers(frame), context.fresh_queue_name()
        request = read_subscribe(headers, fresh, context.settings, context.queue_rules, context.destination_rules)
        if request.tag in context.subscriptions:
            raise error_frames.duplicate_subscription(request.tag)
        subscription = context.new_subscription(
            request.tag, request.identifier, request.mode, request.destination, request.selector
        )
        # A session declares the queue of a topic for every SUBSCRIBE, and other queues once.
        queue = request.queue
        if request.binding is None:
            queue = context.declared_queues.to_declare(request.queue_name, queue)
        operation = ops.Subscribe(
            subscription,
            queue,
            request.queue_name,
            request.binding,
            context.settings.auto_ack_window if request.mode is AckMode.AUTO else request.prefetch,
            request.arguments,
            is_stream=request.is_stream,
        )
        context.ask_to_subscribe(operation, queue or request.queue, frame)

    def unsubscribe(self, frame: Frame) -> None:
        """Ask for the end of a subscription."""
        context = self._context
        headers = context.headers(frame)
        tag, description = read_unsubscribe(headers)
        subscription = context.subscriptions.get(tag)
        if subscription is None:
            raise error_frames.no_subscription(description)
        delete = queue_to_delete(subscription, headers, context.settings, context.destination_rules)
        context.settle_if_writable()
        is_left = (
            delete is None and context.settings.next_release and context.subscriptions.may_end_unsettled(subscription)
        )
        if context.observer is not None:
            how = "unsubscribe" if delete is None else "deleted"
            context.observer.unsubscribed(subscription, how, is_left=is_left)
        if is_left:
            context.subscriptions.end_unsettled(subscription)
            context.ask(ops.Unsubscribe(subscription, None, subscription.ledger.last_tag), frame)
            return
        context.subscriptions.remove(subscription)
        context.ask(ops.Unsubscribe(subscription, delete), frame)

    # Answers of the broker.

    def subscribed(self, event: ops.Subscribed) -> None:
        """Start the subscription, whose consumer runs, and send the RECEIPT."""
        context, subscription = self._context, event.subscription
        operation = context.operation
        if isinstance(operation, ops.Subscribe) and operation.queue is not None and operation.binding is None:
            context.declared_queues.add(event.queue_name, operation.queue)
        context.subscriptions.add(subscription, event.queue_name)
        if context.observer is not None and isinstance(operation, ops.Subscribe):
            context.observer.subscribed(operation, event.queue_name)
        # The RECEIPT precedes the first MESSAGE, even if the broker delivered earlier.
        context.send_receipt(context.operation_done())
        subscription.start(context.output, context.subscriptions.auto_acks)

    def unsubscribed(self, event: ops.Unsubscribed) -> None:
        """Answer the UNSUBSCRIBE: the consumer is gone."""
        context, operation = self._context, self._context.operation
        if isinstance(operation, ops.Unsubscribe) and operation.keeps_up_to is not None:
            operation.subscription.ledger.give_back_after(operation.keeps_up_to)
            context.subscriptions.note_settled(operation.subscription)
        context.send_receipt(context.operation_done())
        context.end_settled()

    def cancelled(self, event: ops.ConsumerCancelled) -> None:
        """End a subscription whose consumer the broker cancelled, for example because its queue was deleted."""
        context, subscription = self._context, event.subscription
        if not self._end(subscription, "cancelled"):
            return
        identifier, destination = subscription.identifier, subscription.destination
        if identifier is None:
            error = error_frames.subscription_cancelled(b"destination='%b'" % destination, destination)
        elif identifier.startswith(TEMP_QUEUE):
            error = error_frames.subscription_cancelled(None, identifier)
        else:
            error = error_frames.subscription_cancelled(b"id='%b'" % identifier, identifier)
        context.fail(error)

    def revoked(self, event: ops.AccessRevoked) -> None:
        """End a subscription that the user may no longer have, or the session if the login is no longer accepted."""
        context, subscription = self._context, event.subscription
        if subscription is None:
            code, reason = error_frames.ACCESS_REFUSED, CloseReason.ACCESS_REVOKED
            context.fail(error_frames.broker_error(code, event.text, context.settings, reason))
            return
        # Acknowledge what the client got so far.
        context.settle_if_writable()
        if self._end(subscription, "revoked"):
            name = subscription.destination if subscription.identifier is None else subscription.identifier
            is_topic = subscription.kind is DestinationKind.TOPIC
            context.fail(error_frames.access_revoked(event.text, name, context.settings, is_topic=is_topic))

    def _end(self, subscription: Subscription, how: str) -> bool:
        """End a subscription for another reason than UNSUBSCRIBE. Returns False if it has ended already."""
        context = self._context
        if not context.subscriptions.is_current(subscription):
            return False
        if context.observer is not None:
            context.observer.queue_back(subscription)
            context.observer.unsubscribed(subscription, how)
        context.subscriptions.remove(subscription)
        return True
