"""Spark's data source `rabbitmq_stream` reads real streams of a real broker: every message once, whatever happens."""

from __future__ import annotations

import asyncio
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.errors import PipelineError
from gateway.pipeline.rabbitmq_stream import OffsetRange, RabbitMQStream, StreamBatchReader, StreamOptions
from tests.support.gateway import ROOT
from tests.support.lakes import UNCOMPILED
from tests.support.stomp_client import Address, StompClient
from tests.support.streams import declare_stream, delete_queue, first_and_next, numbered, on_channel, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.system]

SMALL = {"max_length_bytes": 20_000, "stream_max_segment_size_bytes": 10_000}
"""A stream that soon has to delete its oldest messages."""


_QUERY = """
from gateway.pipeline.rabbitmq_stream import RabbitMQStream
from gateway.pipeline.spark_session import SparkOptions, spark_session
options = SparkOptions("local[2]", {{"spark.driver.memory": "512m", **{uncompiled}}})
with spark_session(options, quick_start=True) as spark:
    spark.dataSource.register(RabbitMQStream)
    rows = spark.readStream.format("rabbitmq_stream").option("url", "{url}").option("stream", "{stream}")
    rows = rows.option("startingOffset", "earliest").option("maxRowsPerTrigger", 500).load()
    writer = rows.writeStream.format("parquet").option("path", "{base}/rows")
    writer.option("checkpointLocation", "{base}/checkpoint").start().awaitTermination()
"""


