"""The servers of a campaign: nodes, a proxy before each, and a gateway for each variant of the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import psutil

from deploy.local.broker import PRIVATE, Broker, running
from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK, free_ports
from gateway.errors import ExitCode
from tests.chaos.cluster import Cluster, Remains
from tests.chaos.schedule import Transport, Variant
from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.chaos import ChaosProxy, chaos
from tests.support.deadline import PATIENCE, until
from tests.support.gateway import Address, GatewayProcess, configuration
from tests.support.management import Management

_VARIANTS: Final[Mapping[Variant, Mapping[str, Any]]] = {
    Variant.SHARED: {},
    Variant.DEDICATED: {"links": "dedicated"},
    Variant.HEARTBEAT: {},
    Variant.WORKERS: {},
}
_WORKERS: Final = {Variant.WORKERS: 2}
_HEARTBEAT: Final = {Variant.HEARTBEAT: 2}
# Only a failing run waits so long, for a worker to start or a gateway to end; on a busy machine both take long.
_DONE_WITHIN: Final = 3 * PATIENCE
# Of a cluster, where the gateway declares quorum queues and streams, too.
_QUEUE_ARGUMENTS: Final = [
    {"destination": "/queue/chaos-quorum-*", "arguments": {"x-queue-type": "quorum"}},
    {"destination": "/queue/chaos-stream-*", "arguments": {"x-queue-type": "stream"}},
]


class ChaosGateway:
    """A gateway on ports that it keeps when it is started again.

    Args:
        variant: of its configuration.
        addresses: of the broker's nodes, or of the proxies before them.
        identity: its certificate and key.
        ride_through: the key of that name; None leaves it out.
    """

    def __init__(
        self, variant: Variant, addresses: Sequence[Address], identity: tuple[Path, Path], ride_through: str | None
    ) -> None:
        self.node = f"chaos-{variant.value}"
        self.workers = _WORKERS.get(variant, 1)
        # What did not hold when workers were killed.
        self.complaints: list[str] = []
        self._killing = asyncio.Lock()
        self.folder = Path(tempfile.mkdtemp(prefix="stomp-gateway-chaos-"))
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        tcp, tls, websocket, admin = free_ports(4)
        self.addresses = {
            Transport.TCP: (LOOPBACK, tcp),
            Transport.STOMP_PY: (LOOPBACK, tcp),
            Transport.TLS: (LOOPBACK, tls),
            Transport.WEBSOCKET: (LOOPBACK, websocket),
        }
        certificate, key = map(str, identity)
        self.admin = AdminClient((LOOPBACK, admin))
        riding = {} if ride_through is None else {"ride_through": ride_through}
        urls = [f"amqp://{host}:{port}" for host, port in addresses]
        queues = _QUEUE_ARGUMENTS if len(addresses) > 1 else []
        self._document = configuration(
            "amqp://guest:guest@127.0.0.1:5672/",
            {**_VARIANTS[variant], "journal": {"level": "session", "node": self.node}, "queue_arguments": queues},
            listeners=[
                {"tcp": f"{LOOPBACK}:{tcp}"},
                {"tcp": f"{LOOPBACK}:{tls}", "tls": {"cert_file": certificate, "key_file": key}},
                {"websocket": f"{LOOPBACK}:{websocket}"},
            ],
            upstream={"urls": urls, "connect_timeout": "2s", "heartbeat": _HEARTBEAT.get(variant, 60), **riding},
            admin={"address": f"{LOOPBACK}:{admin}"},
            drain_timeout=5,
            workers=self.workers,
        )
        self._process: GatewayProcess | None = None
        self._logged = 0
        self._old_log = ""

    @property
    def process(self) -> psutil.Process:
        """The operating system's view of it."""
        assert self._process is not None
        return psutil.Process(self._process.pid)

    @property
    def is_new(self) -> bool:
        """Whether it was not started yet."""
        return self._process is None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        environment = {"STATE_DIRECTORY": str(self.folder / "state"), "TMPDIR": str(self.temporary)}
        self._process = GatewayProcess(self._document, environment)
        _ = self._process.admin

    def stop(self) -> int:
        """Drain it, and return its exit code."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.child.wait(_DONE_WITHIN)
        self._put_away()
        return code

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._process is not None
        self._process.child.kill()
        _ = self._process.child.wait()
        self._put_away()

    async def kill_worker(self, which: int) -> None:
        """End a worker by SIGKILL, and wait until another one has its place. What the gateway counts must not go down.

        Args:
            which: any number; it chooses among those that are there.
        """
        async with self._killing:
            before, died = await self._counters(), self.log().count('"worker died"')
            victims = sorted(self.process.children(), key=lambda child: child.pid)
            victims[which % len(victims)].kill()

            async def is_replaced() -> bool:
                running = (await self.admin.samples())["stomp_gateway_workers", frozenset()]
                return self.log().count('"worker died"') > died and running == self.workers

            _ = await until(is_replaced, bool, _DONE_WITHIN)
            after = await self._counters()
        down = [name for name, value in before.items() if after.get(name, 0) < value]
        self.complaints += [f"counts down: {name} after a worker was killed" for name in sorted(set(down))]

    async def _counters(self) -> dict[str, float]:
        """Everything that only grows."""
        found: dict[str, float] = {}
        for (name, labels), value in (await self.admin.samples()).items():
            if name.startswith("stomp_gateway") and name.endswith(("_total", "_bucket", "_count", "_sum")):
                found[f"{name}{sorted(labels)}"] = value
        return found

    def _put_away(self) -> None:
        assert self._process is not None
        self._old_log = self.log()
        self._logged = 0
        self._process.stop()

    def log(self) -> str:
        """What it logged since the last ``forget_log``, also before it was started again."""
        assert self._process is not None
        here = self._process.log.read_bytes() if self._process.log.exists() else b""
        return self._old_log + here[self._logged :].decode(errors="replace")

    def forget_log(self) -> None:
        """Let the log begin here."""
        assert self._process is not None
        self._old_log = ""
        self._logged = self._process.log.stat().st_size

    def remove(self) -> None:
        """Stop it if it runs, and remove its files."""
        if self._process is not None:
            self._process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Servers:
    """What the runs of a campaign share.

    Args:
        nodes: of the broker, private.
        metrics: of a single node, which has the management plugin, too, or the whole cluster.
        proxies: between gateways and nodes.
        authority: for TLS.
        ride_through: of the gateways; None leaves the key out.
    """

    def __init__(
        self,
        nodes: Sequence[Broker],
        metrics: AdminClient | Cluster,
        proxies: Sequence[ChaosProxy],
        authority: Authority,
        ride_through: str | None,
    ) -> None:
        self.nodes = nodes
        self.broker = nodes[0]
        self.cluster = metrics if isinstance(metrics, Cluster) else None
        self._metrics = metrics
        self.proxies = proxies
        self.trust = authority.client()
        self._identity = authority.sign(authority.certificate.parent, "gateway")
        self._ride_through = ride_through
        self._gateways: dict[Variant, ChaosGateway] = {}
        # RabbitMQ 3.10 counts consumers of streams on when they are gone.
        self._phantoms = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, ride_through: str | None, *, is_cluster: bool = False) -> AsyncIterator[Self]:
        """Start nodes and proxies, and stop everything at the end."""
        async with contextlib.AsyncExitStack() as stack:
            folder = Path(tempfile.mkdtemp(prefix="stomp-gateway-chaos-"))
            _ = stack.callback(shutil.rmtree, folder, ignore_errors=True)
            authority = Authority.make(folder, "chaos")
            if is_cluster:
                cluster = await stack.enter_async_context(Cluster.started())
                servers = cls(cluster.nodes, cluster, cluster.proxies, authority, ride_through)
            else:
                starting = _single()
                broker, metrics = await asyncio.to_thread(starting.__enter__)
                _ = stack.push_async_callback(asyncio.to_thread, starting.__exit__, None, None, None)
                proxy = await stack.enter_async_context(chaos((broker.host, broker.amqp_port)))
                servers = cls([broker], metrics, [proxy], authority, ride_through)
            try:
                yield servers
            finally:
                for gateway in servers._gateways.values():
                    await asyncio.to_thread(gateway.remove)

    @property
    def is_cluster(self) -> bool:
        """Whether there are several nodes."""
        return self.cluster is not None

    # Questions.

    async def remains(self) -> Remains:
        """What clients have left at the broker."""
        if isinstance(self._metrics, Cluster):
            return await self._metrics.remains()
        samples = await self._metrics.samples()
        connections, consumers = (
            int(samples[f"rabbitmq_{name}", frozenset()]) for name in ("connections", "consumers")
        )
        real = 0
        if consumers != self._phantoms:
            real = len(await self._lines("list_consumers"))
            self._phantoms = consumers - real
        return Remains(connections, real, await Management(self.broker).queues())

    async def delete_queue(self, name: str) -> None:
        """Delete a queue, even if it is in use."""
        _ = await asyncio.to_thread(self.broker.ctl, "delete_queue", name)

    async def _lines(self, *arguments: str) -> list[str]:
        return (await asyncio.to_thread(self.broker.ctl, "--no-table-headers", *arguments)).splitlines()

    async def gateway(self, variant: Variant) -> ChaosGateway:
        """The gateway of a variant, started if it is not there yet."""
        if variant not in self._gateways:
            addresses = [proxy.address for proxy in self.proxies]
            self._gateways[variant] = ChaosGateway(variant, addresses, self._identity, self._ride_through)
            await asyncio.to_thread(self._gateways[variant].start)
        return self._gateways[variant]

    @property
    def gateways(self) -> list[ChaosGateway]:
        """Those that were started."""
        return list(self._gateways.values())

    # Chaos.

    async def kill_broker(self) -> None:
        """SIGKILL, and start it again."""
        self._phantoms = 0
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)

    async def restart_broker(self) -> None:
        """Stop it in good order, and start it again."""
        await asyncio.to_thread(self.broker.ctl, "stop_app")
        await asyncio.to_thread(self.broker.ctl, "start_app")

    async def set_alarm(self) -> None:
        """Let the broker say that its memory is full."""
        await self._alarm("set_alarm({{resource_limit, memory, node()}, []})")

    async def clear_alarm(self) -> None:
        """The broker has memory again."""
        await self._alarm("clear_alarm({resource_limit, memory, node()})")

    async def _alarm(self, call: str) -> None:
        _ = await asyncio.to_thread(self.broker.ctl, "eval", f"rabbit_alarm:{call}.")

    async def remake_virtual_host(self) -> None:
        """Delete the virtual host with all that is in it, and make it again."""
        for command in (
            ("delete_vhost", "/"), ("add_vhost", "/"), ("set_permissions", "-p", "/", "guest", ".*", ".*", ".*"),
        ):  # fmt: skip
            _ = await asyncio.to_thread(self.broker.ctl, *command)

    async def sync_broker(self) -> None:
        """Let the broker write to disk which queues there are, and that it has a coordinator of streams.

        The latter is in a dets table, which Ra writes half a second later. A broker that is killed before that never
        starts its coordinator again, and its streams stay down.
        """
        written = "mnesia:sync_log(), [ok = dets:sync(Table) || Table <- dets:all()]."
        _ = await asyncio.to_thread(self.broker.ctl, "eval", written)

    async def close_links(self) -> None:
        """Close all connections as an operator; a broker that is down has none."""
        for node in self.nodes:
            with contextlib.suppress(LocalError):
                _ = await asyncio.to_thread(node.ctl, "close_all_connections", "chaos")

    async def kill_gateway(self, gateway: ChaosGateway) -> None:
        """SIGKILL, and start it again."""
        await asyncio.to_thread(gateway.kill)
        await asyncio.to_thread(gateway.start)

    async def restart_gateway(self, gateway: ChaosGateway) -> None:
        """Stop it in good order, and start it again."""
        code = await asyncio.to_thread(gateway.stop)
        assert code == ExitCode.OK, code
        await asyncio.to_thread(gateway.start)


@contextlib.contextmanager
def _single() -> Iterator[tuple[Broker, AdminClient]]:
    [metrics] = free_ports(1)
    config = [f"prometheus.tcp.ip = {LOOPBACK}", f"prometheus.tcp.port = {metrics}"]
    plugins = ["rabbitmq_management", "rabbitmq_prometheus"]
    with running(order=PRIVATE, plugins=plugins, config=config, say=print) as broker:
        yield broker, AdminClient((LOOPBACK, metrics))
        broker.kill()  # an orderly stop takes seconds, and nobody needs the data
