"""What a run leaves behind, asked from gateway, broker and operating system."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage

from tests.chaos.client import Scene
from tests.chaos.messages import content, copy_of
from tests.chaos.recording import REMAINS, Delivered
from tests.chaos.schedule import (
    DURABLES,
    PROBE,
    QUEUES,
    QUORUM_SUBSCRIPTIONS,
    QUORUMS,
    STREAMS,
    SUBSCRIPTIONS,
)
from tests.chaos.servers import ChaosGateway, Servers
from tests.chaos.verdict import Finding
from tests.support.deadline import PATIENCE

_LOOK_AGAIN: Final = 0.1
_NOTHING: Final = ("connections", "channels", "subscriptions", "unconfirmed", "unacknowledged")
"""Fields of ``/api/overview`` that are zero when all clients are gone."""

_TASKS: Final = 12
_TASKS_PER_LINK: Final = 4
"""Tasks of the event loop that are there always, and those of the AMQP library for each link."""

_MEMORY_GROWTH: Final = 48 << 20
"""Bytes by which a gateway may exceed what it had after its first run: what its allocator keeps for the next run."""

_EMPTIED: Final = (*QUEUES, *QUORUMS, *(queue for place in DURABLES for queue in SUBSCRIPTIONS[place]))
_OF_SUBSCRIPTION: Final = "stomp-subscription-"
EVERY_QUEUE: Final = (*_EMPTIED, *STREAMS)


@asynccontextmanager
async def _channel(servers: Servers, number: int = 0) -> AsyncIterator[AbstractChannel]:
    node = servers.nodes[number % len(servers.nodes)]
    async with await aio_pika.connect(node.amqp_url) as connection:
        yield await connection.channel()


async def prepare(servers: Servers) -> None:
    """Declare all queues, in a cluster on one node after the other.

    RabbitMQ would forget one that is declared two seconds before it is killed.
    """
    count = len(servers.nodes)
    for number in range(count):
        async with _channel(servers, number) as channel:
            for queue in EVERY_QUEUE[number::count]:
                await _declare(servers, channel, queue)
    if servers.cluster is None:
        await servers.sync_broker()
    else:
        await servers.cluster.until_whole(EVERY_QUEUE)


async def _declare(servers: Servers, channel: AbstractChannel, queue: str) -> None:
    declared = await channel.declare_queue(queue, durable=True, arguments=_arguments(servers, queue))
    for place, queues in SUBSCRIPTIONS.items():
        if queue in queues:
            _ = await declared.bind("amq.topic", place)


def _arguments(servers: Servers, queue: str) -> dict[str, Any]:
    if queue in STREAMS:
        return {"x-queue-type": "stream"}
    is_quorum = queue in QUORUMS or (servers.is_cluster and queue in QUORUM_SUBSCRIPTIONS)
    return {"x-queue-type": "quorum"} if is_quorum else {}


async def remake_queue(servers: Servers, queue: str, number: int, seconds: float) -> None:
    """Delete a queue, and declare it again a little later, as somebody else.

    Args:
        servers: where it is.
        queue: its name.
        number: chooses the node that is asked.
        seconds: between the two.
    """
    async with _channel(servers, number) as channel:
        _ = await channel.queue_delete(queue)
        await asyncio.sleep(seconds)
        await _declare(servers, channel, queue)


async def remake_virtual_host(servers: Servers) -> None:
    """Delete the virtual host, and make it again with all queues."""
    await servers.remake_virtual_host()
    await prepare(servers)


async def take_what_remains(servers: Servers, scene: Scene) -> None:
    """Empty all queues, and record what was in them."""
    async with _channel(servers) as channel:
        for name in _EMPTIED:
            queue = await channel.get_queue(name)
            while (message := await queue.get(no_ack=True, fail=False)) is not None:
                scene.recording.add(_delivered(scene, name, message))


def _delivered(scene: Scene, queue: str, message: AbstractIncomingMessage) -> Delivered:
    seed = scene.schedule.seed
    copy = copy_of(seed, {name: str(value) for name, value in message.headers.items()})
    plan = next((plan for plan in (*scene.schedule.producers, PROBE) if plan.name == copy.producer), None)
    return Delivered(
        at=scene.clock(),
        consumer=REMAINS,
        connection=0,
        queue=queue,
        copy=copy,
        redelivered=bool(message.redelivered),
        whole=plan is not None and message.body == content(seed, plan, copy.number).body,
    )


async def _lasting(look: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    """What is still there after the time that it has to go away by itself."""
    deadline = time.monotonic() + PATIENCE
    while found := await look():
        if time.monotonic() > deadline:
            break
        await asyncio.sleep(_LOOK_AGAIN)
    return found


async def _links(gateway: ChaosGateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await gateway.admin.json("/api/links?page_size=1000"))["items"]
    return found


@dataclass
class _Baseline:
    """What a gateway of a variant had after its first run, which has filled what is filled once."""

    memory: int
    files: int


class Inspector:
    """Compares the gateway of a variant with what it was after its first run, also when it was started again.

    Args:
        servers: of the campaign.
        gateway: which.
    """

    def __init__(self, servers: Servers, gateway: ChaosGateway) -> None:
        self._servers = servers
        self._gateway = gateway
        self._baseline: _Baseline | None = None
        self._seen: list[int] = []
        self._strange: list[str] = []

    def memory(self) -> str:
        """The gateway's memory after its runs."""
        return f"memory of {self._gateway.node}, MiB: " + ", ".join(str(each >> 20) for each in self._seen[::10])

    async def findings(self) -> list[Finding]:
        """What is left after a run; what goes away by itself gets some seconds for it."""
        found = await _lasting(self._in_the_servers)
        for queue in self._strange:
            await self._servers.delete_queue(queue)
        found += await _lasting(self._in_the_process)
        self._seen.append(self._gateway.process.memory_info().rss)
        return found

    async def _in_the_servers(self) -> list[Finding]:
        return [*await self._in_the_gateway(), *await self._in_the_broker()]

    async def _in_the_gateway(self) -> list[Finding]:
        overview = await self._gateway.admin.json("/api/overview")
        found = [f"left in the gateway: {overview[name]} {name}" for name in _NOTHING if overview[name]]
        links = await _links(self._gateway)
        tasks = int((await self._gateway.admin.samples())["stomp_gateway_tasks", frozenset()])
        if tasks > _TASKS * self._gateway.workers + _TASKS_PER_LINK * len(links):
            found.append(f"left in the gateway: {tasks} tasks, with {len(links)} links")
        found += [f"left in the gateway: {link['name']}" for link in links if link["purpose"] == "own"]
        return found + [f"left in {each}" for each in self._gateway.temporary.rglob("*")]

    async def _in_the_broker(self) -> list[Finding]:
        links = sum([len(await _links(gateway)) for gateway in self._servers.gateways])
        connections, consumers, queues = await self._servers.remains()
        self._strange = [queue for queue in queues if queue not in EVERY_QUEUE]
        found = []
        if connections != links:
            found.append(f"left at the broker: {connections} connections for {links} links of the gateways")
        if consumers:
            found.append(f"left at the broker: {consumers} consumers")
        return found + [f"left at the broker: the queue {queue}" for queue in self._left_queues()]

    def _left_queues(self) -> list[str]:
        """Those that nobody should leave. Who is killed between declaring a queue and consuming it leaves it."""
        is_killed = self._gateway.workers > 1
        return [queue for queue in self._strange if not (is_killed and queue.startswith(_OF_SUBSCRIPTION))]

    async def _in_the_process(self) -> list[Finding]:
        links, process = len(await _links(self._gateway)), self._gateway.process
        memory = process.memory_info().rss
        # A supervisor has no links.
        files = process.num_fds() - (links if self._gateway.workers == 1 else 0)
        if self._baseline is None:
            self._baseline = _Baseline(memory, files)
        found = []
        if memory > self._baseline.memory + _MEMORY_GROWTH:
            found.append(f"memory: {memory >> 20} MiB, after the first run {self._baseline.memory >> 20} MiB")
        if files > self._baseline.files + 1:
            found.append(f"open files: {files} besides links, after the first run {self._baseline.files}")
        return found
