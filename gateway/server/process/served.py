"""What runs in a process until a signal: a gateway, or the supervisor of several; and the services beside it."""

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
"""Keys whose change needs a restart, each with the value that is used until then."""

Outcome = Literal["done", "refused", "failed"]

# At every level of the log, configured or set by an operator.
_audit_log: Final = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET))

_ServedT_contra = TypeVar("_ServedT_contra", contravariant=True)


class Audit:
    """Writes what operators ask of one gateway.

    ``journal``: takes the action, with its outcome unless it was done, the user, and the user's address.
    """

    def __init__(self, journal: Callable[[str, str | None, str | None], None]) -> None:
        self._journal = journal

    def write(
        self, action: str, outcome: Outcome, user: str | None = None, peer: Peer | None = None, **details: object
    ) -> None:
        """Note an action. ``user``: has shown its passcode. Details that are None are left out."""
        facts = {"user": user, "peer": None if peer is None else str(peer), **details}
        _audit_log.info(
            action, logger="audit", outcome=outcome, **{key: value for key, value in facts.items() if value is not None}
        )
        code = action if outcome == "done" else f"{action}-{outcome}"
        self._journal(code, user, None if peer is None else peer.host)


@dataclass(frozen=True, slots=True)
class Reload:
    """The changes of a reload, in words, and the keys that wait for a restart."""

    changes: tuple[str, ...]
    restart: InUse


class Served(ABC):
    """What a gateway and the supervisor of several workers have in common. ``clock``: the journal's."""

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
        # Reads the configuration again; the argument says who asks. None if it came from no file.
        self.reload: Callable[[str], Awaitable[Reload]] | None = None
        self.clients: Collection[object] = ()
        """Clients of this process, in a live view."""

    @abstractmethod
    async def start(self) -> None:
        """Open the listeners, and serve clients.

        Raises:
            GatewayError: it cannot start. Nothing is left open.
        """

    @abstractmethod
    async def apply(self, config: GatewayConfig) -> tuple[ListenerChanges, InUse]:
        """Use another configuration. Open sessions keep the settings of their login.

        Returns:
            The changes of listeners, and the keys that need a restart, with the values that stay in use.

        Raises:
            GatewayError: it cannot be used. Nothing has changed.
        """

    async def look_at_certificates(self) -> list[Path]:
        """Read the certificates that have changed. Returns their files."""
        return await self.tls_contexts.look()

    @abstractmethod
    async def begin_stop(self) -> int:
        """Stop being ready. Returns the number of sessions."""

    @abstractmethod
    async def announce_stop(self) -> None:
        """Go on for ``drain_delay``, until proxies have noticed."""

    @abstractmethod
    async def stop(self) -> None:
        """Drain, and close everything."""


class Service(Generic[_ServedT_contra]):
    """Runs beside a gateway or a supervisor, such as the admin listener."""

    async def start(self, gateway: _ServedT_contra) -> None:
        """Start, after the listeners are open.

        Raises:
            GatewayError: it cannot start. This stops the gateway.
        """

    def prepare(self, config: GatewayConfig) -> object:
        """Try everything that may fail with another configuration. The caller keeps the result until ``reload``.

        Raises:
            GatewayError: it cannot be used. Nothing has changed.
        """

    async def reload(self, config: GatewayConfig) -> InUse:
        """Use another configuration. Returns the keys that need a restart."""
        return {}

    async def stop(self) -> None:
        """Stop, after the gateway. Also called if the service never started."""
