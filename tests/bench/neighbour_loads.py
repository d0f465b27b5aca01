"""What the other client does in `make bench-neighbours`: one function per row, on asyncio, with sessions of its own.

A function returns the seconds of what the row measures beside the neighbour's wait, or None. Its sessions are closed
when the neighbour has been sampled, unless the row is about their end.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import cast

from tests.bench.neighbour_servers import DEDICATED, SHARED, TCP, TLS, WEBSOCKET, Server
from tests.bench.wire import Account, NotMeasurableError, RowError

_PATIENCE = 60.0
_LONGEST_WORD = 16
_CONNECTED, _RECEIPT, _MESSAGE, _ERROR = (b"CONNECTED\n", b"RECEIPT\n", b"MESSAGE\n", b"ERROR\n")
_SWITCHED = b"HTTP/1.1 101"
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
        data = self._tail + data
        for word in (_MESSAGE, _RECEIPT, _ERROR, _CONNECTED, _SWITCHED):
            if count := data.count(word):
                self.counts[word] = self.counts.get(word, 0) + count
                if word == _ERROR:
                    self.error = data[data.find(word) :][:200]
                # A word is counted once, also if it stands at the end.
                data = data[data.rfind(word) + 1 :]
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
            RowError: the server closed before; with ``or_end`` that is all right.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                while self.counts.get(word, 0) < count:
                    if self.is_lost and or_end:
                        return
                    if self.is_lost:
                        raise RowError(f"the server closed a loading client: {self.error!r}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            got = self.counts.get(word, 0)
            raise RowError(f"only {got:,} of {count:,} {word.decode().strip()} came in {_PATIENCE:.0f} s") from None


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
        account = self.server.account(self.transport, self.links)
        is_websocket = self.transport == WEBSOCKET
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(
            lambda: Peer(websocket=is_websocket),
            "localhost" if self.transport == TLS else account.host,
            account.port,
            ssl=self.server.tls if self.transport == TLS else None,
            family=2,
        )
        self.peers.append(peer)
        if is_websocket:
            peer.transport.write(
                f"GET /ws HTTP/1.1\r\nHost: {account.host}:{account.port}\r\nUpgrade: websocket\r\n"
                "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v12.stomp\r\n"
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode()
            )
            await peer.expect(_SWITCHED)
        return peer

    async def session(self, account: Account | None = None) -> Peer:
        """A session that has logged in."""
        peer = await self.dialled()
        peer.write((account or self.server.account(self.transport, self.links)).connect_frame())
        await peer.expect(_CONNECTED)
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
        await filler.expect(_RECEIPT)
        filler.transport.close()
        return queue

    async def close(self) -> None:
        """End what is left."""
        for peer in self.peers:
            peer.transport.abort()
        await asyncio.to_thread(self.server.broker.delete, self.queue())


def _subscribe(number: int, more: str = "") -> bytes:
    return f"SUBSCRIBE\nid:{number}\ndestination:/topic/load.{number}\n{more}receipt:r{number}\n\n\0".encode()


async def _nothing(run: Run) -> None:
    await asyncio.sleep(2)


async def _header_lines(run: Run) -> None:
    peer = await run.session()
    await peer.flood(b"SEND\ndestination:/topic/load\n" + b":\n" * run.count(2 << 20))
    peer.write(b"\n\0")
    await asyncio.sleep(1)


async def _tiny_sends(run: Run) -> float:
    peer = await run.session()
    started = time.perf_counter()
    await peer.flood(b"SEND\ndestination:/topic/load\n\n\0" * run.count(300_000), 1 << 20)
    peer.write(b"SEND\ndestination:/topic/load\nreceipt:all\n\n\0")
    await peer.expect(_RECEIPT)
    return time.perf_counter() - started


async def _subscribes(run: Run) -> float:
    peer, count = await run.session(), run.count(3000)
    started = time.perf_counter()
    await peer.flood(b"".join(map(_subscribe, range(count))))
    await peer.expect(_RECEIPT, count)
    return time.perf_counter() - started


async def _prepared_subscriptions(run: Run) -> None:
    await _subscribes(run)


async def _session_end(run: Run) -> None:
    run.peers[0].transport.abort()
    await asyncio.sleep(4)


async def _transaction(run: Run) -> None:
    peer = await run.session()
    await peer.flood(
        b"BEGIN\ntransaction:t\n\n\0" + b"SEND\ndestination:/topic/load\ntransaction:t\n\n\0" * run.count(23_000)
    )
    await asyncio.sleep(1)


async def _commit(run: Run) -> float:
    peer = await run.session()
    await peer.flood(
        b"BEGIN\ntransaction:t\n\n\0" + b"SEND\ndestination:/topic/load\ntransaction:t\n\n\0" * run.count(9_999)
    )
    started = time.perf_counter()
    peer.write(b"COMMIT\ntransaction:t\nreceipt:committed\n\n\0")
    await peer.expect(_RECEIPT)
    return time.perf_counter() - started


async def _connects(run: Run) -> float:
    started, count = time.perf_counter(), run.count(1500)
    connect = run.server.account(run.transport, run.links).connect_frame()

    async def one(number: int) -> None:
        peer = await run.dialled()
        peer.write(connect)
        await peer.expect(_CONNECTED)
        peer.write(_subscribe(number))
        await peer.expect(_RECEIPT)

    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - started


async def _prepared_clients(run: Run) -> None:
    await _connects(run)
    bystander = await run.session()
    bystander.write(_subscribe(0))
    await bystander.expect(_RECEIPT)


async def _vanish(run: Run) -> float:
    *others, bystander = run.peers
    for peer in others:
        peer.transport.abort()
    await asyncio.sleep(0)
    started = time.perf_counter()
    bystander.write(b"UNSUBSCRIBE\nid:0\nreceipt:gone\n\n\0")
    await bystander.expect(_RECEIPT, 2)
    return time.perf_counter() - started


async def _prepared_sessions(run: Run) -> None:
    await run.sessions(run.count(1000))


async def _disconnects(run: Run) -> float:
    started = time.perf_counter()
    for peer in run.peers:
        peer.write(b"DISCONNECT\nreceipt:bye\n\n\0")
    await asyncio.gather(*(peer.expect(_RECEIPT) for peer in run.peers))
    return time.perf_counter() - started


async def _line_feeds(run: Run) -> None:
    peer = await run.session()
    await peer.flood(b"\n" * run.count(20 << 20))


async def _half_open(run: Run) -> None:
    peers = [await run.dialled() for _ in range(run.count(500))]
    frame = run.server.account().connect_frame()[:-1]
    for at in range(40):
        for peer in peers:
            peer.transport.write(frame[at : at + 1])
        await asyncio.sleep(0.05)


async def _wrong_passcodes(run: Run) -> None:
    wrong = replace(run.server.account(run.transport, run.links), passcode="wrong").connect_frame()

    async def one() -> None:
        peer = await run.dialled()
        peer.write(wrong)
        await peer.expect(_ERROR, or_end=True)
        peer.transport.abort()

    await asyncio.gather(*(one() for _ in range(run.count(150))))


async def _prepared_queue(run: Run) -> None:
    await run.filled_queue(run.count(50_000), 256)


async def _full_queue(run: Run) -> float:
    peer, started = await run.session(), time.perf_counter()
    peer.write(f"SUBSCRIBE\nid:0\ndestination:/amq/queue/{run.queue()}\n\n\0".encode())
    await peer.expect(_MESSAGE, run.count(50_000))
    return time.perf_counter() - started


async def _unbounded_prefetch(run: Run) -> float:
    peer, started = await run.session(), time.perf_counter()
    peer.write(f"SUBSCRIBE\nid:0\ndestination:/amq/queue/{run.queue()}\nack:client\n\n\0".encode())
    await peer.expect(_MESSAGE, run.count(50_000))
    return time.perf_counter() - started


async def _prepared_large_queue(run: Run) -> None:
    await run.filled_queue(run.count(2_000), 16 << 10)


async def _slow_reader(run: Run) -> None:
    peer = await run.session()
    peer.write(f"SUBSCRIBE\nid:0\ndestination:/amq/queue/{run.queue()}\n\n\0".encode())
    for _ in range(60):
        peer.transport.pause_reading()
        await asyncio.sleep(0.05)
        peer.transport.resume_reading()
        await asyncio.sleep(0)


async def _prepared_many(run: Run) -> None:
    if run.server.admin is None:
        raise NotMeasurableError("the plugin has no such page")
    await run.sessions(run.count(10_000))


async def _metrics(run: Run) -> float:
    started = time.perf_counter()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.admin)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        if not (await reader.read()).startswith(b"HTTP/1.1 200"):
            raise RowError("/metrics was not answered with 200")
        writer.close()
    return (time.perf_counter() - started) / 3


Work = Callable[[Run], Awaitable[float | None]]


@dataclass(frozen=True)
class Load:
    """A row: what the other client does while the neighbour is measured, and before that.

    ``within`` are the seconds that ``work`` may take, where the row has such an aim, or what the plugin takes where
    that is more. ``tail``: how long the neighbour is measured afterwards.
    """

    name: str
    text: str
    work: Work
    prepare: Work | None = None
    within: float | None = None
    transport: str = TCP
    links: str = SHARED
    tail: float = 0.5
    plugin: bool = True


_BASE = (
    Load("nothing", "nothing", _nothing),
    Load("header-lines", "a SEND of 4 MiB of header lines", _header_lines),
    Load("tiny-sends", "300,000 tiny SENDs at once", _tiny_sends),
    Load("subscribes", "3,000 SUBSCRIBEs", _subscribes, within=10.0),
    Load("session-end", "that session ends", _session_end, _prepared_subscriptions),
    Load("transaction", "a transaction beyond its bound", _transaction),
    Load("commit", "a COMMIT of the largest size", _commit),
    Load("connects", "1,500 clients connect and subscribe", _connects, within=4.0),
    Load("vanish", "1,500 subscribers vanish; an UNSUBSCRIBE", _vanish, _prepared_clients, within=0.5, tail=3.0),
    Load("disconnects", "1,000 sessions DISCONNECT at once", _disconnects, _prepared_sessions),
    Load("line-feeds", "20 MB of line feeds", _line_feeds),
    Load("half-open", "500 half-open connections, byte by byte", _half_open),
    Load("wrong-passcodes", "150 wrong passcodes", _wrong_passcodes),
    Load("full-queue", "a full queue to one subscriber", _full_queue, _prepared_queue),
    Load("unbounded-prefetch", "the same without a prefetch", _unbounded_prefetch, _prepared_queue),
    Load("slow-reader", "a reader that is slow", _slow_reader, _prepared_large_queue),
    Load("metrics", "/metrics with 10,000 sessions", _metrics, _prepared_many, plugin=False),
)
_ELSEWHERE = ("tiny-sends", "subscribes", "commit", "full-queue", "line-feeds", "connects")


def _loads() -> dict[str, Load]:
    loads = {load.name: load for load in _BASE}
    for name in _ELSEWHERE:
        load = loads[name]
        for transport in (TLS, WEBSOCKET):
            if name != "connects" or transport == TLS:
                text = f"{load.text}, {transport}"
                within = None if name == "connects" else load.within
                made = replace(load, name=f"{name}-{transport}", text=text, transport=transport, within=within)
                loads[made.name] = made
        if name != "connects":
            made = replace(load, name=f"{name}-dedicated", text=f"{load.text}, dedicated links", links=DEDICATED)
            loads[made.name] = made
    return loads


LOADS = _loads()
"""The rows by name. Those with a transport or links in their name are the same over these."""
