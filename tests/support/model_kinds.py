"""Quorum queues and streams in the model of a broker: what RabbitMQ refuses, and the numbers it adds to messages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

_KINDS: Final = ("classic", "quorum", "stream")
# Property flags of a content header (AMQP 0-9-1, 4.2.6.1 and 1.8).
_CONTENT_TYPE = 1 << 15
_CONTENT_ENCODING = 1 << 14
_HEADERS = 1 << 13


def kind_of(arguments: Mapping[str, Any]) -> str:
    """The kind of a queue: classic, quorum or stream."""
    return str(arguments.get("x-queue-type", "classic"))


def refused_declaration(
    name: str, vhost: str, arguments: Mapping[str, Any], *, durable: bool, exclusive: bool, auto_delete: bool
) -> str | None:
    """RabbitMQ's reply text where it does not make such a queue, None where it does."""
    kind = kind_of(arguments)
    if kind not in _KINDS:
        return f"PRECONDITION_FAILED - invalid arg 'x-queue-type' for queue '{name}' in vhost '{vhost}'"
    for argument, value in arguments.items():
        if isinstance(value, int) and value < 0:
            reason = f"{{value_negative,{value}}}"
            return f"PRECONDITION_FAILED - invalid arg '{argument}' for queue '{name}' in vhost '{vhost}': {reason}"
    if kind == "classic":
        return None
    for unfit, found in (("auto-delete", auto_delete), ("exclusive", exclusive), ("non-durable", not durable)):
        if found:
            return f"PRECONDITION_FAILED - invalid property '{unfit}' for queue '{name}' in vhost '{vhost}'"
    return None


def refused_consumer(
    name: str, vhost: str, queue_arguments: Mapping[str, Any], prefetch: int, arguments: Mapping[str, Any]
) -> str | None:
    """RabbitMQ's reply text where it does not take such a consumer, None where it does."""
    kind = kind_of(queue_arguments)
    if kind == "stream":
        queue = f"'queue '{name}' in vhost '{vhost}''"
        return None if prefetch else f"PRECONDITION_FAILED - consumer prefetch count is not set for {queue}"
    if "x-stream-offset" not in arguments:
        return None
    return (
        f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for queue '{name}' in vhost '{vhost}' "
        f"of queue type rabbit_{kind}_queue"
    )


def first_offset(wanted: object, length: int) -> int:
    """Where a consumer of a stream begins.

    Args:
        wanted: the value of ``x-stream-offset``, None without one.
        length: messages in the stream. All of them count as written after 1970 and before now.
    """
    if isinstance(wanted, int):
        return min(max(wanted, 0), length)
    if isinstance(wanted, datetime):
        return length if wanted > datetime.now(UTC) else 0
    return 0 if wanted == "first" else max(length - 1, 0) if wanted == "last" else length


def with_number(properties: bytes, name: str, number: int) -> bytes:
    """Encoded properties with one more entry in their headers table, a number of 64 bits.

    It is put in by bytes, because pamqp cannot encode everything that it decodes.
    """
    flags = int.from_bytes(properties[:2])
    at = 2
    for flag in (_CONTENT_TYPE, _CONTENT_ENCODING):
        if flags & flag:
            at += 1 + properties[at]
    entry = bytes((len(name),)) + name.encode() + b"l" + number.to_bytes(8)
    size = int.from_bytes(properties[at : at + 4]) if flags & _HEADERS else 0
    behind = properties[at + 4 :] if flags & _HEADERS else properties[at:]
    return (flags | _HEADERS).to_bytes(2) + properties[2:at] + (size + len(entry)).to_bytes(4) + entry + behind
