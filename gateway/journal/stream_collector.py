"""Collects segments from a stream into a store: each once and whole, by its name.

The store says what is in, because a segment is put only if it is not there. A note in the store says how far the stream
was read, only to save reading all of it again. If the stream is another one by then, which the last message that was
read tells, it is read from its beginning.

A reader first asks for what comes and publishes a mark. The mark's offset is the end of the stream at that moment.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import time
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import structlog
from aio_pika import Message
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from gateway.config.journal_settings import LARGEST_STREAM_SEGMENT
from gateway.journal.segments import DAY, SegmentName
from gateway.journal.ship_targets import Store
from gateway.journal.shipper import SegmentDiffersError, ShipError
from gateway.journal.stream import MARK_TYPE, SEGMENT_TYPE, StreamBroker, reason_of

log = structlog.get_logger("gateway.journal")

# Messages on their way, of at most 1 MiB each.
_PREFETCH: Final = 20

_ANSWER_WITHIN: Final = 30.0
_NOTE_EVERY: Final = 10.0
_LAST_RETRY: Final = 60.0

# A publication whose parts do not come for so long, in seconds, was given up by its gateway.
_ABANDONED: Final = 3600.0
_LARGEST_PARTS: Final = 1 << 14

_NAME: Final = re.compile(rf"{DAY.pattern}/([^/]+)")


class _Note(msgspec.Struct):
    """How far a stream was read: what is before ``offset`` need not be read again, ``last`` was the last message."""

    stream: str
    offset: int
    last: int
    last_id: str


class _Part(msgspec.Struct):
    """The headers of a message that is part of a segment."""

    name: str
    publication: str
    part: int
    parts: int
    bytes: int
    sha256: str


@dataclass
class _Publication:
    """The parts of a segment that have come, in a file. ``at`` is when the last one came, by this process's clock."""

    name: str
    first: int
    file: Path
    at: float
    parts: int = 0


@dataclass
class Collected:
    """What a reader has stored and refused. Segments that the store already had count, too."""

    segments: int = 0
    bytes: int = 0
    refused: int = 0


@dataclass
class StreamCollector:
    """Reads a stream into a store, until the end or for ever."""

    broker: StreamBroker
    store: Store
    done: Collected = field(default_factory=Collected)

    async def collect(self, *, follow: bool) -> None:
        """Read what is there; with ``follow`` also what comes, and try again for as long as the broker is away.

        Raises `ShipError` without ``follow`` if the broker or the store does not answer.
        """
        pause = 1.0
        while True:
            before = self.done.segments
            try:
                await self._collect(follow=follow)
            except (ShipError, *CONNECTION_EXCEPTIONS) as error:
                if not follow:
                    raise error if isinstance(error, ShipError) else ShipError(reason_of(error)) from error
                log.error("journal cannot be collected", reason=reason_of(error))
                pause = 1.0 if self.done.segments > before else min(2 * pause, _LAST_RETRY)
                await asyncio.sleep(pause)
            else:
                return

    async def _collect(self, *, follow: bool) -> None:
        with TemporaryDirectory(prefix="stomp-gateway-collect-") as folder:
            async with self.broker.connected("collect") as connection:
                end = await self._end(connection)
                reading = _Reading(self.store, Path(folder), self.done)
                note = self._note(end)
                if not await self._read(connection, reading, note, None if follow else end):
                    log.warning("stream is another one", stream=self.broker.stream)
                    _ = await self._read(connection, reading, None, None if follow else end)

    def _note(self, end: int) -> _Note | None:
        data = self.store.note()
        if data is None:
            return None
        try:
            note = msgspec.json.decode(data, type=_Note)
        except msgspec.DecodeError:
            return None
        # Beyond the end it is of a stream that is gone.
        return note if note.stream == self.broker.stream and note.last < end else None

    async def _end(self, connection: AbstractConnection) -> int:
        """The offset of a mark that is published now."""
        mark = secrets.token_hex(8)
        async with asyncio.timeout(_ANSWER_WITHIN), _consuming(connection, self.broker.stream, "next") as messages:
            channel = await connection.channel(on_return_raises=True)
            marking = Message(b"", type=MARK_TYPE, message_id=mark)
            await channel.default_exchange.publish(marking, self.broker.stream, mandatory=True)
            async for message in messages:
                if message.message_id == mark:
                    return _offset(message)
        raise ShipError("the stream gives no messages")

    async def _read(
        self, connection: AbstractConnection, reading: _Reading, note: _Note | None, end: int | None
    ) -> bool:
        """Read from where the note says to ``end``, or for ever; False if the note is not about this stream."""
        start: str | int = "first" if note is None else note.offset
        noted_at = time.monotonic()
        reading.known_until = -1 if note is None else note.last
        async with _consuming(connection, self.broker.stream, start) as messages:
            async for message in messages:
                offset, identity = _offset(message), message.message_id or ""
                if note is not None and offset == note.last and identity != note.last_id:
                    return False
                await reading.take(offset, message)
                is_end = end is not None and offset >= end
                if is_end or time.monotonic() - noted_at > _NOTE_EVERY:
                    noted_at = time.monotonic()
                    next_note = _Note(self.broker.stream, reading.first_needed(offset), offset, identity)
                    await asyncio.to_thread(self.store.set_note, msgspec.json.encode(next_note))
                if is_end:
                    return True
        raise ShipError("the broker stopped giving messages")


