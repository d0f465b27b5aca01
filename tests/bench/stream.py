"""How fast messages go from a stream to Delta, and from Delta to receipts, and what a message costs.

Beside it, in the same run, plain aio-pika reads the stream and PyArrow writes Parquet. The first archive of a Spark
warms it up and is not shown. CPU is that of this process and its children, Java included; the broker's is not in it.

``python -m tests.bench.stream --messages 100000``
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aio_pika
import pyarrow as pa
import pyarrow.parquet as pq

from deploy.local.broker import PRIVATE, running
from gateway.pipeline.archive import ArchiveOptions, archive
from gateway.pipeline.progress import Progress
from gateway.pipeline.replay import ReplayOptions, replay
from gateway.pipeline.spark_session import SparkOptions, spark_session
from gateway.pipeline.stomp_sender import StompServer
from tests.bench.ingest import Cost, alone, timed
from tests.support.gateway import configuration, gateway_process

_STREAM: Final = "bench"
_QUEUE: Final = "bench-replayed"
_PREFETCH: Final = 8192
_ROUNDS: Final = 3


def main() -> int:
    """Run the benchmark; the report goes to standard output."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.stream", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, metavar="N", help="of the stream (100000)")
    parser.add_argument("--bytes", type=int, default=256, metavar="N", help="of a body (256)")
    options = parser.parse_args()
    count = options.messages
    with running(order=PRIVATE) as broker, tempfile.TemporaryDirectory(prefix="stomp-gateway-bench-") as place:
        asyncio.run(_fill(broker.amqp_url, count, options.bytes))
        print(f"{count:,} messages of {options.bytes} bytes, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
        print(f"{'':<52} {'wall s':>8} {'CPU s':>8} {'messages/s':>12} {'per CPU-s':>12}")
        base = Path(place)
        for cores in (1, 2):
            print(alone(_archive, broker.amqp_url, base / f"lake{cores}", count, cores), flush=True)
        print(alone(_plain, broker.amqp_url, base, count), flush=True)
        with gateway_process(configuration(broker.amqp_url)) as gateway:
            server = StompServer(*gateway.address, login="guest", passcode="guest")
            print(alone(_replay, base / "lake2", server, count), flush=True)
        broker.kill()
    return 0


async def _fill(url: str, count: int, size: int) -> None:
    """A stream with messages, and a queue for those that are replayed."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        arguments: Any = {"x-queue-type": "stream"}
        await channel.declare_queue(_STREAM, durable=True, arguments=arguments)
        await channel.declare_queue(_QUEUE, durable=True)
        message = aio_pika.Message(os.urandom(size), headers={"color": "red"}, content_type="application/json")
        for first in range(0, count, 1000):
            publish = channel.default_exchange.publish
            await asyncio.gather(*(publish(message, _STREAM) for _ in range(min(1000, count - first))))


def _archive(url: str, lake: Path, count: int, cores: int) -> Cost:
    """The best of the archives of a warm Spark, from the stream to the commit, each into a lake of its own."""

    def work(place: Path) -> Callable[[], object]:
        options = ArchiveOptions({"url": url, "stream": _STREAM}, str(place))
        return lambda: archive(options, Progress(io.StringIO(), errors=sys.stderr), spark)

    what = f"stream to Delta, warm, {cores} core{'s'[: cores > 1]}"
    with spark_session(SparkOptions(f"local[{cores}]", {"spark.driver.memory": "1g"})) as spark:
        work(lake)()
        places = [lake.with_name(f"{lake.name}-{number}") for number in range(_ROUNDS)]
        return min((timed(what, count, work(place)) for place in places), key=lambda cost: cost.cpu)


def _plain(url: str, base: Path, count: int) -> Cost:
    return timed("plain aio-pika to Parquet", count, lambda: asyncio.run(_read(url, base, count)))


async def _read(url: str, base: Path, count: int) -> None:
    held: list[tuple[int, str, dict[str, str], bytes]] = []
    schema = pa.schema([
        ("offset", pa.int64()), ("routing_key", pa.string()), ("headers", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
    ])  # fmt: skip
    done = asyncio.Event()

    def write(writer: pq.ParquetWriter) -> None:
        columns = zip(*((*row[:2], list(row[2].items()), row[3]) for row in held), strict=True)
        writer.write_table(pa.table([list(column) for column in columns], schema=schema))
        held.clear()

    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.set_qos(_PREFETCH)
        queue = await channel.get_queue(_STREAM)
        with pq.ParquetWriter(base / "plain.parquet", schema, compression="zstd") as writer:
            read = 0

            async def take(message: Any) -> None:  # noqa: ANN401
                nonlocal read
                headers = {name: str(value) for name, value in message.headers.items()}
                held.append((message.headers["x-stream-offset"], message.routing_key, headers, message.body))
                read += 1
                if len(held) == _PREFETCH // 2 or read == count:
                    await message.ack(multiple=True)
                    write(writer)
                if read == count:
                    done.set()

            await queue.consume(take, arguments={"x-stream-offset": "first"})
            await done.wait()


def _replay(lake: Path, server: StompServer, count: int) -> Cost:
    options = ReplayOptions(str(lake), "true", server, f"/amq/queue/{_QUEUE}")
    return timed("Delta to receipts (replay, without Spark)", count, lambda: replay(options, io.StringIO(), quiet=True))


if __name__ == "__main__":
    sys.exit(main())
