"""The supervisor of several workers: it starts them on the same listeners, and replaces those that die.

It serves no client. To the outside it is one gateway: it has the signals, the configuration, the admin listener and the
ties to systemd.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from gateway.config.consistency import workers_contradictions
from gateway.config.mistakes import path_text
from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError
from gateway.journal.journal import node_name
from gateway.journal.writer import Clock
from gateway.server.log_limits import LogLimits
from gateway.server.process.listeners import ListenerChanges
from gateway.server.process.logs import configure_logs
from gateway.server.process.reload import InUse, Reload, Reloadable
from gateway.server.process.reloader import Reloader
from gateway.server.process.serving import raise_file_descriptors, reload_on
from gateway.server.process.systemd_notify import SystemdNotifier
from gateway.server.process.worker_channel import WorkerError, WorkerGoneError
from gateway.server.process.worker_process import WorkerProcess
from gateway.server.process.worker_sockets import SocketSet, bound_for_workers
from gateway.server.stats import ReloadStats
from gateway.server.tls_contexts import TlsContexts

log = structlog.get_logger("gateway.workers")

# Seconds beyond a worker's own time for its drain, after which it is killed.
_RESERVE: Final = 5.0


class SupervisorService(Reloadable, Protocol):
    """Runs beside a supervisor, as a `Service` beside a gateway."""

    async def start(self, gateway: Supervisor) -> None:
        """All workers serve clients."""

    async def stop(self) -> None:
        """All workers have ended."""


class Supervisor:
    """The workers of one gateway."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.is_stopping = False
        self.node = node_name(config.defaults.journal.node)
        self.tls_contexts = TlsContexts()
        self.workers: list[WorkerProcess] = []
        self.reload: Callable[[str], Awaitable[Reload]] | None = None
        self.deaths = 0
        self._clock = Clock()
        self.started_at = self._clock.time
        self.reloads = ReloadStats(self.started_at)
        self._sockets: list[SocketSet] = []
        self._following: asyncio.Task[None] | None = None

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
            GatewayError: a worker cannot start, and none is left.
        """
        self._sockets = await bound_for_workers(self.config.listeners, self.config.workers)
        self.workers = [
            WorkerProcess(number, sockets, lambda: self.config, self._died)
            for number, sockets in enumerate(self._sockets)
        ]
        starting = [asyncio.create_task(worker.start()) for worker in self.workers]
        try:
            await asyncio.gather(*starting)
        except BaseException:
            await asyncio.wait(starting)
            await self._stop_all(_RESERVE)
            raise
        self._following = asyncio.create_task(self.tls_contexts.follow_files(), name="certificates")
        log.info("workers started", workers=len(self.workers), pids=[worker.pid for worker in self.workers])

    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Let all workers use another configuration. One that cannot, when the first could, is replaced.

        Raises:
            GatewayError: it cannot be used; nothing has changed.
        """
        if _addresses(config) != _addresses(self.config):
            raise GatewayError("with several workers, a listener can be opened or closed only by a restart")
        for finding in workers_contradictions(config):
            # The file may have other workers, which wait for a restart.
            raise GatewayError(f"{finding.sentence.removesuffix('.')}: {path_text(finding.trail)}")
        applied = await self._apply_first(config)
        if config.logging != self.config.logging:
            configure_logs(config.logging)
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
        return applied

    async def _apply_first(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Let one worker use a configuration: if it can, the others can."""
        for worker in self.running:
            try:
                applied: tuple[ListenerChanges, InUse] = await worker.apply(config)
            except WorkerGoneError:
                continue
            return applied
        raise GatewayError("no worker is running")

    async def look_at_certificates(self) -> list[Path]:
        """Read certificates that have changed; their files."""
        found = dict.fromkeys(await self.tls_contexts.look())
        for files in await self.ask_all("certificates"):
            found |= dict.fromkeys(files)
        return list(found)

    async def ask_all(self, name: str, *arguments: object, within: float | None = None) -> list[Any]:
        """What the workers answer, without those that have ended or cannot."""
        calls = (worker.call(name, *arguments, within=within) for worker in self.running)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, WorkerError):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    def count_reload(self, *, successful: bool) -> None:
        """The configuration was read again."""
        self._clock.tick()
        self.reloads.count(self._clock.time, successful=successful)

    async def begin_stop(self) -> int:
        """Let all workers drain; the number of their sessions."""
        self.is_stopping = True
        return sum(await asyncio.gather(*(worker.begin_stop() for worker in self.workers)))

    async def stop(self) -> None:
        """Wait until the workers have drained, and close the listeners."""
        self.is_stopping = True
        await self._stop_all(self.config.drain_delay + self.config.drain_timeout + _RESERVE)
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        log.info("stopped")

    async def _stop_all(self, within: float) -> None:
        await self.begin_stop()
        await asyncio.gather(*(worker.stop(within) for worker in self.workers))
        for each in self._sockets:
            each.close()


def _addresses(config: GatewayConfig) -> Counter[str]:
    return Counter(str(listener.address) for listener in config.listeners)


async def supervise(config: GatewayConfig, services: Sequence[SupervisorService], file: str) -> None:
    """Run several workers until SIGTERM or SIGINT, then drain them. SIGHUP reads the configuration again.

    Raises:
        GatewayError: a listener, a worker or a service cannot start.
    """
    raise_file_descriptors()
    loop = asyncio.get_running_loop()
    stopping, hanging_up = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, hanging_up.set)
    loop.set_exception_handler(LogLimits(config.logging, loop.time).unhandled)
    supervisor, notifier = Supervisor(config), SystemdNotifier()
    reloader = Reloader(supervisor, file, services, notifier)
    supervisor.reload = reloader.reload
    await supervisor.start()
    reloading = loop.create_task(reload_on(hanging_up, reloader), name="reload on SIGHUP")
    try:
        for service in services:
            await service.start(supervisor)
        notifier.ready()
        await stopping.wait()
        # A second signal ends the process at once, and the workers with it.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        notifier.stopping(await supervisor.begin_stop())
    finally:
        reloading.cancel()
        await asyncio.wait([reloading])
        await supervisor.stop()
        for service in services:
            await service.stop()
        notifier.close()
