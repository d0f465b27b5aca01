"""The running gateway: listeners, all clients, the link pool, and an orderly end."""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Protocol

import structlog

from gateway import __version__
from gateway.config import GatewayConfig, Listener, SocketAddress
from gateway.errors import GatewayError, ListenError
from gateway.journal.journal import Journal, node_name
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.link_registry import LinkRegistry
from gateway.server.client.auto_ack_flusher import AutoAckFlusher
from gateway.server.client.connection import ClientConnection
from gateway.server.client.session_limits import SessionLimits
from gateway.server.listen.listener import OpenListener
from gateway.server.listen.websocket import WebSocketConnection
from gateway.server.process.loop_lag import Lag
from gateway.server.process.readiness import Readiness, ReadinessProbe
from gateway.server.process.systemd_notify import Notifier
from gateway.server.server_context import ServerContext
from gateway.server.stats import GatewayStats

log = structlog.get_logger("gateway")

# Deadlines without a timer of their own are looked at this often, in seconds.
_SWEEP: Final = 1.0
_MINUTE: Final = 60

# The journal is written at least this often, in seconds.
_JOURNAL: Final = 0.25


class Gateway:
    """All of a gateway's parts.

    Args:
        config: what to listen on and where to connect.
    """

    def __init__(self, config: GatewayConfig) -> None:
        self.config = self._config = config
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[OpenListener] = []
        self.clients: set[ClientConnection] = set()
        self._closing: set[ClientConnection] = set()
        self.journal = self._journal = Journal(config)
        clock = self._journal.clock
        self.started_at = clock.time
        self.stats = GatewayStats(config.virtual_hosts)
        self.link_registry = LinkRegistry(self.stats, lambda: clock.time)
        self._lookout = ReadinessProbe(tuple(config.resolved_virtual_hosts()), self.link_registry, self._loop.time)
        self._is_stopping = False
        self.lag = Lag(_SWEEP)
        self.node = node_name(config.defaults.journal.node)
        self._pool = LinkPool(self._loop.time, self._spawn, clock.tick, self.link_registry, self.node)
        self.limits = SessionLimits(self._loop.time)
        self._context = ServerContext(
            server=b"stomp-gateway/" + __version__.encode(),
            find_virtual_host=config.virtual_host,
            pool=self._pool,
            clock=self._loop.time,
            spawn=self._spawn,
            settler=AutoAckFlusher(self._loop),
            journal=self._journal,
            stats=self.stats,
            limits=self.limits,
            clients=self.clients,
            closing=self._closing,
        )
        self._sweeper: asyncio.TimerHandle | None = None
        self._scribe: asyncio.TimerHandle | None = None

    @property
    def closing(self) -> int:
        """Connections whose session is over, and that are not closed yet."""
        return len(self._closing)

    async def readiness(self) -> Readiness:
        """Whether clients can be served, and why not."""
        if self._is_stopping:
            return Readiness(("draining",))
        if not self._listeners:
            return Readiness(("no listener is open",))
        return Readiness(await self._lookout.reasons())

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every open listener."""
        return [address for listener in self._listeners for address in listener.addresses]

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str | None = None) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", task=task.get_name(), exc_info=error)

    async def start(self) -> None:
        """Open the journal, then the listeners.

        Raises:
            JournalError: when a directory that the configuration names for the journal cannot be used.
            ListenError: when one cannot be opened; what was opened before is closed again.
        """
        self._journal.start()
        for listener in self._config.listeners:
            try:
                await self._listen(listener)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and self._is_served_by_ipv4(listener.address):
                    log.warning("no ipv6", address=str(listener.address))
                    continue
                self._stop_listening()
                self._journal.close()
                raise ListenError(str(listener.address), error) from error
        self._sweeper = self._loop.call_later(_SWEEP, self._sweep)
        self.lag.started(self._loop.time())
        if self._journal.is_on:
            self._write_journal()
        for host, port in self.addresses:
            log.info("listening", address=f"{host}:{port}", version=__version__)
        self._journal.announce()

    async def _listen(self, listener: Listener) -> None:
        protocol = ClientConnection if listener.websocket is None else WebSocketConnection
        opened = OpenListener(listener, lambda arrival: protocol(self._context, listener, arrival))
        await opened.open()
        self._listeners.append(opened)

    def _is_served_by_ipv4(self, address: SocketAddress) -> bool:
        """Whether it is every IPv6 address, and a listener on the same port has every IPv4 address."""
        ipv4 = SocketAddress("0.0.0.0", address.port)  # noqa: S104 - nothing is listened on here
        return address.host == "::" and any(listener.address == ipv4 for listener in self._config.listeners)

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(_SWEEP, self._sweep)
        now = self._loop.time()
        self.lag.looked(now)
        if self.lag.looks % _MINUTE == 0:
            self.stats.minute_passed()
        for client in tuple(self.clients):
            client.time_passed(now)
        self.limits.forget_idle()
        self._pool.close_idle()

    def _write_journal(self) -> None:
        self._scribe = self._loop.call_later(_JOURNAL, self._write_journal)
        self._journal.flush()

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def stop(self) -> None:
        """Accept nobody, let every session finish, close the links; within ``drain_timeout`` and little more."""
        self._is_stopping = True
        self._stop_listening()
        if self._sweeper is not None:
            self._sweeper.cancel()
        log.info("draining", sessions=len(self.clients))
        for transport in tuple(self._context.handshakes):
            transport.abort()
        for client in tuple(self.clients):
            client.drain()
        deadline = self._loop.time() + self._config.drain_timeout
        while (self.clients or self._closing or self._tasks) and self._loop.time() < deadline:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=deadline - self._loop.time(), return_when="FIRST_COMPLETED")
            else:
                # Sessions that wait for confirms have no task; they end when the broker answers.
                await asyncio.sleep(_POLL)
        for client in tuple(self.clients):
            client.abort()
        for client in tuple(self._closing):
            client.cut()
        await self._pool.close()
        await self._lookout.close()
        if self._scribe is not None:
            self._scribe.cancel()
        self._journal.close()
        log.info("stopped")


_POLL: Final = 0.05


class Companion(Protocol):
    """What runs beside a gateway, and looks into it."""

    async def start(self, gateway: Gateway) -> None:
        """The gateway's listeners are open.

        Raises:
            GatewayError: when it cannot start; the gateway is stopped then.
        """

    async def stop(self) -> None:
        """The gateway has stopped. Also called when this was never started."""


async def serve(config: GatewayConfig, companions: Sequence[Companion] = ()) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it.

    Args:
        config: the whole configuration.
        companions: started after it, and stopped when it has ended.

    Raises:
        ListenError: when a listener, or a companion's, cannot be opened.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    gateway, notifier = Gateway(config), Notifier()
    await gateway.start()
    try:
        for companion in companions:
            await companion.start(gateway)
    except GatewayError:
        await gateway.stop()
        for companion in companions:
            await companion.stop()
        raise
    notifier.ready()
    await stopping.wait()
    # A second signal ends the process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
    notifier.stopping(len(gateway.clients))
    await gateway.stop()
    for companion in companions:
        await companion.stop()
    notifier.close()
