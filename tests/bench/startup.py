"""Starts what is to be measured: a private broker, its plugin and a gateway; or uses running ones."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import yaml

from deploy.local import broker as local
from deploy.local.address import Address
from deploy.local.child import Child
from deploy.local.errors import LocalError
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import listens
from tests.bench import processes
from tests.bench.amqp_wire import AmqpWire
from tests.bench.broker import Broker, Control
from tests.bench.environment import (
    DEFAULT_NAP,
    GATEWAY,
    LIMIT,
    PLUGIN,
    PROXY,
    TLS,
    WEBSOCKET,
    Environment,
    Side,
    raise_descriptor_limit,
)
from tests.bench.other_wires import TlsWire, WebSocketWire
from tests.bench.wire import Account
from tests.support.certificates import Authority

VAR = Path("var") / "bench"
"""Where the benchmark leaves what it writes."""
_STARTS_WITHIN = 60.0


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
            identity = _Identity.make(started)
            address, broker, plugin = _broker(options, identity, started, say)
            gateway = _gateway(options, address, identity, started, say)
        except LocalError as error:
            raise StartError(str(error)) from error
        gateway_in_broker = broker.pid is not None and broker.pid in gateway.pids
        sides = {GATEWAY: _side(GATEWAY, gateway, address, in_broker=gateway_in_broker)}
        if plugin is not None:
            sides[PLUGIN] = _side(PLUGIN, plugin, address, in_broker=True)
            sides[PROXY] = _side(PROXY, _proxy(plugin, started), address, in_broker=False)
        if address.scheme == "amqp":
            limit = _side(LIMIT, _Server(address.host, address.port), address, in_broker=True)
            sides[LIMIT] = replace(limit, wire=AmqpWire)
        certificate = identity.certificate, identity.key
        yield Environment(broker, sides, f"stomp-bench-{os.getpid()}", options.nap, certificate)


@dataclass(frozen=True)
class _Server:
    """Where a STOMP server listens: its host, its port for TCP, and those for other transports as far as known."""

    host: str
    port: int
    pids: tuple[int, ...] = ()
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Identity:
    """A certificate that somebody has signed, and its key."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, started: ExitStack) -> Self:
        directory = Path(started.enter_context(TemporaryDirectory(prefix="stomp-bench-")))
        directory.chmod(0o755)
        authority = Authority.make(directory, "authority")
        certificate, key = authority.sign(directory, "server")
        return cls(authority.certificate, certificate, key)


_WIRES = {TLS: TlsWire, WEBSOCKET: WebSocketWire}


def _side(name: str, server: _Server, address: Address, *, in_broker: bool) -> Side:
    account = Account(server.host, server.port, address.login, address.passcode, address.vhost)
    others = {transport: (port, _WIRES[transport]) for transport, port in server.others.items()}
    return Side(name, account, in_broker=in_broker, pids=() if in_broker else server.pids, others=others)


def _broker(
    options: StartOptions, identity: _Identity, started: ExitStack, say: Callable[[str], None]
) -> tuple[Address, Broker, _Server | None]:
    if options.broker_url is not None:
        address = Address.parse(options.broker_url)
        pid = _erlang_process(address.host, address.port)
        plugin = None if options.plugin is None else _Server(*options.plugin)
        return address, Broker(address.url, _command(options.rabbitmqctl), pid), plugin
    tls, websocket = free_ports(2)
    config = plugin_listeners((identity.authority, identity.certificate, identity.key), tls, websocket)
    plugins = ["rabbitmq_stomp", "rabbitmq_web_stomp"]
    node = started.enter_context(local.running(order=local.PRIVATE, plugins=plugins, config=config, say=say))
    if node.stomp_port is None:
        raise StartError("The private broker came up without its STOMP plugin: install rabbitmq_stomp.")
    address = Address.parse(node.amqp_url)
    broker = Broker(address.url, lambda words: node.ctl(*words), node.os_pid)
    return address, broker, _Server(node.host, node.stomp_port, others={TLS: tls, WEBSOCKET: websocket})


