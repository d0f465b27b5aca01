"""What the other client does in `make bench-neighbours`: one function per row, on asyncio, with sessions of its own.

A function returns the seconds of what the row measures beside the neighbour's wait, or None. Its sessions are closed
when the neighbour has been sampled, unless the row is about their end.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from tests.bench.environment import GATEWAY
from tests.bench.neighbour_run import CONNECTED, ERROR, MESSAGE, RECEIPT, Peer, Run
from tests.bench.neighbour_servers import DEDICATED, SHARED, TCP, TLS, WEBSOCKET
from tests.bench.wire import NotMeasurableError, RowError

Work = Callable[[Run], Awaitable[float | None]]

_TINY = b"SEND\ndestination:/topic/load\n\n\0"
_FLOODERS = 50

# Begins to watch for connections that receive more than so many bytes from now on, and closes the first that do.
_CLOSE_LARGE = """
Octets = fun(P) -> [{recv_oct, N}] = rabbit_networking:connection_info(P, [recv_oct]), N end,
Before = maps:from_list([{P, Octets(P)} || P <- rabbit_networking:connections_local()]),
F = fun F(0) -> nothing;
        F(N) ->
            Large = fun(P) -> (catch Octets(P) - maps:get(P, Before, 0) > %d) =:= true end,
            case [P || P <- rabbit_networking:connections_local(), Large(P)] of
                [] -> timer:sleep(2), F(N - 1);
                Found -> [rabbit_networking:close_connection(P, "replay") || P <- Found], closed
            end
    end,
