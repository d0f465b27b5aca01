"""SEND in AMQP: the translation of a SEND's header block, computed once and kept on the block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.amqp.codec import Publication, encode_publish
from gateway.amqp.properties import LONGEST_SHORT_STRING, encode_around_table
from gateway.errors import StompError
from gateway.session import error_frames
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.destinations import TEMP_QUEUE, DestinationKind, not_for, parse
from gateway.session.queues import QueueRules, QueueSpec, queue_arguments, sent_queue
from gateway.session.traffic import SendCounter, TrafficCounter
from gateway.session.translate import check_names, properties_of_send, table_of_send
from gateway.stomp.frame import RECEIPT, Frame
from gateway.stomp.headers import read_boolean

# The headers of properties that RabbitMQ checks, and its words about one that it refuses.
_NAMED_PROPERTIES: Final = ((b"expiration", b"expiration '%b'"), (b"user-id", b"user_id property set to '%b'"))

_NO_VALUES: Final[tuple[bytes, ...]] = ()
_NO_RULES: Final = QueueRules()

# The confirm window ignores headers of up to _SMALL bytes. Larger ones take _COPIES times their size in memory.
_SMALL: Final = 512
_COPIES: Final = 4


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A valid SEND.

    Args:
        destination: as the client wrote it. Exchange, routing key and queue are those after a rule has rewritten it.
        queue: the queue to declare, or None.
        temp_queue: the id in its reply-to, if that names a temporary queue.
        mandatory: the client or a rule asks that unroutable messages be returned.
    """

    destination: bytes
    kind: DestinationKind
    exchange: bytes
    routing_key: bytes
    queue: QueueSpec | None
    temp_queue: bytes | None
    transaction: bytes | None
    mandatory: bool


def read_send(
    headers: Mapping[bytes, bytes], topic_exchange: bytes, rules: QueueRules, destinations: DestinationRules
) -> SendRequest:
    """Read the headers of SEND (STOMP 1.2, "SEND").

    Raises:
        StompError: a header is missing or invalid, or the destination is denied.
    """
    if b"message-id" in headers:
        raise error_frames.forbidden_message_id()
    text = headers.get(b"destination")
    if text is None:
        raise error_frames.missing_destination(b"SEND")
    admission = destinations.for_send(text)
    destination = admission.destination
    if admission.asked.kind is DestinationKind.TEMP_QUEUE:
        queue_arguments(headers)  # RabbitMQ's adapter checks them first
        raise not_for(b"SEND", text)
    exchange, routing_key = destination.route(topic_exchange)
    for name in (exchange, routing_key):
        if len(name) > LONGEST_SHORT_STRING:
            raise error_frames.too_long(b"destination", len(name))
    queue = None
    if destination.kind is DestinationKind.QUEUE:
        queue = sent_queue(destination, headers, rules)
        destinations.check_dead_letters(headers, queue.arguments)
    else:
        queue_arguments(headers)  # nothing is declared, but a malformed argument is an error
    mandatory = read_boolean(headers.get(b"mandatory")) is True or (
        admission.rule is not None and admission.rule.mandatory
    )
    kind, transaction = admission.asked.kind, headers.get(b"transaction")
    return SendRequest(text, kind, exchange, routing_key, queue, _temp_queue(headers), transaction, mandatory)


@dataclass(frozen=True, slots=True)
class PublishChannel:
    """The publishing channel. A publication that is built for one object is not used with another, even an equal one.

    Args:
        number: 0 without a channel.
        frame_max: its largest frame in bytes, 0 for no limit.
        has_rejected: the broker has rejected a message. The channel is then replaced: in RabbitMQ 3.10, if the leader
            of a quorum queue is dead when the channel's first message for it arrives, the channel rejects all later
            messages for that queue.
    """

    number: int = 0
    frame_max: int = 0
    has_rejected: bool = False


