"""ACK and NACK: which delivery the client means, and settling it at once or with a transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.session import error_frames
from gateway.session.context import SessionContext
from gateway.session.subscription import Settlement
from gateway.session.transactions import OpenTransactions, size_of
from gateway.stomp.frame import Frame
from gateway.stomp.headers import read_boolean

# A delivery tag has 64 bits, at most 20 decimal digits.
_LONGEST_NUMBER: Final = 20


class AckHandler:
    """The acknowledgements of a session."""

    __slots__ = ("_context", "_transactions")

    def __init__(self, context: SessionContext, transactions: OpenTransactions) -> None:
        self._context = context
        self._transactions = transactions

    def ack(self, frame: Frame) -> None:
        """ACK. HOT: in the order of delivery it costs a look-up, and one AMQP frame per batch."""
        self._settle(frame, self._context.headers(frame), None)

    def nack(self, frame: Frame) -> None:
        """NACK."""
        context = self._context
        headers = context.headers(frame)
        requeue = read_boolean(headers.get(b"requeue"))
        self._settle(frame, headers, context.settings.default_nack_requeue if requeue is None else requeue)

    def _settle(self, frame: Frame, headers: Mapping[bytes, bytes], requeue: bool | None) -> None:
        context = self._context
        name = b"id" if context.version == b"1.2" else b"message-id"
        settlement = self.find_settlement(frame.command, name, headers.get(name), requeue)
        transaction = headers.get(b"transaction")
        if transaction is not None:
            self._transactions.enlist(transaction, size_of(frame)).settlements.append(settlement)
        elif settlement.is_outstanding:
            context.subscriptions.settle(settlement)
        else:
            # RECEIPT before ERROR, as with RabbitMQ's adapter, where the broker finds the mistake afterwards.
            context.send_receipt(frame)
            context.fail(error_frames.unknown_delivery_tag(settlement.number, context.settings))
            return
        if frame.receipt is not None:
            context.send_receipt(frame)

    def find_settlement(self, command: bytes, name: bytes, ack_id: bytes | None, requeue: bool | None) -> Settlement:
        """Find the delivery that an ACK or NACK means by its header ``name``. ``requeue`` is None for an ACK.

        Raises:
            StompError: when the value is malformed, or of another session, or its subscription has ended.
        """
        if ack_id is None:
            raise error_frames.missing_header(command, name)
        context = self._context
        # From the right, since a subscription's id may contain the separator too.
        parts = ack_id.rsplit(b"@@", 2)
        if len(parts) != 3:  # noqa: PLR2004 - tag, session, number
            raise error_frames.invalid_ack_id(command, name)
        tag, session, digits = parts
        if not digits.isdigit() or len(digits) > _LONGEST_NUMBER:
            raise error_frames.processing_error()
        subscription = context.subscriptions.get(tag)
        if subscription is None or session != context.identity:
            raise error_frames.message_without_subscription(ack_id)
        if requeue is not None and subscription.is_stream and not context.queue_rules.streams_take_nack:
            raise error_frames.stream_takes_nothing_back(subscription.destination)
        number, base = int(digits), subscription.base
        if 0 < number <= base:
            # Delivered to an earlier subscription with the same id. (0 is no message's number.)
            raise error_frames.message_without_subscription(ack_id)
        return Settlement(subscription, max(0, number - base), ack_id, requeue)
