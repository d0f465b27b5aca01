"""The server's side of the wire: its frames as sent, and the peers that carry them.

It knows nothing of the gateway's own decoder, so that an error there cannot hide behind itself.
"""

import asyncio
import re
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ServerFrame:
    """A frame from the server; `headers` are the lines as sent, escapes and all."""

    command: bytes
    headers: tuple[bytes, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class HeartBeat:
    """A line feed between frames."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The server closed the connection."""


_PARTING = 5.0  # seconds

Address = tuple[str, int]
"""Host and port."""

_GONE = (ConnectionError, RuntimeError)
"""What tells that a server has closed a connection: uvloop says it with a RuntimeError."""

Received = ServerFrame | HeartBeat | Closed


class WireError(Exception):
    """The server sent octets that are no frame."""


class SilenceError(Exception):
    """The server sent nothing although it was given time."""


class Peer(Protocol):
    """What a conversation is played against: a server, and the connections of several clients to it."""

    async def send(self, client: str, octets: bytes) -> None:
        """Send octets on the client's connection, which is opened at the first use of its name."""

    async def receive(self, client: str) -> Received:
        """Return the server's next frame, heart-beat or end of the connection.

        Raises:
            SilenceError: nothing came, and nothing will.
            WireError: what came is no frame.
        """

    async def hang_up(self, client: str) -> None:
        """Close the client's connection without a word."""

    async def close(self) -> None:
        """Close whatever is open."""


class FrameReader:
    """Cuts the server's octets into frames.

    RabbitMQ ends each frame with NUL and one line feed; both are part of a frame here, and what a server sends
    without them is never taken for one. Further line feeds are heart-beats.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._complete: deque[ServerFrame | HeartBeat] = deque()

    @property
    def rest(self) -> bytes:
        """The octets of an unfinished frame."""
        return self._buffer

    def feed(self, octets: bytes) -> None:
        """Take octets from the server. Raises WireError."""
        self._buffer += octets
        while self._buffer and self._cut():
            pass

    def take(self) -> ServerFrame | HeartBeat | None:
        """Return the next complete frame or heart-beat, None where there is none."""
        return self._complete.popleft() if self._complete else None

    def _cut(self) -> bool:
        if self._buffer.startswith(b"\n"):
            self._buffer = self._buffer[1:]
            self._complete.append(HeartBeat())
            return True
        head, blank_line, rest = self._buffer.partition(b"\n\n")
        if not blank_line:
            return False
        command, *headers = head.split(b"\n")
        length = _body_length(headers, rest)
        if length is None or len(rest) < length + 2:
            return False
        if rest[length : length + 2] != b"\0\n":
            raise WireError(f"the frame is not followed by NUL and a line feed: {self._buffer!r}")
        self._complete.append(ServerFrame(command, tuple(headers), rest[:length]))
        self._buffer = rest[length + 2 :]
        return True


def _body_length(headers: list[bytes], rest: bytes) -> int | None:
    for line in headers:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            # Of more digits there is no body, and Python itself refuses thousands of them.
            if not re.fullmatch(rb"[0-9]{1,12}", value):
                raise WireError(f"the content-length is no number: {value[:40]!r}")
            return int(value)
    end = rest.find(b"\0")
    return None if end < 0 else end


@dataclass(slots=True)
class _Connection:
    incoming: asyncio.StreamReader
    outgoing: asyncio.StreamWriter
    frames: FrameReader


class SocketPeer:
    """A server at the other end of TCP.

    Args:
        address: host and port.
        patience: seconds to wait for each frame; enough for a busy machine, as only a failing conversation waits.
    """

    def __init__(self, address: Address, patience: float = 15.0) -> None:
        self._address = address
        self._patience = patience
        self._connections: dict[str, _Connection] = {}

    async def send(self, client: str, octets: bytes) -> None:
        """See Peer. What can no longer be sent is lost, and the next receive tells that the connection is closed."""
        connection = self._connections.get(client) or await self._connect(client)
        with suppress(*_GONE):
            connection.outgoing.write(octets)
            await connection.outgoing.drain()

    async def receive(self, client: str) -> Received:
        """See Peer."""
        connection = self._connections.get(client) or await self._connect(client)
        try:
            async with asyncio.timeout(self._patience):
                return await _next(connection)
        except TimeoutError:
            rest = f" but {connection.frames.rest!r}" if connection.frames.rest else ""
            raise SilenceError(f"nothing{rest} came within {self._patience:g} seconds") from None

    async def hang_up(self, client: str) -> None:
        """See Peer."""
        connection = self._connections.pop(client)
        with suppress(*_GONE):
            connection.outgoing.close()
            await connection.outgoing.wait_closed()

    async def close(self) -> None:
        """See Peer. A server that has closed its side, too, is through with all that it was asked."""
        for client, connection in list(self._connections.items()):
            with suppress(OSError, RuntimeError):  # TimeoutError is an OSError
                async with asyncio.timeout(_PARTING):
                    connection.outgoing.write_eof()
                    while await connection.incoming.read(65536):
                        pass
            await self.hang_up(client)

    async def _connect(self, client: str) -> _Connection:
        incoming, outgoing = await asyncio.open_connection(*self._address)
        connection = self._connections[client] = _Connection(incoming, outgoing, FrameReader())
        return connection


async def _next(connection: _Connection) -> Received:
    while (received := connection.frames.take()) is None:
        try:
            octets = await connection.incoming.read(65536)
        except ConnectionError:  # a reset ends the connection, too
            octets = b""
        if not octets:
            if connection.frames.rest:
                raise WireError(f"the connection ended within a frame: {connection.frames.rest!r}")
            return Closed()
        connection.frames.feed(octets)
    return received
