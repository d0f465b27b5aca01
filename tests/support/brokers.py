"""Brokers for tests: a private node, and what is asked of a broker over AMQP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pytest

from deploy.local.broker import PRIVATE, Broker, cluster, running
from deploy.local.errors import LocalError
from deploy.local.node import PrivateNode
from gateway.parity.amqp_broker import AmqpBroker, BrokerRefusalError
from gateway.parity.steps import Release
from tests.support.deadline import until

_MEMORY: Final = "{resource_limit, memory, node()}"


@contextmanager
def private_broker(plugins: Sequence[str] = (), config: Sequence[str] = ()) -> Iterator[Broker]:
    """Start a RabbitMQ node that only one test module uses, or skip the test where that is impossible.

    Args:
        plugins: to enable.
        config: further lines of rabbitmq.conf.
    """
    try:
        with running(order=PRIVATE, plugins=plugins, config=config) as broker:
            yield broker
            # An orderly stop takes seconds, and nobody needs the node's data.
            broker.kill()
    except LocalError as error:
        pytest.skip(f"needs a private node: {error}")


@contextmanager
def private_cluster(size: int) -> Iterator[list[PrivateNode]]:
    """Start a cluster of RabbitMQ nodes that only one test module uses, or skip the test where that is impossible."""
    try:
        with cluster(size) as nodes:
            yield nodes
    except LocalError as error:
        pytest.skip(f"needs private nodes: {error}")


def release_of(broker: Broker) -> Release:
    """Which release a private node is; rabbitmqctl takes a second to tell."""
    release = Release.parse(broker.ctl("eval", "rabbit_misc:version().").strip('"\n'))
    assert release is not None
    return release


async def raise_memory_alarm(broker: Broker) -> None:
    """Let a private node say that its memory is full, until `clear_memory_alarm`; return when each connection knows.

    The alarm's own handler is called, so that it stays. A connection that has not heard of it would take a message.
    """
    connections_answer = "rabbit_alarm:get_alarms(), rabbit_networking:connection_info_all([pid])"
    calls = f"rabbit_alarm:set_alarm({{{_MEMORY}, []}}), {connections_answer}, ok."
    await asyncio.to_thread(broker.ctl, "eval", calls)


async def clear_memory_alarm(broker: Broker) -> None:
    """The node has memory again."""
    await asyncio.to_thread(broker.ctl, "eval", f"rabbit_alarm:clear_alarm({_MEMORY}).")


async def until_queue_gone(amqp: AmqpBroker, queue: str) -> None:
    """Wait until a queue is deleted and its name is free.

    The broker refuses to describe an exclusive queue of another connection. RabbitMQ 4.3 may say NOT_FOUND of one
    that its connection left, and hold it as locked once more for up to 40 ms, so another queue takes the name.
    """

    async def exists() -> bool:
        try:
            if await amqp.count(queue) is not None:
                return True
            await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
            await amqp.delete_queue(queue)
        except BrokerRefusalError:
            return True
        return False

    await until(exists, lambda answer: not answer)
