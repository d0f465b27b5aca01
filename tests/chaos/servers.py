"""The servers of a campaign: one broker, a proxy before it, and a gateway for each variant of the configuration."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Self

import psutil

from deploy.local.broker import PRIVATE, Broker, running
from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK, free_ports
from gateway.errors import ExitCode
from tests.chaos.schedule import Transport, Variant
from tests.support.admin import AdminClient
from tests.support.chaos import ChaosProxy, chaos
from tests.support.gateway import Address, GatewayProcess, configuration, upstream

_VARIANTS: Final[Mapping[Variant, Mapping[str, Any]]] = {
    Variant.SHARED: {},
    Variant.DEDICATED: {"links": "dedicated"},
    Variant.HEARTBEAT: {},
}
_HEARTBEAT: Final = {Variant.HEARTBEAT: 2}


class ChaosGateway:
    """A gateway on ports that it keeps when it is started again.

    Args:
        variant: of its configuration.
        address: of the broker, or of the proxy before it.
        ride_through: the key of that name; None leaves it out.
    """

    def __init__(self, variant: Variant, address: Address, ride_through: str | None) -> None:
        self.node = f"chaos-{variant.value}"
        self.folder = Path(tempfile.mkdtemp(prefix="stomp-gateway-chaos-"))
        self.temporary = self.folder / "tmp"
        self.temporary.mkdir()
        tcp, websocket, admin = free_ports(3)
        self.addresses = {Transport.TCP: (LOOPBACK, tcp), Transport.STOMP_PY: (LOOPBACK, tcp)}
        self.addresses[Transport.WEBSOCKET] = (LOOPBACK, websocket)
        self.admin = AdminClient((LOOPBACK, admin))
        riding = {} if ride_through is None else {"ride_through": ride_through}
        self._document = configuration(
            "amqp://guest:guest@127.0.0.1:5672/",
            {**_VARIANTS[variant], "journal": {"level": "session", "node": self.node}},
            listeners=[{"tcp": f"{LOOPBACK}:{tcp}"}, {"websocket": f"{LOOPBACK}:{websocket}"}],
            upstream=upstream(address, connect_timeout="2s", heartbeat=_HEARTBEAT.get(variant, 60), **riding),
            admin={"address": f"{LOOPBACK}:{admin}"},
            drain_timeout=5,
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
        code = self._process.child.wait(30)
        self._put_away()
        return code

    def kill(self) -> None:
        """End it by SIGKILL."""
        assert self._process is not None
        self._process.child.kill()
        _ = self._process.child.wait()
        self._put_away()

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
        broker: private, with the management plugin.
        metrics: of the broker.
        proxy: between gateways and broker.
        ride_through: of the gateways; None leaves the key out.
    """

    def __init__(self, broker: Broker, metrics: AdminClient, proxy: ChaosProxy, ride_through: str | None) -> None:
        self.broker = broker
        self.metrics = metrics
        self.proxy = proxy
        self._ride_through = ride_through
        self._gateways: dict[Variant, ChaosGateway] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, ride_through: str | None) -> AsyncIterator[Self]:
        """Start broker and proxy, and stop everything at the end."""
        [metrics] = free_ports(1)
        config = [f"prometheus.tcp.ip = {LOOPBACK}", f"prometheus.tcp.port = {metrics}"]
        order = running(order=PRIVATE, plugins=["rabbitmq_management", "rabbitmq_prometheus"], config=config, say=print)
        broker = await asyncio.to_thread(order.__enter__)
        try:
            async with chaos((broker.host, broker.amqp_port)) as proxy:
                servers = cls(broker, AdminClient((LOOPBACK, metrics)), proxy, ride_through)
                try:
                    yield servers
                finally:
                    for gateway in servers._gateways.values():
                        await asyncio.to_thread(gateway.remove)
        finally:
            await asyncio.to_thread(broker.kill)  # an orderly stop takes seconds, and nobody needs the data
            _ = await asyncio.to_thread(order.__exit__, None, None, None)

    async def gateway(self, variant: Variant) -> ChaosGateway:
        """The gateway of a variant, started if it is not there yet."""
        if variant not in self._gateways:
            self._gateways[variant] = ChaosGateway(variant, self.proxy.address, self._ride_through)
            await asyncio.to_thread(self._gateways[variant].start)
        return self._gateways[variant]

    @property
    def gateways(self) -> list[ChaosGateway]:
        """Those that were started."""
        return list(self._gateways.values())

    # Chaos.

    async def kill_broker(self) -> None:
        """SIGKILL, and start it again."""
        await asyncio.to_thread(self.broker.kill)
        await asyncio.to_thread(self.broker.start)

    async def restart_broker(self) -> None:
        """Stop it in good order, and start it again."""
        await asyncio.to_thread(self.broker.ctl, "stop_app")
        await asyncio.to_thread(self.broker.ctl, "start_app")

    async def sync_broker(self) -> None:
        """Let the broker write to disk which queues there are."""
        _ = await asyncio.to_thread(self.broker.ctl, "eval", "mnesia:sync_log().")

    async def close_links(self) -> None:
        """Close all connections as an operator; a broker that is down has none."""
        with contextlib.suppress(LocalError):
            _ = await asyncio.to_thread(self.broker.ctl, "close_all_connections", "chaos")

    async def kill_gateway(self, gateway: ChaosGateway) -> None:
        """SIGKILL, and start it again."""
        await asyncio.to_thread(gateway.kill)
        await asyncio.to_thread(gateway.start)

    async def restart_gateway(self, gateway: ChaosGateway) -> None:
        """Stop it in good order, and start it again."""
        code = await asyncio.to_thread(gateway.stop)
        assert code == ExitCode.OK, code
        await asyncio.to_thread(gateway.start)
