"""Archived messages are sent again, and rows of Spark are sent, each with a receipt and in order."""

from __future__ import annotations

import io
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.cli import main
from gateway.errors import PipelineError
from gateway.pipeline.lake import Lake
from gateway.pipeline.replay import ReplayOptions, replay
from gateway.pipeline.stomp_sender import StompSender, StompServer, sending
from tests.support.lakes import Row, rows_in
from tests.support.stomp_client import Address
from tests.support.streams import delete_queue, on_channel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.system

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def queue(broker_url: str) -> Iterator[str]:
    """The name of a queue that exists, and is deleted at the end."""
    name = f"test-{secrets.token_hex(6)}"
    on_channel(broker_url, lambda channel: channel.declare_queue(name, durable=True))
    yield name
    delete_queue(broker_url, name)


@pytest.fixture
def server(gateway_address: Address) -> StompServer:
    return StompServer.read("stomp://{}:{}/".format(*gateway_address), "guest", "guest")


def archived(root: Path, count: int, **more: object) -> Lake:
    """A lake with messages of two streams and two days, which are in the files in another order."""
    lake = Lake(root)
    lake.create("segments")
    rows: list[Row] = [
        {
            "stream": stream, "offset": number, "vhost": "/", "destination": "/topic/somewhere", "body": b"%d" % number,
            "body_bytes": len(str(number)), "d": day, "archived": NOON, **more,
        }
        for stream in ("b", "a")
        for day, first in (("2026-11-22", count), ("2026-11-21", 0))
        for number in reversed(range(first, first + count))
    ]  # fmt: skip
    lake.write_rows("messages", rows_in("messages", rows), 0)
    return lake


def taken(url: str, queue: str) -> list[Any]:
    """All messages of a queue."""

    async def take(channel: Any) -> list[Any]:  # noqa: ANN401
        found, at = [], await channel.get_queue(queue)
        while (message := await at.get(no_ack=True, fail=False)) is not None:
            found.append(message)
        return found

    messages: list[Any] = on_channel(url, take)
    return messages


def test_messages_come_again_in_order_and_with_what_they_had(
    broker_url: str, server: StompServer, queue: str, tmp_path: Path
) -> None:
    more = {
        "headers": [("color", "a:b"), ("destination", "x"), ("receipt", "y")], "content_type": "text/x",
        "correlation_id": "c", "delivery_mode": 2, "timestamp": NOON, "message_id": "m", "user_id": "somebody",
    }  # fmt: skip
    archived(tmp_path, 300, **more)
    out = io.StringIO()

    where = "stream = 'a' and offset >= 100 and archived >= '2026-11-21T12:00:00Z' and headers['color'] = 'a:b'"
    assert replay(ReplayOptions(str(tmp_path), where, server, f"/queue/{queue}", window=50), out) == 500

    found = taken(broker_url, queue)
    assert [int(message.body) for message in found] == [*range(100, 600)]
    first = found[0]
    assert first.headers == {"color": "a:b", "x-replay-id": "a-100", "receipt": "0", "content-length": "3"}
    assert (first.content_type, first.correlation_id, first.message_id) == ("text/x", "c", "m")
    assert (first.delivery_mode, first.timestamp, first.user_id) == (2, NOON, None)
    assert out.getvalue().splitlines() == [
        f"to send 500 messages, 1,500 bytes, /queue/{queue}",
        "  a in /, archived on 2026-11-21: 200 messages, 600 bytes, offsets 100 to 299",
        "  a in /, archived on 2026-11-22: 300 messages, 900 bytes, offsets 300 to 599",
        "receipted 500 messages",
    ]


