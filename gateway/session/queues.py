"""Queues: which queue a destination needs, and with which flags and arguments it is declared.

Arguments come from the client's headers, converted to the types of AMQP tables. The operator's arguments are defaults.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from gateway.amqp.properties import LONGEST_SHORT_STRING
from gateway.config.rules import QueueArguments
from gateway.config.virtual_host import VirtualHost
from gateway.session import error_frames
from gateway.session.destinations import Destination, DestinationKind, canonical_texts, durable_queue_name
from gateway.stomp.headers import read_boolean, read_integer

Argument = str | int | datetime | list[str]
"""A value in an AMQP table: a long string, an integer or a boolean, a timestamp in whole seconds, an array."""

_TEXT_ARGUMENTS: Final = (b"x-dead-letter-exchange", b"x-dead-letter-routing-key", b"x-queue-type", b"x-max-age")
# The bound of a signed 64-bit integer in AMQP tables.
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
QUEUE_ARGUMENTS: Final = frozenset((*_TEXT_ARGUMENTS, *_NUMBER_ARGUMENTS))
"""The headers that become arguments of queue.declare."""
# Values and prefixes of x-stream-offset. Anything else is ignored, as in RabbitMQ's adapter.
_OFFSET_WORDS: Final = (b"first", b"last", b"next")
_OFFSET: Final = b"offset="
_TIMESTAMP: Final = b"timestamp="
_END_OF_TIME: Final = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
# Any other text makes RabbitMQ crash and close the link, which other sessions share.
_AGE: Final = re.compile(r"[0-9]+[YMDhms]")

QUEUE_TYPE: Final = "x-queue-type"
REPLICATED_TYPES: Final = ("quorum", "stream")
"""Types of queues that must be durable, not exclusive and not auto-delete."""
_CLASSIC: Final = "classic"

# The arguments of both classic and quorum queues, and those of streams, too. RabbitMQ refuses an argument that the type
# of the queue does not have.
_COMMON: Final = frozenset(
    (
        "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
        "x-dead-letter-routing-key", "x-single-active-consumer",
    )
)  # fmt: skip
_COMMON_TO_STREAMS: Final = frozenset(("x-max-length-bytes",))

# Finds the queue's name in the broker's refusal to declare it.
_NAMED_QUEUE: Final = re.compile(r"queue (?:name )?'(.*)", re.DOTALL)

# A session remembers only this many queues, because it may reply to an endless number of them.
_REMEMBERED_QUEUES: Final = 10_000

# The most unanswered declarations. With many more, RabbitMQ would stop reading the link, and other sessions on it wait.
_MOST_UNANSWERED: Final = 64


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """The declaration of a queue. With an empty name, the broker chooses one."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Argument] = field(default_factory=dict)

    def is_named_in(self, text: str) -> bool:
        """Whether the broker's ``text`` quotes the value of one of the arguments."""
        return any(f"'{value}'" in text for value in self.arguments.values())


@dataclass(frozen=True, slots=True)
class QueueRules:
    """Rules for declaring queues on a broker.

    Args:
        exclusive: the queue of a subscription that is not durable is exclusive to its session.
        replicated: quorum queues and streams are always declared durable and not exclusive, as the broker demands.
        streams_take_nack: the broker accepts basic.nack for messages of a stream.
        defaults: the operator's arguments.
    """

    exclusive: bool = False
    replicated: bool = False
    streams_take_nack: bool = False
    defaults: tuple[QueueArguments, ...] = ()

    @classmethod
    def of(cls, broker_version: tuple[int, ...], settings: VirtualHost) -> QueueRules:
        """The rules for a broker of this version, which is empty if unknown."""
        # Since 4.3, RabbitMQ may refuse queues that are neither durable nor exclusive, and its plugin avoids them.
        is_new = broker_version >= (4, 3)
        exclusive = settings.exclusive_queues
        takes_nack = broker_version >= (4, 0)
        return cls(is_new if exclusive is None else exclusive, is_new, takes_nack, settings.queue_arguments)

    def canonical_texts(self, destination: Destination, topic_exchange: bytes = b"") -> tuple[bytes, ...]:
        """The texts to match with the patterns of ``defaults``; empty without defaults."""
        return canonical_texts(destination, topic_exchange) if self.defaults else ()


