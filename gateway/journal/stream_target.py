"""A place for segments: a stream of the broker, from where `stomp-gateway journal collect` writes them to another."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import secrets
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Final

from aiormq.abc import AbstractChannel, AbstractConnection
from aiormq.exceptions import AMQPError, ChannelNotFoundEntity
from pamqp.commands import Basic
from pamqp.common import FieldTable

from gateway.journal.shipper import ShipError
from gateway.journal.stream_broker import PART_BYTES, SEGMENT_TYPE, StreamBroker, reason_of

# Seconds for the broker's answer to one method or message.
_ANSWER_WITHIN: Final = 30.0

# The broker deletes whole files of a stream, and never the last one. Its own default is 500 MB.
_FILE_BYTES: Final = 50_000_000


class StreamTarget:
    """Publishes segments to a stream. It is connected from the first `put` to `close`, which may alternate.

    ``max_bytes`` and ``max_age`` (in seconds) are of a stream that it declares, because there is none.
    """

    def __init__(self, broker: StreamBroker, max_bytes: int, max_age: float) -> None:
        self._broker = broker
        self._arguments: FieldTable = {
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
        except (OSError, AMQPError, RuntimeError) as error:
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
            except (OSError, AMQPError, RuntimeError):
                pass  # the connection is gone already
            finally:
                self._open = AsyncExitStack()
                runner.close()

    async def _put(self, name: str, data: bytes) -> None:
        if self._channel is None:
            connection = await self._open.enter_async_context(self._broker.connected("ship"))
            await self._declare(connection)
            self._channel = await connection.channel(publisher_confirms=True)
        for properties, body in parts_of(name, data):
            async with asyncio.timeout(_ANSWER_WITHIN):
                # Mandatory, because a stream that is not there any more would take it without a word.
                await self._channel.basic_publish(
                    body, routing_key=self._broker.stream, properties=properties, mandatory=True
                )

    async def _declare(self, connection: AbstractConnection) -> None:
        """Declare the stream, unless there is one, which then is as its owner wants it."""
        async with asyncio.timeout(_ANSWER_WITHIN):
            try:
                await (await connection.channel()).queue_declare(self._broker.stream, passive=True)
            except ChannelNotFoundEntity:
                channel = await connection.channel()
                await channel.queue_declare(self._broker.stream, durable=True, arguments=self._arguments)


def parts_of(name: str, data: bytes) -> Iterator[tuple[Basic.Properties, bytes]]:
    """The messages of a segment."""
    packed = memoryview(gzip.compress(data, compresslevel=6, mtime=0))
    publication, number = secrets.token_hex(8), -(-len(packed) // PART_BYTES)
    digest = hashlib.sha256(data).hexdigest()
    for part in range(number):
        headers: FieldTable = {
            "name": name, "publication": publication, "part": part, "parts": number, "bytes": len(data),
            "sha256": digest,
        }  # fmt: skip
        properties = Basic.Properties(
            message_type=SEGMENT_TYPE, message_id=f"{publication}-{part}", headers=headers, content_encoding="gzip",
            delivery_mode=2, timestamp=datetime.now(UTC),
        )  # fmt: skip
        yield properties, bytes(packed[part * PART_BYTES : (part + 1) * PART_BYTES])
