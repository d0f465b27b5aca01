"""Two gateways as config/proxied.yaml has them, and HAProxy or nginx in front of them as deploy/ has it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypedDict
from urllib.parse import unquote, urlsplit

import pytest
import yaml

from deploy.local import load_balancers
from deploy.local.child import Child
from deploy.local.ports import free_ports
from deploy.local.probe import listens
from tests.support.admin import AdminClient
from tests.support.certificates import Authority
from tests.support.deadline import PATIENCE, until
from tests.support.gateway import ROOT, Address, GatewayProcess

_HOSTS: Final = ("127.0.0.1", "127.0.0.2")
_BALANCER: Final = "127.0.0.3"
_OPERATOR: Final = "operator"
_REPLACED: Final = {
    "maxconn 20000": "maxconn 200",  # file descriptors that this machine may not have
    "10.0.0.11": _HOSTS[0],
    "10.0.0.12": _HOSTS[1],
    "bind :::": f"bind {_BALANCER}:",
    "listen [::]:": f"listen {_BALANCER}:",
    " ipv6only=off": "",
}
_CERTIFICATE_FILES: Final = {
    "stomp.pem": ("certificate", "key"),
    "stomp.crt": ("certificate",),
    "stomp.key": ("key",),
}
_PLACES: Final = re.compile(r"/etc/(?:haproxy|nginx)/(?=stomp)|/run/|/var/log/nginx/")
_USER: Final = re.compile(r"^ *(?:user|group) .*\n", re.MULTILINE)
_FINE: Final = re.compile(r"Configuration file is valid|syntax is ok|test is successful")
_LOOK_AGAIN: Final = 0.02
_PORT: Final = re.compile(r"\b(?:443|61613|61614|61615|15674|15693)\b")


class Ports:
    """A free port of this machine for each one that the examples name, the same at each address."""

    def __init__(self) -> None:
        self._chosen: dict[str, int] = {}

    def __getitem__(self, number: str) -> int:
        if number not in self._chosen:
            self._chosen[number] = free_ports(1)[0]
        return self._chosen[number]

    def put_into(self, text: str) -> str:
        """A file with these ports in place of its own."""
        return _PORT.sub(lambda found: str(self[found[0]]), text)


class Login(TypedDict):
    """Headers of CONNECT."""

    login: str
    passcode: str
    host: str


class GatewayPair:
    """Two gateways with the same configuration at two addresses of this machine.

    Args:
        directory: takes certificates and the operator's passcode.
        amqp_url: of their broker, with the credentials of clients.
    """

    def __init__(self, directory: Path, amqp_url: str) -> None:
        self.authority = Authority.make(directory, "authority")
        self.certificate, self.key = self.authority.sign(directory, "gateway")
        (directory / "operator.passcode").write_text(_OPERATOR)
        self.ports = Ports()
        self._environment = {"CERTIFICATES": str(directory)}
        broker = urlsplit(amqp_url)
        self._upstream = f"{broker.scheme}://{broker.hostname}:{broker.port}"
        self.login: Login = {
            "login": unquote(broker.username or "guest"),
            "passcode": unquote(broker.password or "guest"),
            "host": "stomp.example.org",
        }
        self._spoilt: GatewayProcess | None = None
        self.processes = [self._start(host) for host in _HOSTS]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        for process in self.processes:
            process.child.kill()
            process.stop()

    def complete(self) -> None:
        """Start those again that a test has ended."""
        for index, process in enumerate(self.processes):
            if process.child.poll() is not None or process is self._spoilt:
                process.child.kill()
                process.stop()
                self.processes[index] = self._start(_HOSTS[index])

    def admin(self, process: GatewayProcess) -> AdminClient:
        """The admin listener of one of them."""
        return AdminClient((_HOSTS[self.processes.index(process)], self.ports["15693"]), (_OPERATOR, _OPERATOR))

    async def drain(self, process: GatewayProcess, delay: str) -> None:
        """Ask one of them to drain after a delay."""
        await process.reload(self._document(_HOSTS[self.processes.index(process)]) | {"drain_delay": delay})
        process.terminate()
        self._spoilt = process

    async def cut_off(self, process: GatewayProcess) -> None:
        """Give one of them a broker that does not answer."""
        self._spoilt = process
        host = _HOSTS[self.processes.index(process)]
        document = self._document(host)
        document["upstream"]["urls"] = [f"amqp://{host}:{self.ports['nobody']}"]
        for listener in document["listeners"]:
            listener["login_timeout"] = "100ms"  # so long it lets a client wait for a broker
        await process.reload(document)

    async def home(self, session: str) -> tuple[GatewayProcess, str]:
        """The gateway that has a session, and the address of the session's client in its log."""

        async def found() -> list[tuple[GatewayProcess, str]]:
            return [
                (process, str(line["peer"]))
                for process in self.processes
                for line in process.logged("session started")
                if line["session"] == session
            ]

        return (await until(found, bool))[0]

    def _start(self, host: str) -> GatewayProcess:
        process = GatewayProcess(self._document(host), self._environment)
        assert process.admin[0] == host  # it opens last, and health checks ask it
        return process

    def _document(self, host: str) -> dict[str, Any]:
        text = self.ports.put_into((ROOT / "config/proxied.yaml").read_text())
        text = text.replace("0.0.0.0", host).replace("10.0.0.10", _HOSTS[0])  # noqa: S104 - in the file
        document: dict[str, Any] = yaml.safe_load(text)
        document["upstream"]["urls"] = [self._upstream]
        return document | {"logging": {"format": "json"}}


