"""`pipeline archive` keeps every message of a stream once, however it is killed; `pipeline replay` sends them again."""

from __future__ import annotations

import io
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deploy.demo.cluster_ingest import ingest_with_a_kill
from deploy.local.spark_cluster import spark_cluster
from gateway.errors import ExitCode, PipelineError
from gateway.pipeline.lake import Lake
from tests.support.deadline import PATIENCE
from tests.support.lakes import UNCOMPILED
from tests.support.streams import declare_stream, delete_queue, numbered, on_channel, publish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.system]

WRITTEN = "messages/data/*/d=*/*.parquet"
COMMITTED = "messages/_delta_log/*.json"


@pytest.fixture
def stream(broker_url: str) -> Iterator[str]:
    """A stream that is deleted at the end."""
    name = f"test-{secrets.token_hex(6)}"
    declare_stream(broker_url, name)
    yield name
    delete_queue(broker_url, name)


def archived(spark: SparkSession, url: str, stream: str, root: Path, **options: object) -> str:
    """Archive what is there; returns what it said."""
    from gateway.pipeline.archive import ArchiveOptions, archive  # noqa: PLC0415 - others run without Spark
    from gateway.pipeline.progress import Progress  # noqa: PLC0415

    out = io.StringIO()
    wanted = ArchiveOptions({"url": url, "stream": stream}, str(root), **options)  # type: ignore[arg-type]
    assert archive(wanted, Progress(out), spark) is ExitCode.OK
    return out.getvalue()


def bodies(root: Path) -> list[int]:
    rows = Lake(root).sql("select cast(body as varchar) body from messages order by stream, offset")
    return [int(body) for body in rows["body"].to_pylist()]


class ArchiveProcess:
    """`pipeline archive` in a process of its own, with Java in its process group."""

    def __init__(self, url: str, stream: str, base: Path, *options: str) -> None:
        self._lake = base / "lake"
        command = [sys.executable, "-m", "gateway", "pipeline", "archive", "--from", url, "--stream", stream]
        command += ["--lake", str(self._lake), "--master", "local[2]", *options]
        for name, value in {"spark.driver.memory": "512m", **UNCOMPILED}.items():
            command += ["--conf", f"{name}={value}"]
        self._seen = {point: set(self._lake.glob(point)) for point in (WRITTEN, COMMITTED)}
        with (base / "out").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._out = base / "out"

    def reaches(self, point: str, times: int = 1) -> None:
        """Wait until the lake shows that it has come to a point so many times."""
        bound = time.monotonic() + 300
        new: set[Path] = set()
        while len(new) < times:
            assert self.process.poll() is None, self._out.read_text()
            assert time.monotonic() < bound
            with suppress(FileNotFoundError):
                new |= set(self._lake.glob(point)) - self._seen[point]
            time.sleep(0.002)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to it and to Java, and wait for its end."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)
        self.process.wait(300)


@contextmanager
def archiving(url: str, stream: str, base: Path, *options: str) -> Iterator[ArchiveProcess]:
    process = ArchiveProcess(url, stream, base, *options)
    try:
        yield process
    finally:
        process.kill()


