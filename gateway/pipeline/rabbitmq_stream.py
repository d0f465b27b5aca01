"""Spark's data source ``rabbitmq_stream``: the messages of RabbitMQ streams as rows, for batches and for streaming.

    from gateway.pipeline.rabbitmq_stream import RabbitMQStream
    spark.dataSource.register(RabbitMQStream)
    spark.readStream.format("rabbitmq_stream").option("url", "amqp://host/").option("stream", "orders").load()

Spark plans ranges of offsets and asks for the same range again after a failure, which a stream can answer. `commit` is
called one batch late and not for the last one, so nothing here depends on it. Filters are not pushed down: with Spark's
own default settings a reader that offers it fails.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from gateway.errors import PipelineError
from gateway.pipeline.spark_session import option_number, source_options
from gateway.pipeline.stream_client import BrokerAddress, StreamConnection, StreamMessage, broker_at, messages_between
from gateway.pipeline.table_schemas import STREAM_MESSAGE, arrow_schema
from gateway.session.destinations import message_destination
from gateway.times import utc

T = TypeVar("T")
Offsets = dict[str, int]
"""The next offset to read of each stream."""

TEXTS: Final = (
    "content_type", "content_encoding", "correlation_id", "reply_to", "expiration", "message_id", "type", "user_id",
    "app_id",
)  # fmt: skip
_NUMBERS: Final = ("delivery_mode", "priority")
_SCHEMA: Final = arrow_schema(STREAM_MESSAGE)

EARLIEST, LATEST = "earliest", "latest"
_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999."""
_SOURCE: Final = "rabbitmq_stream"
_OPTIONS: Final = (
    "url", "virtualHost", "login", "password", "passwordFile", "stream", "superStream", "startingOffset",
    "endingOffset", "maxRowsPerTrigger", "rowsPerTask", "failOnDataLoss", "readTimeout",
)  # fmt: skip


@dataclass(frozen=True)
class StreamOptions:
    """The options of the source.

    The partitions ``NAME-0``, ``NAME-1`` and so on of a super stream are read too. ``start`` and ``end`` are an offset,
    a time in ISO 8601, ``earliest`` or ``latest``, or one of these for each stream. ``most_rows`` bounds a micro-batch;
    gaps in the offsets make it smaller. A task of Spark reads at most ``rows_per_task`` offsets, and gives up after
    ``read_timeout`` seconds without a message. ``fail_on_data_loss``: messages that retention has deleted are an error.
    """

    broker: BrokerAddress
    streams: tuple[str, ...]
    super_stream: str | None
    start: str | Mapping[str, str] | None
    end: str | Mapping[str, str]
    most_rows: int | None
    rows_per_task: int
    fail_on_data_loss: bool
    read_timeout: float

    @classmethod
    def read(cls, options: Mapping[str, str]) -> StreamOptions:
        """Read Spark's options. Raises PipelineError for a mistake."""
        found = source_options(_SOURCE, options, _OPTIONS)
        if "url" not in found or not {"stream", "superstream"} & found.keys():
            raise _mistake('set the options "url" and "stream", or "superStream" in place of it.')
        return cls(
            broker_at(found["url"], found),
            tuple(_names(found.get("stream", ""))),
            found.get("superstream"),
            _place(found["startingoffset"], "startingOffset") if "startingoffset" in found else None,
            _place(found.get("endingoffset", LATEST), "endingOffset"),
            option_number(_SOURCE, found, "maxRowsPerTrigger") if "maxrowspertrigger" in found else None,
            option_number(_SOURCE, found, "rowsPerTask", 250_000),
            _truth(found.get("failondataloss", "true")),
            option_number(_SOURCE, found, "readTimeout", 60),
        )


def _mistake(text: str) -> PipelineError:
    return PipelineError(f"{_SOURCE}: {text}")


