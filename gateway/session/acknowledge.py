"""Handles ACK and NACK. An acknowledgement takes effect at once, or with its transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gateway.session import error_frames
from gateway.session.context import SessionContext
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscriptions import Settlement
from gateway.session.transactions import size_of
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame import AckFrame, Frame
from gateway.stomp.headers import read_boolean

# An ack id has a tag, a session and a number. It is split from the right, since the tag may contain the separator.
_WITHIN_ID: Final = b"@@"
_PARTS: Final = 3
# A delivery tag has 64 bits, at most 20 decimal digits.
_LONGEST_NUMBER: Final = 20
_TRANSACTION: Final = b"transaction"


class AckHandler:
    """Handles the acknowledgements of a session."""

    __slots__ = ("_context",)

    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def settle_plain(self, frame: Frame, decoder: Decoder, most: int) -> int:
        """Settle the delivery that an ACK names, and up to ``most`` more if ACKs for them follow in ``decoder``.

        HOT: once per ACK, or once for many. ``ack`` is the slow twin, and handles everything unusual.

        Returns:
            The number of ACKs that were carried out; 0 if the frame is not an ACK, or ``ack`` must handle it.
        """
        context = self._context
        if not isinstance(frame, AckFrame) or frame.receipt is not None:
            return 0
        if context.version != b"1.2" or _TRANSACTION in frame.header_block.headers:
            return 0
        parts = frame.ack_id.rsplit(_WITHIN_ID, 2)
        if len(parts) != _PARTS or parts[1] != context.identity:
            return 0
        subscription, digits = context.subscriptions.get(parts[0]), parts[2]
        if subscription is None or not digits.isdigit() or len(digits) > _LONGEST_NUMBER or digits.startswith(b"0"):
            return 0
        number = int(digits)
        delivery, ledger = number - subscription.base, subscription.ledger
        if delivery <= 0 or subscription.mode is AckMode.AUTO or not ledger.is_outstanding(delivery):
            return 0
        ledger.acknowledge(delivery)
        behind = ledger.in_order_after(delivery)
        if behind:
            behind = decoder.skip_acks(frame, number, min(most, behind))
            ledger.acknowledge_up_to(delivery + behind)
        context.subscriptions.note_settled(subscription)
        return 1 + behind

    def ack(self, frame: Frame) -> None:
        """Acknowledge deliveries, now or with a transaction."""
        self._settle(frame, self._context.headers(frame), None)

    def nack(self, frame: Frame) -> None:
        """Refuse deliveries, now or with a transaction."""
        context = self._context
        headers = context.headers(frame)
        requeue = read_boolean(headers.get(b"requeue"))
        self._settle(frame, headers, context.settings.default_nack_requeue if requeue is None else requeue)

    def _settle(self, frame: Frame, headers: Mapping[bytes, bytes], requeue: bool | None) -> None:
        context = self._context
        name = b"id" if context.version == b"1.2" else b"message-id"
        settlement = self.find_settlement(frame.command, name, headers.get(name), requeue)
        transaction = headers.get(_TRANSACTION)
        if transaction is not None:
            context.transactions.enlist(transaction, size_of(frame)).settlements.append(settlement)
        elif settlement.is_acceptable:
            context.subscriptions.settle(settlement)
            context.end_settled()
        else:
            error = error_frames.unknown_delivery_tag(settlement.number, context.settings)
            if context.settings.next_release:
                raise error
            # RECEIPT before ERROR, as with RabbitMQ's adapter: there the broker finds the mistake after the RECEIPT.
            context.send_receipt(frame)
            context.fail(error)
            return
        if frame.receipt is not None:
            context.send_receipt(frame)

    def find_settlement(self, command: bytes, name: bytes, ack_id: bytes | None, requeue: bool | None) -> Settlement:
        """Find the delivery for an ack id, the value of the header ``name``. ``requeue`` is None for an ACK.

        Raises:
            StompError: the ack id is missing, malformed or another session's, its subscription has ended, or it is for
                a NACK of a stream's message, which the broker would not take.
        """
        if ack_id is None:
            raise error_frames.missing_header(command, name)
        context = self._context
        parts = ack_id.rsplit(_WITHIN_ID, 2)
        if len(parts) != _PARTS:
            raise error_frames.invalid_ack_id(command, name)
        tag, session, digits = parts
        if not digits.isdigit() or len(digits) > _LONGEST_NUMBER:
            raise error_frames.processing_error()
        number = int(digits)
        subscription = context.subscriptions.find(tag, number)
        if subscription is None or session != context.identity:
            raise error_frames.message_without_subscription(ack_id)
        if requeue is not None and subscription.is_stream and not context.queue_rules.streams_take_nack:
            raise error_frames.stream_takes_nothing_back(subscription.destination)
        if 0 < number <= subscription.first_base:
            # It was delivered to an earlier subscription with the same id. (0 is no message's number: it means all.)
            raise error_frames.message_without_subscription(ack_id)
        return Settlement(subscription, number, ack_id, requeue, context.settings.nack_counts)
