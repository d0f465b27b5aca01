"""The disk of the journal is full: traffic goes on, and every event is written or counted as dropped."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import ExitCode
from gateway.journal.segments import PATTERN
from tests.support.deadline import within
from tests.support.gateway import configuration, gateway_process
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system

_MESSAGES = 40_000


def _mount(options: str, place: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 kB, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        _mount("size=300k", place)
    except subprocess.CalledProcessError:
        pytest.skip("needs the right to mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


async def test_every_event_is_written_or_counted(broker_url: str, small_disk: Path) -> None:
    directory = small_disk / "journal"
    document = configuration(broker_url, {"journal": {"level": "message", "directory": str(directory)}})
    with gateway_process(document) as process:
        async with within(120), StompClient.logged_in(process.address) as client:
            for number in range(_MESSAGES):
                client.write("SEND", b"x", destination="/topic/nobody")
                if number % 1000 == 0:
                    await client.ask("BEGIN", transaction=str(number))  # so that the client does not buffer everything
                    await client.ask("ABORT", transaction=str(number))
            await client.disconnect()
        assert len(await process.until_logged("journal cannot be written")) == 1
        await asyncio.to_thread(_mount, "remount,size=100m", small_disk)
        assert len(await process.until_logged("journal is written again")) == 1
        async with within(30), StompClient.logged_in(process.address) as client:
            await client.disconnect()
        process.terminate()
        assert await process.exit_code(30) == ExitCode.OK
    lines = [
        json.loads(line)
        for path in sorted(directory.glob(f"d*=*/{PATTERN}"))
        for line in path.read_bytes().splitlines()
    ]
    assert [line["q"] for line in lines] == list(range(len(lines)))
    # Each message has two lines, since it is published with a confirm.
    events = sum(line["e"] in ("send", "conf") for line in lines)
    drops = sum(line["n"] for line in lines if line["e"] == "drop")
    others = sum(line["e"] not in ("send", "conf", "drop", "open", "close") for line in lines)
    assert drops > 0  # the writer holds at most 66,000
    # Besides these, the few other events of the first session may have been dropped.
    assert 2 * _MESSAGES <= events + drops <= 2 * _MESSAGES + 20
    assert others < 20
