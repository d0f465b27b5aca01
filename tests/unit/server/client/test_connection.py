"""A client's connection from inside: the time to log in, log lines about TLS, and a client that resets at once."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import tracemalloc
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog

from gateway.config.loader import parse
from gateway.config.model import GatewayConfig, Logging
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CertificateUnreadableError, CloseReason, StompError
from gateway.journal.journal import Journal
from gateway.server.broker.connector import Credentials
from gateway.server.broker.dialer import Dialer
from gateway.server.broker.link import Link
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.bridge import Bridge
from gateway.server.client.client_deadlines import HeartbeatTimer
from gateway.server.client.client_log import ClientLog
from gateway.server.client.connection import ClientConnection, ServerContext
from gateway.server.client.output import ClientOutput
from gateway.server.client.rechecks import Rechecks
from gateway.server.client.session_limits import RateLimiter, SessionLimits
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.log_limits import LogLimits, LogRateLimiter
from gateway.server.paced_work import PacedWork
from gateway.server.process.gateway import Gateway
from gateway.server.stats import GatewayStats, Stats
from gateway.server.tls_contexts import TlsContexts
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import Subscription
from tests.support.deadline import PATIENCE, until, within
from tests.support.scripted_broker import ScriptedBroker
from tests.support.stomp_client import StompClient, encoded

TLS = b"\x16\x03\x01\x02\0\1\0\1"


@dataclass
class Clock:
    """Stands still until it is set, in seconds."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("10.1.1.1", 1000)})
        self.written = b""
        self.reading: list[bool] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits here."""

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading.append(False)

    def resume_reading(self) -> None:
        self.reading.append(True)

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


@dataclass
class Connections:
    """Makes connections of clients, on a clock that is set by hand. The `login_timeout` is 10 seconds."""

    clock: Clock = field(default_factory=Clock)
    # On its own clock no time passes, so nothing waits for a later round.
    paced: PacedWork = field(default_factory=lambda: PacedWork(Clock()))
    turns: PacedWork = field(default_factory=lambda: PacedWork(Clock()))
    logging: Logging = field(default_factory=Logging)
    virtual_host: VirtualHost | None = None

    def __post_init__(self) -> None:
        self.listener = parse("listeners: [{tcp: '127.0.0.1:0', login_timeout: 10s}]", environment={}).listeners[0]
        self.log_limiter = LogRateLimiter(self.clock)
        log_limits = self.log_limits = LogLimits(self.logging, self.clock)
        stats, journal = GatewayStats(("/",)), Journal(GatewayConfig())
        pool = LinkPool(self.clock, self._spawn, journal, stats, "node", TlsContexts(), log_limits, self.paced)
        self._context = ServerContext(
            product=b"gateway",
            find_virtual_host=lambda _: self.virtual_host,
            pool=pool,
            clock=self.clock,
            spawn=self._spawn,
            journal=journal,
            stats=stats,
            limits=SessionLimits(self.clock),
            log_limits=log_limits,
            paced=self.paced,
            rechecks=Rechecks(pool, self._spawn, self.paced, stats),
            turns=self.turns,
        )

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def counted(self, virtual_host: str) -> Stats:
        """The sums of the sessions that are over and of those that are there."""
        stats = Stats()
        stats.bytes_in = self._context.stats.host(virtual_host).totals.bytes_in
        for client in self._context.clients:
            client.stats.add_to(stats)
        return stats

    def accept(self, since: float) -> tuple[ClientConnection, Wire]:
        wire = Wire()
        accepted = AcceptedConnection(Peer("10.1.1.1", 1000), since, self.log_limiter)
        client = ClientConnection(self._context, self.listener, accepted)
        client.connection_made(wire)
        return client, wire


async def test_the_time_to_log_in_begins_when_the_connection_is_accepted() -> None:
    connections = Connections()
    client, wire = connections.accept(since=connections.clock.now - 7)
    connections.clock.now += 2.5
    client.time_passed(connections.clock.now)
    assert wire.written == b""
    connections.clock.now += 1
    client.time_passed(connections.clock.now)
    assert b"message:Login timeout" in wire.written
    client.connection_lost(None)


async def test_after_a_read_of_full_size_others_have_their_turn() -> None:
    """The event loop would read a client that floods 32 times before anybody else."""
    connections = Connections()
    client, wire = connections.accept(connections.clock.now)
    for _ in range(3):
        client.data_received(b"\n" * 256_000)
        assert wire.reading == [False]
        turn = asyncio.Event()
        asyncio.get_running_loop().call_soon(turn.set)
        await turn.wait()
        client.data_received(b"\n" * 1000)
        assert wire.reading == [False, True]
        wire.reading.clear()
    client.connection_lost(None)


class BusyRounds(PacedWork):
    """Others have used up the time of each round, until the test gives this work its own."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self._spent = 1.0

    @property
    def waiting(self) -> int:
        """How much waits."""
        return len(self._waiting)

    def _await_next_round(self) -> None:
        """Not by itself."""

    def next_round(self) -> None:
        """Do what waits, in as many rounds as it takes."""
        while self._waiting:
            self.one_round()

    def one_round(self) -> None:
        """Do what waits now."""
        self._next_round()
        self._spent = 1.0