class DeclaredQueues:
    """The last 10,000 queues that a session has declared and need not declare again."""

    __slots__ = ("_by_name", "_unanswered", "last_sent")

    def __init__(self) -> None:
        self._by_name: dict[str, QueueSpec] = {}
        # Unanswered declarations that messages follow without waiting, with their numbers. Other channels cannot rely
        # on these queues yet.
        self._unanswered: dict[str, int] = {}
        # The number of the last such declaration.
        self.last_sent = 0

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def get(self, name: str) -> QueueSpec | None:
        """A queue as the session declared it, or None."""
        return self._by_name.get(name)

    def to_declare(self, name: str, queue: QueueSpec | None) -> QueueSpec | None:
        """The queue that another channel must declare before it uses the one with this name; None if it exists.

        ``queue``: the declaration to use if the session has not declared it.
        """
        if name not in self._by_name:
            return queue
        return self._by_name[name] if name in self._unanswered else None

    def add(self, name: str, queue: QueueSpec) -> None:
        """Remember a queue that the broker has declared. It may have chosen the name."""
        if len(self._by_name) >= _REMEMBERED_QUEUES:
            self.discard(next(iter(self._by_name)))
        self._by_name[name] = queue
        self._unanswered.pop(name, None)

    def add_unanswered(self, queue: QueueSpec) -> None:
        """Remember a queue whose declaration was sent and is not answered yet."""
        self.add(queue.name, queue)
        self.last_sent += 1
        self._unanswered[queue.name] = self.last_sent

    @property
    def is_full(self) -> bool:
        """Whether there are too many unanswered declarations to send another."""
        return len(self._unanswered) >= _MOST_UNANSWERED

    def answered(self, last: int) -> None:
        """Note that the broker has carried out all declarations up to this number."""
        self._unanswered = {name: number for name, number in self._unanswered.items() if number > last}

    def refused(self, text: str) -> str:
        """The name of the queue that the broker refused to declare; empty if its text does not tell.

        The text, which may be cut, names the queue, or the dead-letter exchange that the user may not use.
        """
        found = _NAMED_QUEUE.search(text)
        if found is not None:
            fitting = [name for name in self._unanswered if f"{name}'".startswith(found[1][: len(name) + 1])]
            return max(fitting, key=len, default="")
        return next((name for name in self._unanswered if self._by_name[name].is_named_in(text)), "")

    def discard_unanswered(self) -> None:
        """Forget the unanswered declarations, because their channel is lost."""
        for name in tuple(self._unanswered):
            self.discard(name)

    def discard(self, name: str) -> bool:
        """Forget a queue. Returns whether it was known."""
        self._unanswered.pop(name, None)
        return self._by_name.pop(name, None) is not None

    def clear(self) -> None:
        """Forget all queues."""
        self._by_name.clear()
        self._unanswered.clear()


def name_for_broker(header: bytes, name: bytes) -> str:
    """Decode a name or key. Raises StompError, about this ``header``, if it is too long or not UTF-8."""
    if len(name) > LONGEST_SHORT_STRING:
        raise error_frames.too_long(header, len(name))
    return _text(header, name)


def sent_queue(destination: Destination, headers: Mapping[bytes, bytes], rules: QueueRules) -> QueueSpec:
    """The queue that a SEND to ``/queue/<name>`` declares.

    Here ``persistent`` applies only to the message, and ``durable`` to the queue. RabbitMQ's adapter applies
    ``persistent`` to both, so that ``persistent:false`` declares a queue that nobody else can read.
    """
    return _named_queue(destination, headers, _flag(headers, (b"durable",)), rules)


