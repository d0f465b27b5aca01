"""SEND, translated: what a head of SEND means on the broker, worked out once and kept on the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.amqp.codec import Publication, encode_publish
from gateway.amqp.properties import LONGEST_SHORT_STRING, encode_around_table
from gateway.errors import StompError
from gateway.session import error_frames
from gateway.session.arguments import queue_arguments
from gateway.session.destination_rules import NO_DESTINATION_RULES, DestinationRules
from gateway.session.destinations import TEMP_QUEUE, Destination, Kind, not_for, parse
from gateway.session.publisher import Publisher
from gateway.session.queues import QueueRules, QueueSpec, sent_queue
from gateway.session.traffic import SendCounter, TrafficCounter
from gateway.session.translate import properties_of_send, table_of_send
from gateway.stomp.frame import RECEIPT, Frame
from gateway.stomp.headers import read_boolean

_NO_VALUES: Final[tuple[bytes, ...]] = ()
_NO_RULES: Final = QueueRules()


class CachedPublish:
    """Everything about a SEND but its body and its volatile headers.

    Args:
        headers: of the frame, trimmed where the version demands it.
        volatile: names of the headers whose values belong to the single frame.
        topic_exchange: the virtual host's default topic exchange.
        trims: whether values lose their leading spaces, as in STOMP 1.0.
        rules: how queues must look on the broker.
        destinations: what the client may send where.

    Raises:
        StompError: when the headers make no sense, or hold what AMQP cannot carry, or the destination is denied.
    """

    __slots__ = (
        "_gaps",
        "_headers",
        "_trims",
        "_volatile",
        "counter",
        "destination",
        "exchange",
        "is_plain",
        "kind",
        "mandatory",
        "publication",
        "queue",
        "reply_queue",
        "routing_key",
        "temp_queue",
        "traffic",
        "transaction",
    )  # fmt: skip

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
        if b"message-id" in headers:
            raise error_frames.forbidden_message_id()
        text = headers.get(b"destination")
        if text is None:
            raise error_frames.missing_destination(b"SEND")
        admission = destinations.for_send(text)
        if admission.asked.kind is Kind.TEMP_QUEUE:
            queue_arguments(headers)  # the adapter looks at them first
            raise not_for(b"SEND", text)
        # The client's own; what follows is about the one that a rule may have put in its place.
        self.destination = text
        self.kind = admission.asked.kind
        parsed = admission.destination
        # The observer's counter, and the one that all plans of the session with this destination share.
        self.counter: SendCounter | None = None
        self.traffic = TrafficCounter()
        self.exchange, self.routing_key = parsed.route(topic_exchange)
        for name in (self.exchange, self.routing_key):
            if len(name) > LONGEST_SHORT_STRING:
                raise error_frames.too_long(b"destination", len(name))
        self.queue = self._queue(parsed, headers, rules)
        if self.queue is not None:
            destinations.check_dead_letters(headers, self.queue.arguments)
        self.temp_queue = _temp_queue(headers)
        self.transaction = headers.get(b"transaction")
        self.mandatory = read_boolean(headers.get(b"mandatory")) is True or (
            admission.rule is not None and admission.rule.mandatory
        )
        # Made by ``build`` once the publishing channel is known and everything the message needs is there.
        self.publication: Publication | None = None
        self.reply_queue: bytes | None = None
        # Looked at anew each time: its transaction may have ended, its reply queue may have gone.
        self.is_plain = self.transaction is None and self.temp_queue is None
        self._gaps = _NO_VALUES
        self._trims = trims
        self._volatile = volatile
        self._headers = headers
        properties_of_send(headers, None if self.temp_queue else headers.get(b"reply-to"))
        table_of_send(headers, ())

    @staticmethod
    def _queue(destination: Destination, headers: Mapping[bytes, bytes], rules: QueueRules) -> QueueSpec | None:
        if destination.kind is Kind.QUEUE:
            return sent_queue(destination, headers, rules)
        # Nothing is declared, but a number that is none is an error all the same.
        queue_arguments(headers)
        return None

    def build(self, publisher: Publisher, reply_queue: bytes | None) -> Publication:
        """Encode what all messages of this plan share.

        Args:
            publisher: whose channel is open.
            reply_queue: name of the temporary queue when ``temp_queue`` asks for one.
        """
        self.reply_queue = reply_queue
        properties = properties_of_send(self._headers, reply_queue or self._headers.get(b"reply-to"))
        table, self._gaps = table_of_send(self._headers, self._volatile)
        before, behind = encode_around_table(properties)
        method = encode_publish(publisher.channel, self.exchange, self.routing_key, mandatory=self.mandatory)
        self.publication = Publication(publisher.channel, publisher.frame_max, method, before, table, behind)
        return self.publication

    def check(self, receipt: bytes | None, frame: Frame) -> None:
        """See whether a frame that is kept for later can be published at all.

        Raises:
            CodecError: when its headers do not fit into AMQP.
        """
        if self.publication is not None:
            self.publication.encode(b"", self.values(receipt, frame))

    def values(self, receipt: bytes | None, frame: Frame) -> tuple[bytes, ...]:
        """What stands in the gaps of the headers table for one frame.

        HOT.
        """
        gaps = self._gaps
        if not gaps:
            return _NO_VALUES
        length = frame.length or b""
        if self._trims:
            length = length.lstrip(b" ")
        if len(gaps) == 1:
            return (receipt or b"",) if gaps[0] == RECEIPT else (length,)
        return (receipt or b"", length) if gaps[0] == RECEIPT else (length, receipt or b"")


def _temp_queue(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The reply-to of a SEND if it names a temporary queue; one that is no destination at all is an error."""
    reply_to = headers.get(b"reply-to")
    if not reply_to:
        return None
    try:
        parsed = parse(reply_to)
    except StompError as error:
        raise error_frames.processing_error() from error
    return reply_to if reply_to.startswith(TEMP_QUEUE) and parsed.kind is Kind.TEMP_QUEUE else None
