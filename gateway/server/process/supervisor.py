"""The supervisor of several workers: starts them on the same listeners, and replaces those that die.

It serves no client. From the outside it looks like one gateway: it handles signals, the configuration, the admin
listener and systemd.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from gateway.config.addresses import ListenAddress
from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError
from gateway.journal.writer import Clock
from gateway.server.paced_work import PeriodicTimer
from gateway.server.process.listeners import ListenerChanges, refuse_moves
from gateway.server.process.logs import LogLevel
from gateway.server.process.served import Audit, InUse, Served, Service
from gateway.server.process.serving import run
from gateway.server.process.worker_channel import WorkerError, WorkerGoneError
from gateway.server.process.worker_process import WorkerProcess, addresses_of, ask
from gateway.server.process.worker_sockets import SocketSet, bound_for_workers
from gateway.server.shared_counts import SharedMemory

log = structlog.get_logger("gateway.workers")

# Seconds that a worker may take beyond the time for its drain. Then it is killed.
_RESERVE: Final = 5.0

# In seconds: between two looks at the workers, and the time for a worker to journal an operator's action.
_WATCH_INTERVAL: Final = 1.0
_AUDIT_WITHIN: Final = 10.0


class Supervisor(Served):
    """The workers of one gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        self._clock = Clock()
        super().__init__(config, self._clock, LogLevel(config.logging, tell=self._tell_level))
        self.audit = Audit(self._journal_audit)
        # Calls of workers for which nobody waits.
        self._calling: set[asyncio.Task[object]] = set()
        self.workers: list[WorkerProcess] = []
        self.deaths = 0
        self._sockets: list[SocketSet] = []
        self._memory = SharedMemory.made(config.workers)
        self._signs = SignsOfLife(self._memory)
        self._watching: PeriodicTimer | None = None

    @property
    def running(self) -> list[WorkerProcess]:
        """The workers that serve clients."""
        return [worker for worker in self.workers if worker.is_running]

    @property
    def uptime(self) -> int:
        """Microseconds since the start."""
        self._clock.tick()
        return self._clock.time - self.started_at

    def _died(self) -> None:
        self.deaths += 1

    async def start(self) -> None:
        """Bind the listeners, and start all workers.

        Raises:
            ListenError: a listener cannot be opened.
            GatewayError: a worker cannot start. None is left.
        """
        self._sockets = await bound_for_workers(self.config.listeners, self.config.workers)
        self.workers = [
            WorkerProcess(
                number, sockets, self._memory, lambda: self.config, self._died, lambda: self.log_level.changed
            )
            for number, sockets in enumerate(self._sockets)
        ]
        starting = [asyncio.create_task(worker.start()) for worker in self.workers]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            await asyncio.wait(starting)
            await self._end_all()
            raise
        self.tls_contexts.follow_files()
        self._watching = PeriodicTimer(_WATCH_INTERVAL, self._watch)
        log.info("workers started", workers=len(self.workers), pids=[worker.pid for worker in self.workers])

    def _watch(self) -> None:
        """Kill the workers that hang. Others replace them."""
        workers = {worker.pid: worker for worker in self.running if worker.pid is not None}
        timeout = self.config.worker_timeout
        for pid in self._signs.missing({pid: worker.number for pid, worker in workers.items()}, timeout):
            log.error("worker hangs", worker=workers[pid].number, pid=pid, seconds=timeout)
            workers[pid].kill()

    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Let all workers use another configuration. One that cannot, although the first could, is replaced.

        Raises:
            GatewayError: it cannot be used. Nothing has changed.
        """
        addresses, before = addresses_of(config), addresses_of(self.config)
        await self._bind(config, before)
        try:
            self._sockets[0].permit(config.listeners)
            applied = await self._apply_first(config)
        except BaseException:
            with contextlib.suppress(GatewayError):
                self._sockets[0].permit(self.config.listeners)
            self._keep(before)
            raise
        self.log_level.configure(config.logging)
        self.log_limits.configure(config.logging)
        # Workers that start from now on begin with it.
        self.config = config
        for worker in self.workers:
            try:
                _ = await worker.apply(config)
            except WorkerGoneError:
                pass  # its successor uses it
            except WorkerError as error:
                log.error("worker replaced", worker=worker.number, reason=str(error))
                await worker.replace()
        self._keep(addresses)
        return applied

    async def _bind(self, config: GatewayConfig, before: Counter[ListenAddress]) -> None:
        """Bind the listeners with new addresses."""
        left, new = before.copy(), []
        for listener in config.listeners:
            if left[listener.address]:
                left[listener.address] -= 1
            else:
                new.append(listener)
        refuse_moves(new, left.elements())
        for sockets, more in zip(self._sockets, await bound_for_workers(new, len(self._sockets)), strict=True):
            sockets.take(more)

    def _keep(self, addresses: Counter[ListenAddress]) -> None:
        """Close the sockets of all other addresses. The workers have closed theirs."""
        for sockets in self._sockets:
            sockets.keep(addresses)

    async def _apply_first(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Let one worker use a configuration: if it can, the others can."""
        for worker in self.running:
            try:
                applied: tuple[ListenerChanges, InUse] = await worker.apply(config)
            except WorkerGoneError:
                continue
            return applied
        raise GatewayError("no worker is running")

    def _spawn(self, call: Coroutine[Any, Any, object], name: str) -> None:
        task = asyncio.create_task(call, name=name)
        self._calling.add(task)
        task.add_done_callback(self._calling.discard)

    def _tell_level(self, level: str | None) -> None:
        # A worker that starts meanwhile asks for it.
        self._spawn(ask(self.running, "log_level", level), "log level of workers")

    def _journal_audit(self, code: str, user: str | None, host: str | None) -> None:
        self._spawn(self._let_journal(code, user, host), "audit")

    async def _let_journal(self, code: str, user: str | None, host: str | None) -> None:
        """Let the first worker that can write it, because workers have the journals."""
        for worker in self.running:
            with contextlib.suppress(WorkerError):
                await worker.call("audit", code, user, host, within=_AUDIT_WITHIN)
                return

    async def look_at_certificates(self) -> list[Path]:
        """Read certificates that have changed; their files."""
        found = dict.fromkeys(await self.tls_contexts.look())
        for files in (await ask(self.running, "certificates")).answers.values():
            found |= dict.fromkeys(files)
        return list(found)

    async def begin_stop(self) -> int:
        """Let all workers announce their end and drain. Returns the number of their sessions."""
        self.is_stopping = True
        return sum(await asyncio.gather(*(worker.begin_stop() for worker in self.workers)))

    async def announce_stop(self) -> None:
        """Wait like the workers, and close the shared sockets when they begin to drain."""
        await asyncio.sleep(self.config.drain_delay)
        for each in self._sockets:
            each.close_shared()

    async def stop(self) -> None:
        """Wait until the workers have drained, and close the listeners. Without `begin_stop`, end them at once."""
        if self.is_stopping:
            within = self.config.drain_timeout + _RESERVE
            await asyncio.gather(*(worker.stop(within) for worker in self.workers))
        self.is_stopping = True
        await self._end_all()
        if self._watching is not None:
            self._watching.stop()
        await self.tls_contexts.close()
        log.info("stopped")

    async def _end_all(self) -> None:
        await asyncio.gather(*(worker.end() for worker in self.workers))
        for each in self._sockets:
            each.close()


