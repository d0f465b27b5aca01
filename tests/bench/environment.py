"""What is measured: the broker and the two sides in front of it; and the stopwatch."""

import gc
import resource
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.bench import processes
from tests.bench.broker import Broker
from tests.bench.wire import Account, NotMeasurableError, Wire

PLUGIN = "plugin"
GATEWAY = "gateway"
TLS, WEBSOCKET = "tls", "websocket"
LIMIT = "limit"
"""The broker itself, without STOMP: see `amqp_wire`."""
PROXY = "proxy"
"""The plugin behind a process that copies bytes: see `proxy`."""
DEFAULT_NAP = 0.0005
_QUIET = 0.15
"""Cores that an idle broker and idle gateways may still use for timers and statistics."""
_QUIET_WITHIN = 20.0


@dataclass(frozen=True)
class Side:
    """One of the servers that are compared.

    `in_broker` says that it is part of the broker's own process, as the plugin is. Otherwise `pids` are its processes,
    of which a gateway with workers has several; none when they cannot be seen. `wire` is the load client's connection.
    """

    name: str
    account: Account
    in_broker: bool
    pids: tuple[int, ...] = ()
    wire: type[Wire] = Wire
    others: Mapping[str, tuple[int, type[Wire]]] = field(default_factory=dict)
    """Port and connection by further transport: `tls` and `websocket`."""

    def over(self, transport: str) -> "Side":
        """Return the same server, spoken to over another transport.

        Raises:
            NotMeasurableError: it does not listen there.
        """
        if transport not in self.others:
            raise NotMeasurableError(f"it has no port for {transport}, or none that is known")
        port, wire = self.others[transport]
        return replace(self, account=replace(self.account, port=port), wire=wire)

    def open(self) -> Wire:
        """Open a connection for messages."""
        return self.wire(self.account)

    def connect(self) -> socket.socket:
        """Open a connection that does nothing; return its socket."""
        return self.wire.connect(self.account)


@dataclass(frozen=True)
class Environment:
    """Everything a row needs: the broker, its sides, and the prefix of the names of the benchmark's queues."""

    broker: Broker
    sides: Mapping[str, Side]
    prefix: str
    nap: float = DEFAULT_NAP
    """Seconds that the load client rests after small reads; see `wire.pump`."""
    certificate: tuple[Path, Path] | None = None
    """A certificate and its key, for gateways that a benchmark starts itself."""
    lowest_gateway_memory: dict[str, int] = field(default_factory=dict)
    """Per side the least gateway memory seen without sessions; see `idle`."""

    @property
    def prefiller(self) -> Side:
        """The side that fills queues for both, so that both find the very same messages."""
        return self.sides.get(PLUGIN) or next(iter(self.sides.values()))

    @contextmanager
    def queues(self, row: str, count: int = 1) -> Iterator[list[str]]:
        """Make empty queues, yield their names, and delete them afterwards."""
        queues = [f"{self.prefix}.{row}.{number}" for number in range(count)]
        self.broker.declare(*queues)
        try:
            yield queues
        finally:
            self.broker.delete(*queues)


@dataclass(frozen=True)
class Cpu:
    """CPU seconds used while the clock ran; None where the process cannot be seen or does not exist.

    `elsewhere` is the rest of the machine: other programs, and kernel work that belongs to no process.
    """

    broker: float | None
    gateway: float | None
    client: float
    elsewhere: float


@dataclass(frozen=True)
class Sample:
    """One measurement: its figure in the row's unit, the operations done, the time and CPU they took, other figures."""

    value: float
    operations: int
    seconds: float
    cpu: Cpu
    others: Mapping[str, float] = field(default_factory=dict)


class Stopwatch:
    """Measure wall and CPU time of a `with` block, with the client's garbage collector off."""

    def __init__(self, environment: Environment, side: Side) -> None:
        self._broker = environment.broker.pids
        self._gateway = side.pids
        self._before: tuple[float | None, float | None, float, float]
        self._started = 0.0
        self.seconds = 0.0
        self.cpu = Cpu(None, None, 0.0, 0.0)

    def __enter__(self) -> Self:
        gc.collect()
        gc.disable()
        self._before = self._read()
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        gc.enable()
        broker, gateway, client, machine = (
            None if now is None or then is None else now - then
            for now, then in zip(self._read(), self._before, strict=True)
        )
        assert client is not None
        assert machine is not None
        ours = (broker or 0.0) + (gateway or 0.0) + client
        self.cpu = Cpu(broker, gateway, client, max(machine - ours, 0.0))

    def rate(self, operations: int) -> Sample:
        """Return the sample of a row whose figure is operations per second."""
        return Sample(operations / self.seconds, operations, self.seconds, self.cpu)

    def _read(self) -> tuple[float | None, float | None, float, float]:
        return (
            processes.sum_of(processes.cpu_seconds, self._broker),
            processes.sum_of(processes.cpu_seconds, self._gateway),
            time.process_time(),
            processes.machine_seconds(),
        )


def await_quiet(environment: Environment, within: float | None = None) -> None:
    """Wait until broker and gateway have finished earlier work, at most so many seconds, 20 if None."""
    pids = {*environment.broker.pids, *(pid for side in environment.sides.values() for pid in side.pids)}
    deadline = time.monotonic() + (_QUIET_WITHIN if within is None else within)
    calm = 0
    while calm < 2 and time.monotonic() < deadline:
        before, started = processes.sum_of(processes.cpu_seconds, pids) or 0.0, time.monotonic()
        time.sleep(0.1)
        elapsed = time.monotonic() - started
        used = (processes.sum_of(processes.cpu_seconds, pids) or 0.0) - before
        calm = calm + 1 if used / elapsed <= _QUIET else 0


def raise_descriptor_limit() -> int:
    """Raise this process's limit of open files as far as it may, also for its children, and return the limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
