"""One RabbitMQ for whoever needs one: `make run`, the tests, the benchmarks.

with running(plugins=["rabbitmq_stomp"]) as broker:
    connect(broker.amqp_url)
    broker.ctl("list_queues")
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from deploy.local import container, debian
from deploy.local.datadir import DataDirectory
from deploy.local.errors import LocalError
from deploy.local.given import GivenBroker
from deploy.local.installation import Installation
from deploy.local.node import PrivateNode

Source = Literal["given", "installed", "debian", "container"]
"""Where a RabbitMQ comes from: AMQP_URL; an installed one; Debian's package, installed if we are root; Docker."""

FOR_RUNNING: tuple[Source, ...] = ("given", "installed", "debian", "container")
FOR_TESTS: tuple[Source, ...] = ("container", "installed", "debian", "given")
PRIVATE: tuple[Source, ...] = ("installed", "debian")
"""A node on this machine and nothing else, for those who measure it."""

VAR = Path(__file__).parents[2] / "var"
"""Where everything goes that running leaves on disk."""


class Broker(Protocol):
    """A RabbitMQ, however it came about."""

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
        """TCP port of RabbitMQ's own STOMP plugin, if that was asked for and could be had."""

    @property
    def management_port(self) -> int | None:
        """TCP port of the management plugin's HTTP interface, likewise."""

    @property
    def os_pid(self) -> int | None:
        """Process id of the broker's virtual machine, if it is one of this machine's."""

    @property
    def description(self) -> str:
        """What this is, for people."""

    @property
    def running(self) -> bool:
        """Whether it is there, as far as we can tell."""

    def start(self) -> None:
        """Start it, or start it again after `kill`, and wait until it takes connections."""

    def stop(self) -> None:
        """End it in order."""

    def kill(self) -> None:
        """End it as a power cut would."""

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Run rabbitmqctl against exactly this broker and return what it printed."""


@dataclass(frozen=True)
class _Wish:
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
    """Find a RabbitMQ, start it, and end it afterwards.

    Args:
        order: sources to try.
        plugins: for a broker that is started here, e.g. `rabbitmq_stomp`, `rabbitmq_management`.
        config: further lines for its rabbitmq.conf.
        data_dir: where a private node keeps its data, which then stays; a temporary directory under `var/` when absent.
        environ: where AMQP_URL is looked up.
        say: takes a line about the progress.

    Yields:
        The broker, taking connections.

    Raises:
        LocalError: there is none to be had, or it did not start.
    """
    broker = _find(order, _Wish(plugins, config, data_dir, environ, say))
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _find(order: Sequence[Source], wish: _Wish) -> Broker:
    setbacks: list[str] = []
    for source in order:
        try:
            if broker := _SOURCES[source](wish):
                return broker
        except _SetbackError as setback:
            setbacks.append(str(setback))
    tried = f" ({'; '.join(setbacks)})" if setbacks else ""
    raise LocalError(
        f"No RabbitMQ to be had{tried}: install it (Debian: `apt install rabbitmq-server`), or start a Docker engine, "
        "or name a broker with AMQP_URL=amqp://user:password@host:5672/virtual-host."
    )


class _SetbackError(Exception):
    """A source that should have worked did not; the next may."""


def _given(wish: _Wish) -> Broker | None:
    url = wish.environ.get("AMQP_URL")
    return GivenBroker(url) if url else None


def _installed(wish: _Wish) -> Broker | None:
    installation = Installation.find()
    if installation is None:
        return None
    directory = DataDirectory(wish.data_dir) if wish.data_dir else DataDirectory.fresh(VAR)
    return PrivateNode(installation, directory, plugins=wish.plugins, config=wish.config, say=wish.say)


def _debian(wish: _Wish) -> Broker | None:
    if not debian.can_install():
        return None
    try:
        debian.install(wish.say)
    except LocalError as error:
        raise _SetbackError(str(error)) from error
    return _installed(wish)


def _container(wish: _Wish) -> Broker | None:
    if not container.engine_answers():
        return None
    return container.BrokerContainer(plugins=wish.plugins, config=wish.config, say=wish.say)


_SOURCES: Mapping[Source, Callable[[_Wish], Broker | None]] = {
    "given": _given,
    "installed": _installed,
    "debian": _debian,
    "container": _container,
}
