"""A look at the brokers when a gateway starts, for whoever reads its log. Clients are served meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from gateway.config.model import GatewayConfig
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError
from gateway.server.broker.broker_state import Circuit
from gateway.server.broker.dialer import Dialer
from gateway.server.process.reload import InUse

if TYPE_CHECKING:
    from gateway.server.process.gateway import Gateway

log = structlog.get_logger("gateway.broker")


class BrokerGreetings:
    """Has each broker greet once, as a `Service` beside a gateway.

    A greeting needs no login, and its connection is closed at once. Of a broker that does not greet, its circuit knows
    from then on, and has the line.
    """

    def __init__(self) -> None:
        self._looking: asyncio.Task[None] | None = None

    async def start(self, gateway: Gateway) -> None:
        """Begin, and do not wait."""
        self._looking = asyncio.create_task(_greet_all(gateway), name="greetings of brokers")

    def prepare(self, config: GatewayConfig) -> None:
        """There are no settings."""

    async def reload(self, config: GatewayConfig) -> InUse:
        """See `prepare`."""
        return {}

    async def stop(self) -> None:
        """Give up those that have not come."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])


async def _greet_all(gateway: Gateway) -> None:
    dialer = gateway.pool.dialer
    # Virtual hosts that reach a broker in the same way share its circuit.
    users: dict[Circuit, list[VirtualHost]] = {}
    for virtual_host in gateway.config.resolved_virtual_hosts():
        for circuit in dialer.circuits(virtual_host.upstream):
            users.setdefault(circuit, []).append(virtual_host)
    async with asyncio.TaskGroup() as group:
        for circuit, virtual_hosts in users.items():
            group.create_task(_greet(dialer, circuit, virtual_hosts), name=f"greeting of {circuit.broker}")


async def _greet(dialer: Dialer, circuit: Circuit, virtual_hosts: list[VirtualHost]) -> None:
    try:
        product = await dialer.greeted(circuit.broker, virtual_hosts[0].upstream)
    except LinkDownError:
        return
    names = [virtual_host.name for virtual_host in virtual_hosts]
    log.info("broker answers", broker=str(circuit.broker), product=product, virtual_hosts=names)