@dataclass(frozen=True)
class _Kind:
    """How a program finds its example, validates it and runs it."""

    find: Callable[[], str | None]
    example: str
    check: Sequence[str]
    run: Sequence[str]


_KINDS: Final = {
    "haproxy": _Kind(load_balancers.find_haproxy, "deploy/haproxy/haproxy.cfg", ("-c", "-f"), ("-db", "-f")),
    "nginx": _Kind(
        load_balancers.find_nginx,
        "deploy/nginx/nginx.conf",
        ("-e", "stderr", "-t", "-c"),
        ("-e", "stderr", "-g", "daemon off;", "-c"),
    ),
}
BALANCERS: Final = tuple(_KINDS)
EXAMPLES: Final = {name: kind.example for name, kind in _KINDS.items()}


class LoadBalancer:
    """A program with its example, which is given paths and ports of this test.

    Args:
        name: of ``BALANCERS``.
        gateways: stand behind it.
        directory: takes its files.
    """

    def __init__(self, name: str, gateways: GatewayPair, directory: Path) -> None:
        self._kind = _KINDS[name]
        self._program = self._kind.find()
        if self._program is None:
            pytest.skip(f"no {name} here; Debian has it in the packages haproxy, nginx and libnginx-mod-stream")
        self._ports = gateways.ports
        self._log = directory / "log"
        self.config = directory / "config"
        for file, parts in _CERTIFICATE_FILES.items():
            (directory / file).write_text("".join(getattr(gateways, part).read_text() for part in parts))
        text = (ROOT / self._kind.example).read_text()
        if os.geteuid() != 0:  # only root can run it as another user
            text = _USER.sub("", text)
        for old, new in _REPLACED.items():
            text = text.replace(old, new)
        self.config.write_text(self._ports.put_into(_PLACES.sub(f"{directory}/", text)))

    def address(self, number: str) -> Address:
        """Where clients find it, by the example's port."""
        return _BALANCER, self._ports[number]

    def change(self, old: str, new: str) -> None:
        """Replace something in its configuration before it runs."""
        text = self.config.read_text()
        assert old in text
        self.config.write_text(text.replace(old, new))

    def complaints(self) -> str:
        """What it says about its configuration without running."""
        assert self._program is not None
        done = subprocess.run(
            [self._program, *self._kind.check, str(self.config)], capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        return said if done.returncode else "\n".join(line for line in said.splitlines() if not _FINE.search(line))

    def log(self) -> str:
        """What it has printed so far."""
        return self._log.read_text()

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Run it for the time of a ``with`` block, which begins when it listens."""
        assert self._program is not None
        with Child([self._program, *self._kind.run, str(self.config)], log=self._log) as child:
            deadline = time.monotonic() + PATIENCE
            while not listens(*self.address("443")):
                assert child.wait(0) is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(_LOOK_AGAIN)
            yield self
