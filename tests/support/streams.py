"""RabbitMQ streams for tests: declared, filled and looked at over AMQP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel

from gateway.pipeline.stream_client import BrokerAddress


def on_channel(url: str, work: Callable[[AbstractChannel], Awaitable[Any]]) -> Any:  # noqa: ANN401 - as the work
    """Do something on a channel of a connection of its own."""

    async def connected() -> Any:  # noqa: ANN401
        async with await aio_pika.connect(url) as connection:
            return await work(await connection.channel())

    return asyncio.run(connected())


def declare_stream(url: str, name: str, **arguments: object) -> None:
    """Declare a stream; arguments are given with underscores for hyphens, without the ``x-``."""
    table: Any = {"x-queue-type": "stream"} | {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    on_channel(url, lambda channel: channel.declare_queue(name, durable=True, arguments=table))


def delete_queue(url: str, name: str) -> None:
    on_channel(url, lambda channel: channel.queue_delete(name))


def publish(url: str, queue: str, bodies: Iterable[bytes], **properties: Any) -> None:  # noqa: ANN401
    """Publish messages to a queue; the broker has confirmed them when this returns."""

    async def send(channel: AbstractChannel) -> None:
        messages = [aio_pika.Message(body, **properties) for body in bodies]
        await asyncio.gather(*(channel.default_exchange.publish(message, queue) for message in messages))

    on_channel(url, send)


def numbered(first: int, last: int, size: int = 0) -> list[bytes]:
    """Bodies that are numbers, filled up to a size."""
    return [b"%d" % number + b" " * max(0, size - len(str(number))) for number in range(first, last)]


def first_and_next(url: str, stream: str) -> tuple[int | None, int]:
    """The offset of the first message that is left, and that after the last one."""

    async def ask() -> tuple[int | None, int]:
        async with BrokerAddress(url).connected() as connection:
            return await connection.first_offset(stream), await connection.next_offset(stream)

    return asyncio.run(ask())