class CachedPublish:
    """The translation of a SEND into AMQP, without its body and its volatile headers.

    Args:
        volatile: the names of headers whose values differ from frame to frame.
        topic_exchange: the virtual host's default topic exchange.
        trims: remove leading spaces of volatile values, as in STOMP 1.0.

    Raises:
        StompError: a header is missing, invalid or too long for AMQP, or the destination is denied.
    """

    __slots__ = (
        "_around_table", "_trims", "_volatile", "channel", "counter", "gaps", "headers", "held", "is_plain",
        "publication", "reply_queue", "request", "traffic",
    )  # fmt: skip

    # The counter of the destination, which all its header blocks share, and that of the observer, if there is one.
    traffic: TrafficCounter
    # Set by ``build``, and valid only for ``channel``.
    publication: Publication

    def __init__(
        self,
        headers: Mapping[bytes, bytes],
        volatile: tuple[bytes, ...],
        topic_exchange: bytes,
        *,
        trims: bool = False,
        rules: QueueRules = _NO_RULES,
        destinations: DestinationRules = NO_DESTINATION_RULES,
    ) -> None:
        request = self.request = read_send(headers, topic_exchange, rules, destinations)
        self.counter: SendCounter | None = None
        # The channel of ``publication``. The publisher compares it with its own.
        self.channel: PublishChannel | None = None
        self.reply_queue: bytes | None = None
        # False if every frame needs a check, because a transaction may have ended, or a reply queue may be gone.
        self.is_plain = request.transaction is None and request.temp_queue is None
        # The names of the headers whose values differ from message to message, in the order of the headers table.
        self.gaps = _NO_VALUES
        self._trims = trims
        self._volatile = volatile
        self.headers = headers
        # The bytes of memory, besides the body, that an unconfirmed message keeps if nothing else shares its headers.
        size = sum(map(len, headers)) + sum(map(len, headers.values()))
        self.held = _COPIES * size if size > _SMALL else 0
        self._around_table = self._properties(None if request.temp_queue else headers.get(b"reply-to"))
        check_names(headers)

    def _properties(self, reply_to: bytes | None) -> tuple[bytes, bytes]:
        """The bytes before and after the headers table."""
        return encode_around_table(properties_of_send(self.headers, reply_to))

    def build(self, channel: PublishChannel, reply_queue: bytes | None) -> Publication:
        """Encode the parts that messages with this header block share, for one channel.

        ``reply_queue``: the name of the queue of ``request.temp_queue``.

        Raises:
            CodecError: a name is too long for AMQP.
        """
        before, behind = self._properties(reply_queue) if reply_queue else self._around_table
        # If the session declared the queue and it is gone, the broker shall return the message.
        request = self.request
        mandatory = request.mandatory or request.queue is not None
        method = encode_publish(channel.number, request.exchange, request.routing_key, mandatory=mandatory)
        self.publication = Publication(channel.number, channel.frame_max, method, before, self.table(), behind)
        self.channel, self.reply_queue = channel, reply_queue
        return self.publication

    def is_named_in(self, reason: bytes) -> bool:
        """Whether one of these messages may be the broker's ``reason`` for closing the channel.

        RabbitMQ names the exchange, for a topic permission also the routing key, or a property that it refuses.
        """
        if b"exchange '" in reason:
            names_key = b"topic '" not in reason or b"topic '%b'" % self.request.routing_key in reason
            return names_key and b"exchange '%b'" % (self.request.exchange or b"amq.default") in reason
        values = ((self.headers.get(name), text) for name, text in _NAMED_PROPERTIES)
        return any(text % value in reason for value, text in values if value is not None)

    def held_with(self, values: tuple[bytes, ...]) -> int:
        """The bytes of memory, besides the body, that a message with these values for ``gaps`` may keep."""
        del values  # they are included in `held`, or small
        return self.held

    def table(self) -> tuple[bytes, ...]:
        """Encode the headers table for `Publication`, and set ``gaps``."""
        table, self.gaps = table_of_send(self.headers, self._volatile)
        return table

    def check(self, receipt: bytes | None, frame: Frame) -> None:
        """Check that AMQP can carry a transaction's frame. Raises CodecError if its headers are too large."""
        self.publication.encode(b"", self.values(receipt, frame.length))

    def values(self, receipt: bytes | None, length: bytes | None) -> tuple[bytes, ...]:
        """The values for ``gaps``: receipt and content-length of one frame, if it has them. HOT: once per SEND."""
        gaps = self.gaps
        if not gaps:
            return _NO_VALUES
        length = length or b""
        if self._trims:
            length = length.lstrip(b" ")
        if len(gaps) == 1:
            return (receipt or b"",) if gaps[0] == RECEIPT else (length,)
        return (receipt or b"", length) if gaps[0] == RECEIPT else (length, receipt or b"")


def _temp_queue(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The id in a SEND's reply-to if it names a temporary queue. Raises StompError for an invalid destination."""
    reply_to = headers.get(b"reply-to")
    if not reply_to:
        return None
    try:
        parsed = parse(reply_to)
    except StompError as error:
        raise error_frames.processing_error() from error
    return reply_to if reply_to.startswith(TEMP_QUEUE) and parsed.kind is DestinationKind.TEMP_QUEUE else None