def test_every_message_is_kept_once_and_the_next_run_goes_on(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    publish(broker_url, stream, numbered(0, 1000), headers={"Secret": "s", "color": "red"}, correlation_id="c")
    said = archived(spark, broker_url, stream, tmp_path, batch_rows=600, hidden=("secret", "correlation-id"))
    publish(broker_url, stream, [b"1000", b"1001" + b" " * 100])
    archived(spark, broker_url, stream, tmp_path, most_body=50)

    assert "600 messages" in said
    assert "offsets 600 to 999; 0 to come" in said
    lake = Lake(tmp_path)
    found = lake.sql("select * from messages order by offset").to_pylist()
    assert [row["offset"] for row in found] == [*range(1002)]
    assert [int(row["body"]) for row in found[:-1]] == [*range(1001)]
    assert (found[-1]["body"], found[-1]["body_bytes"]) == (None, 104)
    first = found[0]
    assert (first["stream"], first["vhost"], first["destination"]) == (stream, "/", f"/queue/{stream}")
    assert (dict(first["headers"]), first["correlation_id"]) == ({"color": "red"}, None)
    assert first["d"] == f"{first['archived']:%Y-%m-%d}"
    assert "nothing new" in archived(spark, broker_url, stream, tmp_path)


def test_a_stream_that_was_declared_anew_is_an_error_unless_that_is_allowed(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    publish(broker_url, stream, numbered(0, 10))
    archived(spark, broker_url, stream, tmp_path)
    delete_queue(broker_url, stream)
    declare_stream(broker_url, stream)
    publish(broker_url, stream, numbered(10, 15))

    with pytest.raises(PipelineError, match="deleted and declared anew"):
        archived(spark, broker_url, stream, tmp_path)
    archived(spark, broker_url, stream, tmp_path, allow_data_loss=True)

    assert sorted(bodies(tmp_path)) == [*range(15)]


def test_only_a_stream_is_archived(spark: SparkSession, broker_url: str, stream: str, tmp_path: Path) -> None:
    delete_queue(broker_url, stream)
    on_channel(broker_url, lambda channel: channel.declare_queue(stream, durable=True))

    with pytest.raises(PipelineError, match="is no stream"):
        archived(spark, broker_url, stream, tmp_path)


def test_a_resident_archive_outlives_a_broker_that_is_away(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "pipeline", "archive", "--from", "amqp://127.0.0.1:1/", "--stream", "s"]
    command += ["--lake", str(tmp_path)]
    once = subprocess.run(command, capture_output=True, text=True, check=False)
    assert once.returncode == 1
    assert "amqp://127.0.0.1:1/ does not answer" in once.stderr
    with subprocess.Popen([*command, "--every", "1ms"], stderr=subprocess.PIPE, text=True) as resident:
        assert resident.stderr is not None
        assert all("tried again in 0.001 seconds" in resident.stderr.readline() for _ in range(2))
        resident.terminate()
        resident.communicate(timeout=PATIENCE)  # it would wait for ever where nobody reads what it says
        assert resident.returncode == 0


@pytest.mark.kills
def test_a_killed_run_loses_and_doubles_nothing(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    publish(broker_url, stream, numbered(0, 4000))
    with archiving(broker_url, stream, tmp_path, "--batch-rows", "1500") as process:
        process.reaches(WRITTEN)
        process.kill()
    said = archived(spark, broker_url, stream, tmp_path / "lake")

    assert "done: " in said
    assert bodies(tmp_path / "lake") == [*range(4000)]


@pytest.mark.kills
def test_every_message_is_kept_once_whenever_it_is_killed(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    """Ten seeds draw at which point, and how many moments later, a run is killed, while messages go on coming."""
    last, stopped = 0, threading.Event()

    def publish_on() -> None:
        nonlocal last
        while not stopped.wait(0.5):
            publish(broker_url, stream, numbered(last, last + 200))
            last += 200

    publisher = threading.Thread(target=publish_on)
    publisher.start()
    try:
        for seed in range(10):
            chance = random.Random(seed)  # noqa: S311 - repeatable is what it must be
            with archiving(broker_url, stream, tmp_path, "--batch-rows", "1000", "--every", "1ms") as process:
                process.reaches(chance.choice((WRITTEN, COMMITTED)), chance.randrange(1, 4))
                time.sleep(chance.random() / 5)  # the delay is part of the draw; it waits for nothing
                process.kill(chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
    finally:
        stopped.set()
        publisher.join(PATIENCE)
    archived(spark, broker_url, stream, tmp_path / "lake")

    assert bodies(tmp_path / "lake") == [*range(last)]


@pytest.mark.kills
def test_two_archives_of_one_stream_keep_every_message_once(
    spark: SparkSession, broker_url: str, stream: str, tmp_path: Path
) -> None:
    publish(broker_url, stream, numbered(0, 5000))
    with (
        archiving(broker_url, stream, tmp_path, "--batch-rows", "500") as one,
        archiving(broker_url, stream, tmp_path, "--batch-rows", "700") as other,
    ):
        assert (one.process.wait(300), other.process.wait(300)) == (0, 0), (tmp_path / "out").read_text()

    assert bodies(tmp_path / "lake") == [*range(5000)]


@pytest.mark.kills
def test_every_message_is_kept_once_though_a_worker_of_the_cluster_was_killed(
    broker_url: str, stream: str, tmp_path: Path
) -> None:
    publish(broker_url, stream, numbered(0, 40_000, size=500))
    root, log = tmp_path / "lake", tmp_path / "out"
    with spark_cluster(tmp_path / "spark") as cluster:
        arguments = ["--from", broker_url, "--stream", stream, "--lake", str(root)]
        said: list[str] = []
        killed = ingest_with_a_kill(cluster, arguments, root, log, said.append, command="archive", table="messages")
        assert killed == 0, log.read_text()
        assert len(said) == 1

    assert bodies(root) == [*range(40_000)]
