"""The broker over AMQP, without the STOMP server in between: transcripts change it, and look at it."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from typing import Any, Protocol, Self, TypeVar

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelClosed
from aiormq.abc import ChannelFrame, DeliveredMessage
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from gateway.parity.steps import Release

_ResultT = TypeVar("_ResultT")

_POLL_INTERVAL = 0.025  # seconds
_NUMBERS = {"priority", "timestamp", "delivery_mode"}


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """An AMQP message: properties under their AMQP names, the headers table, the body."""

    properties: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    body: bytes = b""

    @property
    def lines(self) -> tuple[bytes, ...]:
        """The properties as lines: `priority:4`, and entries of the table as `headers.name:<JSON>`."""
        properties = [f"{name}:{value}" for name, value in self.properties.items()]
        table = [f"headers.{name}:{json.dumps(value, ensure_ascii=False)}" for name, value in self.headers.items()]
        return tuple(line.encode("utf-8") for line in properties + table)

    @classmethod
    def from_lines(cls, lines: tuple[bytes, ...], body: bytes) -> Self:
        """Return the message with this body, and the properties and headers in `lines`."""
        properties: dict[str, str | int] = {}
        headers: dict[str, Any] = {}
        for line in lines:
            name, _, value = line.decode("utf-8").partition(":")
            if name.startswith("headers."):
                headers[name.removeprefix("headers.")] = json.loads(value)
            else:
                properties[name] = int(value) if name in _NUMBERS else value
        return cls(properties, headers, body)


class Broker(Protocol):
    """RabbitMQ, or a model of it. All methods raise BrokerRefusalError and BrokerLostError."""

    async def declare_queue(self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        """Declare a queue; the broker refuses if it exists with other properties."""

    async def delete_queue(self, name: str) -> None:
        """Delete a queue, if it exists."""

    async def declare_exchange(self, name: str, kind: str, *, internal: bool) -> None:
        """Declare a transient exchange."""

    async def delete_exchange(self, name: str) -> None:
        """Delete an exchange, if it exists."""

    async def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        """Bind a queue to an exchange."""

    async def publish(self, exchange: str, routing_key: str, message: BrokerMessage) -> None:
        """Publish a message; the broker has it when this returns."""

    async def take(self, queue: str) -> BrokerMessage | None:
        """Remove a message from a queue and return it; None if there is none."""

    async def count(self, queue: str) -> int | None:
        """Return the number of ready messages; None if there is no such queue."""


class BrokerRefusalError(Exception):
    """The broker refused an operation; the text is the broker's."""


class BrokerLostError(Exception):
    """The connection to the broker is lost, or cannot be made."""


