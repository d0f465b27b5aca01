"""The process: a gateway, or a supervisor, with the services beside it, until a signal ends it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol, TypeVar

from gateway.config.model import GatewayConfig
from gateway.errors import GatewayError
from gateway.server.descriptors import raise_limit
from gateway.server.log_limits import LogLimits
from gateway.server.periodic_timer import PeriodicTimer
from gateway.server.process.archive_streams import ArchiveStreams
from gateway.server.process.broker_greetings import BrokerGreetings
from gateway.server.process.garbage_collection import GarbageCollection
from gateway.server.process.gateway import Gateway
from gateway.server.process.memory_trim import keep_freed
from gateway.server.process.reload import Reload, Reloadable
from gateway.server.process.reloader import Configurable, Reloader
from gateway.server.process.systemd_notify import SystemdNotifier

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# Seconds.
_COLLECTION_INTERVAL: Final = 1.0


class Served(Configurable, Protocol):
    """What runs until a signal: a gateway, or the supervisor of several workers."""

    reload: Callable[[str], Awaitable[Reload]] | None
    log_limits: LogLimits

    @property
    def clients(self) -> Collection[object]:
        """Clients of this process, in a live view."""

    async def start(self) -> None:
        """Open the listeners, and serve clients.

        Raises:
            GatewayError: it cannot start; nothing is left open.
        """

    async def begin_stop(self) -> int:
        """It is not ready any more; the number of sessions."""

    async def announce_stop(self) -> None:
        """Go on as before for ``drain_delay``."""

    async def stop(self) -> None:
        """Drain, and close everything."""


_Run = TypeVar("_Run", bound=Served)
_Served_contra = TypeVar("_Served_contra", bound=Served, contravariant=True)


class Service(Reloadable, Protocol[_Served_contra]):
    """Runs beside a gateway or a supervisor and reads its state, such as the admin listener."""

    async def start(self, gateway: _Served_contra) -> None:
        """Its listeners are open.

        Raises:
            GatewayError: the service cannot start; this stops the gateway.
        """

    async def stop(self) -> None:
        """The gateway has stopped. Also called if the service never started."""


async def serve(config: GatewayConfig, services: Sequence[Service[Gateway]] = (), file: str | None = None) -> None:
    """Run a gateway, which looks at its brokers when it has started; see `run`."""
    await run(Gateway(config), (BrokerGreetings(), ArchiveStreams(), *services), file)


async def run(gateway: _Run, services: Sequence[Service[_Run]], file: str | None) -> None:
    """Run until SIGTERM or SIGINT, then drain. Services start after the gateway, and stop after it.

    SIGHUP reads the configuration again, if it came from a file.

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
        if reloading is not None:
            reloading.cancel()
            await asyncio.wait([reloading])
        await gateway.stop()
        if collecting is not None:
            collecting.stop()
        for service in services:
            await service.stop()
        notifier.close()


def collect_garbage(clients: Collection[object]) -> PeriodicTimer:
    """Decide from now on when garbage is collected, until the timer is stopped; ``clients`` is a live view."""
    garbage_collection = GarbageCollection(clients)
    garbage_collection.start()
    return PeriodicTimer(_COLLECTION_INTERVAL, garbage_collection.sweep)


def _stop_on_signals(stopping: asyncio.Event) -> list[str]:
    """Set the event at SIGTERM and SIGINT. The names of those that came are in the list."""
    names: list[str] = []

    def stop(number: signal.Signals) -> None:
        names.append(number.name)
        stopping.set()

    for number in _STOP_SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, stop, number)
    return names


async def _reload_on(event: asyncio.Event, reloader: Reloader) -> None:
    """Reload each time when the event is set. Signals that come during a reload lead to one more."""
    while True:
        await event.wait()
        event.clear()
        await reloader.reload_logged("SIGHUP")
