"""What runs in a process until a signal: a gateway, or the supervisor of several, and the services beside it."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeVar

import structlog

from gateway.config.model import GatewayConfig
from gateway.journal.journal import node_name
from gateway.journal.writer import Clock
from gateway.server.listen.accepted_connection import Peer
from gateway.server.log_limits import LogLimits
from gateway.server.process.logs import LogLevel
from gateway.server.stats import AdminLoginStats, ReloadStats
from gateway.server.tls_contexts import TlsContexts

if TYPE_CHECKING:
    from gateway.server.process.listeners import ListenerChanges

InUse = dict[str, str]
"""Keys whose change needs a restart, each with the value that stays in use until then."""

Outcome = Literal["done", "refused", "failed"]

# Whatever level the log has now: this reads neither the configured level nor that of an operator.
_audit_log: Final = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))

_ServedT_contra = TypeVar("_ServedT_contra", contravariant=True)


class Audit:
    """Writes what operators ask of one gateway.

    ``journal`` takes the action (with its outcome, if it was not done), the user, and the address that it came from.
    """

    def __init__(self, journal: Callable[[str, str | None, str | None], None]) -> None:
        self._journal = journal

    def write(
        self, action: str, outcome: Outcome, user: str | None = None, peer: Peer | None = None, **details: object
    ) -> None:
        """Somebody asked for an action. ``user`` has shown its passcode; details that are None are left out."""
        facts = {"user": user, "peer": None if peer is None else str(peer), **details}
        _audit_log.info(
            action, logger="audit", outcome=outcome, **{key: value for key, value in facts.items() if value is not None}
        )
        code = action if outcome == "done" else f"{action}-{outcome}"
        self._journal(code, user, None if peer is None else peer.host)


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
