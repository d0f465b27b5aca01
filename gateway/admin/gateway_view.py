"""What the admin listener shows: of one gateway here, of several workers in `gateway.admin.workers_view`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from gateway.admin.listing import Listing
from gateway.admin.metrics import encoded, families_of
from gateway.admin.overview import (
    DESTINATIONS,
    LINKS,
    VIRTUAL_HOSTS,
    DestinationRow,
    destinations,
    overview,
    virtual_hosts,
)
from gateway.admin.sessions import SESSIONS, detail
from gateway.server.broker.broker_errors import LinkDownError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from gateway.admin.listing import Query
    from gateway.server.client.connection import ClientConnection
    from gateway.server.client.trace import TracePart, TraceTarget
    from gateway.server.process.gateway import Gateway
    from gateway.server.process.readiness import Readiness

log = structlog.get_logger("gateway.admin")

LISTINGS: Final[Mapping[str, Listing[Any]]] = {
    "sessions": SESSIONS, "destinations": DESTINATIONS, "links": LINKS, "virtual-hosts": VIRTUAL_HOSTS,
}  # fmt: skip
"""The lists of the API, by their names in it."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker knows of itself: whatever is added up, or not lost when it dies."""

    readiness: Readiness
    families: list[Metric]
    overview: dict[str, Any]
    virtual_hosts: list[dict[str, Any]]
    latencies: Counter[int]
    """Of confirms in the last minutes, by bucket of ``gateway.journal.histogram``."""


class GatewayView:
    """The answers of the admin listener, without HTTP, about one gateway in this process."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def readiness(self) -> Readiness:
        """Whether clients can be served, and why not."""
        return await self.gateway.readiness()

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The text of all metrics for an Accept header, and its content type."""
        return encoded(await families_of(self.gateway, await self.gateway.readiness()), accept)

    async def overview(self) -> dict[str, Any]:
        """The gateway as a whole."""
        return await overview(self.gateway, await self.gateway.readiness())

    async def page(self, name: str, query: Query) -> dict[str, Any]:
        """A page of one of `LISTINGS`."""
        items: Iterable[Any]
        if name == "sessions":
            items = self.gateway.clients
        elif name == "links":
            items = self.gateway.pool.links
        elif name == "destinations":
            items = await self.destination_rows()
        else:
            items = await virtual_hosts(self.gateway, await self.gateway.readiness())
        return LISTINGS[name].page(items, query)

    async def session(self, identity: str) -> dict[str, Any] | None:
        """One session with its details; None if there is none."""
        client = self._client(identity)
        return None if client is None else detail(client)

    async def close_session(self, identity: str, reason: str, operator: str, user: str | None) -> bool:
        """Close a session for an operator; whether there was one."""
        client = self._client(identity)
        if client is None:
            return False
        log.info(
            "session closed by operator", session=client.session.identity.decode(), client=client.stats.peer,
            operator=operator, user=user, reason=reason or None,
        )  # fmt: skip
        client.close_by_operator(reason)
        return True

    def _client(self, identity: str) -> ClientConnection | None:
        wanted = identity.encode(errors="replace")
        return next((client for client in self.gateway.clients if client.session.identity == wanted), None)

    async def trace_begin(self, name: str, target: TraceTarget, seconds: float) -> int:
        """Begin a trace; how many clients it looks at by now."""
        return self.gateway.traces.begin(name, target, seconds, tuple(self.gateway.clients))

    async def trace_take(self, name: str) -> TracePart:
        """What a trace has seen since it was asked last."""
        return self.gateway.traces.take(name)

    async def trace_end(self, name: str) -> None:
        """End a trace that was begun."""
        self.gateway.traces.end(name)

    async def destination_rows(self) -> list[DestinationRow]:
        """All destinations."""
        return await destinations(self.gateway)

    async def fail_back(self, virtual_host: str | None) -> list[dict[str, Any]]:
        """Move links to their preferred broker; what became of each virtual host."""
        items = []
        for settings in self.gateway.config.resolved_virtual_hosts():
            if virtual_host in (None, settings.name):
                try:
                    draining, reason = await self.gateway.pool.fail_back(settings), None
                except LinkDownError as down:
                    draining, reason = 0, down.detail
                items.append({"virtual_host": settings.name, "draining": draining, "reason": reason})
        return items

    async def report(self) -> WorkerReport:
        """What the supervisor of several workers adds up."""
        gateway = self.gateway
        readiness = await gateway.readiness()
        return WorkerReport(
            readiness,
            await families_of(gateway, readiness),
            await overview(gateway, readiness),
            await virtual_hosts(gateway, readiness),
            gateway.stats.recent_latencies,
        )
