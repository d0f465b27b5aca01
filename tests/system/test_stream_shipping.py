"""Segments that go through a stream of the broker: each is collected once and whole, and nothing else is."""

from __future__ import annotations

import asyncio
import gzip
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from copy import copy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Timer
from urllib.parse import unquote, urlsplit

import aio_pika
import pytest
from aio_pika import Message
from aio_pika.abc import AbstractChannel
from pydantic import SecretStr

from gateway import cli
from gateway.config.addresses import BrokerUrl
from gateway.config.broker_user import User
from gateway.errors import ExitCode
from gateway.journal import stream as journal_stream
from gateway.journal.segments import PATTERN, mark_of
from gateway.journal.ship_targets import NOTE_NAME
from gateway.journal.shipper import ShipError, Shipper
from gateway.journal.stream import StreamBroker, StreamTarget, parts_of
from tests.support.deadline import PATIENCE
from tests.support.gateway import ROOT
from tests.unit.journal.test_shipper import contents, finished

pytestmark = pytest.mark.system


def on_channel(url: str, work: Callable[[AbstractChannel], Awaitable[object]]) -> None:
    async def run() -> None:
        async with await aio_pika.connect(url) as connection:
            await work(await connection.channel())

    asyncio.run(run())


@pytest.fixture
def stream(broker_url: str) -> Iterator[str]:
    """The name of a stream that nobody has declared yet."""
    name = f"journal-{secrets.token_hex(4)}"
    yield name
    on_channel(broker_url, lambda channel: channel.queue_delete(name))


def broker(url: str, stream: str, passcode: str | None = None) -> StreamBroker:
    parts = urlsplit(url)
    user = User(login=unquote(parts.username or ""), passcode=SecretStr(passcode or unquote(parts.password or "")))
    return StreamBroker((BrokerUrl("amqp", str(parts.hostname), int(parts.port or 0)),), user, "/", stream)


def ship(url: str, stream: str, journal: Path) -> None:
    Shipper(journal, StreamTarget(broker(url, stream), 1 << 30, 86_400)).ship_now()


def publish(url: str, stream: str, messages: Iterable[Message]) -> None:
    async def run(channel: AbstractChannel) -> None:
        for message in messages:
            await channel.default_exchange.publish(message, stream)

    on_channel(url, run)


def collect_command(url: str, stream: str, there: Path, *more: str) -> list[str]:
    parts = urlsplit(url)
    place = f"amqp://{parts.username}@{parts.hostname}:{parts.port}"
    return ["journal", "collect", "--from", place, "--stream", stream, "--to", str(there), *more]


