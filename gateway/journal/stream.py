"""A stream of the broker as a place for segments, from where `stomp-gateway journal collect` writes them to another.

A segment is compressed (gzip) and cut into messages of at most `PART_BYTES`. All messages of one publication carry the
segment's name, the number that the publication was given by chance, how many they are, and size and digest of the
segment. So a reader puts together only what belongs together, and knows when it has all of it.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from aio_pika import Connection, DeliveryMode, Message
from aio_pika.abc import AbstractChannel, HeadersType
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelNotFoundEntity
from pydantic import SecretStr
from pydantic_core import PydanticCustomError
from yarl import URL

from gateway import __version__
from gateway.config.addresses import BrokerUrl
from gateway.config.broker_user import User
from gateway.config.model import PASS_THROUGH
from gateway.config.scalars import text_of
from gateway.config.tls_settings import broker_tls_context
from gateway.config.virtual_host import UpstreamTls, VirtualHost
from gateway.errors import UsageError
from gateway.journal.shipper import ShipError

PART_BYTES: Final = 1 << 20
"""The largest body of a message."""
SEGMENT_TYPE: Final = "stomp-gateway.segment"
MARK_TYPE: Final = "stomp-gateway.mark"
"""A reader's own message: when it comes back, the reader has all that came before."""

# Seconds for a connection, and for the broker's answer to one method or message.
_CONNECT_WITHIN: Final = 10.0
_ANSWER_WITHIN: Final = 30.0

# The broker deletes whole files of a stream, and never the last one. Its own default is 500 MB.
_FILE_BYTES: Final = 50_000_000


@dataclass(frozen=True)
class StreamBroker:
    """The nodes of a broker, who logs in, and the stream in one of its virtual hosts."""

    urls: tuple[BrokerUrl, ...]
    user: User
    virtual_host: str
    stream: str
    tls: UpstreamTls = field(default_factory=UpstreamTls)

    @classmethod
    def of(cls, virtual_host: VirtualHost, user: User, stream: str) -> StreamBroker:
        """A stream of a configured virtual host."""
        upstream = virtual_host.upstream
        name = "/" if virtual_host.amqp_vhost == PASS_THROUGH else virtual_host.amqp_vhost
        return cls(upstream.urls, user, name, stream, upstream.tls)

    @classmethod
    def from_option(cls, broker: str, passcode: str, stream: str, ca_file: Path | None) -> StreamBroker:
        """A stream of the broker that `--from` names. Raises UsageError if it is not a URL of a broker."""
        try:
            parts = urlsplit(broker)
        except ValueError:
            # Python's text of it may have the passcode.
            raise UsageError("--from: This is not a URL.") from None
        if parts.password is not None:
            raise UsageError("--from: a passcode on the command line is visible to all; give --passcode-file.")
        place = parts.netloc.rpartition("@")[2]
        try:
            url = BrokerUrl.read(f"{parts.scheme}://{place}")
        except PydanticCustomError as error:
            raise UsageError(f"--from: {text_of(error)}") from error
        user = User(login=unquote(parts.username or "guest"), passcode=SecretStr(passcode))
        virtual_host = unquote(parts.path[1:]) or "/"
        return cls((url,), user, virtual_host, stream, UpstreamTls.model_construct(ca_file=ca_file))

    @asynccontextmanager
    async def connected(self, purpose: str) -> AsyncIterator[Connection]:
        """A connection to the first node that answers, until the end of the block. Raises `ShipError` if none does.

        It does not reconnect by itself: shipper and collector go on from what is stored, after their own back-off.
        """
        reasons = []
        for url in self.urls:
            try:
                connection = await self._connect(url, purpose)
            except CONNECTION_EXCEPTIONS as error:
                reasons.append(f"{url}: {reason_of(error)}")
                continue
            async with connection:
                yield connection
            return
        raise ShipError("; ".join(reasons))

    async def _connect(self, url: BrokerUrl, purpose: str) -> Connection:
        address = url.with_login(self.user.login, self.user.passcode.get_secret_value(), self.virtual_host)
        name = f"stomp-gateway {purpose} {self.stream}"
        connection = Connection(
            URL(address, encoded=True),
            ssl_context=broker_tls_context(self.tls) if url.tls else None,
            client_properties={"product": "stomp-gateway", "version": __version__, "connection_name": name},
        )
        try:
            async with asyncio.timeout(_CONNECT_WITHIN):
                await connection.connect()
        except BaseException:
            # The garbage collector would do so, in any thread.
            await connection.close()
            raise
        return connection