def subscribed_queue(
    destination: Destination,
    headers: Mapping[bytes, bytes],
    fallback: bytes,
    settings: VirtualHost,
    rules: QueueRules,
) -> QueueSpec | None:
    """The queue that a SUBSCRIBE declares, or None if it only consumes.

    ``fallback``: the queue's name for ``/topic`` and ``/exchange`` if the headers give none.
    """
    if destination.kind in (DestinationKind.AMQ_QUEUE, DestinationKind.REPLY_QUEUE):
        queue_arguments(headers)  # nothing is declared, but a malformed argument is an error
        return None
    durable = _flag(headers, (b"durable", b"persistent"))
    if destination.kind is DestinationKind.QUEUE:
        return _named_queue(destination, headers, durable, rules)
    durable = durable or False
    defaults = {b"exclusive": rules.exclusive and not durable, b"auto-delete": True}
    name = bound_queue_name(destination, headers, fallback, settings)
    if b"x-queue-name" in headers:
        # Several destinations may share the queue, and a SEND may declare it. So its defaults depend only on its name.
        destination = Destination(DestinationKind.QUEUE, name)
    canonical = rules.canonical_texts(destination, settings.default_topic_exchange)
    return _spec(name_for_broker(b"x-queue-name", name), headers, durable, defaults, rules, canonical)


def _named_queue(
    destination: Destination, headers: Mapping[bytes, bytes], durable: bool | None, rules: QueueRules
) -> QueueSpec:
    """The queue of ``/queue/<name>``, durable unless the client says otherwise."""
    name = name_for_broker(b"destination", destination.name)
    return _spec(name, headers, durable is not False, {}, rules, rules.canonical_texts(destination))


def temporary_queue(identifier: bytes, rules: QueueRules, name: str = "") -> QueueSpec:
    """The queue of ``/temp-queue/<id>`` in a reply-to, for one session. With an empty name, the broker chooses one."""
    arguments = with_defaults({}, rules.defaults, (identifier,), may_be_replicated=False)
    return QueueSpec(name, exclusive=True, auto_delete=True, arguments=arguments)


def bound_queue_name(
    destination: Destination, headers: Mapping[bytes, bytes], fallback: bytes, settings: VirtualHost
) -> bytes:
    """The queue's name for ``/topic`` and ``/exchange``: x-queue-name, else the durable name, else ``fallback``."""
    own = headers.get(b"x-queue-name")
    if own is not None:
        return own
    if is_durable(headers):
        identifier = headers.get(b"id", b"")
        return durable_queue_name(destination.binding_key, identifier, next_release=settings.next_release)
    return fallback


