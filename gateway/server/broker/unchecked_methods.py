"""AMQP methods that name queues and exchanges, without pamqp's check of the names.

AMQP 0-9-1 allows a narrow alphabet in names, and pamqp refuses everything else before it is sent. RabbitMQ takes any
UTF-8, and STOMP clients use it: spaces, percent signs and umlauts are in real queue names. The broker is the judge.
"""

from __future__ import annotations

from pamqp import commands


class QueueDeclare(commands.Queue.Declare):
    """queue.declare for any name."""

    def validate(self) -> None:
        """Leave the name to the broker."""


class QueueBind(commands.Queue.Bind):
    """queue.bind for any names."""

    def validate(self) -> None:
        """Leave the names to the broker."""


class QueueDelete(commands.Queue.Delete):
    """queue.delete for any name."""

    def validate(self) -> None:
        """Leave the name to the broker."""


class BasicConsume(commands.Basic.Consume):
    """basic.consume for any queue."""

    def validate(self) -> None:
        """Leave the name to the broker."""