def _names(text: str) -> list[str]:
    """The names in a list, or in JSON for names that have commas."""
    names = json.loads(text) if text.startswith("[") else [name.strip() for name in text.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def _place(text: str, option: str) -> str | dict[str, str]:
    if text.startswith("{"):
        return {name: str(_place(str(value), option)) for name, value in json.loads(text).items()}
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    with suppress(ValueError):
        return text if text.isdecimal() else utc(text).isoformat()
    raise _mistake(f"{option} is {text!r}: write earliest, latest, an offset, or a time such as 2026-11-21T14:30.")


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _mistake(f"failOnDataLoss is {text!r}: write true or false.")
    return text.lower() == "true"


class RabbitMQStream(DataSource):
    """The data source; register it with ``spark.dataSource.register(RabbitMQStream)``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return _SOURCE

    def schema(self) -> str:
        """The columns, the same for each stream."""
        return STREAM_MESSAGE

    def reader(self, schema: StructType) -> StreamBatchReader:
        """For ``spark.read``."""
        return StreamBatchReader(StreamOptions.read(self.options))

    def streamReader(self, schema: StructType) -> StreamMicroBatchReader:  # noqa: N802 - Spark's name
        """For ``spark.readStream``."""
        return StreamMicroBatchReader(StreamOptions.read(self.options))


class OffsetRange(InputPartition):
    """What one task reads of a stream: from ``start`` up to ``end``, which is not read."""

    def __init__(self, stream: str, start: int, end: int) -> None:
        super().__init__((stream, start, end))
        self.stream, self.start, self.end = stream, start, end


class _RangeReader:
    """What both readers have in common."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a range as Arrow batches; Spark calls it in a process of its own."""
        assert isinstance(partition, OffsetRange)  # noqa: S101 - for mypy
        options = self._options
        with asyncio.Runner() as runner:
            connection = StreamConnection(options.broker)
            try:
                runner.run(connection.connect())
                found = messages_between(
                    connection, partition.stream, partition.start, partition.end,
                    within=options.read_timeout, fail_on_data_loss=options.fail_on_data_loss,
                )  # fmt: skip
                while messages := runner.run(_next(found)):
                    yield as_rows(partition.stream, messages)
            finally:
                runner.run(connection.close())

    def _planned(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        step = self._options.rows_per_task
        return [
            OffsetRange(stream, first, min(first + step, end[stream]))
            for stream in end
            for first in range(start.get(stream, 0), end[stream], step)
        ]

    def _asked(self, question: Callable[[StreamConnection, list[str]], Awaitable[T]]) -> T:
        """Ask the broker about all streams, over one connection."""
        return asyncio.run(ask(self._options, question))


async def _next(found: AsyncIterator[list[StreamMessage]]) -> list[StreamMessage]:
    return await anext(found, [])


async def ask(options: StreamOptions, question: Callable[[StreamConnection, list[str]], Awaitable[T]]) -> T:
    """Connect, find the partitions of a super stream, and ask about all streams. Raises PipelineError."""
    async with options.broker.connected() as connection:
        streams = list(options.streams)
        if options.super_stream is not None:
            found = len(streams)
            while await connection.exists(name := f"{options.super_stream}-{len(streams) - found}"):
                streams.append(name)
            if len(streams) == found:
                raise PipelineError(
                    f"there is no stream {name!r}, so {options.super_stream!r} is no super stream whose partitions are "
                    'numbered. If they have other names, list them in the option "stream".'
                )
        return await question(connection, streams)


async def resolved(connection: StreamConnection, stream: str, place: str, end: int) -> int:
    """The offset that ``earliest``, ``latest``, a number or a time means in a stream that ends before ``end``."""
    if place.isdecimal():
        return int(place)
    if place == LATEST or not end:
        return end
    first = await connection.first_offset(stream, None if place == EARLIEST else utc(place))
    return end if first is None else first


def _place_of(place: str | Mapping[str, str], stream: str, otherwise: str) -> str:
    return place if isinstance(place, str) else place.get(stream, otherwise)


class StreamBatchReader(_RangeReader, DataSourceReader):
    """Reads what is there, once."""

    def partitions(self) -> Sequence[OffsetRange]:
        """The ranges from ``startingOffset`` to ``endingOffset``."""
        options = self._options
        given = EARLIEST if options.start is None else options.start

        async def ends(connection: StreamConnection, streams: list[str]) -> tuple[Offsets, Offsets]:
            start, end = Offsets(), Offsets()
            for each in streams:
                last = await connection.next_offset(each)
                start[each] = await resolved(connection, each, _place_of(given, each, EARLIEST), last)
                end[each] = min(last, await resolved(connection, each, _place_of(options.end, each, LATEST), last))
                if start[each] > last and options.fail_on_data_loss:
                    raise PipelineError(
                        f"the stream {each!r} ends before offset {last}, and was to be read from offset {start[each]}. "
                        "Was it deleted and declared anew?"
                    )
            return start, end

        return self._planned(*self._asked(ends))


class StreamMicroBatchReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on and on. Spark keeps one in a process of its own for planning, and others for reading."""

    def __init__(self, options: StreamOptions) -> None:
        super().__init__(options)
        self._ends: Offsets = {}
        """Where the streams ended when the broker was asked last."""
        self._is_bounded = False
        """True if nothing that comes after these ends is read (``availableNow``)."""

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name, as below
        """Where a query without a checkpoint begins: at ``startingOffset``, by default with what comes from now on."""
        given = LATEST if self._options.start is None else self._options.start

        async def begins(connection: StreamConnection, streams: list[str]) -> Offsets:
            return {
                each: await resolved(
                    connection, each, _place_of(given, each, LATEST), await connection.next_offset(each)
                )
                for each in streams
            }

        return self._asked(begins)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The option ``maxRowsPerTrigger``."""
        most = self._options.most_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        """Where the next micro-batch ends."""
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        waiting = self._waiting(start)
        if not self._is_bounded and (most is None or sum(waiting.values()) < most):
            self._ends = self._asked(_next_offsets)
            waiting = self._waiting(start)
        for stream, rows in waiting.items():
            if rows < 0 and self._options.fail_on_data_loss:
                raise PipelineError(
                    f"the stream {stream!r} ends before offset {start[stream]}, up to which it has been read: it was "
                    "deleted and declared anew. Use a new checkpoint, or set failOnDataLoss=false to read the new one."
                )
        taken = _shared(waiting, most)
        # A stream that is no longer wanted keeps its place, and one that was declared anew begins at its beginning.
        return start | {
            stream: start.get(stream, 0) + rows if waiting[stream] >= 0 else 0 for stream, rows in taken.items()
        }

    def _waiting(self, start: Offsets) -> Offsets:
        return {stream: end - start.get(stream, 0) for stream, end in self._ends.items()}

    def reportLatestOffset(self) -> Offsets | None:  # noqa: N802
        """Where the streams end, for the progress of the query."""
        return self._ends or None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read nothing that comes after this."""
        self._ends = self._asked(_next_offsets)
        self._is_bounded = True

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[OffsetRange]:
        """The ranges of a micro-batch; after a failure Spark asks for the same ones, without `latestOffset` before."""
        return self._planned(start, end)


async def _next_offsets(connection: StreamConnection, streams: list[str]) -> Offsets:
    return {stream: await connection.next_offset(stream) for stream in streams}


def _shared(waiting: Offsets, most: int | None) -> Offsets:
    """How many offsets each stream may go on, in proportion to what waits there, and at least one."""
    total = sum(max(0, rows) for rows in waiting.values())
    if most is None or total <= most:
        return {stream: max(0, rows) for stream, rows in waiting.items()}
    return {stream: max(min(rows, 1), rows * most // total) for stream, rows in waiting.items()}


# ---------------------------------------------------------------- rows


def as_rows(stream: str, messages: Sequence[StreamMessage]) -> pa.RecordBatch:
    """Messages in the columns of `STREAM_MESSAGE`. Bytes of a text that are not UTF-8 become U+FFFD."""
    count = len(messages)
    routes = [_route(message.route) for message in messages]
    found = [message.properties for message in messages]
    columns: dict[str, list[object]] = {
        "stream": [stream] * count,
        "offset": [message.offset for message in messages],
        "timestamp": [_time(each.timestamp) for each in found],
        "exchange": [_text(exchange) for exchange, _ in routes],
        "routing_key": [_text(key) for _, key in routes],
        "destination": [_text(message_destination(*route)) for route in routes],
        "headers": [_headers(each.headers) for each in found],
        "body": [message.body for message in messages],
    }
    columns |= {name: [_text(getattr(each, name)) for each in found] for name in TEXTS}
    columns |= {name: [getattr(each, name) for each in found] for name in _NUMBERS}
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in _SCHEMA], schema=_SCHEMA)


def _route(route: bytes) -> tuple[bytes, bytes]:
    size = route[0]
    return route[1 : size + 1], route[size + 2 :]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def _time(seconds: int | None) -> int | None:
    """A message's own timestamp in microseconds, if it is before the year 10000: clients may write any number."""
    return seconds * 1_000_000 if seconds is not None and seconds <= _LAST_SECOND else None


def _headers(headers: Sequence[tuple[bytes, bytes | int]] | None) -> list[tuple[str, str]]:
    """The headers table as a map of texts; of two entries with one name the last one counts."""
    texts = {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
        for name, value in headers or ()
    }
    return list(texts.items())
