"""STOMP headers to AMQP properties, and back.

Both happen once per header block, and are cached: for SEND in `CachedPublish`, for MESSAGE in `MessageHeaders`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.amqp import properties as amqp
from gateway.amqp.properties import LONGEST_SHORT_STRING, Properties
from gateway.session import error_frames
from gateway.session.destinations import message_reply_to
from gateway.stomp.headers import read_boolean, read_integer

PERSISTENT: Final = 2

# Header of SEND -> field of Properties, verbatim.
_TEXTS: Final = {
    b"content-type": "content_type",
    b"content-encoding": "content_encoding",
    b"correlation-id": "correlation_id",
    b"expiration": "expiration",
    b"amqp-message-id": "message_id",
    b"type": "type",
    b"user-id": "user_id",
    b"app-id": "app_id",
}
_NUMBERS: Final = {b"priority": ("priority", 0xFF), b"timestamp": ("timestamp", 0xFFFF_FFFF_FFFF_FFFF)}
PUBLISHED: Final = b"x-stomp-gateway-published"
"""The entry of the headers table with the time of publishing (`correlation`)."""

_EXPIRATION: Final = re.compile(rb"\d{1,10}")

_FIELDS: Final = frozenset((*_TEXTS, *_NUMBERS, b"persistent"))

PROPERTIES: Final = frozenset((*_TEXTS, *_NUMBERS, b"destination", b"reply-to", b"persistent", PUBLISHED))
"""The headers of SEND that are not put into the headers table."""

# The headers of MESSAGE that the gateway itself writes, and the time of publishing. A message's own header with such a
# name is dropped, so that no publisher can forge, for example, an ack id.
_OWN: Final = frozenset(
    (b"subscription", b"destination", b"message-id", b"redelivered", b"ack", b"content-length", PUBLISHED)
)


def without_bad_numbers(headers: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """Drop a priority or timestamp that is not a number, as the next release of the plugin does.

    Raises:
        StompError: the expiration is not a number, and the broker would refuse it.
    """
    if b"expiration" in headers and _EXPIRATION.fullmatch(headers[b"expiration"]) is None:
        raise error_frames.processing_error()
    bad = [name for name in _NUMBERS if name in headers and read_integer(headers[name]) is None]
    return {name: value for name, value in headers.items() if name not in bad} if bad else headers


def properties_of_send(headers: Mapping[bytes, bytes], reply_to: bytes | None) -> Properties:
    """The AMQP properties that a SEND's headers ask for, without the headers table.

    ``reply_to``: the value of the header, or the name of the temporary queue in it.

    Raises:
        StompError: a priority or timestamp is malformed, or a text is too long for AMQP.
    """
    found = Properties(reply_to=reply_to)
    if reply_to is not None and len(reply_to) > LONGEST_SHORT_STRING:
        raise error_frames.too_long(b"reply-to", len(reply_to))
    if _FIELDS.isdisjoint(headers):
        return found
    for name, text_field in _TEXTS.items():
        value = headers.get(name)
        if value is None:
            continue
        if len(value) > LONGEST_SHORT_STRING:
            raise error_frames.too_long(name, len(value))
        setattr(found, text_field, value)
    for name, (number_field, mask) in _NUMBERS.items():
        if name in headers:
            number = read_integer(headers[name])
            if number is None:
                raise error_frames.processing_error()
            # Larger numbers wrap, as they do in RabbitMQ's adapter.
            setattr(found, number_field, number & mask)
    if read_boolean(headers.get(b"persistent")):
        found.delivery_mode = PERSISTENT
    return found


def table_of_send(
    headers: Mapping[bytes, bytes], gaps: tuple[bytes, ...]
) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """Encode the headers table of a SEND: every header that is not a property, as a long string, last header first.

    The values of ``gaps`` differ from message to message and are left out.

    Returns:
        The table's bytes, cut at these values (see `Publication`), and the names of ``gaps`` in the table's order.

    Raises:
        StompError: a name is too long for AMQP.
    """
    check_names(headers)
    entries = [entry for entry in reversed(tuple(headers.items())) if entry[0] not in PROPERTIES]
    pieces: list[bytes] = []
    names: list[bytes] = []
    begin = 0
    for at, (name, _) in enumerate(entries) if gaps else ():
        if name in gaps:
            pieces.append(amqp.table_entries(entries[begin:at]) + amqp.table_name(name))
            names.append(name)
            begin = at + 1
    return (*pieces, amqp.table_entries(entries[begin:] if begin else entries)), tuple(names)


def check_names(headers: Mapping[bytes, bytes]) -> None:
    """Check that AMQP can carry the names of a SEND's headers. Raises StompError if a name is too long."""
    if max(map(len, headers), default=0) > LONGEST_SHORT_STRING:
        raise error_frames.name_too_long(
            next(name for name in reversed(tuple(headers)) if len(name) > LONGEST_SHORT_STRING)
        )


def shown_headers(properties: Properties) -> list[tuple[bytes, bytes]]:
    """The message's own headers for MESSAGE, unescaped: the headers table in its order, and then properties."""
    lines = _property_lines(properties)
    taken = _OWN.union([name for name, _ in lines]) if lines else _OWN
    table = [
        (name, value if isinstance(value, bytes) else b"%d" % value)
        for name, value in properties.headers or ()
        if name not in taken
    ]
    return table + lines


def _property_lines(found: Properties) -> list[tuple[bytes, bytes]]:
    persistent = None
    if found.delivery_mode is not None:
        persistent = b"true" if found.delivery_mode == PERSISTENT else b"%d" % found.delivery_mode
    lines = (
        (b"app-id", found.app_id),
        (b"user-id", found.user_id),
        (b"type", found.type),
        (b"timestamp", None if found.timestamp is None else b"%d" % found.timestamp),
        (b"amqp-message-id", found.message_id),
        (b"expiration", found.expiration),
        (b"reply-to", None if found.reply_to is None else message_reply_to(found.reply_to)),
        (b"correlation-id", found.correlation_id),
        (b"priority", None if found.priority is None else b"%d" % found.priority),
        (b"persistent", persistent),
        (b"content-encoding", found.content_encoding),
        (b"content-type", found.content_type),
    )
    return [(name, value) for name, value in lines if value is not None]
