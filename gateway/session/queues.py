"""Queue declarations: which queue a destination needs, with which flags and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.config.rules import QueueArguments
from gateway.config.virtual_host import VirtualHost
from gateway.session import error_frames
from gateway.session.arguments import Argument, queue_arguments
from gateway.session.destinations import Destination, Kind, durable_queue_name, spellings
from gateway.session.queue_defaults import REPLICATED, TYPE, with_defaults
from gateway.stomp.headers import read_boolean


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as it is to be declared; an empty name lets the broker choose one."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueRules:
    """How queues must look on a broker beyond what a client asks for.

    ``exclusive`` says that the queue of a subscription that is not durable belongs to its session alone. ``replicated``
    says that quorum queues and streams are always declared durable and not exclusive, as the broker wants them.
    ``streams_take_nack`` says that the broker bears a basic.nack for a message of a stream. ``defaults`` are arguments
    that the operator wants.
    """

    exclusive: bool = False
    replicated: bool = False
    streams_take_nack: bool = False
    defaults: tuple[QueueArguments, ...] = ()

    @classmethod
    def of(cls, broker_version: tuple[int, ...], settings: VirtualHost) -> QueueRules:
        """The rules for a broker.

        Args:
            broker_version: RabbitMQ's, as numbers; empty when it does not say.
            settings: of the virtual host.
        """
        # From 4.3 on RabbitMQ refuses queues that are neither durable nor exclusive.
        is_new = broker_version >= (4, 3)
        exclusive = settings.exclusive_queues
        return cls(is_new if exclusive is None else exclusive, is_new, is_new, settings.queue_arguments)

    def spellings(self, destination: Destination, topic_exchange: bytes = b"") -> tuple[bytes, ...]:
        """The texts that ``defaults`` may speak of; none where there are no defaults, which is the common case."""
        return spellings(destination, topic_exchange) if self.defaults else ()


def name_for_broker(header: bytes, octets: bytes) -> str:
    """A name or key for a broker operation, checked for what AMQP can carry.

    Args:
        header: the header to name in the error.
        octets: the name.

    Raises:
        StompError: when it has more than 255 bytes or is not UTF-8.
    """
    if len(octets) > 255:  # noqa: PLR2004 - AMQP's short string
        raise error_frames.too_long(header, len(octets))
    try:
        return octets.decode()
    except UnicodeDecodeError as error:
        raise error_frames.not_text(header) from error


def sent_queue(destination: Destination, headers: Mapping[bytes, bytes], rules: QueueRules) -> QueueSpec:
    """The queue that a SEND to ``/queue/<name>`` declares.

    On SEND, ``persistent`` speaks of the message only and ``durable`` of the queue; RabbitMQ's adapter lets
    ``persistent`` speak of both, which makes ``persistent:false`` declare a queue that nobody else can read.
    """
    durable = _flag(headers, (b"durable",))
    name = name_for_broker(b"destination", destination.name)
    canonical = rules.spellings(destination)
    return _spec(name, headers, True if durable is None else durable, {}, rules, canonical)


def subscribed_queue(
    destination: Destination,
    headers: Mapping[bytes, bytes],
    fallback: bytes,
    settings: VirtualHost,
    rules: QueueRules,
) -> QueueSpec | None:
    """The queue that a SUBSCRIBE declares, or None where it only consumes.

    Args:
        destination: where to subscribe.
        headers: the frame's.
        fallback: queue name for a topic subscription that is not durable.
        settings: of the virtual host.
        rules: how queues must look on its broker.
    """
    if destination.kind in (Kind.AMQ_QUEUE, Kind.REPLY_QUEUE):
        # Nothing is declared, but a number that is none is an error all the same.
        queue_arguments(headers)
        return None
    durable = _flag(headers, (b"durable", b"persistent"))
    if destination.kind is Kind.QUEUE:
        durable = True if durable is None else durable
        canonical = rules.spellings(destination, settings.default_topic_exchange)
        return _spec(name_for_broker(b"destination", destination.name), headers, durable, {}, rules, canonical)
    durable = durable or False
    defaults = {b"exclusive": rules.exclusive and not durable, b"auto-delete": True}
    name = subscription_queue(destination, headers, fallback, settings)
    if b"x-queue-name" in headers:
        # Whatever it is bound to: several destinations may share it, and a SEND may declare it.
        destination = Destination(Kind.QUEUE, name)
    canonical = rules.spellings(destination, settings.default_topic_exchange)
    return _spec(name_for_broker(b"x-queue-name", name), headers, durable, defaults, rules, canonical)


def temporary_queue(identifier: bytes, rules: QueueRules) -> QueueSpec:
    """The queue behind ``/temp-queue/<id>`` in a reply-to: the broker names it, and one session alone reads it.

    Args:
        identifier: the destination.
        rules: how queues must look on the broker.
    """
    arguments = with_defaults({}, rules.defaults, (identifier,), may_be_replicated=False)
    return QueueSpec("", exclusive=True, auto_delete=True, arguments=arguments)


def subscription_queue(
    destination: Destination, headers: Mapping[bytes, bytes], fallback: bytes, settings: VirtualHost
) -> bytes:
    """The name of a topic subscription's queue: the client's own, the durable one, or the fallback."""
    own = headers.get(b"x-queue-name")
    if own is not None:
        return own
    if is_durable(headers):
        identifier = headers.get(b"id", b"")
        return durable_queue_name(destination.binding_key, identifier, next_release=settings.next_release)
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
    is_replicated = rules.replicated and arguments.get(TYPE) in REPLICATED
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
