"""A TCP proxy on loopback that misbehaves on demand, before the gateway or between it and the broker."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from enum import Enum
from typing import Final

Address = tuple[str, int]

_CHUNK: Final = 64 * 1024
# What the kernel may keep for a side that we do not read: little, so that a stall is felt soon.
_SMALL_BUFFER: Final = 64 * 1024


class Direction(Enum):
    """Which way bytes go: ``UP`` from the proxy's client to the server behind it, ``DOWN`` back."""

    UP = "up"
    DOWN = "down"


class _Gate:
    """What may pass in one direction."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.open.set()
        self.left: int | None = None
        self.delay = 0.0
        self.passed = 0


class ChaosProxy:
    """One proxy with all its connections; made by ``chaos``.

    Args:
        server: where it connects to, for each connection that it accepts.
    """

    def __init__(self, server: Address) -> None:
        self._server = server
        self._gates = {direction: _Gate() for direction in Direction}
        self._writers: dict[Direction, list[asyncio.StreamWriter]] = {direction: [] for direction in Direction}
        self._ended: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        # Has the port, also while nothing listens there, so that no other process gets it. It never listens itself.
        self._place = socket.socket()
        self.accepted = 0

    @property
    def address(self) -> Address:
        """Where it listens."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return host, port

    @property
    def connections(self) -> int:
        """How many connections go through it now."""
        return len(self._tasks)

    def passed(self, direction: Direction) -> int:
        """Bytes that went through in one direction."""
        return self._gates[direction].passed

    async def open(self, port: int = 0) -> None:
        """Listen, on a free port unless one is given; after `close` on the port of before."""
        if self._listener is None:
            self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._place.bind(("127.0.0.1", port))
        listening = socket.create_server(self._place.getsockname())
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
        self._listener = await asyncio.start_server(self._serve, sock=listening, limit=_CHUNK)

    async def close(self) -> None:
        """Cut every connection and listen no more, until `open`."""
        assert self._listener is not None
        self._listener.close()
        for gate in self._gates.values():
            gate.open.set()
        while self._tasks:
            self._abort()
            await asyncio.wait(self._tasks, timeout=0.1)

    async def end(self) -> None:
        """Close it, and give the port back."""
        if self._listener is not None:
            await self.close()
        self._place.close()

    # Chaos.

    def stall(self, direction: Direction) -> None:
        """Let nothing more through that way; the sender's buffers fill up."""
        self._gates[direction].open.clear()

    def release(self, direction: Direction) -> None:
        """Let everything through again, in order and complete."""
        self._gates[direction].open.set()

    def delay(self, direction: Direction, seconds: float) -> None:
        """Let each piece of data wait so long that way; 0 ends the delay."""
        self._gates[direction].delay = seconds

    def cut_after(self, size: int, direction: Direction = Direction.UP) -> None:
        """Let exactly so many more bytes through that way, then reset every connection."""
        self._gates[direction].left = size

    def half_close(self, direction: Direction) -> None:
        """End the stream that way on every connection; the other way stays open."""
        for writer in self._writers[direction]:
            self._end(writer)

    def heal(self) -> None:
        """Behave from now on: no stall, no delay, no cut to come."""
        for gate in self._gates.values():
            gate.left = None
            gate.delay = 0.0
            gate.open.set()

    def reset(self) -> None:
        """End every connection by RST, both sides of it."""
        for writers in self._writers.values():
            for writer in writers:
                plain = writer.get_extra_info("socket")
                with contextlib.suppress(OSError):
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._abort()

    def _end(self, writer: asyncio.StreamWriter) -> None:
        self._ended.add(writer)
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _abort(self) -> None:
        for writers in self._writers.values():
            for writer in writers:
                writer.transport.abort()
            writers.clear()

    # The plain work.

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.accepted += 1
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._server, limit=_CHUNK)
        except OSError:
            writer.transport.abort()
            return
        for each in (writer, server_writer):
            # asyncio leaves Nagle's algorithm on for what a listener of our own accepts.
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._writers[Direction.UP].append(server_writer)
        self._writers[Direction.DOWN].append(writer)
        try:
            # Who resets one side resets the other, too.
            with contextlib.suppress(ConnectionError):
                await asyncio.gather(
                    self._copy(reader, server_writer, Direction.UP), self._copy(server_reader, writer, Direction.DOWN)
                )
        finally:
            for each in (writer, server_writer):
                each.transport.abort()
                self._ended.discard(each)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        gate = self._gates[direction]
        while True:
            await gate.open.wait()
            data = await reader.read(_CHUNK)
            # A stall that began while we were reading holds for these bytes too.
            await gate.open.wait()
            if gate.delay:
                await asyncio.sleep(gate.delay)
            if not data:
                self._end(writer)
                return
            if writer in self._ended:
                continue  # what comes after a half-close is lost
            if gate.left is not None:
                data = data[: gate.left]
                gate.left -= len(data)
            writer.write(data)
            gate.passed += len(data)
            await writer.drain()
            if gate.left == 0:
                gate.left = None
                self.reset()


@contextlib.asynccontextmanager
async def chaos(server: Address, port: int = 0) -> AsyncIterator[ChaosProxy]:
    """A proxy in front of a server, for the time of a ``with`` block; on a free port unless one is given."""
    proxy = ChaosProxy(server)
    try:
        await proxy.open(port)
        yield proxy
    finally:
        await proxy.end()