persistent_term:put(replay, nothing),
spawn(fun() -> persistent_term:put(replay, F(15000)) end).
"""


def _subscribe(number: int, more: str = "") -> bytes:
    return f"SUBSCRIBE\nid:{number}\ndestination:/topic/load.{number}\n{more}receipt:r{number}\n\n\0".encode()


async def _nothing(run: Run) -> None:
    await asyncio.sleep(2)


async def _header_lines(run: Run) -> None:
    peer = await run.session()
    await peer.flood(b"SEND\ndestination:/topic/load\n" + b":\n" * run.count(2 << 20))
    peer.write(b"\n\0")
    await asyncio.sleep(1)
    if run.server.name == GATEWAY:
        await peer.expect(ERROR)


async def _tiny_sends(run: Run) -> float:
    peer = await run.session()
    started = time.perf_counter()
    await _flood(peer, run.count(300_000))
    return time.perf_counter() - started


async def _flooders(run: Run) -> float:
    peers = [await run.session() for _ in range(_FLOODERS)]
    started = time.perf_counter()
    await asyncio.gather(*(_flood(peer, run.count(300_000 // _FLOODERS)) for peer in peers))
    return time.perf_counter() - started


async def _flood(peer: Peer, sends: int) -> None:
    """Many SENDs, until the server has taken the last one."""
    await peer.flood(_TINY * sends, 1 << 20)
    await _taken(peer)


async def _taken(peer: Peer) -> None:
    """Wait until the server has carried out what a session sent first."""
    peer.write(b"SEND\ndestination:/topic/load\nreceipt:all\n\n\0")
    await peer.expect(RECEIPT)


async def _subscribes(run: Run) -> float:
    peer, count = await run.session(), run.count(3000)
    started = time.perf_counter()
    await peer.flood(b"".join(map(_subscribe, range(count))))
    await peer.expect(RECEIPT, count)
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
    if run.server.name == GATEWAY and run.scale >= 1:
        await peer.expect(ERROR)


async def _commit(run: Run) -> float:
    return await _committed(run, b"SEND\ndestination:/topic/load\ntransaction:t\n\n\0" * run.count(9_999))


async def _commit_bytes(run: Run) -> float:
    return await _committed(run, _large_sends("/topic/load") * run.count(1_000))


def _large_sends(destination: str) -> bytes:
    """A SEND of 64 KiB in a transaction."""
    body = b"x" * (64 << 10)
    head = f"SEND\ndestination:{destination}\ntransaction:t\npersistent:true\ncontent-length:{len(body)}\n\n"
    return head.encode() + body + b"\0"


async def _prepared_replay(run: Run) -> None:
    if run.server.name != GATEWAY:
        raise NotMeasurableError("the plugin loses its sessions with the broker")
    await asyncio.to_thread(run.server.broker.declare, run.queue())


async def _replay(run: Run) -> float:
    """The broker closes the connection on which most of a COMMIT has come, and the gateway publishes it again."""
    large, control = round(run.scale * (20 << 20)), run.server.broker.control
    if control is None:
        raise NotMeasurableError("needs rabbitmqctl")
    await asyncio.to_thread(control, ["eval", _CLOSE_LARGE % large])
    seconds = await _committed(run, _large_sends(f"/amq/queue/{run.queue()}") * run.count(960))
    if "closed" not in await asyncio.to_thread(control, ["eval", "persistent_term:get(replay)."]):
        raise RowError("the broker has closed no connection")
    return seconds


async def _committed(run: Run, sends: bytes) -> float:
    """The seconds of the COMMIT of a transaction."""
    peer = await run.session()
    await peer.flood(b"BEGIN\ntransaction:t\n\n\0" + sends)
    started = time.perf_counter()
    peer.write(b"COMMIT\ntransaction:t\nreceipt:committed\n\n\0")
    await peer.expect(RECEIPT)
    return time.perf_counter() - started


async def _connects(run: Run) -> float:
    started, count = time.perf_counter(), run.count(1500)
    connect = run.server.account(run.transport, run.links).connect_frame()

    async def one(number: int) -> None:
        peer = await run.dialled()
        peer.write(connect)
        await peer.expect(CONNECTED)
        peer.write(_subscribe(number))
        await peer.expect(RECEIPT)

    await asyncio.gather(*(one(number) for number in range(count)))
    return time.perf_counter() - started


async def _prepared_clients(run: Run) -> None:
    await _connects(run)
    bystander = await run.session()
    bystander.write(_subscribe(0))
    await bystander.expect(RECEIPT)


async def _vanish(run: Run) -> float:
    *others, bystander = run.peers
    for peer in others:
        peer.transport.abort()
    await asyncio.sleep(0)
    started = time.perf_counter()
    bystander.write(b"UNSUBSCRIBE\nid:0\nreceipt:gone\n\n\0")
    await bystander.expect(RECEIPT, 2)
    return time.perf_counter() - started


async def _prepared_sessions(run: Run) -> None:
    await run.sessions(run.count(1000))


async def _disconnects(run: Run) -> float:
    started = time.perf_counter()
    for peer in run.peers:
        peer.write(b"DISCONNECT\nreceipt:bye\n\n\0")
    await asyncio.gather(*(peer.expect(RECEIPT) for peer in run.peers))
    return time.perf_counter() - started


async def _line_feeds(run: Run) -> None:
    peer = await run.session()
    await peer.flood(b"\n" * run.count(20 << 20))
    await _taken(peer)


async def _half_open(run: Run) -> None:
    peers = [await run.connected() for _ in range(run.count(500))]
    first = run.first_bytes()
    for at in range(40):
        for peer in peers:
            peer.transport.write(first[at : at + 1])
        await asyncio.sleep(0.05)


async def _wrong_passcodes(run: Run) -> None:
    wrong = replace(run.server.account(run.transport, run.links), passcode="wrong").connect_frame()

    async def one() -> None:
        peer = await run.dialled()
        peer.write(wrong)
        await peer.expect(ERROR, or_end=True)
        peer.transport.abort()

    await asyncio.gather(*(one() for _ in range(run.count(150))))


async def _prepared_tokens(run: Run) -> None:
    if run.server.name != GATEWAY:
        raise NotMeasurableError("the plugin has no such command")
    await run.sessions(run.count(100))


async def _tokens(run: Run) -> float:
    started, passcode = time.perf_counter(), run.server.account().passcode
    for peer in run.peers:
        peer.write(f"TOKEN\ntoken:{passcode}\nreceipt:renewed\n\n\0".encode())
    await asyncio.gather(*(peer.expect(RECEIPT) for peer in run.peers))
    return time.perf_counter() - started


async def _prepared_queue(run: Run) -> None:
    await run.filled_queue(run.count(50_000), 256)


async def _full_queue(run: Run) -> float:
    peer, started = await run.session(), time.perf_counter()
    peer.write(f"SUBSCRIBE\nid:0\ndestination:/amq/queue/{run.queue()}\n\n\0".encode())
    await peer.expect(MESSAGE, run.count(50_000))
    return time.perf_counter() - started


async def _unbounded_prefetch(run: Run) -> float:
    peer, started = await run.session(), time.perf_counter()
    peer.write(f"SUBSCRIBE\nid:0\ndestination:/amq/queue/{run.queue()}\nack:client\n\n\0".encode())
    await peer.expect(MESSAGE, run.count(50_000))
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
    await peer.expect(MESSAGE)


def _costly_selector(number: int) -> str:
    """One of the worst: texts that are almost found at each place of a header of many ``x``."""
    return " OR ".join(f"text LIKE '%{'x' * 74}-{number:02d}-{at:02d}xx%'" for at in range(19))


def _prepared_selectors(count: int) -> Work:
    async def prepare(run: Run) -> None:
        if run.server.name != GATEWAY:
            raise NotMeasurableError("the plugin has no selectors")
        peer = await run.session()
        for number in range(run.count(count)):
            selector = f"selector:{_costly_selector(number)}\n"
            peer.write(f"SUBSCRIBE\nid:{number}\ndestination:/topic/load\n{selector}receipt:r{number}\n\n\0".encode())
        await peer.expect(RECEIPT, run.count(count))

    return prepare


async def _selected(run: Run) -> None:
    """200 messages that no selector selects. To ask all of them takes longer than this row does."""
    peer = await run.session()
    await peer.flood(f"SEND\ndestination:/topic/load\ntext:{'x' * 3900}\n\n\0".encode() * run.count(200))
    await _taken(peer)
    await asyncio.sleep(3)


async def _prepared_many(run: Run) -> None:
    if run.server.admin is None:
        raise NotMeasurableError("the plugin has no such page")
    await run.sessions(run.count(10_000))


async def _metrics(run: Run) -> float:
    started = time.perf_counter()
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.admin)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RowError("/metrics was not answered with 200")
    return (time.perf_counter() - started) / 3


@dataclass(frozen=True)
class Load:
    """A row: what the other client does while the neighbour is measured, and before that.

    ``within`` are the seconds that ``work`` may take at full scale, where the row has such an aim, or what the plugin
    takes where that is more. ``tail``: how long the neighbour is measured afterwards. ``elsewhere``: what else the row
    is measured over.
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
    elsewhere: tuple[str, ...] = ()

    def over(self, other: str) -> Load:
        """The same row over another transport, or on dedicated links."""
        if other == DEDICATED:
            return replace(self, name=f"{self.name}-{other}", text=f"{self.text}, dedicated links", links=other)
        return replace(self, name=f"{self.name}-{other}", text=f"{self.text}, {other}", transport=other)


