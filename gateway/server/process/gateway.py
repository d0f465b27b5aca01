"""The running gateway: listeners, clients, links, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final

import structlog

from gateway import __version__
from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.errors import ListenError
from gateway.journal.journal import Journal
from gateway.message_selectors.selector import prepare_selectors
from gateway.server.broker.link import CLOSE_TIMEOUT
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.connection import ClientConnection, ServerContext
from gateway.server.client.rechecks import Rechecks
from gateway.server.client.session_limits import SessionLimits
from gateway.server.client_address import local_names
from gateway.server.counts import Counts
from gateway.server.descriptors import unreachable_limits
from gateway.server.fault_boundary import all_done, guarded
from gateway.server.listen.address_checks import LockOuts
from gateway.server.listen.listening_sockets import Bind
from gateway.server.paced_work import PacedWork, PeriodicTimer
from gateway.server.process.listeners import ListenerChanges, Listeners
from gateway.server.process.logs import LogLevel
from gateway.server.process.memory import MemoryTrim, find_trim
from gateway.server.process.readiness import Readiness, ReadinessProbe
from gateway.server.process.served import Audit, InUse, Served
from gateway.server.stats import GatewayStats, LoopLag

log = structlog.get_logger("gateway")

# In seconds: between two checks of deadlines, between two writes of the journal, and between two looks of a stopping
# gateway for sessions that have ended.
_CHECK_INTERVAL: Final = 1.0
_JOURNAL_INTERVAL: Final = 0.25
_DRAIN_INTERVAL: Final = 0.05
_CHECKS_PER_MINUTE: Final = 60

# Seconds between two sessions, if time allows. So a few sessions end at once, and a thousand take ten seconds.
_DRAIN_STEP: Final = 0.01


class Gateway(Served):
    """All parts of a gateway.

    Args:
        worker: its number, if there are several.
        bind: makes the listening sockets.
        counts: shared by all workers.
    """

    def __init__(
        self, config: GatewayConfig, worker: int | None = None, bind: Bind | None = None, counts: Counts | None = None
    ) -> None:
        self.journal = Journal(config, worker)
        super().__init__(config, self.journal.clock, LogLevel(config.logging, worker))
        self._worker = worker
        # Names of the default virtual host, unless another virtual host has them.
        self._local_names = self._names_in_use(config)
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deadline_timer: PeriodicTimer | None = None
        self._journal_timer: PeriodicTimer | None = None
        self.audit = Audit(self.journal.audit)
        self.stats = GatewayStats(config.virtual_hosts)
        self.lag = LoopLag(_CHECK_INTERVAL)
        paced = PacedWork()
        self.pool = LinkPool(
            self._loop.time, self._spawn, self.journal, self.stats, self.node, self.tls_contexts, self.log_limits, paced
        )
        self._readiness = ReadinessProbe(
            lambda: self.config.resolved_virtual_hosts(),  # noqa: PLW0108 - the configuration may be replaced
            self.pool,
            self.stats,
            self._loop.time,
        )
        counts = Counts() if counts is None else counts
        lock_outs = LockOuts(config.failed_logins, self._loop.time, counts, self.log_limits.of_listener())
        self.limits = SessionLimits(self._loop.time, config.failed_logins, counts, lock_outs)
        self._context = ServerContext(
            product=b"stomp-gateway/" + __version__.encode(),
            find_virtual_host=self._find_virtual_host,
            pool=self.pool,
            clock=self._loop.time,
            spawn=self._spawn,
            journal=self.journal,
            stats=self.stats,
            limits=self.limits,
            log_limits=self.log_limits,
            paced=paced,
            rechecks=Rechecks(self.pool, self._spawn, paced, self.stats),
        )
        self.traces = self._context.traces
        # Connections with a session.
        self.clients: Collection[ClientConnection] = self._context.clients
        # Whether their deadlines are being checked.
        self._is_sweeping = False
        self._memory = MemoryTrim(self.stats.count_ended, lambda: not self.clients, self._loop.time, find_trim())
        self._listeners = Listeners(self._context, self.tls_contexts, counts, bind)

    @property
    def closing(self) -> int:
        """The number of connections that are still open although their session has ended."""
        return len(self._context.closing)

    def _find_virtual_host(self, host: str | None) -> VirtualHost | None:
        # Not a method of the configuration, which may be replaced.
        found = self.config.virtual_host(host)
        return self.config.virtual_host(None) if found is None and host in self._local_names else found

    @staticmethod
    def _names_in_use(config: GatewayConfig) -> frozenset[str]:
        return local_names() if config.local_aliases else frozenset()

    async def readiness(self) -> Readiness:
        """Whether clients can be served, and if not, why."""
        virtual_hosts = await self._readiness.states()
        if self.is_stopping:
            return Readiness(("draining",), virtual_hosts)
        if not self._listeners.are_open:
            return Readiness(("no listener is open",), virtual_hosts)
        return Readiness.of_brokers(virtual_hosts)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every open TCP listener."""
        return self._listeners.addresses

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
            JournalError: a directory of the journal cannot be used.
            JournalKeyError: the key for the journal's hashes of logins cannot be used.
            ListenError: a listener cannot be opened. Journal and other listeners are closed again.
        """
        await self._prepare_selectors(self.config)
        self.journal.start()
        try:
            await self._listeners.open(self.config.listeners)
        except ListenError:
            self.journal.close()
            self.journal.close_shippers(0)
            raise
        # No listener has accepted a client yet.
        self.pool.descriptors.begin(self.config)
        if not self._worker:
            for warning in unreachable_limits(self.config, self.pool.descriptors):
                log.warning("configuration warning", warning=warning)
        self.tls_contexts.keep_upstreams(virtual_host.upstream for virtual_host in self.config.resolved_virtual_hosts())
        self.tls_contexts.follow_files()
        self._deadline_timer = PeriodicTimer(_CHECK_INTERVAL, self._check_deadlines)
        self.lag.start(self._loop.time())
        self._flush_journal()
        self.journal.announce()

    @staticmethod
    async def _prepare_selectors(config: GatewayConfig) -> None:
        """Load the parser of selectors if some virtual host allows them, in a thread: it takes 0.1 seconds."""
        if any(virtual_host.selectors for virtual_host in config.resolved_virtual_hosts()):
            await asyncio.to_thread(prepare_selectors)

    def _flush_journal(self) -> None:
        """Write the journal from now on, if there is one."""
        if self.journal.is_on and self._journal_timer is None:
            self.journal.flush()
            self._journal_timer = PeriodicTimer(_JOURNAL_INTERVAL, self.journal.flush)

    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """See `Served`."""
        await self._prepare_selectors(config)
        journal = self.journal.prepare(config)
        try:
            changes = await self._listeners.change(config.listeners)
        except BaseException:
            # Also if the gateway stops meanwhile.
            journal.discard()
            raise
        self.log_level.configure(config.logging)
        self.config = config
        self._local_names = self._names_in_use(config)
        restart = self.journal.use(journal)
        self._flush_journal()
        self.pool.descriptors.use(config)
        self.stats.add_hosts(config.virtual_hosts)
        self.pool.use(self._find_virtual_host)
        upstreams = [virtual_host.upstream for virtual_host in config.resolved_virtual_hosts()]
        self.pool.dialer.keep(upstreams)
        self.tls_contexts.keep_upstreams(upstreams)
        self.log_limits.configure(config.logging)
        self.limits.configure(config.failed_logins)
        gone = [client for client in self.clients if client.stats.listener.address in changes.closed]
        if gone:
            log.info("draining", sessions=len(gone), listeners=list(map(str, changes.closed)))
            _ = self._spawn(drain_clients(gone, config.drain_spread), name="drain of closed listeners")
        if self.is_stopping:
            # The signal came meanwhile.
            self._listeners.close()
        return changes, restart

    def _check_deadlines(self) -> None:
        now = self._loop.time()
        self.lag.tick(now)
        if self.lag.ticks % _CHECKS_PER_MINUTE == 0:
            guarded(self, self.stats.minute_passed)
        if not self._is_sweeping:
            self._is_sweeping = True
            self._context.paced.do_each(self._sweep_clients())
        guarded(self, self.traces.sweep)
        guarded(self, self.limits.forget_idle)
        guarded(self, self.pool.drain.sweep)
        guarded(self, self.pool.close_idle)
        guarded(self, self._memory.sweep)

    def _sweep_clients(self) -> Iterator[tuple[ClientConnection, Callable[[], None]]]:
        """Check the deadlines of all clients, as paced work, because ten thousand take 100 ms."""
        remaining = list(self.clients)
        while remaining:
            # No reference is kept, so that clients that leave meanwhile are freed one by one.
            client = remaining.pop()
            yield client, partial(self._time_passed, client)
        self._is_sweeping = False

    def _time_passed(self, client: ClientConnection) -> None:
        client.time_passed(self._loop.time())

    def failed(self, error: Exception) -> None:
        """Log a fault in periodic work that belongs to no session."""
        log.error("internal error", exc_info=error)

    async def begin_stop(self) -> int:
        """See `Served`."""
        self.is_stopping = True
        return len(self.clients)

    async def announce_stop(self) -> None:
        """See `Served`."""
        delay = self.config.drain_delay
        if delay:
            log.info("drain announced", seconds=delay)
            await asyncio.sleep(delay)

    async def stop(self) -> None:
        """Accept no clients, let sessions finish within ``drain_timeout``, and close the links."""
        self.is_stopping = True
        self._listeners.close()
        log.info("draining", sessions=len(self.clients))
        timeout = self.config.drain_timeout
        deadline = self._loop.time() + timeout
        # The last sessions need time to finish, too.
        await drain_clients(self.clients, min(self.config.drain_spread, timeout / 2))
        while (self.clients or self.closing or self._tasks) and self._loop.time() < deadline:
            if self._tasks:
                # All must end. Waiting for any of them would look at all of them each time.
                await asyncio.wait([next(iter(self._tasks))], timeout=deadline - self._loop.time())
            else:
                # A session that waits for confirms has no task. It ends when the broker answers.
                await asyncio.sleep(_DRAIN_INTERVAL)
        for client in tuple(self.clients):
            guarded(client, client.abort)
        # These now include the clients above.
        for client in tuple(self._context.closing):
            guarded(client, client.abort)
        # Some sessions give their links back as paced work.
        self._context.paced.finish()
        self._context.turns.finish()
        await all_done(self, self._last_tasks(), self.pool.close(), self._readiness.close(), self._memory.close())
        await self.tls_contexts.close()
        for timer in (self._deadline_timer, self._journal_timer):
            if timer is not None:
                timer.stop()
        self.journal.close()
        if self.journal.ships:
            await asyncio.to_thread(self.journal.close_shippers, deadline - self._loop.time())
        log.info("stopped")

    async def _last_tasks(self) -> None:
        """Wait for the dedicated links to close, as long as for shared ones."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT)


async def drain_clients(clients: Iterable[ClientConnection], spread: float) -> None:
    """Drain clients one after the other, over at most ``spread`` seconds. Each continues as before until its turn.

    Returns when the last one has begun to finish its work. Clients that leave by themselves take no time.
    """
    waiting = tuple(clients)
    loop = asyncio.get_running_loop()
    start, step, drained = loop.time(), min(_DRAIN_STEP, spread / max(len(waiting), 1)), 0
    for client in waiting:
        if client.is_closed:
            continue
        early = start + drained * step - loop.time()
        if early > 0:
            await asyncio.sleep(early)
        client.drain()
        drained += 1
