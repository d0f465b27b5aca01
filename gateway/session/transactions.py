"""Transactions: what a client asks for between BEGIN and COMMIT, kept in the session (STOMP 1.2, "BEGIN").

They are the gateway's own, not AMQP's: at COMMIT the messages are published and confirmed, then the acknowledgements
settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.config.virtual_host import TransactionLimits
from gateway.session import error_frames
from gateway.session.subscription import AckMode, Subscription
from gateway.stomp.frame import Frame


@dataclass(frozen=True, slots=True)
class Settlement:
    """One ACK or NACK: the delivery it names, and whether a NACK requeues; ``requeue`` is None for an ACK."""

    subscription: Subscription
    tag: int
    ack_id: bytes
    requeue: bool | None = None

    @property
    def number(self) -> int:
        """The delivery as the client names it."""
        return self.subscription.base + self.tag

    @property
    def is_outstanding(self) -> bool:
        """Whether there is something to settle. What ack:auto delivered is none of the client's business."""
        return self.subscription.mode is not AckMode.AUTO and self.subscription.holds(self.tag)

    def carry_out(self) -> None:
        """Settle the delivery, unless an acknowledgement before it did so already."""
        if not self.is_outstanding:
            return
        if self.requeue is None:
            self.subscription.acknowledge(self.tag)
        else:
            self.subscription.refuse(self.tag, requeue=self.requeue)


@dataclass(slots=True)
class Transaction:
    """The frames of an open transaction, in order.

    ``began`` is the time of BEGIN in seconds, ``bytes`` the bytes it holds.
    """

    began: float
    sends: list[Frame] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    bytes: int = 0

    @property
    def actions(self) -> int:
        """How many frames it holds."""
        return len(self.sends) + len(self.settlements)


class Transactions:
    """The open transactions of one session.

    Args:
        limits: their bounds.
    """

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._open: dict[bytes, Transaction] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def begin(self, identifier: bytes, now: float) -> None:
        """Open a transaction. One of the same name is emptied, as in RabbitMQ's adapter.

        Raises:
            StompError: when too many are open.
        """
        if identifier not in self._open and len(self._open) >= self._limits.max_open:
            raise error_frames.too_many_transactions(self._limits.max_open)
        self._forget(identifier)
        self._open[identifier] = Transaction(now)

    def join(self, identifier: bytes, size: int = 0) -> Transaction:
        """The transaction that a frame wants to be part of.

        Args:
            identifier: its name.
            size: bytes that the frame would add.

        Raises:
            StompError: when it is not open, or would become too large.
        """
        transaction = self.peek(identifier)
        if transaction.actions >= self._limits.max_actions:
            raise error_frames.transaction_too_large(self._limits.max_actions, "actions")
        if self._bytes + size > self._limits.max_bytes:
            raise error_frames.transaction_too_large(self._limits.max_bytes, "bytes")
        transaction.bytes += size
        self._bytes += size
        return transaction

    def peek(self, identifier: bytes) -> Transaction:
        """An open transaction, left where it is.

        Raises:
            StompError: when it is not open.
        """
        transaction = self._open.get(identifier)
        if transaction is None:
            raise error_frames.bad_transaction(identifier)
        return transaction

    def end(self, identifier: bytes) -> Transaction:
        """Take a transaction out, to carry it out or to forget it.

        Raises:
            StompError: when it is not open.
        """
        transaction = self.peek(identifier)
        self._forget(identifier)
        return transaction

    def expire(self, now: float) -> list[bytes]:
        """Forget the transactions that were left open for too long; their names."""
        old = [name for name, each in self._open.items() if now - each.began > self._limits.max_age]
        for name in old:
            self._forget(name)
        return old

    def _forget(self, identifier: bytes) -> None:
        transaction = self._open.pop(identifier, None)
        if transaction is not None:
            self._bytes -= transaction.bytes
