"""One RabbitMQ for `make run`, the tests and the benchmarks.

with running(plugins=["rabbitmq_stomp"]) as broker:
    connect(broker.amqp_url)
    broker.ctl("list_queues")
"""

import contextlib
import os
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from deploy.local import debian, releases
from deploy.local.datadir import DataDirectory
from deploy.local.errors import LocalError
from deploy.local.given import GivenBroker
from deploy.local.installation import Installation
from deploy.local.node import PrivateNode

Source = Literal["given", "installed", "debian", "container"]
"""Where a RabbitMQ comes from: AMQP_URL; an installed one; Debian's package, installed if we are root; Docker. With
BROKER it is a release of `releases`, and no other broker."""

FOR_RUNNING: tuple[Source, ...] = ("given", "installed", "debian", "container")
FOR_TESTS: tuple[Source, ...] = ("container", "installed", "debian", "given")
PRIVATE: tuple[Source, ...] = ("installed", "debian")
"""Only a node on this machine."""

_DOCKER_TIMEOUT = 10

VAR = Path(__file__).parents[2] / "var"
"""The directory for everything that is written to disk."""


class Broker(Protocol):
    """A RabbitMQ from any source."""

    @property
    def host(self) -> str:
        """Name or address that its ports are on."""

    @property
    def amqp_port(self) -> int:
        """TCP port for AMQP 0-9-1."""

    @property
    def amqp_url(self) -> str:
        """AMQP address with credentials and virtual host."""

    @property
    def stomp_port(self) -> int | None:
        """TCP port of RabbitMQ's own STOMP plugin, if it was requested and is available."""

    @property
    def management_port(self) -> int | None:
        """TCP port of the management plugin's HTTP interface, likewise."""

    @property
    def os_pid(self) -> int | None:
        """Process id of the broker's Erlang virtual machine, if it runs on this machine."""

    @property
    def description(self) -> str:
        """A description for people."""

    @property
    def running(self) -> bool:
        """Whether it runs, as far as can be told from here."""

    def start(self) -> None:
        """Start it, or start it again after `kill`, and wait until it takes connections."""

    def stop(self) -> None:
        """Shut it down cleanly."""

    def kill(self) -> None:
        """End it as a power cut would."""

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run rabbitmqctl against exactly this broker and return what it printed."""


@contextlib.contextmanager
def cluster(
    size: int, config: Sequence[str] = (), relay: Callable[[str, int], int] | None = None
) -> Iterator[list[PrivateNode]]:
    """A cluster of private nodes, on this machine. They are killed at the end.

    Args:
        size: how many nodes.
        config: further lines for each node's rabbitmq.conf.
        relay: of `PrivateNode`, for each node.

    Yields:
        The nodes, taking connections.

    Raises:
        LocalError: there is no RabbitMQ here, or a node did not start.
    """
    release = releases.wanted(os.environ)
    installation = releases.provide(release) if release else Installation.find()
    if installation is None:
        raise LocalError("No RabbitMQ is installed here.")
    nodes: list[PrivateNode] = []
    try:
        for _ in range(size):
            seed = nodes[0] if nodes else None
            nodes.append(PrivateNode(installation, DataDirectory.fresh(VAR), config=config, seed=seed, relay=relay))
        nodes[0].start()
        with ThreadPoolExecutor() as threads:
            deque(threads.map(PrivateNode.start, nodes[1:]), maxlen=0)
        yield nodes
    finally:
        for node in reversed(nodes):
            # An orderly stop takes seconds, and nobody needs the node's data.
            if node.running:
                node.kill()
            node.stop()


@dataclass(frozen=True)
class _Request:
    plugins: Sequence[str]
    config: Sequence[str]
    data_dir: Path | None
    environ: Mapping[str, str]
    say: Callable[[str], None]


@contextlib.contextmanager
def running(
    *,
    order: Sequence[Source] = FOR_TESTS,
    plugins: Sequence[str] = (),
    config: Sequence[str] = (),
    data_dir: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[Broker]:
    """Find a RabbitMQ, start it, and stop it afterwards.

    Args:
        order: sources to try, unless BROKER names a release.
        plugins: for a broker that is started here, e.g. `rabbitmq_stomp`, `rabbitmq_management`.
        config: further lines for its rabbitmq.conf.
        data_dir: where a private node keeps its data, which is kept; by default a temporary directory under `var/`.
        environ: where AMQP_URL and BROKER are looked up.
        say: takes a line about the progress.

    Yields:
        The broker, taking connections.

    Raises:
        LocalError: no source has one, or it did not start.
    """
    broker = _find(order, _Request(plugins, config, data_dir, environ, say))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _find(order: Sequence[Source], request: _Request) -> Broker:
    if release := releases.wanted(request.environ):
        return _node(releases.provide(release, request.say), request)
    failures: list[str] = []
    for source in order:
        try:
            if broker := _SOURCES[source](request):
                return broker
        except _SourceError as failure:
            failures.append(str(failure))
    tried = f" ({'; '.join(failures)})" if failures else ""
    raise LocalError(
        f"No RabbitMQ to be had{tried}: install it (Debian: `apt install rabbitmq-server`), or start a Docker engine, "
        "or name a broker with AMQP_URL=amqp://user:password@host:5672/virtual-host."
    )


class _SourceError(Exception):
    """A source that should have worked did not; the next may."""


def _given(request: _Request) -> Broker | None:
    url = request.environ.get("AMQP_URL")
    return GivenBroker(url) if url else None


def _installed(request: _Request) -> Broker | None:
    installation = Installation.find()
    return None if installation is None else _node(installation, request)


def _node(installation: Installation, request: _Request) -> Broker:
    directory = DataDirectory(request.data_dir) if request.data_dir else DataDirectory.fresh(VAR)
    return PrivateNode(installation, directory, plugins=request.plugins, config=request.config, say=request.say)


def _debian(request: _Request) -> Broker | None:
    if not debian.can_install():
        return None
    try:
        debian.install(request.say)
    except LocalError as error:
        raise _SourceError(str(error)) from error
    return _installed(request)


def _container(request: _Request) -> Broker | None:
    if not _docker_answers():
        return None
    from deploy.local import container  # noqa: PLC0415 - its libraries take longer to load than all others

    if not container.engine_answers():
        return None
    return container.BrokerContainer(plugins=request.plugins, config=request.config, say=request.say)


def _docker_answers() -> bool:
    """Whether the command `docker` is there and finds an engine."""
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, timeout=_DOCKER_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


_SOURCES: Mapping[Source, Callable[[_Request], Broker | None]] = {
    "given": _given,
    "installed": _installed,
    "debian": _debian,
    "container": _container,
}
