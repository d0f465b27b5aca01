"""Spark's data source ``stomp``: each row becomes a message that a STOMP server has receipted.

    from gateway.pipeline.stomp_sink import StompSink
    spark.dataSource.register(StompSink)
    rows.write.format("stomp").mode("append").option("url", "stomp://host/").option("destination", "/queue/a").save()

At least once is what a sink can be: a task that Spark repeats sends its rows again. They have the same identifiers
then, in the header ``x-row-id``, as long as Spark computes the rows in the same order.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from gateway.errors import PipelineError
from gateway.pipeline.spark_session import option_number, source_options
from gateway.pipeline.stomp_sender import WINDOW, StompServer, send_headers, sending
from gateway.pipeline.table_schemas import schema_of

ROW_ID: Final = b"x-row-id"

_OPTIONS: Final = ("url", "login", "password", "passwordFile", "destination", "window")
# Spark's own names of what the tasks of a micro-batch belong to.
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"


class StompSink(DataSource):
    """The data source; register it with ``spark.dataSource.register(StompSink)``."""

    @classmethod
    def name(cls) -> str:
        """The name for ``format``."""
        return "stomp"

    def writer(self, schema: StructType, overwrite: bool) -> RowSender:
        """For ``write``."""
        if overwrite:
            raise PipelineError('stomp: messages cannot be replaced. Use mode("append").')
        return RowSender(self.options, schema, uuid.uuid4().hex)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamRowSender:  # noqa: N802 - Spark's name
        """For ``writeStream``."""
        return StreamRowSender(self.options, schema, uuid.uuid4().hex)


@dataclass
class SentRows(WriterCommitMessage):
    """How many rows of a partition were receipted."""

    rows: int


class _Sender:
    """What both writers have in common.

    The schema has ``destination``, unless an option names one, ``body`` as binary or string, ``headers`` as a map of
    strings, and any other column of ``messages``. ``query`` begins the identifiers, unless Spark has a name for the
    query.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, query: str) -> None:
        found = source_options("stomp", options, _OPTIONS, ("path", "checkpointLocation", "queryName"))
        if "url" not in found:
            raise PipelineError('stomp: set the option "url".')
        self._server = StompServer.read(found["url"], found.get("login"), found.get("password"))
        self._destination = found.get("destination")
        self._window = option_number("stomp", found, "window", WINDOW)
        self._query = query
        names = set(schema.fieldNames())
        if strange := names - set(schema_of("messages").names):
            raise PipelineError(f"stomp: the column {min(strange)!r} cannot be sent. Put it into headers or body.")
        if self._destination is None and "destination" not in names:
            raise PipelineError('stomp: there is neither a column nor an option "destination".')

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a partition in order, and wait for their receipts. Spark calls it in another process."""
        context = TaskContext.get()
        query, batch, partition = self._query, "0", 0
        if context is not None:
            query = context.getLocalProperty(_QUERY) or query
            batch = context.getLocalProperty(_BATCH) or batch
            partition = context.partitionId()
        rows = 0
        with sending(self._server, self._window) as sender:
            for found in iterator:
                for message in found.to_pylist():
                    identifier = ROW_ID, f"{query}-{batch}-{partition}-{rows}".encode()
                    body = message.get("body") or b""
                    sender.send(
                        self._destination or message["destination"],
                        send_headers(message, identifier),
                        body.encode() if isinstance(body, str) else body,
                    )
                    rows += 1
        return SentRows(rows)


class RowSender(_Sender, DataSourceArrowWriter):
    """Sends a batch."""


class StreamRowSender(_Sender, DataSourceStreamArrowWriter):
    """Sends micro-batches."""