def reason_of(error: BaseException) -> str:
    """An error's reason, in one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]


class StreamTarget:
    """Publishes segments to a stream. It is connected from the first `put` to `close`, which may alternate.

    ``max_bytes`` and ``max_age`` (in seconds) are of a stream that it declares, because there is none.
    """

    def __init__(self, broker: StreamBroker, max_bytes: int, max_age: float) -> None:
        self._broker = broker
        self._arguments: HeadersType = {
            "x-queue-type": "stream",
            "x-max-length-bytes": max_bytes,
            "x-max-age": f"{int(max_age)}s",
            "x-stream-max-segment-size-bytes": min(_FILE_BYTES, max_bytes),
        }
        self._runner: asyncio.Runner | None = None
        self._open = AsyncExitStack()
        self._channel: AbstractChannel | None = None

    def put(self, name: str, data: bytes) -> None:
        """See `ShipTarget`. Published twice, a segment is collected once."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            self._runner.run(self._put(name, data))
        except CONNECTION_EXCEPTIONS as error:
            self.close()
            raise ShipError(f"stream {self._broker.stream}: {reason_of(error)}") from error
        except ShipError:
            self.close()
            raise

    def close(self) -> None:
        """See `ShipTarget`."""
        runner, self._runner = self._runner, None
        self._channel = None
        if runner is not None:
            try:
                runner.run(self._open.aclose())
            except CONNECTION_EXCEPTIONS:
                pass  # the connection is gone already
            finally:
                self._open = AsyncExitStack()
                runner.close()

    async def _put(self, name: str, data: bytes) -> None:
        if self._channel is None:
            connection = await self._open.enter_async_context(self._broker.connected("ship"))
            async with asyncio.timeout(_ANSWER_WITHIN):
                self._channel = await self._declared(connection)
        for message in parts_of(name, data):
            # Mandatory, because a stream that is not there any more would take it without a word.
            await self._channel.default_exchange.publish(
                message, self._broker.stream, mandatory=True, timeout=_ANSWER_WITHIN
            )

    async def _declared(self, connection: Connection) -> AbstractChannel:
        """A channel to publish on. The stream is declared, unless there is one, which then is as its owner wants it."""
        channel = await connection.channel(on_return_raises=True)
        try:
            await channel.get_queue(self._broker.stream)
        except ChannelNotFoundEntity:
            channel = await connection.channel(on_return_raises=True)
            await channel.declare_queue(self._broker.stream, durable=True, arguments=self._arguments)
        return channel


def parts_of(name: str, data: bytes) -> Iterator[Message]:
    """The messages of a segment."""
    packed = memoryview(gzip.compress(data, compresslevel=6, mtime=0))
    publication, number = secrets.token_hex(8), -(-len(packed) // PART_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    for part in range(number):
        headers: HeadersType = {
            "name": name, "publication": publication, "part": part, "parts": number, "bytes": len(data),
            "sha256": digest,
        }  # fmt: skip
        yield Message(
            bytes(packed[part * PART_BYTES : (part + 1) * PART_BYTES]),
            type=SEGMENT_TYPE, message_id=f"{publication}-{part}", headers=headers, content_encoding="gzip",
            delivery_mode=DeliveryMode.PERSISTENT, timestamp=datetime.now(UTC),
        )  # fmt: skip
