"""Queue declarations: which queue a destination needs, with which flags and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.session import refusals
from gateway.session.destinations import Destination, Kind, durable_queue_name
from gateway.stomp.headers import read_boolean, read_integer

_TEXT_ARGUMENTS: Final = (b"x-dead-letter-exchange", b"x-dead-letter-routing-key", b"x-queue-type", b"x-max-age")
# A long-long-int of AMQP's tables.
_NUMBER_BOUND: Final = 1 << 63
_NUMBER_ARGUMENTS: Final = (
    b"x-expires",
    b"x-max-length",
    b"x-max-length-bytes",
    b"x-max-priority",
    b"x-message-ttl",
    b"x-stream-max-segment-size-bytes",
    b"x-stream-filter-size-bytes",
)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as it is to be declared; an empty name lets the broker choose one."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, str | int] = field(default_factory=dict)


def name_for_broker(header: bytes, octets: bytes) -> str:
    """A name or key for a broker operation, checked for what AMQP can carry.

    Args:
        header: the header to name in the error.
        octets: the name.

    Raises:
        StompError: when it has more than 255 octets or is not UTF-8.
    """
    if len(octets) > 255:  # noqa: PLR2004 - AMQP's short string
        raise refusals.too_long(header, len(octets))
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise refusals.not_text(header) from error


def sent_queue(destination: Destination, headers: Mapping[bytes, bytes]) -> QueueSpec:
    """The queue that a SEND to ``/queue/<name>`` declares.

    On SEND, ``persistent`` speaks of the message only and ``durable`` of the queue; RabbitMQ's adapter lets
    ``persistent`` speak of both, which makes ``persistent:false`` declare a queue that nobody else can read.
    """
    durable = _flag(headers, (b"durable",))
    return _spec(name_for_broker(b"destination", destination.name), headers, True if durable is None else durable, {})


def subscribed_queue(destination: Destination, headers: Mapping[bytes, bytes], fallback: bytes) -> QueueSpec | None:
    """The queue that a SUBSCRIBE declares, or None where it only consumes.

    Args:
        destination: where to subscribe.
        headers: the frame's.
        fallback: queue name for a topic subscription that is not durable.
    """
    if destination.kind in (Kind.AMQ_QUEUE, Kind.REPLY_QUEUE):
        # Nothing is declared, but a number that is none is an error all the same.
        queue_arguments(headers)
        return None
    durable = _flag(headers, (b"durable", b"persistent"))
    if destination.kind is Kind.QUEUE:
        durable = True if durable is None else durable
        return _spec(name_for_broker(b"destination", destination.name), headers, durable, {})
    defaults = {b"exclusive": False, b"auto-delete": True}
    name = subscription_queue(destination, headers, fallback)
    return _spec(name_for_broker(b"x-queue-name", name), headers, durable or False, defaults)


def subscription_queue(destination: Destination, headers: Mapping[bytes, bytes], fallback: bytes) -> bytes:
    """The name of a topic subscription's queue: the client's own, the durable one, or the fallback."""
    own = headers.get(b"x-queue-name")
    if own is not None:
        return own
    if is_durable(headers):
        return durable_queue_name(destination.binding_key, headers.get(b"id", b""))
    return fallback


def is_durable(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a subscription is meant to outlive its session, in either of the two spellings."""
    return read_boolean(headers.get(b"durable")) is True or read_boolean(headers.get(b"persistent")) is True


def _flag(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> bool | None:
    """The last of several spellings of one flag; an unreadable one is an error."""
    value = None
    for name, text in headers.items():
        if name in names:
            value = read_boolean(text)
            if value is None:
                raise refusals.processing_error()
    return value


def _spec(name: str, headers: Mapping[bytes, bytes], durable: bool, defaults: dict[bytes, bool]) -> QueueSpec:
    def chosen(flag: bytes) -> bool:
        explicit = read_boolean(headers.get(flag))
        return explicit if explicit is not None else defaults.get(flag, not durable)

    return QueueSpec(
        name=name,
        durable=durable,
        exclusive=chosen(b"exclusive"),
        auto_delete=chosen(b"auto-delete"),
        arguments=queue_arguments(headers),
    )


def queue_arguments(headers: Mapping[bytes, bytes]) -> dict[str, str | int]:
    """The headers that become arguments of queue.declare, typed.

    Raises:
        StompError: "Processing error" for a number that is none, "Invalid header" for a text that is not UTF-8.
    """
    arguments: dict[str, str | int] = {}
    for name in _TEXT_ARGUMENTS:
        if name in headers:
            try:
                arguments[name.decode()] = headers[name].strip(b" ").decode()
            except UnicodeDecodeError as error:
                raise refusals.not_text(name) from error
    for name in _NUMBER_ARGUMENTS:
        if name in headers:
            number = read_integer(headers[name])
            if number is None or not -_NUMBER_BOUND <= number < _NUMBER_BOUND:
                raise refusals.processing_error()
            arguments[name.decode()] = number
    return arguments
