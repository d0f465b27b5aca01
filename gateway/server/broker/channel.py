"""A channel of a link, as one session uses it: control through the AMQP library, data through the tap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aio_pika.abc import AbstractChannel
from aiormq.channel import Channel as UnderlayChannel
from aiormq.exceptions import AMQPError
from pamqp import commands
from pamqp.base import Frame

from gateway.amqp.splitter import Sink
from gateway.server.broker.broker_errors import UpstreamError, interrupted
from gateway.server.broker.unchecked_methods import BasicConsume, QueueBind, QueueDeclare, QueueDelete
from gateway.session.queues import Argument, QueueSpec

if TYPE_CHECKING:
    from gateway.server.broker.link import Link


class LinkChannel:
    """A channel of a link, for one purpose of one session: publishing, or one subscription.

    Args:
        link: the link.
        channel: aio-pika's.
        underlay: the AMQP library's own, whose methods are AMQP's.
    """

    def __init__(self, link: Link, channel: AbstractChannel, underlay: UnderlayChannel) -> None:
        self.link = link
        self.number = underlay.number
        self.write = link.write
        self._consumer_tag = f"s{underlay.number}"
        self.closed: UpstreamError | None = None
        self.on_closed: Callable[[UpstreamError], None] | None = None
        self.on_cancelled: Callable[[], None] | None = None
        self._channel = channel
        self._underlay = underlay
        self._busy = False

    def tap(self, sink: Sink) -> None:
        """Send the channel's deliveries and confirms to a sink."""
        self.link.listen(self, sink)

    def silence(self, owner: object) -> None:
        """Throw away what still arrives; the broker takes it back when the channel closes."""
        self.on_closed = self.on_cancelled = None
        self.link.listen(self, Sink(_discard_delivery, _discard_confirm, owner))

    async def declare(self, queue: QueueSpec) -> str:
        """Declare a queue (queue.declare); its name, which the broker chose if the one asked for is empty."""
        method = QueueDeclare(
            queue=queue.name,
            durable=queue.durable,
            exclusive=queue.exclusive,
            auto_delete=queue.auto_delete,
            arguments=_table(queue.arguments),
        )
        answer = await self._call(method)
        return str(answer.queue)

    async def look_for(self, queue: str) -> None:
        """Ask whether a queue is there (queue.declare, passive); the broker refuses if it is not."""
        await self._call(QueueDeclare(queue=queue, passive=True))

    async def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange (queue.bind)."""
        await self._call(QueueBind(queue=queue, exchange=exchange, routing_key=routing_key))

    async def consume(self, queue: str, prefetch: int, arguments: Mapping[str, Argument]) -> None:
        """Start a consumer (basic.qos, basic.consume); its messages go to the sink of the channel."""
        if prefetch:
            await self._call(commands.Basic.Qos(prefetch_count=prefetch))
        # Known to the library, so that it answers when the broker cancels the consumer.
        self._underlay.consumers[self._consumer_tag] = _never_called
        method = BasicConsume(queue=queue, consumer_tag=self._consumer_tag, arguments=_table(arguments))
        await self._call(method)

    async def cancel(self) -> None:
        """Stop the consumer (basic.cancel)."""
        await self._call(commands.Basic.Cancel(consumer_tag=self._consumer_tag))

    async def select_confirms(self) -> None:
        """Ask the broker to confirm what is published from now on (confirm.select)."""
        await self._call(commands.Confirm.Select())

    async def delete_queue(self, queue: str, *, if_idle: bool = False) -> None:
        """Delete a queue (queue.delete); one that does not exist is no error.

        Args:
            queue: its name.
            if_idle: only if nobody consumes it and it is empty; the broker refuses otherwise.
        """
        await self._call(QueueDelete(queue=queue, if_unused=if_idle, if_empty=if_idle))

    async def close(self) -> None:
        """Close the channel; everything sent on it before is handled by the broker first."""
        self.on_closed = self.on_cancelled = None
        self.write = _discard_octets
        try:
            if self.closed is None and self.link.end is None:
                await self._channel.close()
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError):
            # Closed by the broker at the same moment: that is what was wanted.
            pass
        finally:
            self.link.channel_gone(self)

    async def _call(self, method: Frame) -> Any:  # noqa: ANN401 - each method has its own answer
        """Send a method and wait for its answer."""
        self._busy = True
        try:
            answer = await self._underlay.rpc(method)
        except (AMQPError, OSError, RuntimeError, asyncio.CancelledError) as error:
            if self.link.end is not None:
                raise self.link.end from error
            if self.closed is not None:
                raise self.closed from error
            raise interrupted(error) from error
        finally:
            self._busy = False
        if self.closed is not None:
            # Closed right behind the answer, before anybody could look at it.
            raise self.closed
        return answer

    def broker_closed(self, refusal: UpstreamError) -> None:
        """The broker closed the channel. Whoever waits for an answer gets the refusal, else the channel's owner."""
        self.closed = refusal
        # Its number may soon be another session's.
        self.write = _discard_octets
        if not self._busy and self.on_closed is not None:
            self.on_closed(refusal)


def _table(arguments: Mapping[str, Argument]) -> dict[str, Any]:
    """A table as the AMQP library takes it; it knows more types than there are arguments."""
    return dict(arguments)


def _discard_octets(octets: bytes) -> None:
    """What a session still has for a channel that is closed."""


def _discard_delivery(tag: int, redelivered: bool, route: bytes, properties: bytes, body: bytes) -> None:
    """For a channel that is about to close."""


def _discard_confirm(sequence: int, multiple: bool, accepted: bool) -> None:
    """For a channel that is about to close."""


async def _never_called(message: object) -> None:
    """The library wants a callback for its consumers; deliveries reach the sink before the library sees them."""