def plugin_listeners(identity: tuple[Path, Path, Path], tls: int, websocket: int) -> list[str]:
    """Return the lines of RabbitMQ's configuration that make its plugins listen on two more ports.

    `identity` is the certificate of the authority, the server's, and its key.
    """
    authority, certificate, key = identity
    return [
        f"stomp.listeners.ssl.1 = {LOOPBACK}:{tls}",
        f"ssl_options.cacertfile = {authority}",
        f"ssl_options.certfile = {certificate}",
        f"ssl_options.keyfile = {key}",
        "ssl_options.verify = verify_none",
        f"web_stomp.tcp.ip = {LOOPBACK}",
        f"web_stomp.tcp.port = {websocket}",
    ]


def _command(line: str | None) -> Control | None:
    if line is None:
        return None
    command = shlex.split(line)

    def control(words: Sequence[str]) -> str:
        return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=True).stdout

    return control


def _gateway(
    options: StartOptions, address: Address, identity: _Identity, started: ExitStack, say: Callable[[str], None]
) -> _Server:
    if options.gateway is not None:
        return _Server(*options.gateway, _processes(*options.gateway))
    port, tls, websocket = free_ports(3)
    more: list[Mapping[str, object]] = [
        {"tcp": f"{LOOPBACK}:{tls}", "tls": {"cert_file": str(identity.certificate), "key_file": str(identity.key)}},
        {"websocket": f"{LOOPBACK}:{websocket}"},
    ]
    start_gateway(started, address, port, {"directory": "journal"}, more=more)  # at its default level
    say(f"the gateway listens on {LOOPBACK}:{port}, its log is {VAR / 'gateway.log'}")
    return _Server(LOOPBACK, port, _processes(LOOPBACK, port), {TLS: tls, WEBSOCKET: websocket})


def _proxy(plugin: _Server, started: ExitStack) -> _Server:
    VAR.mkdir(parents=True, exist_ok=True)
    (port,), log = free_ports(1), VAR / "proxy.log"
    command = [sys.executable, "-m", "tests.bench.proxy", str(port), f"{plugin.host}:{plugin.port}"]
    _await_listening(started.enter_context(Child(command, log=log)), port, log, "proxy")
    return _Server(LOOPBACK, port, _processes(LOOPBACK, port))


def _await_listening(child: Child, port: int, log: Path, name: str) -> None:
    deadline = time.monotonic() + _STARTS_WITHIN
    while not listens(LOOPBACK, port):
        if child.wait(0.05) is not None or time.monotonic() > deadline:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise StartError(f"The {name} did not start; {log} ends with:\n{end}")


def start_gateway(
    started: ExitStack,
    address: Address,
    port: int,
    journal: Mapping[str, object],
    name: str = "gateway",
    more: Sequence[Mapping[str, object]] = (),
    keys: Mapping[str, object] | None = None,
) -> Child:
    """Start a gateway.

    Args:
        started: ends it.
        address: of the broker.
        port: to listen on.
        journal: its `journal` settings; a directory is relative to `VAR`.
        name: of its files in `VAR`.
        more: further listeners.
        keys: further keys of the configuration.

    Raises:
        StartError: it did not start.
    """
    VAR.mkdir(parents=True, exist_ok=True)
    configuration, log = VAR / f"{name}.yaml", VAR / f"{name}.log"
    settings = {
        "listeners": [{"tcp": f"{LOOPBACK}:{port}"}, *more],
        "upstream": {"urls": [address.upstream]},
        "defaults": {"journal": dict(journal)},
        "virtual_hosts": {address.vhost: {}},
        **(keys or {}),
    }
    configuration.write_text(yaml.safe_dump(settings))
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "gateway", "serve", "--config", str(configuration)]
    child = started.enter_context(Child(command, log=log))
    _await_listening(child, port, log, "gateway")
    return child


def _processes(host: str, port: int) -> tuple[int, ...]:
    return processes.listeners(port) if host in {LOOPBACK, "localhost", "::1"} else ()


def _erlang_process(host: str, port: int) -> int | None:
    # A container's port is held open on this side by a proxy, whose figures would be taken for the broker's.
    return next((pid for pid in _processes(host, port) if processes.program(pid).startswith("beam")), None)
