"""Archive: the messages of RabbitMQ streams become rows of the table ``messages``, once.

A batch is a range of offsets. Spark reads it with the data source ``rabbitmq_stream`` and writes files that nobody
sees. One commit then adds the files and says up to which offset the stream is archived. A run that is killed before the
commit has done nothing; the next one reads the same range. There is no checkpoint beside the table that could be lost.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from gateway.errors import ExitCode, PipelineError
from gateway.pipeline.lake import Lake, known_trouble
from gateway.pipeline.progress import EndingSignals, Progress
from gateway.pipeline.rabbitmq_stream import EARLIEST, TEXTS, RabbitMQStream, StreamOptions, ask, resolved
from gateway.pipeline.spark_session import SparkOptions, configured, first_line, spark_session
from gateway.pipeline.spark_tables import write_files
from gateway.pipeline.stream_client import BrokerAwayError, StreamConnection

_OUR_ERROR: Final = re.compile(r"^gateway\.\S+Error: (.*)", re.MULTILINE)
"""The last line of the traceback in which Spark shows what this package has raised."""


@dataclass(frozen=True)
class ArchiveOptions:
    """What to archive, and how.

    ``source`` are options of the data source ``rabbitmq_stream``. ``every`` is the time in seconds between two looks
    for new messages; None: archive what is there, and end. A batch has at most ``batch_rows`` offsets. ``hidden`` are
    headers and properties, such as ``correlation-id``, that are left out, and ``most_body`` the bytes above which a
    body is. ``allow_data_loss``: go on after messages that retention has deleted, and with a stream declared anew.
    """

    source: Mapping[str, str]
    lake: str
    every: float | None = None
    spark: SparkOptions = field(default_factory=SparkOptions)
    batch_rows: int = 500_000
    hidden: tuple[str, ...] = ()
    most_body: int | None = None
    allow_data_loss: bool = False


def archive(options: ArchiveOptions, progress: Progress, spark: SparkSession | None = None) -> ExitCode:
    """Archive the messages that wait, with a Spark session of its own if none is given.

    Returns OK; INTERRUPTED after Ctrl-C; TERMINATED after SIGTERM unless ``every`` is set. Raises PipelineError if it
    failed; the next run continues where this one ended.
    """
    lake = Lake(options.lake)
    try:
        return _ArchiveRun(options, lake, progress).run(spark)
    except (PySparkException, Py4JError, OSError) as error:
        text = f"{error} {getattr(error, 'java_exception', '')}"
        ours = _OUR_ERROR.findall(text)
        sentence = ours[-1] if ours else known_trouble(text, f"the lake {lake}")
        raise PipelineError(sentence or f"Spark ended with: {first_line(error)}") from error


@dataclass(frozen=True, slots=True)
class _Waiting:
    """The offsets of a stream to archive: from ``start`` up to ``end``. ``position`` is how far the lake has it."""

    stream: str
    position: int | None
    start: int
    end: int


class _ArchiveRun:
    """One run of the command."""

    def __init__(self, options: ArchiveOptions, lake: Lake, progress: Progress) -> None:
        self._options = options
        loss = str(not options.allow_data_loss).lower()
        self._source = {**options.source, "failOnDataLoss": loss}
        self._streams = StreamOptions.read(self._source)
        self._vhost = self._streams.broker.virtual_host
        self._lake = lake
        self._progress = progress
        self._signals = EndingSignals(progress)
        self._messages = 0
        self._until: dict[str, int] = {}
        """Where the streams ended at the first look; nothing later is read without ``every``."""

    def run(self, spark: SparkSession | None) -> ExitCode:
        self._lake.must_not_be_old()
        self._lake.create("segments")  # by which a lake is known
        self._lake.create("messages")
        self._progress.say(f"{self._streams.broker.name}, lake {self._lake}")
        with self._signals.noted(), ExitStack() as stack:
            session = None if spark is None else configured(spark)
            while self._signals.number is None:
                try:
                    waiting = asyncio.run(ask(self._streams, self._waiting))
                except BrokerAwayError as error:
                    if self._options.every is None:
                        raise
                    self._progress.warn(f"{error} It is tried again in {self._options.every:g} seconds.")
                    waiting = []
                if waiting and session is None:
                    is_short = self._options.every is None
                    session = stack.enter_context(spark_session(self._options.spark, quick_start=is_short))
                for each in waiting:
                    if session is not None and self._signals.number is None:
                        self._archive(session, each)
                if not waiting:
                    if self._options.every is None:
                        break
                    self._signals.pause(self._options.every)
        self._progress.say(f"done: {self._messages:,} messages" if self._messages else "nothing new")
        return self._signals.exit_code(ExitCode.OK, is_resident=self._options.every is not None)

    # ------------------------------------------------------------ what waits

    async def _waiting(self, connection: StreamConnection, streams: list[str]) -> list[_Waiting]:
        """The streams that have messages which the lake does not have."""
        found = [await self._look_at(connection, stream) for stream in streams]
        return [each for each in found if each.end > each.start]

    async def _look_at(self, connection: StreamConnection, stream: str) -> _Waiting:
        at = self._lake.position(self._reader(stream))
        end = await connection.next_offset(stream)
        if self._options.every is None:
            end = min(end, self._until.setdefault(stream, end))
        start = await resolved(connection, stream, EARLIEST, end) if at is None else at
        if start > end and not self._options.allow_data_loss:
            raise PipelineError(
                f"the stream {stream!r} ends before offset {end}, and is archived up to offset {start}: it was deleted "
                "and declared anew. With --allow-data-loss the archive goes on with the new one's first message; rows "
                "of both have the same offsets then."
            )
        if start > end or (self._options.allow_data_loss and at is not None):
            first = await resolved(connection, stream, EARLIEST, end)
            start = first if start > end else max(start, first)
        return _Waiting(stream, at, start, end)

    def _reader(self, stream: str) -> str:
        """The name under which the table remembers how far a stream is archived."""
        return f"stream {self._vhost} {stream}"

    # ------------------------------------------------------------ a batch

    def _archive(self, spark: SparkSession, waiting: _Waiting) -> None:
        """Write and commit the next batch of a stream."""
        stream, began, start = waiting.stream, time.monotonic(), waiting.start
        end = min(waiting.end, start + self._options.batch_rows)
        directory, now = uuid.uuid4().hex, datetime.now(UTC)
        write_files(self._kept(self._read(spark, stream, start, end), now), self._lake, "messages", directory)
        files = self._lake.written_files("messages", directory)
        if not self._lake.commit_messages(files, self._reader(stream), waiting.position, end):
            self._progress.say(f"{stream}: another archive has read the same messages")
            return
        rows, seconds = sum(file.rows for file in files), time.monotonic() - began
        self._messages += rows
        self._progress.say(
            f"{stream}: {rows:,} messages ({rows / seconds:,.0f}/s), offsets {start:,} to {end - 1:,}; "
            f"{waiting.end - end:,} to come"
        )

    def _read(self, spark: SparkSession, stream: str, start: int, end: int) -> DataFrame:
        spark.dataSource.register(RabbitMQStream)
        tasks = max(1, spark.sparkContext.defaultParallelism)
        source = {name: value for name, value in self._source.items() if name != "superStream"}
        return (
            spark.read.format(RabbitMQStream.name())
            .options(**source)
            .option("stream", json.dumps([stream]))
            .option("startingOffset", str(start))
            .option("endingOffset", str(end))
            .option("rowsPerTask", str(max(10_000, -(-(end - start) // tasks))))
            .load()
        )

    def _kept(self, rows: DataFrame, now: datetime) -> DataFrame:
        """The columns of the table, without what is hidden or too large."""
        hidden = [name.lower() for name in self._options.hidden]
        body: Column = F.col("body")
        if self._options.most_body is not None:
            body = F.when(F.octet_length("body") <= self._options.most_body, body)
        columns = {
            "body_bytes": F.octet_length("body").cast("bigint"),
            "body": body,
            "vhost": F.lit(self._vhost),
            "archived": F.lit(now),
            "d": F.lit(f"{now:%Y-%m-%d}"),
        }
        if hidden:
            columns["headers"] = F.map_filter("headers", lambda name, _: ~F.lower(name).isin(hidden))
        for name in TEXTS:
            if name.replace("_", "-") in hidden:
                columns[name] = F.lit(None).cast("string")
        return rows.withColumns(columns)
