"""Injects the faults of a schedule at their moments, and records them."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from tests.chaos.client import Scene
from tests.chaos.recording import Fault
from tests.chaos.schedule import FaultPlan, Harm
from tests.chaos.servers import ChaosGateway, Servers
from tests.support.chaos import ChaosProxy, Direction

_DELAY: Final = 0.03
"""Seconds that each piece of data waits on a slow connection."""


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
        self._proxies = proxies
        self._ends: Mapping[Harm, Callable[[], Awaitable[None]]] = {
            Harm.BROKER_KILL: servers.kill_broker,
            Harm.BROKER_RESTART: servers.restart_broker,
            Harm.CLOSE_CONNECTIONS: servers.close_links,
            Harm.GATEWAY_KILL: functools.partial(servers.kill_gateway, gateway),
            Harm.GATEWAY_RESTART: functools.partial(servers.restart_gateway, gateway),
        }

    async def run(self) -> None:
        """Inject all of them, and heal every proxy at the end."""
        async with asyncio.TaskGroup() as tasks:
            for plan in self._scene.schedule.faults:
                _ = tasks.create_task(self._inject(plan))
        for proxy in (self._servers.proxy, *self._proxies.values()):
            proxy.heal()

    async def _inject(self, plan: FaultPlan) -> None:
        await asyncio.sleep(plan.at - self._scene.clock())
        at = self._scene.clock()
        if plan.harm in self._ends:
            await self._ends[plan.harm]()
        else:
            await _disturb(self._proxies[plan.client] if plan.client else self._servers.proxy, plan)
        self._scene.recording.add(Fault(at, self._scene.clock(), plan.harm, plan.client))


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
