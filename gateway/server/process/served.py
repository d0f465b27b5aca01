"""What runs in a process until a signal: a gateway, or the supervisor of several, and the services beside it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from gateway.config.model import GatewayConfig
from gateway.journal.journal import node_name
from gateway.journal.writer import Clock
from gateway.server.log_limits import LogLimits
from gateway.server.process.logs import LogLevel
from gateway.server.stats import AdminLoginStats, ReloadStats
from gateway.server.tls_contexts import TlsContexts

if TYPE_CHECKING:
    from gateway.server.process.audit import Audit
    from gateway.server.process.listeners import ListenerChanges

InUse = dict[str, str]
"""Keys whose change needs a restart, each with the value that stays in use until then."""

_ServedT_contra = TypeVar("_ServedT_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Reload:
    """What a reload has changed, in words, and what waits for a restart."""

    changes: tuple[str, ...]
    restart: InUse


class Served(ABC):
    """What a gateway and the supervisor of several workers have in common, for reloads and for services.

    ``clock`` is the journal's.
    """

    def __init__(self, config: GatewayConfig, clock: Clock, log_level: LogLevel) -> None:
        self.config = config
        self.is_stopping = False
        self.node = node_name(config.defaults.journal.node)
        self.started_at = clock.time
        self.reloads = ReloadStats(clock)
        self.admin_logins = AdminLoginStats()
        self.tls_contexts = TlsContexts()
        self.log_limits = LogLimits(config.logging, asyncio.get_running_loop().time)
        self.log_level = log_level
        self.audit: Audit
        # Reads the configuration again, for whom it names; None if it came from no file.
        self.reload: Callable[[str], Awaitable[Reload]] | None = None
        self.clients: Collection[object] = ()
        """Clients of this process, in a live view."""

    @abstractmethod
    async def start(self) -> None:
        """Open the listeners, and serve clients.

        Raises:
            GatewayError: it cannot start; nothing is left open.
        """

    @abstractmethod
    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Use another configuration for what comes: sessions keep the settings that they logged in with.

        Returns:
            What happened to listeners, and the keys that need a restart, with the values that stay in use.

        Raises:
            GatewayError: it cannot be used; nothing has changed.
        """

    async def look_at_certificates(self) -> list[Path]:
        """Read the certificates that have changed; their files."""
        return await self.tls_contexts.look()

    @abstractmethod
    async def begin_stop(self) -> int:
        """It is not ready any more; the number of sessions."""

    @abstractmethod
    async def announce_stop(self) -> None:
        """Go on as before for ``drain_delay``, until proxies have noticed."""

    @abstractmethod
    async def stop(self) -> None:
        """Drain, and close everything."""


class Service(Generic[_ServedT_contra]):
    """Runs beside a gateway or a supervisor and reads its state, such as the admin listener."""

    async def start(self, gateway: _ServedT_contra) -> None:
        """Its listeners are open.

        Raises:
            GatewayError: the service cannot start; this stops the gateway.
        """

    def prepare(self, config: GatewayConfig) -> object:
        """Try what can fail with another configuration; nothing changes. What it returns is kept until ``reload``.

        Raises:
            GatewayError: it cannot be used.
        """

    async def reload(self, config: GatewayConfig) -> InUse:
        """Use the settings of another configuration, as far as that is possible without a restart."""
        return {}

    async def stop(self) -> None:
        """The gateway has stopped. Also called if the service never started."""
