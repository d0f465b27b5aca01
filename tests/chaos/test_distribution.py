"""Nodes find each other through relays and proxies, and a node that is cut off says and hears nothing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest

from deploy.local.child import Child
from deploy.local.installation import Installation
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import listens
from tests.chaos.distribution import Distribution
from tests.support.deadline import until, within

pytestmark = pytest.mark.system


@pytest.fixture
async def mapper() -> AsyncIterator[int]:
    """Erlang's port mapper, on a port of its own."""
    installation = Installation.find()
    if installation is None:
        pytest.skip("needs Erlang")
    [port] = free_ports(1)

    async def is_there() -> bool:
        return listens(LOOPBACK, port)

    with Child([str(installation.epmd), "-port", str(port), "-address", LOOPBACK]):
        _ = await until(is_there, bool)
        yield port


async def asked(relay: int, request: bytes) -> bytes:
    """What a relay answers."""
    reader, writer = await asyncio.open_connection(LOOPBACK, relay)
    writer.write(struct.pack("!H", len(request)) + request)
    answer = await reader.read()
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def registered(relay: int, name: bytes) -> AsyncIterator[int]:
    """A node, of which there is only a port that says everything again."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, LOOPBACK) as server:
        port: int = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(LOOPBACK, relay)
        request = struct.pack("!BHBBHHH", 120, port, 77, 0, 6, 5, len(name)) + name + b"\0\0"
        writer.write(struct.pack("!H", len(request)) + request)
        assert (await reader.readexactly(2))[1] == 0
        yield port
        writer.close()


async def test_a_node_that_is_cut_off_is_silent_until_it_is_back(mapper: int) -> None:
    async with Distribution.opened() as distribution, within():
        first, second = [
            await asyncio.to_thread(distribution.relay, f"{name}@localhost", mapper) for name in ("a", "b")
        ]
        async with registered(first, b"a") as port:
            own, others = [struct.unpack("!H", (await asked(relay, b"\x7aa"))[2:4])[0] for relay in (first, second)]
            assert own == port
            assert others != port
            # Erlang compares the port in the list of names with the one that it has asked.
            assert struct.unpack("!I", (await asked(second, b"\x6e"))[:4]) == (second,)

            reader, writer = await asyncio.open_connection(LOOPBACK, others)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            distribution.cut("a@localhost")
            writer.write(b"y")
            answer = asyncio.create_task(reader.readexactly(1))
            later_reader, later = await asyncio.open_connection(LOOPBACK, others)
            later.write(b"z")
            done, _ = await asyncio.wait([answer], timeout=0.2)
            assert not done
            distribution.heal()
            assert await answer == b"y"
            assert await later_reader.readexactly(1) == b"z"
            writer.close()
            later.close()
