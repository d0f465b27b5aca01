"""The process: a gateway with the services beside it, from its start to the end that a signal brings."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from gateway.config.model import GatewayConfig
from gateway.server.periodic_timer import PeriodicTimer
from gateway.server.process.garbage_collection import GarbageCollection
from gateway.server.process.gateway import Gateway
from gateway.server.process.reload import Reloadable
from gateway.server.process.reloader import Reloader
from gateway.server.process.systemd_notify import SystemdNotifier

# Each client takes a file descriptor. More than these are of no use to one process.
_FILE_DESCRIPTORS: Final = 1 << 20

# Seconds.
_COLLECTION_INTERVAL: Final = 1.0


class Service(Reloadable, Protocol):
    """Runs beside a gateway and reads its state, such as the admin listener."""

    async def start(self, gateway: Gateway) -> None:
        """The gateway's listeners are open.

        Raises:
            GatewayError: the service cannot start; this stops the gateway.
        """

    async def stop(self) -> None:
        """The gateway has stopped. Also called if the service never started."""


async def serve(config: GatewayConfig, services: Sequence[Service] = (), file: str | None = None) -> None:
    """Run a gateway until SIGTERM or SIGINT, then drain it. Services start after it, and stop after it.

    SIGHUP reads the configuration again, if it came from a file.

    Raises:
        GatewayError: the gateway or a service cannot start.
    """
    raise_file_descriptors()
    loop = asyncio.get_running_loop()
    stopping, hanging_up = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, hanging_up.set)
    gateway, notifier = Gateway(config), SystemdNotifier()
    loop.set_exception_handler(gateway.log_limits.unhandled)
    reloading: asyncio.Task[None] | None = None
    collecting: PeriodicTimer | None = None
    await gateway.start()
    try:
        if file is not None:
            reloader = Reloader(gateway, file, services, notifier)
            gateway.reload = reloader.reload
            reloading = loop.create_task(reload_on(hanging_up, reloader), name="reload on SIGHUP")
        for service in services:
            await service.start(gateway)
        collecting = collect_garbage(gateway.clients)
        notifier.ready()
        await stopping.wait()
        # A second signal ends the process at once.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        notifier.stopping(len(gateway.clients))
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


def raise_file_descriptors() -> None:
    """Use as many file descriptors as the system permits. The soft limit is often 1,024, for programs with select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILE_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _FILE_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def collect_garbage(clients: Collection[object]) -> PeriodicTimer:
    """Decide from now on when garbage is collected, until the timer is stopped; ``clients`` is a live view."""
    garbage_collection = GarbageCollection(clients)
    garbage_collection.start()
    return PeriodicTimer(_COLLECTION_INTERVAL, garbage_collection.sweep)


async def reload_on(event: asyncio.Event, reloader: Reloader) -> None:
    """Reload each time when the event is set. Signals that come during a reload lead to one more."""
    while True:
        await event.wait()
        event.clear()
        await reloader.reload_logged("SIGHUP")
