"""A cluster of three nodes: which node has what, what happens to nodes, and whether all of it is there again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, NamedTuple, Self

import aio_pika
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError

from deploy.local.broker import cluster
from deploy.local.errors import LocalError
from deploy.local.node import PrivateNode
from tests.chaos.distribution import Distribution
from tests.chaos.erlang import Erlang
from tests.chaos.schedule import NODE_SILENCES, FaultPlan, Harm, Target
from tests.support.chaos import ChaosProxy, Direction, chaos
from tests.support.deadline import until

logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # it complains of every node that is down

_SIZE: Final = 3
# Nodes give up one that is silent after a quarter more or less than this, and the one that sees no majority pauses, as
# RabbitMQ's own guide to partitions has it for three nodes. Without that it keeps no promise after a partition.
_CONFIG: Final = ("net_ticktime = 6", "cluster_partition_handling = pause_minority")

_WHOLE_WITHIN: Final = 90.0
_ENDS_BY_ITSELF: Final = 15.0
_ANSWERS_WITHIN: Final = 5.0
_BETWEEN_STARTS: Final = 0.3

_HOMES: Final = (
    "[begin {resource, _, _, Name} = amqqueue:get_name(Queue), "
    'io:format("~s ~s~n", [Name, amqqueue:qnode(Queue)]) end || Queue <- rabbit_amqqueue:list()].'
)
_WHOLE: Final = (
    "Half = [Queue || Queue <- rabbit_amqqueue:list(), amqqueue:get_type(Queue) =/= rabbit_classic_queue, "
    "[{online, Online}, {members, Members}] <- [rabbit_amqqueue:info(Queue, [online, members])], "
    "length(Online) < length(Members)], "
    'io:format("~b ~b ~b~n", [length(rabbit_nodes:all_running()), '
    'length(rabbit_amqqueue:list_down(<<"/">>)), length(Half)]).'
)
_REMAINS: Final = (
    'io:format("~b ~b~n", [length(rabbit_networking:connections()), '
    'length(rabbit_amqqueue:consumers_all(<<"/">>))]), '
    "[begin {resource, _, _, Name} = amqqueue:get_name(Queue), "
    'io:format("~s~n", [Name]) end || Queue <- rabbit_amqqueue:list()].'
)
# RabbitMQ 4.3 keeps no such list: its nodes agree by Raft.
_PARTITIONS: Final = (
    "Known = erlang:function_exported(rabbit_node_monitor, partitions, 0), "
    'io:format("~b~n", [length([Node || true <- [Known], Node <- rabbit_node_monitor:partitions()])]).'
)
_MOVE_LEADERS: Final = (
    "Nodes = lists:sort(rabbit_nodes:all_running()), To = lists:nth(1 + {} rem length(Nodes), Nodes), "
    "[rabbit_quorum_queue:transfer_leadership(Queue, To) || Queue <- rabbit_amqqueue:list(), "
    "amqqueue:get_type(Queue) =:= rabbit_quorum_queue]."
)


class Remains(NamedTuple):
    """What is at the broker: numbers, and the names of all queues."""

    connections: int
    consumers: int
    queues: list[str]


class Cluster:
    """Three nodes, a proxy between the gateways and each, and proxies between them; made by ``started``.

    Args:
        nodes: of the cluster.
        proxies: in the same order.
        distribution: the proxies between the nodes.
        erlang: what asks the nodes.
    """

    def __init__(
        self, nodes: Sequence[PrivateNode], proxies: Sequence[ChaosProxy], distribution: Distribution, erlang: Erlang
    ) -> None:
        self.nodes = nodes
        self._erlang = erlang
        self.proxies = proxies
        self._distribution = distribution
        self.restarts = 0
        """How often a node had to be restarted because RabbitMQ did not end a partition."""
        # Those that a fault has at the moment.
        self._hit: list[PrivateNode] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls) -> AsyncIterator[Self]:
        """Start the nodes, and kill them at the end."""
        async with Distribution.opened() as distribution, contextlib.AsyncExitStack() as stack:
            starting = cluster(_SIZE, _CONFIG, distribution.relay)
            nodes = await asyncio.to_thread(starting.__enter__)
            _ = stack.push_async_callback(asyncio.to_thread, starting.__exit__, None, None, None)
            proxies = [await stack.enter_async_context(chaos((node.host, node.amqp_port))) for node in nodes]
            erlang = await stack.enter_async_context(Erlang.started(nodes[0]))
            yield cls(nodes, proxies, distribution, erlang)

    # Questions.

    async def homes(self) -> Mapping[str, str]:
        """The node of each classic queue, and of the leader of each other."""
        return dict(line.split() for line in await self.evaluated(_HOMES))

    async def remains(self) -> Remains:
        """What clients have left."""
        first, *queues = await self.evaluated(_REMAINS)
        connections, consumers = map(int, first.split())
        return Remains(connections, consumers, queues)

    async def evaluated(self, code: str, node: PrivateNode | None = None) -> list[str]:
        """What Erlang prints, a line each, on a node or on one that no fault has."""
        asked = node or next(each for each in self.nodes if each not in self._hit)
        return await self._erlang.evaluated(asked, code)

    @contextlib.asynccontextmanager
    async def channel(self, number: int = 0) -> AsyncIterator[AbstractChannel]:
        """A channel of somebody who is no client of the gateway.

        Args:
            number: chooses the node.
        """
        async with await aio_pika.connect(self.nodes[number % _SIZE].amqp_url, timeout=_ANSWERS_WITHIN) as connection:
            yield await connection.channel()

    async def chosen(self, plan: FaultPlan, homes: Mapping[str, str]) -> PrivateNode:
        """The node that a fault is to hit.

        Args:
            plan: of the fault.
            homes: the queues of the run, with their nodes.
        """
        if plan.target is Target.LINK or not homes:
            linked = max(range(_SIZE), key=lambda number: self.proxies[number].connections)
            return self.nodes[linked]
        queues = sorted(homes)
        name = homes[queues[plan.size % len(queues)]]
        return next(node for node in self.nodes if node.name == name)

    # Chaos.

    async def inject(self, plan: FaultPlan, node: PrivateNode) -> None:
        """Carry out a fault of nodes, and wait until the cluster is whole again.

        Args:
            plan: of the fault.
            node: that it hits; others ignore it.

        Raises:
            LocalError: the cluster does not become whole.
        """
        self._hit = [node]
        try:
            match plan.harm:
                case Harm.NODE_KILL | Harm.NODE_STOP:
                    await asyncio.to_thread(node.kill if plan.harm is Harm.NODE_KILL else node.shut_down)
                    await asyncio.sleep(plan.lasts)
                    await asyncio.to_thread(node.start)
                case Harm.NODE_FREEZE:
                    await self._freeze(node, plan.lasts)
                case Harm.NODE_CUT:
                    await self._cut(node, plan.lasts)
                case Harm.NODE_DRAIN:
                    _ = await asyncio.to_thread(node.ctl, "drain", program="rabbitmq-upgrade")
                    await asyncio.sleep(plan.lasts)
                    _ = await asyncio.to_thread(node.ctl, "revive", program="rabbitmq-upgrade")
                case Harm.NODE_ALARM:
                    _ = await self.evaluated("rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).", node)
                    await asyncio.sleep(plan.lasts)
                    _ = await self.evaluated("rabbit_alarm:clear_alarm({resource_limit, memory, node()}).", node)
                case Harm.LEADERS_MOVE:
                    _ = await self.evaluated(_MOVE_LEADERS.format(plan.size))
                    _ = await asyncio.to_thread(node.ctl, "rebalance", "all", program="rabbitmq-queues")
                case Harm.ROLLING_RESTART:
                    await self._roll(plan.size)
                case _:
                    await self._all_down(plan.size)
        finally:
            self._hit = []
        if plan.harm in NODE_SILENCES:
            await self._end_partition(node)
        await self.until_whole()

    async def take_permissions(self, seconds: float) -> None:
        """Let the login have no rights for a while."""
        for rights in ("^$", ".*"):
            _ = await asyncio.to_thread(
                self.nodes[0].ctl, "set_permissions", "-p", "/", "guest", rights, rights, rights
            )
            if rights == "^$":
                await asyncio.sleep(seconds)

    async def _freeze(self, node: PrivateNode, seconds: float) -> None:
        os.kill(node.os_pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            os.kill(node.os_pid, signal.SIGCONT)

    async def _cut(self, node: PrivateNode, seconds: float) -> None:
        proxy = self.proxies[self.nodes.index(node)]
        self._distribution.cut(node.name)
        for direction in Direction:
            proxy.stall(direction)
        await asyncio.sleep(seconds)
        self._distribution.heal()
        proxy.heal()

    async def _end_partition(self, node: PrivateNode) -> None:
        """Do what RabbitMQ's guide to partitions tells operators to do.

        A node of RabbitMQ 3 that stood still has its connections again before it looks for its majority: then it does
        not pause, and stays apart from the others until it is restarted.
        """
        with contextlib.suppress(LocalError):
            await self.until_whole(seconds=_ENDS_BY_ITSELF)
            return
        partitions = [line for each in self.nodes for line in await self._partitions_of(each)]
        if set(partitions) - {"0"}:
            self.restarts += 1
            await asyncio.to_thread(node.shut_down)
            await asyncio.to_thread(node.start)

    async def _partitions_of(self, node: PrivateNode) -> list[str]:
        """How many nodes a node says it is apart from, or why it does not say: it paused, and does not start again."""
        try:
            return await self.evaluated(_PARTITIONS, node)
        except LocalError as error:
            return [str(error)]

    async def _roll(self, first: int) -> None:
        for number in range(first, first + _SIZE):
            node = self.nodes[number % _SIZE]
            self._hit = [node]
            await asyncio.to_thread(node.shut_down)
            await asyncio.to_thread(node.start)
            self._hit = []
            await self.until_whole()

    async def _all_down(self, first: int) -> None:
        _ = await asyncio.gather(*(asyncio.to_thread(node.kill) for node in self.nodes))

        async def start(place: int) -> None:
            # None is there before the others: each may wait for one that ended after it.
            await asyncio.sleep(place * _BETWEEN_STARTS)
            await asyncio.to_thread(self.nodes[(first - place) % _SIZE].start)

        _ = await asyncio.gather(*(start(place) for place in range(_SIZE)))

    # Until all is well.

    async def until_whole(self, queues: Sequence[str] = (), seconds: float = _WHOLE_WITHIN) -> None:
        """Wait until each node has the others, every queue is there and every replica takes part.

        Args:
            queues: to be asked for at every node.
            seconds: that it may take.

        Raises:
            LocalError: that takes too long.
        """
        try:
            _ = await until(lambda: self._what_is_missing(queues), lambda reason: not reason, seconds)
        except AssertionError as error:
            raise LocalError(f"The cluster is not whole after {seconds:.0f} s: {error}.") from error

    async def _what_is_missing(self, queues: Sequence[str]) -> str:
        try:
            for number in range(_SIZE):
                async with asyncio.timeout(_ANSWERS_WITHIN * 2), self.channel(number) as channel:
                    for queue in queues:
                        _ = await channel.declare_queue(queue, passive=True, timeout=_ANSWERS_WITHIN)
            for node in self.nodes:
                running, down, half = map(int, (await self.evaluated(_WHOLE, node))[0].split())
                if running < _SIZE or down or half:
                    return f"{node.name} sees {running} nodes, {down} queues down and {half} with too few replicas"
        except (OSError, AMQPError, LocalError, ValueError) as error:
            return str(error) or type(error).__name__
        return ""
