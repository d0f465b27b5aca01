"""The process: a gateway or a supervisor, with the services beside it, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from typing import Final, TypeVar

from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError
from gateway.server.descriptors import raise_limit
from gateway.server.fault_boundary import cancelled
from gateway.server.paced_work import PeriodicTimer
from gateway.server.process.broker_services import ArchiveStreams, BrokerGreetings
from gateway.server.process.gateway import Gateway
from gateway.server.process.memory import collect_garbage, keep_freed
from gateway.server.process.reload import Reloader
from gateway.server.process.served import Served, Service
from gateway.server.process.systemd_notify import SystemdNotifier

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_Run = TypeVar("_Run", bound=Served)


async def serve(config: GatewayConfig, services: Sequence[Service[Gateway]] = (), file: str | None = None) -> None:
    """Run one gateway; see `run`."""
    await run(Gateway(config), (BrokerGreetings(), ArchiveStreams(), *services), file)


async def run(gateway: _Run, services: Sequence[Service[_Run]], file: str | None) -> None:
    """Run until SIGTERM or SIGINT, then drain. SIGHUP reads the configuration again, if it came from a file.

    Services start after the gateway, and stop after it.

    Raises:
        GatewayError: the gateway or a service cannot start.
    """
    raise_limit()
    keep_freed()
    loop = asyncio.get_running_loop()
    stopping, hanging_up = asyncio.Event(), asyncio.Event()
    stopped_by = _stop_on_signals(stopping)
    loop.add_signal_handler(signal.SIGHUP, hanging_up.set)
    loop.set_exception_handler(gateway.log_limits.unhandled)
    notifier = SystemdNotifier()
    reloading: asyncio.Task[None] | None = None
    collecting: PeriodicTimer | None = None
    try:
        await gateway.start()
    except GatewayError:
        # The signal may have ended what the start needs.
        if stopping.is_set():
            return
        raise
    try:
        if file is not None:
            reloader = Reloader(gateway, file, services, notifier)
            gateway.reload = reloader.reload
            reloading = loop.create_task(_reload_on(hanging_up, reloader), name="reload on SIGHUP")
        for service in services:
            await service.start(gateway)
        collecting = collect_garbage(gateway.clients)
        notifier.ready()
        await stopping.wait()
        # A second signal ends the process at once, and workers with it.
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)
        gateway.audit.write("stop", "done", signal=stopped_by[0])
        notifier.stopping(await gateway.begin_stop())
        await gateway.announce_stop()
    finally:
        await cancelled(reloading)
        await gateway.stop()
        if collecting is not None:
            collecting.stop()
        for service in services:
            await service.stop()
        notifier.close()


def _stop_on_signals(stopping: asyncio.Event) -> list[str]:
    """Set the event at SIGTERM and SIGINT. Returns a list that gets the names of these signals."""
    names: list[str] = []

    def stop(number: signal.Signals) -> None:
        names.append(number.name)
        stopping.set()

    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return names


async def _reload_on(event: asyncio.Event, reloader: Reloader) -> None:
    """Reload whenever the event is set. Signals during a reload lead to one more."""
    while True:
        await event.wait()
        event.clear()
        await reloader.reload_logged("SIGHUP")
