"""SUBSCRIBE and UNSUBSCRIBE, read: what a client asks for, checked, in the terms of the broker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.config.virtual_host import VirtualHost
from gateway.session import error_frames
from gateway.session.arguments import Argument, consumer_arguments, queue_arguments
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.destinations import TEMP_QUEUE, Destination, Kind, not_for
from gateway.session.queue_defaults import TYPE
from gateway.session.queues import (
    QueueRules,
    QueueSpec,
    is_durable,
    name_for_broker,
    subscribed_queue,
    subscription_queue,
)
from gateway.session.subscription import AckMode
from gateway.stomp.headers import read_integer

# AMQP's prefetch-count has 16 bits.
_LARGEST_PREFETCH: Final = 0xFFFF


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A SUBSCRIBE that makes sense.

    ``tag`` is the subscription's identity in its session. ``queue`` is to be declared, None where there is nothing to
    declare; ``queue_name`` is to be consumed and, when ``binding`` gives an exchange and a routing key, bound.
    ``prefetch`` 0 means no limit. ``arguments`` are those of basic.consume.
    """

    tag: bytes
    identifier: bytes | None
    text: bytes
    mode: AckMode
    queue: QueueSpec | None
    queue_name: str
    binding: tuple[str, str] | None
    prefetch: int
    arguments: dict[str, Argument]

    @property
    def is_stream(self) -> bool:
        """Whether a stream is to be consumed, as far as can be told."""
        declared = {} if self.queue is None else self.queue.arguments
        return "x-stream-offset" in self.arguments or declared.get(TYPE) == "stream"


@dataclass(frozen=True, slots=True)
class UnsubscribeRequest:
    """An UNSUBSCRIBE that names something. ``description`` is how an ERROR speaks of it."""

    tag: bytes
    description: bytes
    durable: bool


def read_subscribe(
    headers: Mapping[bytes, bytes],
    fresh_queue_name: bytes,
    settings: VirtualHost,
    rules: QueueRules,
    destinations: DestinationRules = NO_DESTINATION_RULES,
) -> SubscribeRequest:
    """Read the headers of SUBSCRIBE (STOMP 1.2, "SUBSCRIBE").

    Args:
        headers: of the frame, trimmed where the version demands it.
        fresh_queue_name: for a topic subscription that is not durable.
        settings: of the virtual host.
        rules: how queues must look on its broker.
        destinations: what the client may subscribe to.

    Raises:
        StompError: when they make no sense, or the destination is denied.
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
    if admission.asked.kind is Kind.TEMP_QUEUE:
        queue_arguments(headers)  # the adapter looks at them first
        raise not_for(b"SUBSCRIBE", text)
    if identifier is None and destination.kind in (Kind.TOPIC, Kind.EXCHANGE) and is_durable(headers):
        # Spelt "True", which the adapter's first check overlooks: all such clients would share one queue.
        raise error_frames.processing_error()
    if identifier is not None and identifier.startswith(TEMP_QUEUE):
        raise error_frames.processing_error()
    tag = b"Q_" + text if identifier is None else b"T_" + identifier
    arguments = consumer_arguments(headers)
    if destination.kind in (Kind.TOPIC, Kind.EXCHANGE) and b"x-queue-name" in headers:
        destinations.check_queue(headers[b"x-queue-name"])
    queue = subscribed_queue(destination, headers, fresh_queue_name, settings, rules)
    if queue is not None:
        destinations.check_dead_letters(headers, queue.arguments)
    queue_name, binding = _consumed(destination, queue, settings.default_topic_exchange)
    return SubscribeRequest(tag, identifier, text, mode, queue, queue_name, binding, prefetch, arguments)


def _consumed(
    destination: Destination, queue: QueueSpec | None, topic_exchange: bytes
) -> tuple[str, tuple[str, str] | None]:
    """The queue to consume, and what to bind it to."""
    if queue is None or destination.kind not in (Kind.TOPIC, Kind.EXCHANGE):
        return name_for_broker(b"destination", destination.name), None
    exchange, key = destination.route(topic_exchange)
    return queue.name, (name_for_broker(b"destination", exchange), name_for_broker(b"destination", key))


def read_unsubscribe(headers: Mapping[bytes, bytes]) -> UnsubscribeRequest:
    """Read the headers of UNSUBSCRIBE (STOMP 1.2, "UNSUBSCRIBE").

    Args:
        headers: of the frame, trimmed where the version demands it.

    Raises:
        StompError: when they name nothing, or a reply queue.
    """
    identifier = headers.get(b"id")
    text = headers.get(b"destination")
    durable = is_durable(headers)
    if identifier is None and durable:
        raise error_frames.durable_needs_id()
    if identifier is not None:
        if identifier.startswith(TEMP_QUEUE):
            raise error_frames.temporary_unsubscribe()
        return UnsubscribeRequest(b"T_" + identifier, b"id='%b'" % identifier, durable)
    if text is None:
        raise error_frames.missing_subscription_name()
    return UnsubscribeRequest(b"Q_" + text, b"destination='%b'" % text, durable)


def queue_to_delete(
    subscribed: bytes,
    headers: Mapping[bytes, bytes],
    settings: VirtualHost,
    destinations: DestinationRules = NO_DESTINATION_RULES,
) -> str | None:
    """The queue that a durable UNSUBSCRIBE deletes: only one of a topic, under the name that its own headers give.

    Args:
        subscribed: the destination of the SUBSCRIBE.
        headers: of the UNSUBSCRIBE.
        settings: of the virtual host.
        destinations: what the client may subscribe to.

    Raises:
        StompError: when they name a queue that the client may not have.
    """
    destination = destinations.for_subscribe(subscribed).destination
    if destination.kind is not Kind.TOPIC or not is_durable(headers):
        return None
    if b"x-queue-name" in headers:
        destinations.check_queue(headers[b"x-queue-name"])
    return name_for_broker(b"x-queue-name", subscription_queue(destination, headers, b"", settings))


def _ack_mode(text: bytes | None) -> AckMode:
    try:
        return AckMode.AUTO if text is None else AckMode(text)
    except ValueError:
        raise error_frames.processing_error() from None


def _prefetch(text: bytes | None, settings: VirtualHost) -> int:
    number = settings.prefetch.default or 0 if text is None else read_integer(text)
    if number is None or number < 0:
        raise error_frames.processing_error()
    most = settings.prefetch.max or 0
    # No limit is more than any.
    return min(number or most, most or _LARGEST_PREFETCH)
