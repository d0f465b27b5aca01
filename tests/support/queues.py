"""Whether queues are there, seen from behind."""

from __future__ import annotations

from gateway.parity import AmqpBroker, BrokerRefusalError
from tests.support.deadline import until


async def until_gone(amqp: AmqpBroker, queue: str) -> None:
    """Wait until a queue is deleted.

    Args:
        amqp: the broker.
        queue: perhaps somebody else's exclusive one, which the broker tells by refusing to speak of it.
    """

    async def is_there() -> bool:
        try:
            return await amqp.count(queue) is not None
        except BrokerRefusalError:
            return True

    await until(is_there, lambda there: not there)
