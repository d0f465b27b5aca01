"""A STOMP server as its clients see it: the frames it sends, and the connections to it.

The frame reader is independent of the gateway's own decoder, so that an error there cannot hide itself.
"""

import asyncio
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

_CLOSE_WITHIN = 5.0  # seconds
_CONNECTION_LOST = (ConnectionError, RuntimeError)  # uvloop raises a RuntimeError

Address = tuple[str, int]
"""Host and port."""


@dataclass(frozen=True, slots=True)
class ServerFrame:
    """A frame from the server; `headers` are the lines as sent, still escaped."""

    command: bytes
    headers: tuple[bytes, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class HeartBeat:
    """A line feed between frames."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The server closed the connection."""


Received = ServerFrame | HeartBeat | Closed


class ServerFrameError(Exception):
    """The server sent bytes that are not a STOMP frame."""


class SilenceError(Exception):
    """The server sent nothing in the time it was given."""


class StompPeer(Protocol):
    """A server, and the connections of several named clients to it."""

    async def send(self, client: str, data: bytes) -> None:
        """Send bytes on the client's connection; the first call with a name opens it."""

    async def receive(self, client: str) -> Received:
        """Return the next frame, heart-beat or end of the connection. Raises SilenceError and ServerFrameError."""

    async def hang_up(self, client: str) -> None:
        """Close the client's connection without DISCONNECT."""

    async def close(self) -> None:
        """Close all connections."""


class FrameReader:
    """Splits the server's bytes into frames.

    RabbitMQ ends each frame with NUL and one line feed. Both belong to the frame here, and a frame is not complete
    without them. Further line feeds are heart-beats.
    """

    def __init__(self) -> None:
        self.rest = b""
        """The bytes of an unfinished frame."""
        self._complete: deque[ServerFrame | HeartBeat] = deque()

    def feed(self, data: bytes) -> None:
        """Add bytes from the server. Raises ServerFrameError."""
        self.rest += data
        while self.rest and self._split_one():
            pass

    def take(self) -> ServerFrame | HeartBeat | None:
        """Return the next complete frame or heart-beat, or None."""
        return self._complete.popleft() if self._complete else None

    def _split_one(self) -> bool:
        if self.rest.startswith(b"\n"):
            self.rest = self.rest[1:]
            self._complete.append(HeartBeat())
            return True
        head, blank_line, rest = self.rest.partition(b"\n\n")
        if not blank_line:
            return False
        command, *headers = head.split(b"\n")
        length = _body_length(headers, rest)
        if length is None or len(rest) < length + 2:
            return False
        if rest[length : length + 2] != b"\0\n":
            raise ServerFrameError(f"the frame is not followed by NUL and a line feed: {self.rest!r}")
        self._complete.append(ServerFrame(command, tuple(headers), rest[:length]))
        self.rest = rest[length + 2 :]
        return True


def _body_length(headers: list[bytes], rest: bytes) -> int | None:
    for line in headers:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            # No body needs more digits, and `int` refuses thousands of them.
            if not re.fullmatch(rb"[0-9]{1,12}", value):
                raise ServerFrameError(f"the content-length is not a number: {value[:40]!r}")
            return int(value)
    end = rest.find(b"\0")
    return None if end < 0 else end


@dataclass(slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    frames: FrameReader = field(default_factory=FrameReader)

    async def receive(self) -> Received:
        while (received := self.frames.take()) is None:
            try:
                data = await self.reader.read(65536)
            except ConnectionError:  # a reset ends the connection, too
                data = b""
            if not data:
                if self.frames.rest:
                    raise ServerFrameError(f"the connection ended within a frame: {self.frames.rest!r}")
                return Closed()
            self.frames.feed(data)
        return received


class SocketPeer:
    """A server at a TCP address.

    `timeout` is in seconds, for each frame. Choose a long one: only a transcript that fails waits so long.
    """

    def __init__(self, address: Address, timeout: float = 15.0) -> None:
        self._address = address
        self._timeout = timeout
        self._connections: dict[str, _Connection] = {}

    async def send(self, client: str, data: bytes) -> None:
        """See StompPeer. If the connection is lost, the bytes are dropped and `receive` returns Closed."""
        connection = await self._connection(client)
        with suppress(*_CONNECTION_LOST):
            connection.writer.write(data)
            await connection.writer.drain()

    async def receive(self, client: str) -> Received:
        """See StompPeer."""
        connection = await self._connection(client)
        try:
            async with asyncio.timeout(self._timeout):
                return await connection.receive()
        except TimeoutError:
            rest = f" but {connection.frames.rest!r}" if connection.frames.rest else ""
            raise SilenceError(f"nothing{rest} came within {self._timeout:g} seconds") from None

    async def hang_up(self, client: str) -> None:
        """See StompPeer."""
        connection = self._connections.pop(client)
        with suppress(*_CONNECTION_LOST):
            connection.writer.close()
            await connection.writer.wait_closed()

    async def close(self) -> None:
        """See StompPeer. Waits until the server closes too, because it has then handled all that it was sent."""
        for client, connection in list(self._connections.items()):
            with suppress(OSError, RuntimeError):  # TimeoutError is an OSError
                async with asyncio.timeout(_CLOSE_WITHIN):
                    connection.writer.write_eof()
                    while await connection.reader.read(65536):
                        pass
            await self.hang_up(client)

    async def _connection(self, client: str) -> _Connection:
        if client not in self._connections:
            self._connections[client] = _Connection(*await asyncio.open_connection(*self._address))
        return self._connections[client]
