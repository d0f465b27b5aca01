"""Reads RabbitMQ's streams over AMQP: where one begins and ends, and the messages of a range of offsets.

aio-pika connects, does TLS and logs in. The channel is our own, because the properties of a message are any client's
bytes: aio-pika's decoder closes the connection over a short string that is no UTF-8, or a timestamp far in the future,
and the stream could never be read past that message.

What RabbitMQ does not tell over AMQP is where a stream ends: the count of a declaration is stale. So the last chunk is
read until nothing more comes. An acknowledgement lets the broker send what it has, before it answers the next method.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from aio_pika import Connection
from aio_pika.exceptions import AMQPConnectionError, AMQPError, ProbableAuthenticationError
from yarl import URL

from gateway.amqp import methods, properties
from gateway.amqp.codec import CANCEL, CHANNEL_CLOSE, CONNECTION_CLOSE, encode_ack
from gateway.amqp.methods import Close, Method
from gateway.amqp.properties import Properties
from gateway.amqp.splitter import Sink, Splitter
from gateway.errors import CodecError, PipelineError
from gateway.pieces import Body

OFFSET: Final = b"x-stream-offset"
"""The entry of the headers table in which the broker tells a message's offset."""

_PREFETCH: Final = 8192
_MOST_BYTES: Final = 32 << 20
"""Bytes of bodies above which nothing more is read from the socket until they are taken."""
_CONNECT_WITHIN: Final = 20.0
_FIRST_WITHIN: Final = 2.0
"""Seconds in which a stream sends its first message. Only of a stream that has none is this long waited for."""
_MOST_LOOKS: Final = 16
"""How often the end of a stream is looked for, which may move on and on. A chunk has fewer messages than come then."""
_TAG: Final = "stomp-gateway"
_NOT_FOUND, _PRECONDITION_FAILED = 404, 406


class BrokerAwayError(PipelineError):
    """The broker does not answer, or the connection was lost; later it may work."""


