"""What all clients of a gateway share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gateway.config.virtual_host import FindVirtualHost
from gateway.journal.journal import Journal
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.auto_ack_flusher import AutoAckFlusher
from gateway.server.client.session_limits import SessionLimits
from gateway.server.stats import GatewayStats

if TYPE_CHECKING:
    from gateway.server.client.connection import ClientConnection


@dataclass(frozen=True, slots=True)
class ServerContext:
    """What all clients of a gateway share.

    ``clock`` gives seconds, only going forward; ``spawn`` starts a background task and keeps hold of it; ``settler``
    settles automatic acknowledgements a moment later; ``journal`` is told of all traffic, ``figures`` of what it comes
    to; ``clients`` holds every open connection, ``handshakes`` those of WebSocket that have no client yet.
    """

    server: bytes
    find_virtual_host: FindVirtualHost
    pool: LinkPool
    clock: Callable[[], float]
    spawn: Callable[..., asyncio.Task[None]]
    settler: AutoAckFlusher
    journal: Journal
    stats: GatewayStats
    limits: SessionLimits
    clients: set[ClientConnection]
    closing: set[ClientConnection]
    handshakes: set[asyncio.Transport] = field(default_factory=set)