def is_durable(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a subscription is durable, by either of its two headers."""
    return read_boolean(headers.get(b"durable")) is True or read_boolean(headers.get(b"persistent")) is True


def _flag(headers: Mapping[bytes, bytes], names: tuple[bytes, ...]) -> bool | None:
    """The value of the last of several headers for one flag. Raises StompError for an invalid value."""
    value = None
    for name, text in headers.items():
        if name in names:
            value = read_boolean(text)
            if value is None:
                raise error_frames.processing_error()
    return value


def _spec(
    name: str,
    headers: Mapping[bytes, bytes],
    durable: bool,
    defaults: dict[bytes, bool],
    rules: QueueRules,
    canonical: tuple[bytes, ...],
) -> QueueSpec:
    def chosen(flag: bytes) -> bool:
        explicit = read_boolean(headers.get(flag))
        return explicit if explicit is not None else defaults.get(flag, not durable)

    arguments = queue_arguments(headers)
    is_replicated = rules.replicated and arguments.get(QUEUE_TYPE) in REPLICATED_TYPES
    outlives = durable or is_replicated
    exclusive = chosen(b"exclusive") and not is_replicated
    auto_delete = chosen(b"auto-delete")
    may_be_replicated = outlives and not exclusive and not auto_delete
    return QueueSpec(
        name=name,
        durable=outlives,
        exclusive=exclusive,
        auto_delete=auto_delete,
        arguments=with_defaults(arguments, rules.defaults, canonical, may_be_replicated=may_be_replicated),
    )


# Arguments.


def queue_arguments(headers: Mapping[bytes, bytes]) -> dict[str, Argument]:
    """The arguments of queue.declare in the headers, converted to their types.

    Raises:
        StompError: "Processing error" for a malformed number or age, "Invalid header" for a text that is not UTF-8.
    """
    arguments: dict[str, Argument] = {}
    if QUEUE_ARGUMENTS.isdisjoint(headers):
        return arguments
    for name in _TEXT_ARGUMENTS:
        if name in headers:
            arguments[name.decode()] = _text(name, headers[name].strip(b" "))
    if not _AGE.fullmatch(str(arguments.get("x-max-age", "1s"))):
        raise error_frames.processing_error()
    for name in _NUMBER_ARGUMENTS:
        if name in headers:
            arguments[name.decode()] = _number(headers[name])
    return arguments


def consumer_arguments(headers: Mapping[bytes, bytes]) -> dict[str, Argument]:
    """The arguments of basic.consume in the headers, converted to their types.

    Raises:
        StompError: "Processing error" for a malformed number, "Invalid header" for a text that is not UTF-8.
    """
    arguments: dict[str, Argument] = {}
    offset = _stream_offset(headers.get(b"x-stream-offset", b""))
    if offset is not None:
        arguments["x-stream-offset"] = offset
    if b"x-stream-filter" in headers:
        name = b"x-stream-filter"
        arguments["x-stream-filter"] = [_text(name, each) for each in headers[name].split(b",")]
    unfiltered = read_boolean(headers.get(b"x-stream-match-unfiltered"))
    if unfiltered is not None:
        arguments["x-stream-match-unfiltered"] = unfiltered
    if b"x-priority" in headers:
        arguments["x-priority"] = _number(headers[b"x-priority"])
    return arguments


def _stream_offset(text: bytes) -> Argument | None:
    if text in _OFFSET_WORDS:
        return text.decode()
    if text.startswith(_OFFSET):
        return _number(_bare(text[len(_OFFSET) :]))
    if text.startswith(_TIMESTAMP):
        seconds = _number(_bare(text[len(_TIMESTAMP) :]))
        # AMQP has no times before 1970, and Python none after 9999.
        return datetime.fromtimestamp(min(max(seconds, 0), _END_OF_TIME), UTC)
    return None


def _bare(number: bytes) -> bytes:
    """The digits of an offset. Unlike in other numbers, spaces around them are an error."""
    if number != number.strip(b" "):
        raise error_frames.processing_error()
    return number


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise error_frames.not_text(name) from error


def _number(text: bytes) -> int:
    number = read_integer(text)
    if number is None or not -_NUMBER_BOUND <= number < _NUMBER_BOUND:
        raise error_frames.processing_error()
    return number


def with_defaults(
    own: Mapping[str, Argument],
    defaults: tuple[QueueArguments, ...],
    canonical: tuple[bytes, ...],
    *,
    may_be_replicated: bool,
) -> Mapping[str, Argument]:
    """A client's own arguments, completed by those of the first entry of ``defaults`` that matches the destination.

    The queue may have another type than the entry, because the client names a type, or because the queue cannot be
    replicated. Then it gets only the arguments that all types have, because the broker refuses the others.

    ``canonical``: the texts of the destination to match with patterns. ``may_be_replicated``: the queue is durable, not
    exclusive and not auto-delete.
    """
    wanted = _first_that_fits(defaults, canonical)
    if not wanted:
        return own
    meant = wanted.get(QUEUE_TYPE, _CLASSIC)
    becomes = own.get(QUEUE_TYPE, meant)
    if becomes in REPLICATED_TYPES and QUEUE_TYPE not in own and not may_be_replicated:
        becomes = _CLASSIC
    if becomes != meant:
        common = _COMMON_TO_STREAMS if becomes == "stream" else _COMMON
        wanted = {name: value for name, value in wanted.items() if name in common}
    return {**wanted, **own}


def _first_that_fits(defaults: tuple[QueueArguments, ...], canonical: tuple[bytes, ...]) -> Mapping[str, str | int]:
    for entry in defaults:
        if any(entry.destination.match(text) is not None for text in canonical):
            return entry.arguments
    return {}
