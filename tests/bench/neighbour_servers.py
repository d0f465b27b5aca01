"""The servers of `make bench-neighbours`: a private broker with the plugin, and a gateway with the same listeners."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from deploy.local import broker as local
from deploy.local.address import Address
from deploy.local.child import Child
from deploy.local.ports import LOOPBACK, free_ports
from deploy.local.probe import listens
from tests.bench.broker import Broker
from tests.bench.environment import GATEWAY, PLUGIN, raise_descriptor_limit
from tests.bench.startup import VAR, StartError, plugin_listeners
from tests.bench.wire import Account
from tests.support.certificates import Authority

TCP, TLS, WEBSOCKET = "tcp", "tls", "websocket"
SHARED, DEDICATED = "shared", "dedicated"
_OTHER = "neighbour"
_STARTS_WITHIN = 20.0


@dataclass(frozen=True)
class Server:
    """The plugin or the gateway: its ports by transport, the two logins, and the names of the virtual hosts by links.

    ``admin`` is the port of the gateway's admin listener, ``broker`` the broker behind both.
    """

    name: str
    ports: dict[str, int]
    logins: tuple[tuple[str, str], tuple[str, str]]
    hosts: dict[str, str]
    tls: ssl.SSLContext
    broker: Broker
    pids: tuple[int, ...]
    admin: int | None = None

    def account(self, transport: str = TCP, links: str = SHARED, *, other: bool = False) -> Account:
        """Who connects where: the loading client's login, or the other one."""
        return Account(LOOPBACK, self.ports[transport], *self.logins[other], self.hosts[links])


@contextmanager
def started_servers(say: Callable[[str], None], changes: dict[str, Any]) -> Iterator[dict[str, Server]]:
    """Start both, and stop them afterwards. ``changes`` replaces keys of the gateway's `defaults`."""
    raise_descriptor_limit()
    with ExitStack() as started:
        directory = Path(started.enter_context(TemporaryDirectory(prefix="stomp-bench-")))
        directory.chmod(0o755)
        authority = Authority.make(directory, "authority")
        certificate, key = authority.sign(directory, "server")
        context = ssl.create_default_context(cafile=str(authority.certificate))
        plugin_tls, plugin_websocket = free_ports(2)
        node = started.enter_context(
            local.running(
                order=local.PRIVATE,
                plugins=["rabbitmq_stomp", "rabbitmq_web_stomp"],
                config=plugin_listeners((authority.certificate, certificate, key), plugin_tls, plugin_websocket),
                say=say,
            )
        )
        if node.stomp_port is None:
            raise StartError("The private broker came up without its STOMP plugin: install rabbitmq_stomp.")
        node.ctl("add_user", _OTHER, _OTHER)
        node.ctl("set_permissions", _OTHER, ".*", ".*", ".*")
        address = Address.parse(node.amqp_url)
        broker = Broker(address.url, lambda words: node.ctl(*words), node.os_pid)
        logins = ((address.login, address.passcode), (_OTHER, _OTHER))
        ports = dict(zip((TCP, TLS, WEBSOCKET, "admin"), free_ports(4), strict=True))
        child = _start_gateway(started, address, ports, (certificate, key), changes)
        say(f"the gateway's log is {VAR / 'neighbours.log'}")
        pids = () if node.os_pid is None else (node.os_pid,)
        hosts = {SHARED: "/", DEDICATED: DEDICATED}
        plugin_ports = {TCP: node.stomp_port, TLS: plugin_tls, WEBSOCKET: plugin_websocket}
        yield {
            PLUGIN: Server(PLUGIN, plugin_ports, logins, dict.fromkeys(hosts, "/"), context, broker, pids),
            GATEWAY: Server(GATEWAY, ports, logins, hosts, context, broker, (*pids, child.pid), ports["admin"]),
        }


def _start_gateway(
    started: ExitStack,
    address: Address,
    ports: dict[str, int],
    identity: tuple[Path, Path],
    changes: dict[str, Any],
) -> Child:
    VAR.mkdir(parents=True, exist_ok=True)
    configuration, log = VAR / "neighbours.yaml", VAR / "neighbours.log"
    tls = {"cert_file": str(identity[0]), "key_file": str(identity[1])}
    # The broker takes a passcode for a token.
    tokens = {"token_renewal": True}
    settings = {
        "listeners": [
            {"tcp": f"{LOOPBACK}:{ports[TCP]}", "login_timeout": "60s"},
            {"tcp": f"{LOOPBACK}:{ports[TLS]}", "tls": tls},
            {"websocket": f"{LOOPBACK}:{ports[WEBSOCKET]}"},
        ],
        "upstream": {"urls": [address.upstream]},
        "admin": f"{LOOPBACK}:{ports['admin']}",
        "defaults": {"journal": {"directory": "journal"}, **changes},
        "virtual_hosts": {
            "/": {"selectors": True},
            DEDICATED: {"amqp_vhost": address.vhost, "links": "dedicated", **tokens},
        },
    }
    configuration.write_text(yaml.safe_dump(settings))
    log.unlink(missing_ok=True)
    child = started.enter_context(
        Child([sys.executable, "-m", "gateway", "serve", "--config", str(configuration)], log=log)
    )
    deadline = time.monotonic() + _STARTS_WITHIN
    while not listens(LOOPBACK, ports["admin"]):
        if child.wait(0.05) is not None or time.monotonic() > deadline:
            end = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise StartError(f"The gateway did not start; {log} ends with:\n{end}")
    return child