@pytest.mark.parametrize("piece", [b"\n" * 60_000, b"SEND\nx:" + b"y" * 60_000], ids=["nothing", "half a frame"])
async def test_a_stranger_is_not_read_while_its_input_waits_for_its_turn(piece: bytes) -> None:
    paced = BusyRounds()
    connections = Connections(paced=paced)
    client, wire = connections.accept(connections.clock.now)
    client.data_received(piece)
    assert wire.reading == [False]
    # Whatever else makes the session go on.
    client.advance()
    assert wire.reading == [False]
    paced.next_round()
    assert wire.reading == [False, True]
    client.connection_lost(None)


async def test_input_of_a_stranger_waits_once_however_many_pieces_it_comes_in() -> None:
    paced = BusyRounds()
    connections = Connections(paced=paced)
    client, wire = connections.accept(connections.clock.now)
    for byte in encoded("ACK") + b"\n" * 100:
        client.data_received(bytes((byte,)))
    client.connection_lost(None)
    assert paced.waiting == 1
    paced.next_round()
    assert client.session.traffic.frames_received == 1
    assert wire.written == b""


async def test_after_input_that_is_malformed_nothing_is_kept() -> None:
    paced = BusyRounds()
    connections = Connections(paced=paced)
    client, wire = connections.accept(connections.clock.now)
    client.data_received(b"CONNECT\n")
    paced.next_round()
    client.data_received(b"no colon\n")
    buffered = client._decoder.buffered
    for _ in range(10):
        client.data_received(b"x" * 60_000)
    assert client._decoder.buffered == buffered
    paced.next_round()
    assert wire.written.startswith(b"ERROR\n")
    client.connection_lost(None)


