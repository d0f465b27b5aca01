"""Transactions: the SENDs, ACKs and NACKs that take effect together (STOMP 1.2, "BEGIN").

They do not use AMQP's transactions: the gateway keeps the frames here until ``commit`` carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gateway.config.virtual_host import TransactionLimits
from gateway.session import error_frames
from gateway.session.subscriptions import Settlement
from gateway.stomp.frame import Frame

# Added to the bytes of a frame for the memory of its objects. Otherwise empty frames would count as nothing.
_COST_OF_FRAME: Final = 256


@dataclass(slots=True)
class Transaction:
    """The frames of an open transaction, in order.

    ``kept_bytes``: the sum of `size_of` its frames. ``since``: the time of the first `expire` after BEGIN, in seconds.
    """

    sends: list[Frame] = field(default_factory=list)
    settlements: list[Settlement] = field(default_factory=list)
    kept_bytes: int = 0
    since: float | None = None

    @property
    def actions(self) -> int:
        """The number of its frames."""
        return len(self.sends) + len(self.settlements)


def size_of(frame: Frame) -> int:
    """The approximate memory of a kept frame in bytes."""
    return _COST_OF_FRAME + len(frame.body) + sum(len(name) + len(value) for name, value in frame.headers.items())


class OpenTransactions:
    """The open transactions of one session."""

    __slots__ = ("_by_name", "_kept_bytes", "_limits")

    def __init__(self, limits: TransactionLimits) -> None:
        self._limits = limits
        self._by_name: dict[bytes, Transaction] = {}
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._by_name)

    def set_limits(self, limits: TransactionLimits) -> None:
        """Set the bounds of transactions that begin from now on."""
        self._limits = limits

    def begin(self, name: bytes) -> None:
        """Open a transaction. Raises StompError if too many are open.

        An open one with the same name is emptied, as in RabbitMQ's adapter.
        """
        if name not in self._by_name and len(self._by_name) >= self._limits.max_open:
            raise error_frames.too_many_transactions(self._limits.max_open)
        self._remove(name)
        self._by_name[name] = Transaction()

    def enlist(self, name: bytes, size: int = 0) -> Transaction:
        """Return the transaction to which the caller adds a frame of ``size`` bytes.

        Raises StompError if it is not open, or would become too large.
        """
        transaction = self.get(name)
        if transaction.actions >= self._limits.max_actions:
            raise error_frames.transaction_too_large("actions", self._limits.max_actions)
        if self._kept_bytes + size > self._limits.max_bytes:
            raise error_frames.transaction_too_large("bytes", self._limits.max_bytes)
        transaction.kept_bytes += size
        self._kept_bytes += size
        return transaction

    def get(self, name: bytes) -> Transaction:
        """Return an open transaction. Raises StompError if there is none with this name."""
        transaction = self._by_name.get(name)
        if transaction is None:
            raise error_frames.bad_transaction(name)
        return transaction

    def end(self, name: bytes) -> Transaction:
        """Remove and return an open transaction. Raises StompError if there is none with this name."""
        transaction = self.get(name)
        self._remove(name)
        return transaction

    def expire(self, now: float) -> list[bytes]:
        """Remove the transactions that have been open for too long at ``now``, in seconds. Returns their names.

        Call it about once a second. It counts from the first call after BEGIN, so that none is removed too early.
        """
        old = []
        for name, each in self._by_name.items():
            if each.since is None:
                each.since = now
            elif now - each.since > self._limits.max_age:
                old.append(name)
        for name in old:
            self._remove(name)
        return old

    def clear(self) -> None:
        """Drop all of them."""
        self._by_name.clear()
        self._kept_bytes = 0

    def _remove(self, name: bytes) -> None:
        transaction = self._by_name.pop(name, None)
        if transaction is not None:
            self._kept_bytes -= transaction.kept_bytes