def test_a_dry_run_counts_what_a_run_sends_and_sends_nothing(
    broker_url: str, server: StompServer, queue: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archived(tmp_path, 3)
    command = ["pipeline", "replay", "--lake", str(tmp_path), "--where", "true", "--destination", f"/queue/{queue}"]

    assert main([*command, "--dry-run"]) == 0
    assert f"would send 12 messages, 12 bytes, /queue/{queue}" in capsys.readouterr().out
    assert not taken(broker_url, queue)
    assert main([*command, "--to", f"stomp://guest:guest@{server.host}:{server.port}/", "--rate", "100"]) == 0
    assert "receipted 12 messages" in capsys.readouterr().out
    assert len(taken(broker_url, queue)) == 12


def test_bodies_that_were_not_kept_are_left_out_and_counted(tmp_path: Path) -> None:
    archived(tmp_path, 2, body=None)
    out = io.StringIO()

    assert replay(ReplayOptions(str(tmp_path), "offset = 1", None), out) == 0
    assert "left out 2 messages whose bodies were too large" in out.getvalue()


def test_gc_deletes_old_messages_and_archive_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = archived(tmp_path, 2)
    lake.commit_messages([], "stream / a", None, 7)

    assert main(["pipeline", "gc", "--lake", str(tmp_path), "--messages-days", "0"]) == 0
    assert "messages of 2026-11-21: deleted 4 rows" in capsys.readouterr().out
    assert "2026-11-21" not in lake.days("messages")
    assert lake.position("stream / a") == 7
    assert not lake.commit_messages([], "stream / a", None, 7)
    assert main(["pipeline", "gc", "--lake", str(tmp_path)]) == 2
    assert main(["pipeline", "gc", "--lake", str(tmp_path), "--retain-days", "1"]) == 2


def test_large_parts_are_read_piece_by_piece(
    monkeypatch: pytest.MonkeyPatch, broker_url: str, server: StompServer, queue: str, tmp_path: Path
) -> None:
    archived(tmp_path, 100)
    monkeypatch.setattr("gateway.pipeline.replay._PART_BYTES", 20)

    replay(ReplayOptions(str(tmp_path), "stream = 'b'", server, f"/queue/{queue}"), io.StringIO())

    assert [int(message.body) for message in taken(broker_url, queue)] == [*range(200)]


def test_what_the_server_refuses_ends_the_replay_with_its_words(server: StompServer, tmp_path: Path) -> None:
    archived(tmp_path, 5)

    with pytest.raises(PipelineError, match=r"refuses: .*0 of 10 messages were receipted; the last one sent was a"):
        replay(ReplayOptions(str(tmp_path), "stream = 'a'", server, "/nowhere/x"), io.StringIO())
    with (
        pytest.raises(PipelineError, match="refuses") as caught,
        sending(StompServer.read(f"stomp://{server.host}:{server.port}/", "guest", "hush")),
    ):
        pass
    assert "hush" not in str(caught.value)
    with pytest.raises(PipelineError, match="does not answer"):
        StompSender(StompServer.read("stomp://127.0.0.1:1/"))
    with pytest.raises(PipelineError, match="must be like stomp://"):
        StompServer.read("http://x/")


def test_receipts_that_have_come_count_though_the_server_has_reset_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as file:
                while file.readline() != b"\n":
                    pass
                file.read(1)
                connection.sendall(b"CONNECTED\nversion:1.2\n\n\0")
                while file.read(1) != b"\0":
                    pass
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(b"RECEIPT\nreceipt-id:0\n\n\0")

        answering = threading.Thread(target=answer)
        answering.start()
        sender = StompSender(StompServer.read(f"stomp://127.0.0.1:{listening.getsockname()[1]}/"))
        sender.send("/queue/q", [], b"x" * 100_000)
        answering.join()
        sender.finish()
        sender.close()
    assert sender.receipted == 1


@pytest.mark.spark
def test_rows_of_spark_are_sent_with_identifiers(
    spark: SparkSession, broker_url: str, server: StompServer, queue: str, tmp_path: Path
) -> None:
    from pyspark.sql import SparkSession  # noqa: PLC0415 - others run without Spark

    from gateway.pipeline.stomp_sink import StompSink  # noqa: PLC0415

    for session in (spark, SparkSession.active()):  # a writer looks for it in the active one
        session.dataSource.register(StompSink)
    options = {
        "url": f"stomp://{server.host}:{server.port}/", "login": "guest", "password": "guest",
        "destination": f"/queue/{queue}",
    }  # fmt: skip
    rows = spark.range(0, 1000, numPartitions=2).selectExpr("cast(id as string) as body", "map('n', 'x') as headers")

    rows.write.format("stomp").mode("append").options(**options).save()

    found = taken(broker_url, queue)
    assert sorted(int(message.body) for message in found) == [*range(1000)]
    for half in (range(500), range(500, 1000)):
        of_part = [message for message in found if int(message.body) in half]
        assert [int(message.body) for message in of_part] == [*half]
        names = {message.headers["x-row-id"].rpartition("-")[0] for message in of_part}
        assert len(names) == 1
        assert [int(message.headers["x-row-id"].rpartition("-")[2]) for message in of_part] == [*range(500)]

    rows.write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "rows"))
    writer = stream.writeStream.format("stomp").options(**options).option("checkpointLocation", str(tmp_path / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    found = taken(broker_url, queue)
    assert sorted(int(message.body) for message in found) == [*range(1000)]
    assert all(message.headers["x-row-id"].startswith(f"{query.id}-0-") for message in found)
