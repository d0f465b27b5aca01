"""A channel of a link, as one session uses it: control through the AMQP library, data through the tap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from aio_pika.abc import AbstractChannel
from aiormq.channel import Channel as AiormqChannel
from aiormq.exceptions import AMQPError
from pamqp import commands
from pamqp.base import Frame

from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import UpstreamError, interrupted
from gateway.server.broker.link import Link
from gateway.session.queues import Argument, QueueSpec


class LinkChannel:
    """A channel of a link, for one purpose of one session: publishing, one subscription, or declarations.

    ``channel`` is aio-pika's, ``aiormq_channel`` that of the library beneath it, whose methods are AMQP's.
    """

    def __init__(self, link: Link, channel: AbstractChannel, aiormq_channel: AiormqChannel) -> None:
        self.link = link
        self.number = aiormq_channel.number
        self.write = link.write
        # The broker's reason, if it closed the channel.
        self.closed: UpstreamError | None = None
        self.on_closed: Callable[[UpstreamError], None] | None = None
        self.on_cancelled: Callable[[], None] | None = None
        # Whether the broker confirms what is published here.
        self.has_confirms = False
        self._consumer_tag = f"s{aiormq_channel.number}"
        self._channel = channel
        self._aiormq_channel = aiormq_channel
        self._awaits_reply = False

    @classmethod
    async def open(cls, link: Link) -> LinkChannel:
        """Open a channel, with the errors of ``Link.open_channel``."""
        channel = cls(link, *await link.open_channel())
        link.add_channel(channel)
        return channel

    @classmethod
    @asynccontextmanager
    async def opened(cls, link: Link) -> AsyncIterator[LinkChannel]:
        """A channel that is closed at the end of the block: the broker closes one with each refusal."""
        channel = await cls.open(link)
        try:
            yield channel
        finally:
            await channel.close()

    def set_sink(self, sink: Sink) -> None:
        """Send the channel's deliveries and confirms to a sink."""
        self.link.register_sink(self, sink)

    def discard(self, owner: object) -> None:
        """Drop further deliveries; the broker requeues them when the channel closes."""
        self.on_closed = self.on_cancelled = None
        self.set_sink(Sink(ignore_delivery, ignore_confirm, owner))

    async def declare(self, queue: QueueSpec) -> str:
        """Declare a queue (queue.declare); its name, which the broker chooses if ``queue`` has none."""
        method = _QueueDeclare(
            queue=queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments=dict[str, Any](queue.arguments),
        )
        answer = await self._call(method)
        return str(answer.queue)

    async def declare_passive(self, queue: str) -> None:
        """Ask whether a queue exists (queue.declare, passive); the broker refuses if it does not."""
        await self._call(_QueueDeclare(queue=queue, passive=True))

    async def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange (queue.bind)."""
        await self._call(_QueueBind(queue=queue, exchange=exchange, routing_key=routing_key))

    async def consume(self, queue: str, prefetch: int, arguments: Mapping[str, Argument]) -> None:
        """Start a consumer (basic.qos, basic.consume); its messages go to the sink of the channel."""
        if prefetch:
            await self._call(commands.Basic.Qos(prefetch_count=prefetch))
        # The library must know the consumer, or it would not answer when the broker cancels it.
        self._aiormq_channel.consumers[self._consumer_tag] = _never_called
        table = dict[str, Any](arguments)
        await self._call(_BasicConsume(queue=queue, consumer_tag=self._consumer_tag, arguments=table))

    async def cancel(self) -> None:
        """Stop the consumer (basic.cancel)."""
        await self._call(commands.Basic.Cancel(consumer_tag=self._consumer_tag))

    async def select_confirms(self) -> None:
        """Ask the broker to confirm publishes from now on (confirm.select)."""
        await self._call(commands.Confirm.Select())
        self.has_confirms = True

    async def delete_queue(self, queue: str, *, if_idle: bool = False) -> None:
        """Delete a queue (queue.delete); one that does not exist is no error.

        With ``if_idle`` the broker refuses if the queue has a consumer or a message.
        """
        await self._call(_QueueDelete(queue=queue, if_unused=if_idle, if_empty=if_idle))

    async def close(self) -> None:
        """Close the channel; the broker first handles all earlier frames on it."""
        self.on_closed = self.on_cancelled = None
        self.write = _discard
        try:
            if self.closed is None and self.link.closed is None:
                await self._channel.close()
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError):
            # The broker closed the channel at the same moment.
            pass
        finally:
            self.link.remove_channel(self)

    async def _call(self, method: Frame) -> Any:  # noqa: ANN401 - each method has its own answer
        """Send a method and wait for its answer."""
        self._awaits_reply = True
        try:
            answer = await self._aiormq_channel.rpc(method)
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            raise self.link.closed or self.closed or interrupted(error) from error
        finally:
            self._awaits_reply = False
        if self.closed is not None:
            # The broker closed the channel right behind the answer.
            raise self.closed
        return answer

    # Called by the link.

    def broker_closed(self, refusal: UpstreamError) -> None:
        """The broker closed the channel: the refusal goes to the call that waits for an answer, or to the owner."""
        self.closed = refusal
        # The number may soon belong to another session.
        self.write = _discard
        if not self._awaits_reply and self.on_closed is not None:
            self.on_closed(refusal)

    def broker_cancelled(self) -> None:
        """The broker cancelled the consumer."""
        if self.on_cancelled is not None:
            self.on_cancelled()


# pamqp refuses every name outside the narrow alphabet of AMQP 0-9-1. RabbitMQ takes any UTF-8, and real queues have
# names with spaces, percent signs and umlauts. So the broker judges names
# (docs/adr/0009-names-are-for-the-broker-to-judge.md).


class _AnyName:
    def validate(self) -> None:
        """Check nothing."""


class _QueueDeclare(_AnyName, commands.Queue.Declare):
    pass


class _QueueBind(_AnyName, commands.Queue.Bind):
    pass


class _QueueDelete(_AnyName, commands.Queue.Delete):
    pass


class _BasicConsume(_AnyName, commands.Basic.Consume):
    pass


def _discard(data: bytes) -> None:
    """Write nothing: the channel is closed."""


def ignore_delivery(tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
    """For a sink that drops deliveries or gets none."""


def ignore_confirm(sequence: int, multiple: bool, accepted: bool) -> None:
    """For a sink that drops confirms or gets none."""


async def _never_called(message: object) -> None:
    """The library requires a callback, but the tap takes deliveries before the library sees them."""
