"""What takes the tap long to hear: bytes have passed before, its client waits, and others do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gateway.journal.segments import PATTERN
from gateway.server.fault_boundary import FaultOwner
from gateway.server.paced_work import PacedWork
from gateway.tap.proxy import Ending, TappedConnection
from gateway.tap.tap_server import TapServer
from tests.support.deadline import until, within
from tests.support.tapping import server, tapping

pytestmark = pytest.mark.system

FRAMES = 500
CONNECTED = b"CONNECTED\nversion:1.2\nsession:s\n\n\0"
SENDS = b"".join(b"SEND\ndestination:/topic/%d\n\n\0" % number for number in range(FRAMES))


class SlowWork(PacedWork):
    """Work of which one step fills a round, and whose next rounds come when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._postponed: list[tuple[FaultOwner, Callable[[], object]]] | None = []

    @property
    def time_left(self) -> float:
        return super().time_left if self._postponed is None else 0.0

    def later(self, owner: FaultOwner, call: Callable[[], object]) -> None:
        if self._postponed is None:
            super().later(owner, call)
        else:
            self._postponed.append((owner, call))

    def release(self) -> None:
        postponed, self._postponed = self._postponed or [], None
        for each in postponed:
            self.later(*each)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says CONNECTED to a CONNECT, and sends everything else back."""
    data = await reader.read(1)
    if data == b"C":
        await reader.readuntil(b"\0")
        data = CONNECTED
    while data:
        writer.write(data)
        data = await reader.read(65536)


async def _behind(tap: TapServer) -> TappedConnection:
    async def found() -> TappedConnection | None:
        return next((each for each in tap._open if each.is_behind), None)

    connection = await until(found, bool)
    assert connection is not None
    return connection


def _reads(ending: Ending | None) -> bool:
    assert ending is not None
    assert ending.transport is not None
    return ending.transport.is_reading()


def _lines(folder: Path) -> list[dict[str, Any]]:
    (segment,) = folder.glob(f"d*=*/{PATTERN}")
    return [json.loads(line) for line in segment.read_bytes().splitlines()]


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_client_whose_frames_take_long_waits_and_others_do_not(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def run() -> None:
        async with within(), server(_serve) as address, tapping(address, tmp_path) as tap:
            turns = tap.turns = SlowWork()
            reader, writer = await asyncio.open_connection(*tap.addresses[0])
            writer.write(SENDS)
            connection = await _behind(tap)
            assert not _reads(connection.client)
            assert not _reads(connection.server)
            other_reader, other_writer = await asyncio.open_connection(*tap.addresses[0])
            other_writer.write(b"x")
            assert await other_reader.readexactly(1) == b"x"
            assert connection.is_behind
            turns.release()
            # Then both sides are read again.
            assert await reader.readexactly(len(SENDS)) == SENDS
            for each in (writer, other_writer):
                each.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(run())


async def test_all_that_has_passed_is_heard_before_the_end(tmp_path: Path) -> None:
    passed = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(CONNECTED)
        passed.set_result(await reader.read())

    async with within(), server(serve) as address, tapping(address, tmp_path) as tap:
        turns = tap.turns = SlowWork()
        reader, writer = await asyncio.open_connection(*tap.addresses[0])
        writer.write(b"CONNECT\naccept-version:1.2\n\n\0")
        await reader.readexactly(len(CONNECTED))
        writer.write(SENDS)
        connection = await _behind(tap)
        stopping = asyncio.create_task(tap.stop())
        frames = (await passed).count(b"\0")

        async def has_gone() -> bool:
            return connection._lost == 2

        assert await until(has_gone, bool)
        assert not stopping.done()
        turns.release()
        await stopping
        writer.close()
    lines = _lines(tmp_path)
    events = [line["e"] for line in lines if line["e"] != "use"]
    assert events == ["open", "conn", *["send"] * frames, "end", "close"]
    assert lines[-2]["f"]["frames_in"] == frames + 1