def collected(url: str, stream: str, there: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """How many segments a run of the command has collected."""
    assert cli.main(collect_command(url, stream, there)) == ExitCode.OK
    number, _, _ = capsys.readouterr().out.partition(" ")
    return int(number)


def test_what_is_shipped_is_collected_once(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    for number in range(3):
        finished(journal, number, b'{"e":"err"}\n' * 1000 * (number + 1))
    ship(broker_url, stream, journal)
    assert all(mark_of(path).exists() for path in journal.glob(f"d*=*/{PATTERN}"))
    assert collected(broker_url, stream, there, capsys) == 3
    assert contents(there) == contents(journal)
    # The next run begins where this one ended.
    finished(journal, 9)
    ship(broker_url, stream, journal)
    assert collected(broker_url, stream, there, capsys) == 1
    # Without its note it reads all of the stream again, and writes nothing twice.
    (there / NOTE_NAME).unlink()
    before = {path: path.stat().st_mtime_ns for path in there.glob(f"d*=*/{PATTERN}")}
    assert collected(broker_url, stream, there, capsys) == 4
    assert {path: path.stat().st_mtime_ns for path in there.glob(f"d*=*/{PATTERN}")} == before


def test_a_large_segment_is_several_messages(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_stream, "PART_BYTES", 1000)
    journal, there = tmp_path / "journal", tmp_path / "there"
    finished(journal, 1, os.urandom(10_500))
    ship(broker_url, stream, journal)
    assert collected(broker_url, stream, there, capsys) == 1
    assert contents(there) == contents(journal)


@pytest.mark.parametrize(
    "rounds",
    [
        # One gateway is killed in the middle of its segment, and publishes it again.
        (("a0 b0 a1 b1 again0", 1), ("b2 again1 again2", 2)),
        # The second run begins with a segment that is not whole yet, which stands within one that is stored.
        (("b0 a0 b1 b2", 2), ("a1 a2", 1)),
    ],
    ids=["killed", "read again"],
)
def test_publications_may_be_mixed_and_broken_off(
    rounds: tuple[tuple[str, int], ...], broker_url: str, stream: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Gateways publish at the same time; what is not whole yet is read again by the next run."""
    monkeypatch.setattr(journal_stream, "PART_BYTES", 1000)
    names = [f"d=2026-11-21/gateway-{node}-0123456789abcdef-1-000001.v1.jsonl" for node in "ab"]
    data = [os.urandom(2500), os.urandom(2500)]
    parts = {
        f"{publication}{number}": part
        for publication, segment in (("a", 0), ("b", 1), ("again", 0))
        for number, part in enumerate(parts_of(names[segment], data[segment]))
    }
    for number in range(3):
        parts[f"b{number}"].timestamp = datetime.now(UTC) + timedelta(hours=2)  # its clock is wrong
    there = tmp_path / "there"
    finished(tmp_path / "journal", 1)
    ship(broker_url, stream, tmp_path / "journal")
    for order, stored in rounds:
        publish(broker_url, stream, [parts[each] for each in order.split()])
        assert collected(broker_url, stream, there, capsys) == stored
    assert [contents(there)[name] for name in names] == data


def test_what_is_no_segment_is_refused_and_stops_nothing(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    finished(journal, 1)
    ship(broker_url, stream, journal)
    good = "d=2026-11-21/gateway-a-0123456789abcdef-1-000007.v1.jsonl"

    outside = ("../../outside", "d=2026-11-21/../gateway-a-0123456789abcdef-1-000001.v1.jsonl", "d=2026-11-21/x")
    evil = [part for name in outside for part in parts_of(name, b"evil\n")]
    (whole,) = parts_of(good, b"short\n")
    bomb = gzip.compress(b"x" * 1_000_000)
    damaged = [copy(whole) for _ in range(4)]
    for message, body in zip(damaged, (whole.body[:-12], b"", bomb, gzip.compress(b"other\n")), strict=True):
        message.body = body
    publish(broker_url, stream, [*evil, *damaged, Message(b"hello")])
    finished(journal, 2)
    ship(broker_url, stream, journal)
    assert cli.main(collect_command(broker_url, stream, there)) == ExitCode.FAILURE
    captured = capsys.readouterr()
    assert captured.out.startswith("2 segments collected")
    assert "8 messages of the stream were refused" in captured.err
    assert contents(there) == contents(journal)
    assert not (tmp_path / "outside").exists()


def test_a_stream_that_was_deleted_and_begun_again_is_read_from_its_beginning(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shorter than the one of before, and then longer."""
    there, expected = tmp_path / "there", dict[str, bytes]()
    for round_, number in enumerate((5, 2, 9)):
        journal = tmp_path / f"journal{round_}"
        for each in range(number):
            finished(journal, each, node=f"node{round_}")
        ship(broker_url, stream, journal)
        assert collected(broker_url, stream, there, capsys) == number
        expected |= contents(journal)
        assert contents(there) == expected
        on_channel(broker_url, lambda channel: channel.queue_delete(stream))


def test_a_collector_that_is_killed_at_any_moment_loses_and_repeats_nothing(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    for number in range(150):
        finished(journal, number, os.urandom(2000))
    ship(broker_url, stream, journal)
    command = [sys.executable, "-m", "gateway", *collect_command(broker_url, stream, there, "--follow")]
    for enough in (1, 40):
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while len(contents(there)) < enough:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
    collected(broker_url, stream, there, capsys)
    assert contents(there) == contents(journal)
    # What was killed amid a write leaves its part, which no reader takes for a segment.
    assert len(list(there.glob("d*=*/.*"))) <= 2


def test_following_ends_with_sigterm(broker_url: str, stream: str, tmp_path: Path) -> None:
    journal, there = tmp_path / "journal", tmp_path / "there"
    finished(journal, 1)
    ship(broker_url, stream, journal)
    publish(broker_url, stream, [Message(b"no segment")])
    command = [sys.executable, "-m", "gateway", *collect_command(broker_url, stream, there, "--follow")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        while not contents(there):
            assert process.poll() is None
        finished(journal, 2)
        ship(broker_url, stream, journal)
        while len(contents(there)) < 2:
            assert process.poll() is None
        process.terminate()
        try:
            out, _ = process.communicate(timeout=3 * PATIENCE)
        finally:
            process.kill()
    assert process.returncode == ExitCode.OK
    assert out.startswith("2 segments collected")
    assert out.endswith("1 message refused\n")


def test_a_stream_that_is_deleted_while_it_is_followed_is_waited_for(
    broker_url: str, stream: str, tmp_path: Path
) -> None:
    """The broker only says that it gives no more messages: it leaves the channel open."""
    there = tmp_path / "there"
    for number in range(2):
        finished(tmp_path / f"journal{number}", number)
    ship(broker_url, stream, tmp_path / "journal0")
    command = [sys.executable, "-m", "gateway", *collect_command(broker_url, stream, there, "--follow")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        too_late = Timer(6 * PATIENCE, process.kill)
        too_late.start()
        try:
            while not contents(there):
                assert process.poll() is None
            on_channel(broker_url, lambda channel: channel.queue_delete(stream))
            assert "the broker stopped giving messages" in process.stderr.readline()
            ship(broker_url, stream, tmp_path / "journal1")
            while len(contents(there)) < 2:
                assert process.poll() is None
        finally:
            too_late.cancel()
            process.kill()
    assert contents(there) == contents(tmp_path / "journal0") | contents(tmp_path / "journal1")


def test_a_login_that_is_refused_is_an_error_without_the_passcode(
    broker_url: str, stream: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = finished(tmp_path / "journal", 1)
    target = StreamTarget(broker(broker_url, stream, "never-in-a-log"), 1 << 30, 86_400)
    with pytest.raises(ShipError, match="ACCESS_REFUSED") as caught:
        Shipper(tmp_path / "journal", target).ship_now()
    assert "never-in-a-log" not in str(caught.value)
    assert not mark_of(path).exists()
    monkeypatch.setenv("STOMP_GATEWAY_PASSCODE", "never-in-a-log")
    assert cli.main(collect_command(broker_url, stream, tmp_path / "there")) == ExitCode.FAILURE
    captured = capsys.readouterr()
    assert "ACCESS_REFUSED" in captured.err
    assert "never-in-a-log" not in captured.out + captured.err
    # The last one is no URL: it has a character that stands for "a/s".
    for place in ("amqp://a:secret@b", "amqp://a:secret]@b", "amqp://a:secret\N{ADDRESSED TO THE SUBJECT}b"):
        assert cli.main(["journal", "collect", "--from", place, "--to", "/x"]) == ExitCode.CONFIGURATION
        assert "secret" not in capsys.readouterr().err