_TRANSPORTS = (TLS, WEBSOCKET)
_EVERYWHERE = (*_TRANSPORTS, DEDICATED)
_BASE = (
    Load("nothing", "nothing", _nothing),
    Load("header-lines", "a SEND of 4 MiB of header lines", _header_lines, elsewhere=_TRANSPORTS),
    Load("tiny-sends", "300,000 tiny SENDs at once", _tiny_sends, elsewhere=_EVERYWHERE),
    Load("flooders", "the same from 50 clients", _flooders, elsewhere=_EVERYWHERE),
    Load("subscribes", "3,000 SUBSCRIBEs", _subscribes, within=10.0, elsewhere=_EVERYWHERE),
    Load("session-end", "that session ends", _session_end, _prepared_subscriptions, elsewhere=_EVERYWHERE),
    Load("transaction", "a transaction beyond its bound", _transaction),
    Load("commit", "a COMMIT of 9,999 SENDs", _commit, elsewhere=_EVERYWHERE),
    Load("commit-bytes", "a COMMIT of 62 MiB", _commit_bytes, elsewhere=_EVERYWHERE),
    Load("replay", "60 MiB are published again", _replay, _prepared_replay, plugin=False, elsewhere=(DEDICATED,)),
    Load("connects", "1,500 clients connect and subscribe", _connects, within=4.0),
    Load("connects-tls", "the same, tls", _connects, transport=TLS),
    Load("vanish", "1,500 subscribers vanish; an UNSUBSCRIBE", _vanish, _prepared_clients, 0.5, tail=3.0),
    Load("vanish-tls", "the same, tls", _vanish, _prepared_clients, transport=TLS, tail=3.0),
    Load("disconnects", "1,000 sessions DISCONNECT at once", _disconnects, _prepared_sessions, elsewhere=_TRANSPORTS),
    Load("line-feeds", "20 MB of line feeds", _line_feeds, elsewhere=_TRANSPORTS),
    Load("half-open", "500 half-open connections, byte by byte", _half_open, elsewhere=_TRANSPORTS),
    Load("wrong-passcodes", "150 wrong passcodes", _wrong_passcodes),
    Load("full-queue", "a full queue to one subscriber", _full_queue, _prepared_queue, elsewhere=_EVERYWHERE),
    Load("unbounded-prefetch", "the same without a prefetch", _unbounded_prefetch, _prepared_queue, elsewhere=(TLS,)),
    Load("slow-reader", "a reader that is slow", _slow_reader, _prepared_large_queue, elsewhere=_TRANSPORTS),
    *(
        Load(f"selectors-{count}", text, _selected, _prepared_selectors(count), plugin=False)
        for count, text in ((1, "a costly selector"), (10, "10 costly selectors"), (100, "100 costly selectors"))
    ),
    Load("tokens", "100 sessions renew their TOKENs", _tokens, _prepared_tokens, links=DEDICATED, plugin=False),
    Load("metrics", "/metrics with 10,000 sessions", _metrics, _prepared_many, plugin=False),
)

LOADS = {load.name: load for base in _BASE for load in (base, *map(base.over, base.elsewhere))}
"""The rows by name. Those with a transport or links in their name are the same over these."""