async def supervise(config: GatewayConfig, services: Sequence[Service[Supervisor]], file: str) -> None:
    """Run several workers; see `run`."""
    await run(Supervisor(config), services, file)


class SignsOfLife:
    """Looks for the signs of life that workers write into the shared memory."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        # By process, its last sign, and how often it was seen again.
        self._seen: dict[int, tuple[float, int]] = {}

    def missing(self, workers: Mapping[int, int], patience: float) -> list[int]:
        """The processes without a sign of life for ``patience`` seconds. Call it once a second.

        ``workers``: their numbers, by process. Looks are counted, not seconds, because the whole machine may have stood
        still.
        """
        seen = {}
        for process, number in workers.items():
            sign = self._memory.alive[number]
            last, looks = self._seen.get(process, (None, 0))
            seen[process] = (sign, looks + 1 if sign == last else 0)
        self._seen = seen
        missing = [process for process, (_, looks) in seen.items() if looks >= patience]
        holder = self._memory.lock.holder if missing else None
        if holder not in workers:
            return missing
        if holder not in missing:
            # Its last sign is a little younger than those of the others, which wait for it. Look again later.
            return []
        # The others only wait for its lock.
        self._seen = {process: (sign, 0) for process, (sign, _) in seen.items()}
        return [holder]
