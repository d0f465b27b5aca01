"""A worker: a gateway in a process of its own, controlled by its supervisor."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from gateway.config.model import GatewayConfig
from gateway.errors import ExitCode
from gateway.server.descriptors import raise_limit
from gateway.server.paced_work import PeriodicTimer
from gateway.server.process.broker_services import ArchiveStreams, BrokerGreetings
from gateway.server.process.gateway import Gateway
from gateway.server.process.logs import configure_logs
from gateway.server.process.memory import collect_garbage, keep_freed
from gateway.server.process.worker_channel import answer_calls, passed_descriptors
from gateway.server.process.worker_sockets import Handed, InheritedSockets, descriptors_of, renumbered
from gateway.server.shared_counts import SharedCounts, SharedMemory

if TYPE_CHECKING:
    from gateway.server.process.listeners import ListenerChanges
    from gateway.server.process.served import InUse

log = structlog.get_logger("gateway.workers")

# Seconds. The supervisor looks for a sign of life half as often.
_SIGN_INTERVAL: Final = 0.5


def _end_at_once(_: asyncio.Task[None]) -> None:
    os._exit(ExitCode.FAILURE)


class Worker:
    """Serves clients until its supervisor stops it, or dies.

    ``view_of``: makes the object whose methods answer all other calls. ``files``: receives the sockets of listeners
    that a reload opens.
    """

    def __init__(self, number: int, view_of: Callable[[Gateway], Awaitable[object]], files: socket.socket) -> None:
        self._number = number
        self._files = files
        self._sockets = InheritedSockets({})
        self._view_of = view_of
        self._stopping = asyncio.Event()
        self._gateway: Gateway | None = None
        self._view: object = None
        # Only the first worker has them: one line for each broker is enough.
        self._services = () if number else (BrokerGreetings(), ArchiveStreams())
        self._own: dict[str, Callable[..., Awaitable[object]]] = {
            "start": self._start,
            "stop": self._stop,
            "apply": self._apply,
            "certificates": self._certificates,
            "log_level": self._log_level,
            "audit": self._audit,
        }

    async def run(self, channel: socket.socket) -> None:
        """Answer calls until the gateway has stopped."""
        raise_limit()
        keep_freed()
        supervised = asyncio.create_task(answer_calls(channel, self._answer), name="calls of the supervisor")
        supervised.add_done_callback(lambda _: self._stopping.set())
        await self._stopping.wait()
        gateway = self._gateway
        if gateway is None:
            return
        if supervised.done():
            log.error("supervisor gone")
        else:
            # A second signal ends the supervisor. Then all workers end at once, as a single process would.
            supervised.add_done_callback(_end_at_once)
        _ = await gateway.begin_stop()
        await gateway.announce_stop()
        await gateway.stop()
        for service in self._services:
            await service.stop()
        supervised.remove_done_callback(_end_at_once)

    async def _answer(self, name: str, arguments: tuple[Any, ...]) -> object:
        own = self._own.get(name)
        return await (getattr(self._view, name) if own is None else own)(*arguments)

    async def _start(self, config: GatewayConfig, handed: Handed, memory: int) -> None:
        configure_logs(config.logging, worker=self._number)
        loop, shared = asyncio.get_running_loop(), SharedMemory(memory, config.workers)
        counts = SharedCounts(shared, self._number, loop.time)
        self._sockets.add(handed)
        gateway = Gateway(config, self._number, self._sockets.bind, counts)
        loop.set_exception_handler(gateway.log_limits.unhandled)
        await gateway.start()
        self._view = await self._view_of(gateway)
        self._gateway = gateway
        for service in self._services:
            await service.start(gateway)
        # Kept by the event loop until the process ends.
        _ = collect_garbage(gateway.clients)
        _ = PeriodicTimer(_SIGN_INTERVAL, lambda: shared.live(self._number, loop.time()))

    async def _stop(self) -> int:
        self._stopping.set()
        return 0 if self._gateway is None else await self._gateway.begin_stop()

    async def _apply(self, config: GatewayConfig, handed: Handed) -> tuple[ListenerChanges, InUse]:
        # They came before this call.
        self._sockets.add(renumbered(handed, passed_descriptors(self._files, len(descriptors_of(handed)))))
        try:
            applied = await self._running.apply(config)
        finally:
            self._sockets.drop()
        for service in self._services:
            await service.reload(config)
        return applied

    async def _certificates(self) -> list[Path]:
        return await self._running.look_at_certificates()

    async def _log_level(self, level: str | None) -> None:
        self._running.log_level.use(level)

    async def _audit(self, code: str, user: str | None, host: str | None) -> None:
        self._running.journal.audit(code, user, host)

    @property
    def _running(self) -> Gateway:
        if self._gateway is None:
            raise RuntimeError("not started")
        return self._gateway