class StreamMessage(NamedTuple):
    """A message of a stream. The route is exchange and routing key, each as a short string, one after the other."""

    offset: int
    route: bytes
    properties: Properties
    body: bytes


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker, a virtual host and a login, in an AMQP URL. The password is not in ``repr``."""

    url: str

    def __repr__(self) -> str:
        return f"BrokerAddress({self.name!r})"

    @property
    def name(self) -> str:
        """The URL without login and password."""
        return str(URL(self.url).with_user(None).with_query(None))

    @property
    def virtual_host(self) -> str:
        """Its name; ``/`` if the URL has none."""
        return URL(self.url).path[1:].replace("%2F", "/") or "/"

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[StreamConnection]:
        """Connect, and disconnect at the end. Raises PipelineError if the broker refuses or does not answer."""
        found = StreamConnection(self)
        await found.connect()
        try:
            yield found
        finally:
            await found.close()


class StreamConnection:
    """One connection to the broker. Every method raises PipelineError if the broker refuses, or is lost."""

    def __init__(self, broker: BrokerAddress) -> None:
        self._broker = broker
        # Nobody runs the event loop while Spark works on what was read, so heart-beats could not be answered.
        url = URL(broker.url)
        url = url if "heartbeat" in url.query else url.update_query(heartbeat="0")
        self._connection = Connection(url)
        self._connection.kwargs["transport_factory"] = self  # for the library below, which calls `create`
        self._splitter = Splitter(self._on_method)
        self._transport: asyncio.Transport | None = None
        self._channels = 0
        self._answer: asyncio.Future[None] | None = None
        self._consumers: dict[int, StreamConsumer] = {}
        self._error: PipelineError | None = None

    async def connect(self) -> None:
        """Connect and log in."""
        if (logger := logging.getLogger("aiormq")).level == logging.NOTSET:
            logger.setLevel(logging.CRITICAL)  # it logs, with a traceback, what is raised here
        where = self._broker.name
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await self._connection.connect()
        except ProbableAuthenticationError as error:
            await self.close()
            raise PipelineError(f"{where} refuses the login. Check login, password and virtual host.") from error
        except (TimeoutError, OSError, AMQPError, RuntimeError, StopAsyncIteration) as error:
            refused = self._error
            await self.close()
            raise refused or BrokerAwayError(f"{where} does not answer: {str(error) or 'no connection'}") from error
        if self._connection.transport is not None:
            self._splitter.frame_max = self._connection.transport.connection.connection_tune.frame_max

    async def create(self, url: URL, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ANN401
        """aio-pika's library calls this to open the socket. Of its options only the TLS context is used."""
        loop = asyncio.get_running_loop()
        context = await options["ssl_context_provider"].get_context() if url.scheme == "amqps" else None
        reader = asyncio.StreamReader(loop=loop)
        tap = _Tap(reader, self, loop)
        try:
            await loop.create_connection(lambda: tap, url.host or "", url.port or 0, ssl=context)
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self._transport = tap.transport
        return reader, asyncio.StreamWriter(tap.transport, tap, reader, loop)

    async def close(self) -> None:
        """Disconnect."""
        self._error = self._error or PipelineError(f"{self._broker.name}: the connection is closed")
        # If the connection is lost, the library cancels its tasks and this call. That must not cancel our own task.
        closing = asyncio.ensure_future(self._connection.close())
        await asyncio.wait((closing,))
        if not closing.cancelled():
            closing.exception()  # retrieve it, or asyncio logs it
        if self._transport is not None:
            self._transport.abort()

    # ------------------------------------------------------------ what is asked

    async def exists(self, stream: str) -> bool:
        """Whether there is a queue of this name."""
        try:
            await self._call(await self._open_channel(), methods.declare(stream, {}, passive=True))
        except _RefusedError as error:
            if error.close.code == _NOT_FOUND:
                return False
            raise
        return True

    async def first_offset(self, stream: str, at: datetime | None = None) -> int | None:
        """The offset of the first message that retention has left; None if there is none.

        With ``at`` that of the first chunk which has messages of this time or later. A chunk holds what was published
        at about the same time.
        """
        consumer = await self.consume(stream, "first" if at is None else at)
        found = await consumer.take(_FIRST_WITHIN)
        await self._leave(consumer)
        return found[0].offset if found else None

    async def next_offset(self, stream: str) -> int:
        """The offset after that of the last message; 0 if there is none."""
        consumer = await self.consume(stream, "last")
        end, found = 0, await consumer.take(_FIRST_WITHIN)
        for _ in range(_MOST_LOOKS):
            if not found:
                break
            end = found[-1].offset + 1
            await self._call(consumer.channel, methods.declare(stream, {}, passive=True))
            found = await consumer.take(0)
        await self._leave(consumer)
        return end

    async def consume(self, stream: str, offset: str | int | datetime) -> StreamConsumer:
        """Begin to read at an offset, a time, ``first``, ``last`` or ``next``."""
        channel = await self._open_channel()
        consumer = StreamConsumer(self, channel)
        self._consumers[channel] = consumer
        self._splitter.register(channel, Sink(consumer.deliver, _no_confirm, consumer))
        try:
            await self._call(channel, methods.qos(_PREFETCH))
            await self._call(channel, methods.consume(stream, _TAG, {OFFSET.decode(): offset}))
        except _RefusedError as error:
            if error.close.code == _PRECONDITION_FAILED and OFFSET.decode() in error.close.text:
                raise PipelineError(
                    f"the queue {stream!r} in virtual host {self._broker.virtual_host!r} is no stream. After a failure "
                    "the same messages must be read again, and a queue cannot give them a second time. Bind a stream "
                    "to the same exchange with the same routing keys, and read that."
                ) from error
            raise
        return consumer

    # ------------------------------------------------------------ methods and answers

    async def _open_channel(self) -> int:
        self._channels += 1
        await self._call(self._channels, methods.OPEN)
        return self._channels

    async def _leave(self, consumer: StreamConsumer) -> None:
        self._splitter.drop(consumer.channel)
        with suppress(PipelineError):
            await self._call(consumer.channel, methods.CLOSE)
        self._splitter.unregister(consumer.channel)
        self._consumers.pop(consumer.channel, None)

    async def _call(self, channel: int, method: Method) -> None:
        """Send a method and await its answer; what the broker sent before is delivered then."""
        self._answer = asyncio.get_running_loop().create_future()
        self.write(method.frame(channel))
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await self._answer
        except TimeoutError as error:
            raise BrokerAwayError(f"{self._broker.name} has not answered for {_CONNECT_WITHIN:g} seconds.") from error

    def write(self, frame: bytes) -> None:
        """Send a frame."""
        if self._error is not None or self._transport is None:
            raise self._error or PipelineError(f"{self._broker.name} is not connected.")
        self._transport.write(frame)

    def set_paused(self, paused: bool) -> None:
        """Read nothing from the socket, or go on."""
        transport = self._transport
        if transport is not None and not transport.is_closing() and paused == transport.is_reading():
            (transport.pause_reading if paused else transport.resume_reading)()

    def _on_method(self, channel: int, number: int, frame: bytes) -> None:
        if number in (CHANNEL_CLOSE, CONNECTION_CLOSE):
            error = _RefusedError(self._broker, methods.read_close(frame))
            if number == CHANNEL_CLOSE and self._transport is not None:
                self._transport.write(methods.CLOSE_OK.frame(channel))
            self._fail(error, None if number == CONNECTION_CLOSE else channel)
        elif number == CANCEL:
            why = "the stream was deleted, or the node that has it is gone."
            self._fail(PipelineError(f"{self._broker.name} has ended the reading: {why}"), channel)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _fail(self, error: PipelineError, channel: int | None) -> None:
        """End a channel, or all of them, with an error."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        for number, consumer in self._consumers.items():
            if channel in (None, number):
                consumer.fail(error)

    def split(self, data: bytes) -> bytes:
        """Take what came from the socket; what is not of a channel is returned."""
        try:
            rest = self._splitter.receive(data)
        except CodecError as error:
            self.lost(error)
            raise
        for owner in self._splitter.touched:
            cast(StreamConsumer, owner).wake()
        self._splitter.touched.clear()
        for owner, failure in self._splitter.failures:
            text = f"{self._broker.name} sent a message that cannot be read: {failure}"
            cast(StreamConsumer, owner).fail(PipelineError(text))
        self._splitter.failures.clear()
        return rest

    def lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        if self._error is None:
            why = "" if error is None else f": {error}"
            self._error = PipelineError(f"{self._broker.name}: the connection was lost{why}")
        self._fail(self._error, None)


class StreamConsumer:
    """Reads one stream, and acknowledges what is taken."""

    def __init__(self, connection: StreamConnection, channel: int) -> None:
        self.channel = channel
        self._connection = connection
        self._held: list[StreamMessage] = []
        self._bytes = 0
        self._last_tag = 0
        self._arrived = asyncio.Event()
        self._error: PipelineError | None = None

    async def take(self, within: float) -> list[StreamMessage]:
        """The messages that are there, after at most so many seconds; they may be none.

        Raises PipelineError if the broker has ended the reading.
        """
        if not self._held and within > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._arrived.wait()
        taken = self._held
        if taken:
            self._held, self._bytes = [], 0
            with suppress(PipelineError):  # the next call raises it
                self._connection.write(encode_ack(self.channel, self._last_tag, multiple=True))
            self._connection.set_paused(False)
        elif self._error is not None:
            raise self._error
        self._arrived.clear()
        return taken

    def deliver(self, tag: int, _redelivered: bool, route: bytes, encoded: bytes, body: Body) -> None:
        """Hold a message. HOT: once per message."""
        found = properties.decode(encoded)
        headers = found.headers or []
        for place, (name, value) in enumerate(headers):
            if name == OFFSET and isinstance(value, int):
                del headers[place]
                break
        else:
            raise CodecError("it has no offset, so the queue is no stream")
        self._held.append(StreamMessage(value, route, found, bytes(body)))
        self._last_tag = tag
        self._bytes += len(body)
        if self._bytes > _MOST_BYTES:
            self._connection.set_paused(True)

    def wake(self) -> None:
        """Something was delivered."""
        self._arrived.set()

    def fail(self, error: PipelineError) -> None:
        """Let `take` raise once all messages are taken."""
        self._error = self._error or error
        self._arrived.set()


async def messages_between(
    connection: StreamConnection, stream: str, start: int, end: int, *, within: float, fail_on_data_loss: bool
) -> AsyncIterator[list[StreamMessage]]:
    """The messages of a stream in order, from offset ``start`` up to ``end``, which is not read.

    A message with an offset of ``end - 1`` or more must be there. Raises PipelineError if nothing comes for so many
    seconds, the broker is lost, or, with ``fail_on_data_loss``, retention has deleted messages of the range.
    """
    consumer = await connection.consume(stream, start)
    while start < end:
        found = await consumer.take(within)
        if not found:
            raise PipelineError(
                f"the stream {stream!r} sent nothing for {within:g} seconds, although it had messages up to offset "
                f"{end - 1}. Was it deleted and declared anew?"
            )
        expected = start
        for message in found:
            # Offsets have gaps, since the broker stores entries of its own, too. Only retention moves the beginning.
            if message.offset > expected and fail_on_data_loss:
                first = await connection.first_offset(stream)
                if first is not None and first > expected:
                    raise PipelineError(
                        f"the stream {stream!r} was to be read from offset {expected}, and its retention has deleted "
                        f"everything before offset {min(first, end)}. To go on with what is left, set "
                        "failOnDataLoss=false."
                    )
            expected = max(expected, message.offset + 1)
        if taken := [message for message in found if start <= message.offset < end]:
            yield taken
        start = expected


class _RefusedError(PipelineError):
    """The broker has closed a channel or the connection."""

    def __init__(self, broker: BrokerAddress, close: Close) -> None:
        super().__init__(f"{broker.name} refuses: {close.text}")
        self.close = close


class _Tap(asyncio.StreamReaderProtocol):
    """The socket: what is of channels goes to the connection, all else to aio-pika's reader."""

    transport: asyncio.Transport

    def __init__(self, reader: asyncio.StreamReader, owner: StreamConnection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            rest = self._owner.split(data)
        except CodecError:
            self.transport.abort()
            return
        if rest:
            super().data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._owner.lost(exc)


def _no_confirm(_tag: int, _multiple: bool, _accepted: bool) -> None:
    """Nothing is published on these channels."""


def broker_at(url: str, options: Mapping[str, str]) -> BrokerAddress:
    """The broker of a URL and of the options ``virtualhost``, ``login`` and ``password``, which win over the URL's.

    Raises PipelineError if it is no AMQP URL.
    """
    try:
        found = URL(url)
        is_good = found.scheme in ("amqp", "amqps") and bool(found.host)
    except ValueError:
        is_good = False
    if not is_good:
        raise PipelineError("the URL of the broker must be like amqp://host:5672/vhost, or amqps:// with TLS.")
    if "virtualhost" in options:
        found = found.with_path(
            "/" + options["virtualhost"].replace("%", "%25").replace("/", "%2F"), encoded=True, keep_query=True
        )
    if "login" in options:
        found = found.with_user(options["login"])
    if "password" in options:
        found = found.with_password(options["password"])
    return BrokerAddress(str(found))
