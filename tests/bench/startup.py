"""Starts what is to be measured: a private broker, its plugin and a gateway; or uses running ones."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from deploy.local import broker as local
from deploy.local.address import Address
from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import listens
from tests.bench import processes
from tests.bench.broker import Broker, Control
from tests.bench.environment import DEFAULT_NAP, GATEWAY, PLUGIN, Environment, Side, raise_descriptor_limit
from tests.bench.wire import Account

VAR = Path("var") / "bench"
"""Where the benchmark leaves what it writes."""
_GATEWAY_STARTS_WITHIN = 20.0


class StartError(LocalError):
    """Something that is to be measured cannot be started; the message says what, and what to do."""


@dataclass(frozen=True)
class StartOptions:
    """The servers that the command line named. The others are started here, except the plugin of a named broker.

    `broker_url` is an AMQP URL with credentials; `plugin` and `gateway` are host and port; `rabbitmqctl` is a command
    line; `nap` are the seconds that the load client rests.
    """

    broker_url: str | None = None
    plugin: tuple[str, int] | None = None
    gateway: tuple[str, int] | None = None
    rabbitmqctl: str | None = None
    nap: float = DEFAULT_NAP


@contextmanager
def started_environment(options: StartOptions, say: Callable[[str], None]) -> Iterator[Environment]:
    """Yield the environment that `options` describes, and end afterwards what was started for it.

    Args:
        options: what to start and what to use.
        say: takes a line about the progress.

    Raises:
        StartError: something could not be started, or does not answer.
    """
    raise_descriptor_limit()
    with ExitStack() as started:
        try:
            address, control, pid, plugin = _broker(options, started, say)
            gateway, gateway_pid = _gateway(options, address, started, say)
        except LocalError as error:
            raise StartError(str(error)) from error
        sides = {GATEWAY: _side(GATEWAY, gateway, gateway_pid, address, in_broker=gateway_pid == pid is not None)}
        if plugin is not None:
            sides[PLUGIN] = _side(PLUGIN, plugin, None, address, in_broker=True)
        yield Environment(Broker(address.url, control, pid), sides, f"stomp-bench-{os.getpid()}", options.nap)


_Place = tuple[str, int]


def _side(name: str, place: _Place, pid: int | None, address: Address, *, in_broker: bool) -> Side:
    account = Account(*place, address.login, address.passcode, address.vhost)
    return Side(name, account, in_broker=in_broker, pid=None if in_broker else pid)


def _broker(
    options: StartOptions, started: ExitStack, say: Callable[[str], None]
) -> tuple[Address, Control | None, int | None, _Place | None]:
    if options.broker_url is not None:
        address = Address.parse(options.broker_url)
        return address, _command(options.rabbitmqctl), _erlang_process(address.host, address.port), options.plugin
    node = started.enter_context(local.running(order=local.PRIVATE, plugins=["rabbitmq_stomp"], say=say))
    if node.stomp_port is None:
        raise StartError("The private broker came up without its STOMP plugin: install rabbitmq_stomp.")
    return Address.parse(node.amqp_url), lambda words: node.ctl(*words), node.os_pid, (node.host, node.stomp_port)


def _command(line: str | None) -> Control | None:
    if line is None:
        return None
    command = shlex.split(line)

    def control(words: Sequence[str]) -> str:
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=True).stdout

    return control


def _gateway(
    options: StartOptions, address: Address, started: ExitStack, say: Callable[[str], None]
) -> tuple[_Place, int | None]:
    if options.gateway is not None:
        return options.gateway, _process(*options.gateway)
    (port,) = free_ports(1)
    child = start_gateway(started, address, port, {"directory": "journal"})  # at its default level
    say(f"the gateway listens on {LOOPBACK}:{port}, its log is {VAR / 'gateway.log'}")
    return (LOOPBACK, port), child.pid


def start_gateway(
    started: ExitStack, address: Address, port: int, journal: Mapping[str, object], name: str = "gateway"
) -> Child:
    """Start a gateway.

    Args:
        started: ends it.
        address: of the broker.
        port: to listen on.
        journal: its `journal` settings; a directory is relative to `VAR`.
        name: of its files in `VAR`.

    Raises:
        StartError: it did not start.
    """
    VAR.mkdir(parents=True, exist_ok=True)
    configuration, log = VAR / f"{name}.yaml", VAR / f"{name}.log"
    settings = {
        "listeners": [{"tcp": f"{LOOPBACK}:{port}"}],
        "upstream": {"urls": [address.upstream]},
        "defaults": {"journal": dict(journal)},
        "virtual_hosts": {address.vhost: {}},
    }
    configuration.write_text(yaml.safe_dump(settings))
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(configuration)]
    child = started.enter_context(Child(command, log=log))
    deadline = time.monotonic() + _GATEWAY_STARTS_WITHIN
    while not listens(LOOPBACK, port):
        if child.wait(0.05) is not None or time.monotonic() > deadline:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise StartError(f"The gateway did not start; {log} ends with:\n{end}")
    return child


def _process(host: str, port: int) -> int | None:
    return processes.listener(port) if host in {LOOPBACK, "localhost", "::1"} else None


def _erlang_process(host: str, port: int) -> int | None:
    # A container's port is held open on this side by a proxy, whose figures would be taken for the broker's.
    pid = _process(host, port)
    return pid if pid is not None and processes.program(pid).startswith("beam") else None