class _Reading:
    """Puts messages together to segments."""

    def __init__(self, store: Store, folder: Path, done: Collected) -> None:
        self._store = store
        self._folder = folder
        self._done = done
        self._open: dict[str, _Publication] = {}
        # An earlier reader came so far: what is whole up to there is stored already.
        self.known_until = -1

    def first_needed(self, last: int) -> int:
        """The offset from which a later reader must read on, once this one has read ``last``."""
        return min((publication.first for publication in self._open.values()), default=last)

    async def take(self, offset: int, message: AbstractIncomingMessage) -> None:
        """Take the next message of the stream."""
        if message.type == MARK_TYPE:
            return
        part = _part(message)
        if part is None:
            self._refuse("this message is no segment", offset)
            return
        at = time.monotonic()
        self._forget_abandoned(at)
        publication = self._open.get(part.publication)
        if publication is None:
            if part.part:
                # Its beginning was deleted by the stream's retention, or a mistake.
                if offset > self.known_until:
                    self._refuse("the beginning of this segment is missing", offset, part.name)
                return
            parts = self._folder / secrets.token_hex(8)
            publication = self._open[part.publication] = _Publication(part.name, offset, parts, at)
        if part.part != publication.parts:
            if part.part > publication.parts:
                self._drop(part.publication)
                self._refuse("a part of this segment is missing", offset, part.name)
            return
        with publication.file.open("ab") as file:
            file.write(message.body)
        publication.parts, publication.at = publication.parts + 1, at
        if publication.parts == part.parts:
            await self._complete(offset, part, publication)

    async def _complete(self, offset: int, part: _Part, publication: _Publication) -> None:
        packed = publication.file.read_bytes()
        data = await asyncio.to_thread(_unpacked, packed, part)
        if data is None:
            self._refuse("this segment is damaged", offset, part.name)
        else:
            try:
                await asyncio.to_thread(self._put, part.name, data)
            except SegmentDiffersError as error:
                self._refuse(str(error), offset, part.name)
        # Its gateway may have begun before, and was killed.
        for key in [key for key, publication in self._open.items() if publication.name == part.name]:
            self._drop(key)

    def _put(self, name: str, data: bytes) -> None:
        # Counted in the thread that stores it: a SIGTERM ends the task that awaits the thread, not the thread.
        self._store.put(name, data)
        self._done.segments += 1
        self._done.bytes += len(data)

    def _forget_abandoned(self, now: float) -> None:
        for key in [key for key, publication in self._open.items() if now - publication.at > _ABANDONED]:
            self._drop(key)

    def _drop(self, publication: str) -> None:
        self._open.pop(publication).file.unlink(missing_ok=True)

    def _refuse(self, reason: str, offset: int, name: str = "") -> None:
        self._done.refused += 1
        log.error("message of the stream refused", reason=reason, offset=offset, segment=name)


def _part(message: AbstractIncomingMessage) -> _Part | None:
    """The headers of a part of a segment; None if they are anything else."""
    if message.type != SEGMENT_TYPE:
        return None
    try:
        part = msgspec.convert(message.headers, _Part)
    except msgspec.ValidationError:
        return None
    named = _NAME.fullmatch(part.name)
    # It becomes the name of a file, so it must be exactly that of a finished segment.
    name = None if named is None else SegmentName.read(named[2])
    is_possible = 0 <= part.part < part.parts <= _LARGEST_PARTS and 0 <= part.bytes <= LARGEST_STREAM_SEGMENT
    return part if named is not None and str(name) == named[2] and is_possible else None


def _unpacked(packed: bytes, part: _Part) -> bytes | None:
    """The bytes of a segment; None if they are not those that were published."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        # Never more than it says, whatever the bytes would make.
        data = unpacker.decompress(packed, part.bytes + 1)
    except zlib.error:
        return None
    return data if len(data) == part.bytes and hashlib.sha256(data).hexdigest() == part.sha256 else None


def _offset(message: AbstractIncomingMessage) -> int:
    headers: dict[str, Any] = message.headers
    return int(headers["x-stream-offset"])


@asynccontextmanager
async def _consuming(
    connection: AbstractConnection, stream: str, start: str | int
) -> AsyncIterator[AsyncIterator[AbstractIncomingMessage]]:
    """The messages of a stream from an offset on, one after the other; each is acknowledged when the next is wanted.

    They end if the broker closes the channel, or cancels the consumer: the stream is deleted, or its node is gone.
    """
    queue: asyncio.Queue[AbstractIncomingMessage | None] = asyncio.Queue()
    async with connection.channel() as channel:
        channel.close_callbacks.add(lambda *_: queue.put_nowait(None))
        under = await channel.get_underlay_channel()
        under.on_consumer_cancel_callbacks.add(lambda _: queue.put_nowait(None))
        await channel.set_qos(prefetch_count=_PREFETCH)
        await (await channel.get_queue(stream, ensure=False)).consume(queue.put, arguments={"x-stream-offset": start})
        yield _each(queue)


async def _each(queue: asyncio.Queue[AbstractIncomingMessage | None]) -> AsyncIterator[AbstractIncomingMessage]:
    while (message := await queue.get()) is not None:
        yield message
        await message.ack()
