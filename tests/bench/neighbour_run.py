"""The loading client of `make bench-neighbours`: its sessions, and what one measurement of a row knows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
from dataclasses import dataclass, field, replace
from typing import cast

from tests.bench.neighbour_servers import SHARED, TCP, TLS, WEBSOCKET, Server
from tests.bench.wire import Account, RowError

CONNECTED, RECEIPT, MESSAGE, ERROR = (b"CONNECTED\n", b"RECEIPT\n", b"MESSAGE\n", b"ERROR\n")
_SWITCHED = b"HTTP/1.1 101"
_PATIENCE = 60.0
_LONGEST_WORD = 16
_TWO_BYTES = 126
"""From this size on, the length of a WebSocket message takes more than the second byte."""
_AT_ONCE = 200
"""Connections that are dialled at a time, fewer than a usual backlog."""


class Peer(asyncio.Protocol):
    """One session of the loading client. It counts frames by their first line and keeps nothing else."""

    def __init__(self, *, websocket: bool) -> None:
        self.counts: dict[bytes, int] = {}
        self.error = b""
        self.transport: asyncio.Transport
        self._websocket = websocket
        self._tail = b""
        self._news = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Count the frames that begin in a read."""
        tail, data = self._tail, self._tail + data
        for word in (MESSAGE, RECEIPT, ERROR, CONNECTED, _SWITCHED):
            # What the tail has was counted before.
            if count := data.count(word) - tail.count(word):
                self.counts[word] = self.counts.get(word, 0) + count
                if word == ERROR:
                    self.error = data[data.rfind(word) :][:200]
        self._tail = data[-_LONGEST_WORD:]
        self._news.set()

    def pause_writing(self) -> None:
        """Too much waits to be sent."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """There is room again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server closed."""
        self.is_lost = True
        self._writable.set()
        self._news.set()

    def write(self, data: bytes) -> None:
        """Send frames; over WebSocket as one message with a mask of zeros, which changes nothing."""
        if self._websocket:
            size = len(data)
            if size < _TWO_BYTES:
                length = bytes((0x80 | size,))
            else:
                length = struct.pack("!BH", 0xFE, size) if size < 1 << 16 else struct.pack("!BQ", 0xFF, size)
            data = b"".join((b"\x82", length, bytes(4), data))
        self.transport.write(data)

    async def flood(self, data: bytes, chunk: int = 1 << 16) -> None:
        """Send much, as fast as the server takes it."""
        async with asyncio.timeout(_PATIENCE):
            for at in range(0, len(data), chunk):
                if self.is_lost:
                    return
                self.write(data[at : at + chunk])
                await self._writable.wait()

    async def expect(self, word: bytes, count: int = 1, *, or_end: bool = False) -> None:
        """Wait until so many frames of a kind have come in all.

        Raises:
            RowError: none has come for a minute, or the server closed before; with ``or_end`` that is all right.
        """
        while (got := self.counts.get(word, 0)) < count:
            if self.is_lost and or_end:
                return
            if self.is_lost:
                raise RowError(f"the server closed a loading client: {self.error!r}")
            try:
                # On a busy machine all of them may take minutes. Nothing at all for so long is a stall.
                async with asyncio.timeout(_PATIENCE):
                    await self._more_than(word, got)
            except TimeoutError:
                waited = f"only {got:,} of {count:,} {word.decode().strip()} came, and none for {_PATIENCE:.0f} s"
                raise RowError(waited) from None

    async def _more_than(self, word: bytes, got: int) -> None:
        while self.counts.get(word, 0) <= got and not self.is_lost:
            self._news.clear()
            await self._news.wait()


@dataclass
class Run:
    """One measurement of a row on one server."""

    server: Server
    transport: str
    links: str
    scale: float
    peers: list[Peer] = field(default_factory=list)

    def count(self, number: int) -> int:
        """A number of the row, scaled."""
        return max(1, round(number * self.scale))

    async def dialled(self) -> Peer:
        """A connection, over WebSocket with its handshake."""
        peer = await self.connected(over_tls=self.transport == TLS)
        if self.transport == WEBSOCKET:
            peer.transport.write(self.upgrade_request())
            await peer.expect(_SWITCHED)
        return peer

    async def connected(self, *, over_tls: bool = False) -> Peer:
        """A connection to the transport's port, without a byte of the client."""
        account = self.server.account(self.transport, self.links)
        _, peer = await asyncio.get_running_loop().create_connection(
            lambda: Peer(websocket=self.transport == WEBSOCKET),
            "localhost" if over_tls else account.host,
            account.port,
            ssl=self.server.tls if over_tls else None,
            family=2,
        )
        self.peers.append(peer)
        return peer

    def upgrade_request(self) -> bytes:
        """The HTTP request of a WebSocket."""
        account = self.server.account(self.transport, self.links)
        return (
            f"GET /ws HTTP/1.1\r\nHost: {account.host}:{account.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v12.stomp\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode()

    def first_bytes(self) -> bytes:
        """What a client sends first over the transport: CONNECT, or its part of a handshake."""
        if self.transport == WEBSOCKET:
            return self.upgrade_request()
        if self.transport == TCP:
            return self.server.account().connect_frame()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            self.server.tls.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
        return outgoing.read()

    async def session(self, account: Account | None = None) -> Peer:
        """A session that has logged in."""
        peer = await self.dialled()
        peer.write((account or self.server.account(self.transport, self.links)).connect_frame())
        await peer.expect(CONNECTED)
        return peer

    async def sessions(self, count: int) -> list[Peer]:
        """Many sessions."""
        made: list[Peer] = []
        for at in range(0, count, _AT_ONCE):
            made += await asyncio.gather(*(self.session() for _ in range(min(_AT_ONCE, count - at))))
        return made

    def queue(self) -> str:
        """A queue of this run."""
        return f"stomp-bench-neighbours-{os.getpid()}"

    async def filled_queue(self, messages: int, size: int) -> str:
        """A queue with so many messages."""
        queue = self.queue()
        await asyncio.to_thread(self.server.broker.declare, queue)
        filler = await replace(self, transport=TCP, links=SHARED).session()
        frame = f"SEND\ndestination:/amq/queue/{queue}\ncontent-length:{size}\n\n".encode() + b"x" * size + b"\0"
        await filler.flood(frame * messages)
        filler.write(f"SEND\ndestination:/amq/queue/{queue}\nreceipt:filled\n\n\0".encode())
        await filler.expect(RECEIPT)
        filler.transport.close()
        return queue

    async def close(self) -> None:
        """End what is left."""
        for peer in self.peers:
            peer.transport.abort()
        await asyncio.to_thread(self.server.broker.delete, self.queue())
