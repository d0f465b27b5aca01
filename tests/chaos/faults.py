"""Injects the faults of a schedule at their moments, and records them."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from deploy.local.errors import LocalError
from tests.chaos.client import Scene
from tests.chaos.recording import Fault
from tests.chaos.remains import remake_queue, remake_virtual_host
from tests.chaos.schedule import (
    CLASSIC,
    COMMIT_CUTS,
    OF_ALL_NODES,
    OF_CLIENTS,
    OF_CLUSTERS,
    QUORUM_SUBSCRIPTIONS,
    QUORUMS,
    STREAMS,
    FaultPlan,
    Harm,
    Target,
)
from tests.chaos.servers import ChaosGateway, Servers
from tests.support.chaos import ChaosProxy, Direction

_DELAY: Final = 0.03
"""Seconds that each piece of data waits on a slow connection."""

_WITHIN_COMMIT: Final = 20
"""Bytes of a COMMIT that may pass before it is cut: fewer than it has."""

_COMMITS_WITHIN: Final = 2.0

_LED: Final = (*QUORUMS, *STREAMS, *QUORUM_SUBSCRIPTIONS)
"""Queues with a leader."""


class FaultInjector:
    """Carries out the faults of one run.

    Args:
        scene: whose schedule it follows, and where it records.
        servers: that are killed.
        gateway: of this run.
        proxies: in front of the gateway, by client.
    """

    def __init__(
        self, scene: Scene, servers: Servers, gateway: ChaosGateway, proxies: Mapping[str, ChaosProxy]
    ) -> None:
        self._scene = scene
        self._servers = servers
        self._gateway = gateway
        self._proxies = proxies
        self.broken = ""
        """Why the cluster is not whole any more, if it is not."""
        self._ends: Mapping[Harm, Callable[[], Awaitable[None]]] = {
            Harm.BROKER_KILL: servers.kill_broker,
            Harm.BROKER_RESTART: servers.restart_broker,
            Harm.VHOST_DELETION: functools.partial(remake_virtual_host, servers),
            Harm.CLOSE_CONNECTIONS: servers.close_links,
            Harm.GATEWAY_KILL: functools.partial(servers.kill_gateway, gateway),
            Harm.GATEWAY_RESTART: functools.partial(servers.restart_gateway, gateway),
        }

    async def run(self) -> None:
        """Inject all of them, and heal every proxy at the end."""
        async with asyncio.TaskGroup() as tasks:
            for plan in self._scene.schedule.faults:
                _ = tasks.create_task(self._inject(plan))
        for proxy in (*self._servers.proxies, *self._proxies.values()):
            proxy.heal()

    async def _inject(self, plan: FaultPlan) -> None:
        await asyncio.sleep(plan.at - self._scene.clock())
        at = self._scene.clock()
        queues: tuple[str, ...] = ()
        if plan.harm in OF_CLUSTERS:
            try:
                at, queues = await self._inject_into_cluster(plan)
            except LocalError as error:
                self.broken = str(error)
        elif plan.harm is Harm.WORKER_KILL:
            await self._gateway.kill_worker(plan.size)
        elif plan.harm in self._ends:
            await self._ends[plan.harm]()
        elif plan.harm is Harm.ALARM:
            await self._servers.set_alarm()
            await asyncio.sleep(plan.lasts)
            await self._servers.clear_alarm()
        elif plan.harm in COMMIT_CUTS:
            cut_at = await self._cut_commit(plan)
            if cut_at is None:
                return  # there was no COMMIT any more
            at = cut_at
        elif plan.harm in OF_CLIENTS:
            await _disturb(self._proxies[plan.client], plan)
        else:
            _ = await asyncio.gather(*(_disturb(proxy, plan) for proxy in self._servers.proxies))
        self._scene.recording.add(Fault(at, self._scene.clock(), plan.harm, plan.client, queues))

    async def _inject_into_cluster(self, plan: FaultPlan) -> tuple[float, tuple[str, ...]]:
        """When it began, and which queues it hits."""
        cluster, clock = self._servers.cluster, self._scene.clock
        assert cluster is not None
        if plan.harm is Harm.PERMISSION_LOSS:
            at = clock()
            await cluster.take_permissions(plan.lasts)
            return at, ()
        if plan.harm is Harm.QUEUE_DELETION:
            at = clock()
            await remake_queue(self._servers, plan.queue, plan.size, plan.lasts)
            return at, (plan.queue,)
        homes = await cluster.homes()
        names = CLASSIC if plan.target is Target.CLASSIC else _LED
        node = await cluster.chosen(plan, {queue: homes[queue] for queue in self._queues() if queue in names})
        at = clock()
        await cluster.inject(plan, node)
        hit = {node.name} if plan.harm not in OF_ALL_NODES else set(homes.values())
        return at, tuple(sorted(queue for queue in CLASSIC if homes[queue] in hit))

    def _queues(self) -> set[str]:
        """Those that clients use."""
        places = self._scene.schedule.places
        return {queue for place in places for queue in self._scene.schedule.queues(place.name) or {place.name}}

    async def _cut_commit(self, plan: FaultPlan) -> float | None:
        """Wait for the client's next COMMIT, and cut it or what the gateway makes of it; when it was, if ever."""
        is_begun = asyncio.Event()

        def cut() -> None:
            is_begun.set()
            if plan.harm is Harm.CLIENT_COMMIT_CUT:
                self._proxies[plan.client].cut_after(1 + plan.size % _WITHIN_COMMIT)
            else:
                for proxy in self._servers.proxies:
                    proxy.cut_after(plan.size)

        self._scene.at_commit[plan.client] = cut
        try:
            async with asyncio.timeout(_COMMITS_WITHIN):
                await is_begun.wait()
        except TimeoutError:
            _ = self._scene.at_commit.pop(plan.client, None)
            return None
        at = self._scene.clock()
        await asyncio.sleep(plan.lasts)
        return at


async def _flap(proxy: ChaosProxy, plan: FaultPlan) -> None:
    """Reset connections, or cut them in the middle of what they say first, before they can do much."""
    chance = random.Random(plan.size)  # noqa: S311 - to be repeated
    until = time.monotonic() + plan.lasts
    while time.monotonic() < until:
        if chance.random() < 0.5:
            proxy.reset()
        else:
            proxy.cut_after(chance.randint(1, 3_000), chance.choice(tuple(Direction)))
        await asyncio.sleep(chance.uniform(0.01, 0.15))
    proxy.heal()


async def _disturb(proxy: ChaosProxy, plan: FaultPlan) -> None:
    match plan.harm:
        case Harm.LINK_FLAP:
            await _flap(proxy, plan)
            return
        case Harm.LINK_STALL | Harm.CLIENT_STALL:
            proxy.stall(plan.direction)
        case Harm.LINK_FREEZE | Harm.LINK_SILENCE:
            if plan.harm is Harm.LINK_SILENCE:
                proxy.reset()
            for direction in Direction:
                proxy.stall(direction)
        case Harm.LINK_DELAY | Harm.CLIENT_DELAY:
            proxy.delay(plan.direction, _DELAY)
        case Harm.LINK_CUT | Harm.CLIENT_CUT:
            proxy.cut_after(plan.size, plan.direction)
        case Harm.LINK_HALF_CLOSE | Harm.CLIENT_HALF_CLOSE:
            proxy.half_close(plan.direction)
        case _:
            proxy.reset()
    await asyncio.sleep(plan.lasts)
    proxy.heal()
