"""Whether clients can be served, and if not, why; for each virtual host and its brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.config.addresses import BrokerUrl
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import os_reason
from gateway.server.broker.broker_state import Circuit
from gateway.server.broker.link_pool import LinkPool
from gateway.server.broker.probe import greets
from gateway.server.stats import GatewayStats

# In seconds: how long an answer of a broker counts, and the lack of one; the time for an answer; and how long a request
# waits for news of brokers about which something is known.
_KEEP_SUCCESS: Final = 5.0
_KEEP_FAILURE: Final = 1.0
_CONNECT_TIMEOUT: Final = 2.0
_PATIENCE: Final = 0.25


MOST_WORKERS_DIE: Final = "most workers keep dying"
"""Why several workers are not ready, although some may serve clients."""


@dataclass(frozen=True, slots=True)
class BrokerState:
    """One broker of a virtual host.

    ``reason``: why it does not answer, or empty. ``links``: how many the virtual host has. ``alarm``: the broker's text
    while it has a memory or disk alarm.
    """

    broker: BrokerUrl
    reason: str
    links: int
    alarm: str = ""

    @property
    def is_up(self) -> bool:
        """Whether it answers."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class Readiness:
    """The reasons why clients cannot be served, if any, and the brokers of each virtual host.

    ``warnings``: faults with which clients can be served.
    """

    reasons: tuple[str, ...] = ()
    virtual_hosts: Mapping[str, tuple[BrokerState, ...]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_brokers(cls, virtual_hosts: Mapping[str, tuple[BrokerState, ...]]) -> Readiness:
        """Ready if a broker of any virtual host answers, or if there are no virtual hosts."""
        states = [state for states in virtual_hosts.values() for state in states]
        reasons = [] if any(state.is_up for state in states) else [f"{each.broker}: {each.reason}" for each in states]
        return cls(tuple(dict.fromkeys(reasons)), virtual_hosts)

    @property
    def is_ready(self) -> bool:
        """Whether clients can be served."""
        return not self.reasons

    def is_up(self, virtual_host: str) -> bool:
        """Whether a broker of a virtual host answers."""
        return any(state.is_up for state in self.virtual_hosts[virtual_host])

    def of(self, virtual_host: str) -> Readiness:
        """The readiness for the clients of one virtual host."""
        states = self.virtual_hosts[virtual_host]
        reasons = () if self.is_up(virtual_host) else tuple(f"{state.broker}: {state.reason}" for state in states)
        return Readiness(self.reasons or reasons, {virtual_host: states}, self.warnings)

    @property
    def down(self) -> list[str]:
        """The virtual hosts without a broker that answers."""
        return [name for name in self.virtual_hosts if not self.is_up(name)]


class ReadinessProbe:
    """Knows which brokers answer: from links and dials, and otherwise from probes, which run only while somebody asks.

    If a broker answered before, a probe only opens a TCP connection, which RabbitMQ does not log. Otherwise the broker
    must greet in AMQP, because one that hangs still accepts TCP connections.
    """

    def __init__(
        self,
        virtual_hosts: Callable[[], Iterable[VirtualHost]],
        pool: LinkPool,
        stats: GatewayStats,
        clock: Callable[[], float],
    ) -> None:
        self._virtual_hosts = virtual_hosts
        self._pool = pool
        self._stats = stats
        self._clock = clock
        self._probes: dict[Circuit, asyncio.Task[None]] = {}
        self._is_closed = False

    async def states(self) -> dict[str, tuple[BrokerState, ...]]:
        """The brokers of each virtual host. Slow news are left to the next call."""
        virtual_hosts = tuple(self._virtual_hosts())
        if not self._is_closed:
            self._start_probes(virtual_hosts)
        # Further requests wait for the same probes.
        if unknown := [probe for circuit, probe in self._probes.items() if circuit.known_at is None]:
            await asyncio.wait(unknown)
        if self._probes:
            await asyncio.wait(self._probes.values(), timeout=_PATIENCE)
        links = Counter((self._stats.label(link.virtual_host), link.broker) for link in self._pool.links)
        return {
            virtual_host.name: tuple(
                self._state(circuit, links[virtual_host.name, circuit.broker])
                for circuit in self._pool.dialer.circuits(virtual_host.upstream)
            )
            for virtual_host in virtual_hosts
        }

    def _start_probes(self, virtual_hosts: Iterable[VirtualHost]) -> None:
        linked = {link.broker for link in self._pool.links}
        for virtual_host in virtual_hosts:
            for circuit in self._pool.dialer.circuits(virtual_host.upstream):
                if circuit not in self._probes and self._is_stale(circuit, linked):
                    probe = asyncio.create_task(self._probe(circuit, virtual_host), name=f"probe {circuit.broker}")
                    self._probes[circuit] = probe

    def _is_stale(self, circuit: Circuit, linked: set[BrokerUrl]) -> bool:
        if circuit.is_open:
            keep = _KEEP_FAILURE
        elif circuit.broker in linked:
            return False
        else:
            keep = _KEEP_SUCCESS
        return circuit.known_at is None or self._clock() - circuit.known_at > keep

    def _state(self, circuit: Circuit, links: int) -> BrokerState:
        """The state of a broker. An open link proves that it is up, whatever a dial found."""
        broker = circuit.broker
        return BrokerState(broker, "" if links else circuit.reason, links, self._pool.alarms.of(broker))

    async def _probe(self, circuit: Circuit, virtual_host: VirtualHost) -> None:
        is_trial = circuit.begin(self._clock())
        seconds = min(_CONNECT_TIMEOUT, virtual_host.upstream.connect_timeout)
        try:
            if circuit.is_open:
                resolver = self._pool.dialer.resolver
                reason = (await greets(circuit.broker, virtual_host.upstream.tls, seconds, resolver)).reason
            else:
                reason = await self._connect(circuit.broker, seconds)
            if reason:
                circuit.failed(reason, self._clock(), is_trial=is_trial)
            else:
                circuit.answered(self._clock())
        finally:
            del self._probes[circuit]

    async def _connect(self, url: BrokerUrl, seconds: float) -> str:
        """Open a TCP connection and close it. Returns the error, or an empty text."""
        try:
            async with asyncio.timeout(seconds):
                plain = await self._pool.dialer.resolver.connected(url.host, url.port)
        except TimeoutError:
            return f"no answer within {seconds:g} seconds"
        except OSError as error:
            return os_reason(error)
        plain.close()
        return ""

    async def close(self) -> None:
        """Stop probing."""
        self._is_closed = True
        probes = list(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