@pytest.mark.parametrize("limit", ["frames", "time"])
async def test_a_turn_is_bounded_by_frames_and_by_time(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, step = 0.0, 0.0 if limit == "frames" else 0.0004

    def clock() -> float:
        nonlocal now
        now += step
        return now

    monkeypatch.setattr("gateway.server.client.connection.time.monotonic", clock)
    connections = Connections(turns=PacedWork(lambda: 0.0))
    client, wire = connections.accept(connections.clock.now)
    client.data_received(encoded("ACK") * 1500)
    taken = client.session.traffic.frames_received
    # Four tenths of a millisecond for sixteen frames; a turn has one.
    assert taken == (1000 if limit == "frames" else 48)
    assert wire.reading == [False]
    client.abort()
    client.connection_lost(None)


async def test_who_floods_waits_for_its_turn_and_who_sends_little_does_not() -> None:
    turns = BusyRounds()
    connections = Connections(turns=turns)
    (flooder, flood), (neighbour, _) = (connections.accept(connections.clock.now) for _ in range(2))
    flooder.data_received(encoded("ACK") * 900)
    neighbour.data_received(encoded("ACK") * 9)
    assert (flooder.session.traffic.frames_received, flood.reading) == (0, [False])
    assert neighbour.session.traffic.frames_received == 9
    turns.next_round()
    assert (flooder.session.traffic.frames_received, flood.reading) == (900, [False, True])
    for client in (flooder, neighbour):
        client.connection_lost(None)


async def test_a_client_that_waits_for_its_turn_still_gets_its_messages_and_no_other_turn() -> None:
    turns = BusyRounds()
    connections = Connections(turns=turns)
    client, wire = connections.accept(connections.clock.now)
    client.data_received(encoded("ACK") * 900)
    for message in (b"one", b"two"):
        client.session.output.append(message)
        client.advance()
    assert wire.written == b"onetwo"
    assert (client.session.traffic.frames_received, turns.waiting) == (0, 1)
    turns.next_round()
    client.connection_lost(None)


@pytest.mark.parametrize("end", ["closed", "vanished", "broken"])
async def test_what_a_client_sent_before_its_end_is_carried_out_in_its_turn(end: str) -> None:
    turns = BusyRounds()
    connections = Connections(turns=turns)
    client, wire = connections.accept(connections.clock.now)
    client.data_received(encoded("ACK") * 900)
    if end == "closed":
        client.eof_received()
    elif end == "broken":
        client.violated("broken")
    else:
        client.connection_lost(None)
    assert (client.session.traffic.frames_received, client.is_closed) == (0, False)
    turns.next_round()
    assert (client.session.traffic.frames_received, client.is_closed) == (900, True)
    assert wire.written.count(b"ERROR\n") == {"closed": 900, "vanished": 0, "broken": 901}[end]
    if end != "vanished":
        client.connection_lost(None)


async def test_a_round_has_one_budget_for_all_that_flood_and_each_gets_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.0001
        return now

    monkeypatch.setattr("gateway.server.client.connection.time.monotonic", clock)
    connections = Connections(turns=PacedWork(clock))
    clients = [connections.accept(connections.clock.now)[0] for _ in range(50)]
    for client in clients:
        client.data_received(encoded("ACK") * 1500)

    def taken() -> list[int]:
        return [client.session.traffic.frames_received for client in clients]

    rounds, before = 0, sum(taken())
    while min(taken()) == 0:
        # A tenth of a millisecond for sixteen frames: a millisecond is 160, and the last turn may be too long.
        assert before <= 330
        start = sum(taken())
        await asyncio.sleep(0)
        before, rounds = sum(taken()) - start, rounds + 1
    assert 25 <= rounds <= 51
    for client in clients:
        client.abort()
        client.connection_lost(None)


async def test_what_is_logged_of_an_error_is_short() -> None:
    connections = Connections()
    client, _ = connections.accept(connections.clock.now)
    with structlog.testing.capture_logs() as lines:
        client.session.close(StompError("Processing error", "x" * 5000, CloseReason.PROTOCOL_ERROR))
        client.advance()
    client.connection_lost(None)
    assert lines[0]["text"] == "x" * 300


async def test_lines_about_tls_on_a_plain_port_are_few() -> None:
    connections = Connections()
    with structlog.testing.capture_logs() as lines:
        for seconds in (0, 11):
            connections.clock.now += seconds
            for _ in range(25):
                client, _ = connections.accept(connections.clock.now)
                client.data_received(TLS)
                client.connection_lost(None)
    written = [line for line in lines if line["event"] == "tls on a plain port"]
    assert [line["left_out"] for line in written] == [0] * 10 + [15] + [0] * 9
    assert len([line for line in lines if line["event"] == "session ended"]) == len(written)


async def test_a_repeated_error_is_one_line_and_the_end_tells_how_many() -> None:
    connections = Connections()
    client, wire = connections.accept(connections.clock.now)
    with structlog.testing.capture_logs() as lines:
        client.data_received(encoded("SEND") * 15)
        connections.clock.now += 61
        client.data_received(encoded("SEND") * 15)
        client.data_received(b"CONNECT\nno colon\n\n\0")
    assert wire.written.count(b"ERROR\nmessage:Illegal command\n") == 30
    client.connection_lost(None)
    assert [line["event"] for line in lines] == ["error sent"] * 3 + ["session ended"]
    assert [line.get("repeated") for line in lines] == [None, 14, None, None]
    assert lines[-1]["errors_left_out"] == 14


async def test_the_lines_about_one_address_are_bounded() -> None:
    connections = Connections(logging=Logging(lines_per_address=1000))
    with structlog.testing.capture_logs() as lines:
        for _ in range(600):
            client, _ = connections.accept(connections.clock.now)
            client.data_received(b"CONNECT\nno colon\n\n\0")
            client.connection_lost(None)
        connections.clock.now += 11
        client, _ = connections.accept(connections.clock.now)
        client.data_received(b"CONNECT\nno colon\n\n\0")
    client.connection_lost(None)
    assert len(lines) == 1002
    assert lines[-2]["left_out"] == 200


async def test_clients_with_certificates_that_cannot_be_read_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unreadable(*_: object) -> None:
        raise CertificateUnreadableError("x" * 5000)

    monkeypatch.setattr("gateway.server.client.connection.login_name", unreadable)
    connections = Connections(logging=Logging(lines_per_address=10))
    with structlog.testing.capture_logs() as lines:
        for _ in range(25):
            client, _ = connections.accept(connections.clock.now)
            client.connection_lost(None)
    written = [line for line in lines if line["event"] == "certificate unreadable"]
    assert len(written) == 10
    assert (written[0]["peer"], written[0]["reason"]) == ("10.1.1.1:1000", "x" * 300)
    assert connections.log_limits.left_out == 15


class Steps:
    """Stands in for methods, and notes the order in which they are called; one of them is a fault."""

    def __init__(self, patch: pytest.MonkeyPatch, fault: int, *methods: tuple[type, str]) -> None:
        self.done: list[int] = []
        self._fault = fault
        for number, (owner, name) in enumerate(methods):
            patch.setattr(owner, name, self._step(number))

    def _step(self, number: int) -> Callable[..., None]:
        def run(*_: object, **__: object) -> None:
            self.done.append(number)
            if number == self._fault:
                raise ValueError("a fault")

        return run


@pytest.mark.parametrize("fault", range(4))
async def test_whatever_of_an_end_is_a_fault_the_rest_is_done(fault: int, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = Connections().accept(1000.0)
    steps = Steps(
        monkeypatch, fault, (HeartbeatTimer, "stop"), (RateLimiter, "stop"), (Bridge, "release"), (ClientLog, "ended"),
        (ClientOutput, "close"),
    )  # fmt: skip
    with structlog.testing.capture_logs() as lines:
        client.data_received(b"CONNECT\nno colon\n\n\0")
    assert steps.done == [0, 1, 2, 3, 4]
    assert [str(line["exc_info"]) for line in lines if line["event"] == "internal error"] == ["a fault"]
    monkeypatch.undo()
    client.connection_lost(None)


@pytest.mark.parametrize("fault", range(2))
async def test_a_client_that_goes_leaves_whatever_of_that_is_a_fault(
    fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = Connections().accept(1000.0)
    steps = Steps(monkeypatch, fault, (ClientOutput, "connection_lost"), (RateLimiter, "stop"), (ClientLog, "ended"))
    with structlog.testing.capture_logs() as lines:
        client.connection_lost(None)
    assert set(steps.done) == {0, 1, 2}
    assert {str(line["exc_info"]) for line in lines if line["event"] == "internal error"} == {"a fault"}
    monkeypatch.undo()
    client.connection_lost(None)


def test_a_client_that_resets_at_once_is_dropped_without_a_line() -> None:
    """On uvloop, which asks the connection for its address; asyncio's own loop keeps it from accept."""
    uvloop = pytest.importorskip("uvloop")
    with structlog.testing.capture_logs() as lines, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_reset_at_once())
    assert [line["event"] for line in lines] == [
        "listening", "file descriptors", "error sent", "session ended", "draining", "stopped",
    ]  # fmt: skip


async def _reset_at_once() -> None:
    gateway = Gateway(parse("{listeners: [{tcp: '127.0.0.1:0'}], defaults: {journal: {level: off}}}", environment={}))
    await gateway.start()
    (address,) = gateway.addresses
    # Blocking: all of it happens before the gateway, which is in this loop, accepts.
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(encoded("CONNECT", accept_version="1.2"))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    async with within(), StompClient.dialled(address) as later:
        # Connections are accepted in their order, and this answer needs no broker.
        later.write("SEND", destination="/queue/a")
        await later.expect("ERROR", message="Illegal command")

    async def sessions() -> int:
        return len(gateway.clients)

    await until(sessions, lambda count: count == 0)
    await gateway.stop()


async def test_the_end_of_a_session_whose_client_is_lost_waits_for_another_round() -> None:
    connections = Connections()
    client, _ = connections.accept(connections.clock.now)
    client.connection_lost(None)
    assert not client.is_closed
    await asyncio.sleep(0)
    assert client.is_closed


async def test_a_session_that_has_ended_lets_go_of_its_subscriptions_when_there_is_time() -> None:
    paced = BusyRounds()
    connections = Connections(paced=paced)
    client, _ = connections.accept(connections.clock.now)
    subscriptions = client.session.subscriptions
    for number in range(500):
        tag = b"T_%d" % number
        subscriptions.add(Subscription(tag, tag[2:], AckMode.AUTO, b"session-x"), "q")
    client.abort()
    left = [len(subscriptions.all)]
    while paced.waiting:
        paced.one_round()
        left.append(len(subscriptions.all))
    assert left[:3] == [500, 300, 100]
    assert left[-1] == 0
    client.connection_lost(None)


async def test_sums_do_not_go_down_while_the_ends_of_many_sessions_wait() -> None:
    paced = BusyRounds()
    connections = Connections(paced=paced)
    clients = [connections.accept(connections.clock.now)[0] for _ in range(3)]
    for client in clients:
        client.stats.bytes_in = 100
    for client in clients:
        client.close_by_operator("")
    assert paced.waiting == 3
    assert connections.counted("").bytes_in == 300
    paced.next_round()
    assert connections.counted("").bytes_in == 300
    for client in clients:
        client.connection_lost(None)


async def test_what_a_client_has_sent_is_freed_at_its_end_without_a_search_for_garbage() -> None:
    connections = Connections()
    gc.disable()
    tracemalloc.start()
    try:
        client, _ = connections.accept(connections.clock.now)
        client.data_received(b"CONNECT\n" + b"".join(b"h%d:%b\n" % (number, b"x" * 900) for number in range(50)))
        before, _ = tracemalloc.get_traced_memory()
        client.abort()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    # Of the buffer alone there were 45 kB.
    assert before - after > 45_000
    client.connection_lost(None)


def _with_scripted_broker(monkeypatch: pytest.MonkeyPatch) -> VirtualHost:
    """A virtual host whose broker takes every login."""
    broker, virtual_host = ScriptedBroker(), VirtualHost.model_validate({"name": "/", "loopback_users": []})

    async def open_link(*more: object, one_by_one: bool) -> Link:
        return await broker.open_link(virtual_host, Credentials("guest", "guest"), "login")

    monkeypatch.setattr(Dialer, "open_link", open_link)
    return virtual_host


@pytest.mark.parametrize("way", ["eof", "lost"])
async def test_what_came_with_a_login_is_carried_out_although_the_client_has_gone(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is asked about the first login only. Then others have used up the time of the round."""
    virtual_host = _with_scripted_broker(monkeypatch)
    paced = BusyRounds()
    clock = Clock(asyncio.get_running_loop().time())
    connections = Connections(clock=clock, paced=paced, virtual_host=virtual_host)
    for _ in range(2):
        client, _ = connections.accept(connections.clock.now)
        client.data_received(encoded("CONNECT", accept_version="1.2", login="guest", passcode="guest"))
        client.data_received(encoded("BEGIN", transaction="t"))
        if way == "eof":
            client.eof_received()
        else:
            client.connection_lost(None)
        for _ in range(20):
            paced.next_round()
            await asyncio.sleep(0)
        assert client.is_closed
        assert client.session.traffic.commands == {b"CONNECT": 1, b"BEGIN": 1}
        assert client.session.login == b"guest"
        if way == "eof":
            client.connection_lost(None)


async def test_the_first_input_after_a_login_waits_for_time_and_later_input_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand clients may subscribe at the same moment, as soon as they have logged in."""
    virtual_host = _with_scripted_broker(monkeypatch)
    paced = BusyRounds()
    connections = Connections(clock=Clock(asyncio.get_running_loop().time()), paced=paced, virtual_host=virtual_host)
    client, wire = connections.accept(connections.clock.now)
    client.data_received(encoded("CONNECT", accept_version="1.2", login="guest", passcode="guest"))
    while b"CONNECTED" not in wire.written:
        paced.next_round()
        await asyncio.sleep(0)
    client.data_received(encoded("SUBSCRIBE", id="1", destination="/topic/x", receipt="subscribed"))
    assert client.session.traffic.commands == {b"CONNECT": 1}
    while b"subscribed" not in wire.written:
        paced.next_round()
        await asyncio.sleep(0)
    client.data_received(encoded("BEGIN", transaction="t"))
    assert client.session.traffic.commands == {b"CONNECT": 1, b"SUBSCRIBE": 1, b"BEGIN": 1}
    client.abort()
    client.connection_lost(None)