class AmqpBroker:
    """RabbitMQ over AMQP.

    Every operation has a channel of its own, since a refusal closes the channel. A connection that breaks is replaced,
    so that one transcript cannot keep the others from cleaning up.
    """

    def __init__(self, url: str, connection: AbstractConnection) -> None:
        self._url = url
        self._connection = connection
        self._reconnecting = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def connected(cls, url: str) -> AsyncIterator[Self]:
        """Connect to the broker at an `amqp://` URL, and disconnect at the end."""
        broker = cls(url, await aio_pika.connect(url))
        try:
            yield broker
        finally:
            await broker._connection.close()

    @property
    def release(self) -> Release | None:
        """The release of RabbitMQ in the broker's server properties; None if they have none."""
        transport = self._connection.transport
        properties = transport.connection.server_properties if transport else {}
        product, version = (_text(properties.get(name)) for name in ("product", "version"))
        return Release.from_server_header(f"{product}/{version}")

    async def declare_queue(self, name: str, *, durable: bool, auto_delete: bool, arguments: dict[str, Any]) -> None:
        """See Broker."""
        await self._call(
            lambda channel: channel.declare_queue(name, durable=durable, auto_delete=auto_delete, arguments=arguments)
        )

    async def delete_queue(self, name: str) -> None:
        """See Broker."""
        await self._call(lambda channel: channel.queue_delete(name))

    async def declare_exchange(self, name: str, kind: str, *, internal: bool) -> None:
        """See Broker."""
        await self._call(lambda channel: channel.declare_exchange(name, kind, internal=internal))

    async def delete_exchange(self, name: str) -> None:
        """See Broker."""
        await self._call(lambda channel: channel.exchange_delete(name))

    async def bind_queue(self, queue: str, exchange: str, routing_key: str) -> None:
        """See Broker."""

        async def bind(channel: AbstractChannel) -> None:
            await (await channel.get_queue(queue, ensure=False)).bind(exchange, routing_key)

        await self._call(bind)

    async def publish(self, exchange: str, routing_key: str, message: BrokerMessage) -> None:
        """See Broker."""
        properties: dict[str, Any] = dict(message.properties)
        if "timestamp" in properties:
            properties["timestamp"] = datetime.fromtimestamp(properties["timestamp"], UTC)
        header = ContentHeader(
            body_size=len(message.body),
            properties=Basic.Properties(headers=dict(message.headers) or None, **properties),
        )
        body = [ContentBody(message.body)] if message.body else []

        async def write(channel: AbstractChannel) -> None:
            # The library's own way adds a message id and other properties, and a transcript lists all of them.
            under = await channel.get_underlay_channel()
            method = Basic.Publish(exchange=exchange, routing_key=routing_key)
            await under.connection.write_queue.put(ChannelFrame.marshall(under.number, (method, header, *body)))

        await self._call(write)

    async def take(self, queue: str) -> BrokerMessage | None:
        """See Broker."""

        async def get(channel: AbstractChannel) -> DeliveredMessage:
            # The library's own message does not tell a property that is absent from its default.
            return await (await channel.get_underlay_channel()).basic_get(queue, no_ack=True)

        # A quorum queue is there before it can be read; a basic.get that is too early costs the connection.
        if not await self.count(queue):
            return None
        found = await self._call_if_exists(get)
        if found is None or not isinstance(found.delivery, Basic.GetOk):
            return None
        properties: dict[str, Any] = {
            name: value for name, value in dict(found.header.properties).items() if value not in (None, "")
        }
        headers: dict[str, Any] = properties.pop("headers", None) or {}
        if "timestamp" in properties:
            properties["timestamp"] = int(properties["timestamp"].timestamp())
        return BrokerMessage(properties, headers, found.body)

    async def count(self, queue: str) -> int | None:
        """See Broker."""
        declared = await self._call_if_exists(lambda channel: channel.get_queue(queue))
        return declared.declaration_result.message_count if declared else None

    async def _call_if_exists(self, operation: Callable[[AbstractChannel], Awaitable[_ResultT]]) -> _ResultT | None:
        try:
            return await self._call(operation)
        except BrokerRefusalError as refusal:
            if "NOT_FOUND" in str(refusal):
                return None
            raise

    async def _call(self, operation: Callable[[AbstractChannel], Awaitable[_ResultT]]) -> _ResultT:
        """Finish even if the caller is cancelled: RabbitMQ closes a connection with a half-open channel."""
        return await finish(self._call_on_new_channel(operation))

    async def _call_on_new_channel(self, operation: Callable[[AbstractChannel], Awaitable[_ResultT]]) -> _ResultT:
        try:
            async with self._reconnecting:
                if not self._connection.connected.is_set():
                    self._connection = await aio_pika.connect(self._url)
            channel = await self._connection.channel(publisher_confirms=False)
            try:
                return await operation(channel)
            except (ChannelClosed, ValueError) as refusal:  # ValueError: pamqp refuses unusual names itself
                raise BrokerRefusalError(str(refusal)) from None
            finally:
                with suppress(AMQPError, RuntimeError):
                    await channel.close()
        except (AMQPError, OSError, RuntimeError) as lost:  # RuntimeError: the connection was closed meanwhile
            raise BrokerLostError(f"the connection to the broker is lost: {lost}") from None


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


async def finish(work: Coroutine[object, object, _ResultT]) -> _ResultT:
    """Await a coroutine to its end, even if the caller is cancelled. Raises CancelledError only after that."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        task.exception()  # retrieve it, or asyncio logs it
        raise asyncio.CancelledError
    return task.result()


async def poll(
    ask: Callable[[], Awaitable[_ResultT]], is_final: Callable[[_ResultT], bool], attempts: int = 200
) -> _ResultT:
    """Ask the broker every 25 ms, because RabbitMQ may answer a client before the effect can be seen.

    Return the first answer that is final, or else the last one.
    """
    answer = await ask()
    while not is_final(answer) and (attempts := attempts - 1):
        await asyncio.sleep(_POLL_INTERVAL)
        answer = await ask()
    return answer


def subscription_queue(routing_key: str, subscription_id: str) -> str:
    """Return the name that RabbitMQ's plugin gives to the queue of a durable topic subscription.

    It is a hash of the pair in Erlang's external term format. This does not use the gateway's own code, so that the
    comparison finds an error there.
    """

    def term(text: str) -> bytes:
        data = text.encode("utf-8")
        return b"k" + len(data).to_bytes(2) + data if data else b"j"

    digest = md5(b"\x83h\x02" + term(routing_key) + term(subscription_id), usedforsecurity=False).digest()
    return "stomp-subscription-" + urlsafe_b64encode(digest).decode("ascii").rstrip("=")