@pytest.fixture
def stream(broker_url: str) -> Iterator[str]:
    """A name for a stream, or another queue, which is deleted at the end."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    delete_queue(broker_url, name)


def rows_of(spark: SparkSession, url: str, stream: str, **options: object) -> DataFrame:
    spark.dataSource.register(RabbitMQStream)
    given = {"url": url, "stream": stream} | {name: str(value) for name, value in options.items()}
    return spark.read.format("rabbitmq_stream").options(**given).load()


def started(spark: SparkSession, url: str, stream: str, base: Path, **options: object) -> StreamingQuery:
    """A query that writes what is there to Parquet files, and ends."""
    spark.dataSource.register(RabbitMQStream)
    given = {"url": url, "stream": stream} | {name: str(value) for name, value in options.items()}
    rows = spark.readStream.format("rabbitmq_stream").options(**given).load()
    writer = rows.writeStream.format("parquet").option("path", str(base / "rows"))
    return writer.option("checkpointLocation", str(base / "checkpoint")).trigger(availableNow=True).start()


def numbers(rows: DataFrame) -> list[int]:
    return [int(row.body) for row in rows.orderBy("stream", "offset").select("body").collect()]


def batch_of(url: str, stream: str, **options: str) -> list[int]:
    """The same without Spark: what its tasks would read."""
    reader = StreamBatchReader(StreamOptions.read({"url": url, "stream": stream, **options}))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [int(body) for batch in batches for body in batch["body"].to_pylist()]


def test_a_message_has_all_that_its_stream_has_of_it(spark: SparkSession, broker_url: str, stream: str) -> None:
    declare_stream(broker_url, stream)
    at = datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
    publish(
        broker_url, stream, [b"\x00\xff"], headers={"color": "green", "n": 100_000}, timestamp=at, delivery_mode=2,
        content_type="application/x", correlation_id="c", reply_to="r", message_id="m", type="t", app_id="a",
        priority=3,
    )  # fmt: skip

    [row] = rows_of(spark, broker_url, stream).selectExpr("*", "unix_seconds(timestamp) as seconds").collect()

    assert row.asDict() == {
        "stream": stream, "offset": 0, "timestamp": row.timestamp, "exchange": "", "routing_key": stream,
        "destination": f"/queue/{stream}", "headers": {"color": "green", "n": "100000"},
        "content_type": "application/x", "content_encoding": None, "delivery_mode": 2, "priority": 3,
        "correlation_id": "c", "reply_to": "r",
        "expiration": None, "message_id": "m", "type": "t", "user_id": None, "app_id": "a",
        "body": bytearray(b"\x00\xff"), "seconds": at.timestamp(),
    }  # fmt: skip


async def test_no_client_can_write_a_message_that_stops_the_reading(
    broker_url: str, plugin_address: Address, stream: str
) -> None:
    await asyncio.to_thread(declare_stream, broker_url, stream)
    async with StompClient.logged_in(plugin_address) as client:
        for header in (b"timestamp:1152921504606846976", b"x:\xff\xfe", b"type:\xff", b"\xff:x"):
            client.writer.write(b"SEND\ndestination:/amq/queue/%b\nreceipt:r\n%b\n\n7\0" % (stream.encode(), header))
            assert (await client.receive()).command == "RECEIPT"

    assert await asyncio.to_thread(batch_of, broker_url, stream) == [7] * 4


def test_ranges_are_read_by_offset_time_and_task(broker_url: str, stream: str) -> None:
    declare_stream(broker_url, stream)
    assert batch_of(broker_url, stream) == []
    publish(broker_url, stream, numbered(0, 3000))

    assert batch_of(broker_url, stream, rowsPerTask="700") == [*range(3000)]
    assert batch_of(broker_url, stream, startingOffset="1000", endingOffset="1200") == [*range(1000, 1200)]
    assert batch_of(broker_url, stream, startingOffset="latest") == []
    assert batch_of(broker_url, stream, startingOffset="2000-01-01", endingOffset="earliest") == []
    assert batch_of(broker_url, stream, startingOffset="2000-01-01") == [*range(3000)]
    assert batch_of(broker_url, stream, startingOffset="2100-01-01") == []


def test_several_streams_and_the_partitions_of_a_super_stream(broker_url: str, stream: str) -> None:
    parts = [f"{stream}-{number}" for number in range(2)]
    for number, name in enumerate((*parts, stream)):
        declare_stream(broker_url, name)
        publish(broker_url, name, numbered(number * 10, number * 10 + 3))

    assert batch_of(broker_url, stream, superStream=stream) == [20, 21, 22, 0, 1, 2, 10, 11, 12]
    for name in parts:
        delete_queue(broker_url, name)


def test_a_query_takes_what_its_limit_allows_and_goes_on_from_its_checkpoint(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    declare_stream(broker_url, stream)
    publish(broker_url, stream, numbered(0, 2500))
    options = {"startingOffset": "earliest", "maxRowsPerTrigger": 1000}

    first = started(spark, broker_url, stream, tmp_path, **options)
    first.awaitTermination()
    # Spark also tells of a look that has found nothing, if it took long.
    assert [rows for each in first.recentProgress if (rows := each["numInputRows"])] == [1000, 1000, 500]
    publish(broker_url, stream, numbered(2500, 2600))
    started(spark, broker_url, stream, tmp_path, **options).awaitTermination()

    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == [*range(2600)]


def test_a_queue_is_refused_and_loses_nothing(broker_url: str, stream: str) -> None:
    on_channel(broker_url, lambda channel: channel.declare_queue(stream, durable=True))
    publish(broker_url, stream, [b"1"])

    with pytest.raises(PipelineError, match=r"is no stream.*a queue cannot give them a second time"):
        batch_of(broker_url, stream)

    async def left(channel: object) -> object:
        return await (await channel.get_queue(stream)).get()  # type: ignore[attr-defined]

    message = on_channel(broker_url, left)
    assert (message.body, message.redelivered) == (b"1", False)


def test_what_retention_has_deleted_is_an_error_unless_that_is_allowed(broker_url: str, stream: str) -> None:
    declare_stream(broker_url, stream, **SMALL)
    last = 0
    while not first_and_next(broker_url, stream)[0]:
        publish(broker_url, stream, numbered(last, last + 100, size=100))
        last += 100
    first, end = first_and_next(broker_url, stream)
    assert first is not None

    with pytest.raises(PipelineError, match=rf"from offset 0, .* before offset {first}\."):
        batch_of(broker_url, stream, startingOffset="0")
    found = batch_of(broker_url, stream, startingOffset="0", failOnDataLoss="false")
    assert found == [*range(found[0], last)]
    assert batch_of(broker_url, stream) == found
    reader = StreamBatchReader(StreamOptions.read({"url": broker_url, "stream": stream, "failOnDataLoss": "false"}))
    assert [*reader.read(OffsetRange(stream, 0, 1))] == []  # all of it is gone
    assert end - last == end - found[-1] - 1  # offsets have gaps, which are no loss


def test_a_stream_that_is_shorter_than_what_was_read_is_another_one(broker_url: str, stream: str) -> None:
    declare_stream(broker_url, stream)
    publish(broker_url, stream, [b"1"])

    with pytest.raises(PipelineError, match="ends before offset 1, and was to be read from offset 5"):
        batch_of(broker_url, stream, startingOffset="5")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": "s"}, 'set the options "url" and "stream"'),
        ({"url": "amqp://h", "stream": "s", "startingOffsets": "1"}, "no option 'startingoffsets'"),
        ({"url": "http://h", "stream": "s"}, "like amqp://host"),
        ({"url": "amqp://h", "stream": "s", "startingOffset": "soon"}, "write earliest, latest"),
        ({"url": "amqp://h", "stream": "s", "maxRowsPerTrigger": "0"}, "no number above 0"),
        ({"url": "amqp://h", "stream": "s", "failOnDataLoss": "no"}, "write true or false"),
    ],
)
def test_a_mistake_in_an_option_is_named(options: dict[str, str], says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        StreamOptions.read(options)


def test_no_password_is_shown(broker_url: str) -> None:
    options = StreamOptions.read({"url": broker_url, "stream": "s", "login": "guest", "password": "hush"})
    assert "hush" not in repr(options)
    with pytest.raises(PipelineError, match="refuses the login") as caught:
        StreamBatchReader(options).partitions()
    assert "hush" not in str(caught.value)


@pytest.mark.kills
def test_the_first_conversation_of_the_page_works(broker_url: str) -> None:
    page = (ROOT / "docs/pipeline.md").read_text("utf-8")
    program = next(text for text in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "hello-stream" in text)
    assert program.count("\n") <= 11
    program = program.replace("amqp://guest:guest@127.0.0.1:5672/", broker_url)
    try:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    finally:
        delete_queue(broker_url, "hello-stream")
    assert "|     0|/queue/hello-stream| Hello 0|" in done.stdout, done.stderr


@pytest.mark.kills
def test_a_query_that_is_killed_again_and_again_has_every_message_once(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    """Five seeds draw when it is killed. After each kill Spark asks for the same offsets again."""
    declare_stream(broker_url, stream)
    program = _QUERY.format(url=broker_url, stream=stream, base=tmp_path, uncompiled=UNCOMPILED)
    for seed in range(5):
        chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
        publish(broker_url, stream, numbered(seed * 3000, seed * 3000 + 3000))
        offered = {*tmp_path.glob("checkpoint/offsets/*")}
        with (tmp_path / "out").open("ab") as log:
            query = subprocess.Popen([sys.executable, "-c", program], stdout=log, stderr=log, start_new_session=True)
        try:
            bound = time.monotonic() + 300
            while len({*tmp_path.glob("checkpoint/offsets/[0-9]*")} - offered) < 1 + seed % 3:
                assert query.poll() is None, (tmp_path / "out").read_text()
                assert time.monotonic() < bound
                time.sleep(0.002)
            time.sleep(chance.random() / 2)  # the delay is part of the draw; it waits for nothing
        finally:
            os.killpg(query.pid, signal.SIGKILL)
            query.wait()
    options = {"startingOffset": "earliest", "maxRowsPerTrigger": 500}
    started(spark, broker_url, stream, tmp_path, **options).awaitTermination()

    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == [*range(15_000)]
