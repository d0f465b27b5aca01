"""Finds in passing frames what the gateway would answer differently than RabbitMQ's plugin.

Each departure has the name of the rule, a transcript, that shows both answers: see the table of departures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.errors import StompError
from gateway.session.destinations import DestinationKind, parse
from gateway.stomp.headers import read_boolean, read_integer

MALFORMED: Final = "frame/malformed-no-colon"
SECOND_CONNECT: Final = "connect/second-connect"
_LOCAL_HOST: Final = "connect/host-localhost"
ERROR_TO_RECEIPT: Final = "error/receipt-id"
REFUSED_SUBSCRIBE: Final = "subscribe/refused-receipt"
EARLY_DISCONNECT: Final = "receipt/disconnect-after-send"
OTHER_SUBSCRIPTIONS: Final = "acknowledge/cumulative-subscriptions"
OTHER_SESSION: Final = "acknowledge/other-session"
UNACKNOWLEDGED: Final = "acknowledge/unsubscribe-gives-back"
UNESCAPED: Final = "frame/escapes-message-id"
STREAM_NACK: Final = "subscribe/stream-nack"
NEXT_PREFETCH: Final = "subscribe/prefetch-next"
_SEPARATOR: Final = "acknowledge/id-with-separator"
_PREFETCH: Final = "subscribe/prefetch-negative"
_STREAM_AUTO: Final = "subscribe/stream-auto"
_DURABLE_EXCHANGE: Final = "durable/exchange-offline"
_TRANSIENT: Final = "send/persistent-false-queue"
_COLLISION: Final = "send/header-collision"
_LONG_NAME: Final = "destination/name-too-long"
_LONG_PROPERTY: Final = "send/property-too-long"
_NOT_TEXT: Final = "destination/not-utf8"
_LARGE_NUMBER: Final = "send/number-wraps-stomp"

RULES: Final = (
    MALFORMED, SECOND_CONNECT, _LOCAL_HOST, ERROR_TO_RECEIPT, REFUSED_SUBSCRIBE, EARLY_DISCONNECT, OTHER_SUBSCRIPTIONS,
    OTHER_SESSION, UNACKNOWLEDGED, UNESCAPED, STREAM_NACK, NEXT_PREFETCH, _SEPARATOR, _PREFETCH, _STREAM_AUTO,
    _DURABLE_EXCHANGE, _TRANSIENT, _COLLISION, _LONG_NAME, _LONG_PROPERTY, _NOT_TEXT, _LARGE_NUMBER,
)  # fmt: skip
"""All departures that the tap can find."""

# Hosts that mean the default virtual host of the gateway, if none has that name.
_LOCAL_HOSTS: Final = (b"localhost", b"127.0.0.1", b"::1")
_LONGEST_NAME: Final = 255
_LARGEST_PRIORITY: Final = 255
_LARGEST_TIMESTAMP: Final = (1 << 64) - 1
# Headers of a MESSAGE that the server sets.
_OF_SERVERS: Final = frozenset((b"message-id", b"subscription", b"redelivered", b"ack"))
# Properties that are AMQP short strings.
_SHORT_PROPERTIES: Final = (
    b"content-type", b"content-encoding", b"correlation-id", b"reply-to", b"expiration", b"amqp-message-id", b"type",
    b"user-id", b"app-id",
)  # fmt: skip


def kind_if_valid(destination: bytes) -> DestinationKind | None:
    """The kind of a destination in RabbitMQ; None if it is invalid there."""
    try:
        return parse(destination).kind
    except StompError:
        return None


def reads_stream(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the headers of a SUBSCRIBE show that its queue is a stream."""
    return b"x-stream-offset" in headers or headers.get(b"x-queue-type") == b"stream"


def of_connect(headers: Mapping[bytes, bytes]) -> Iterator[str]:
    """The departures of a CONNECT, whatever the server answers."""
    if headers.get(b"host") in _LOCAL_HOSTS:
        yield _LOCAL_HOST


def of_send(headers: Mapping[bytes, bytes]) -> Iterator[str]:
    """The departures of a SEND."""
    destination = headers.get(b"destination", b"")
    yield from _of_name(destination)
    if read_boolean(headers.get(b"persistent")) is False and kind_if_valid(destination) is DestinationKind.QUEUE:
        yield _TRANSIENT
    if not _OF_SERVERS.isdisjoint(headers):
        yield _COLLISION
    if any(len(headers.get(name, b"")) > _LONGEST_NAME for name in _SHORT_PROPERTIES):
        yield _LONG_PROPERTY
    for name, most in ((b"priority", _LARGEST_PRIORITY), (b"timestamp", _LARGEST_TIMESTAMP)):
        number = read_integer(headers.get(name, b""))
        if number is not None and not 0 <= number <= most:
            yield _LARGE_NUMBER


def of_subscribe(headers: Mapping[bytes, bytes], *, is_durable: bool) -> Iterator[str]:
    """The departures of a SUBSCRIBE by itself."""
    destination, mode = headers.get(b"destination", b""), headers.get(b"ack", b"auto")
    yield from _of_name(destination)
    if mode != b"auto" and b"@@" in headers.get(b"id", b""):
        yield _SEPARATOR
    prefetch = read_integer(headers.get(b"prefetch-count", b""))
    if prefetch is not None and prefetch < 0:
        yield _PREFETCH
    if mode == b"auto" and reads_stream(headers):
        yield _STREAM_AUTO
    if is_durable and kind_if_valid(destination) is DestinationKind.EXCHANGE:
        yield _DURABLE_EXCHANGE


def _of_name(destination: bytes) -> Iterator[str]:
    try:
        destination.decode()
    except UnicodeDecodeError:
        yield _NOT_TEXT
    try:
        parsed = parse(destination)
    except StompError:
        return
    if max(len(parsed.name), len(parsed.key)) > _LONGEST_NAME:
        yield _LONG_NAME
