"""Gateways for tests: in a process of their own, as users run them, or inside the test's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import yaml

from gateway.config.loader import parse
from gateway.config.model import GatewayConfig
from gateway.server.process.gateway import Gateway
from tests.support import prefork
from tests.support.deadline import until
from tests.support.prefork import ChildProcess

ROOT = Path(__file__).parents[2]
Address = tuple[str, int]

_ADMIN_LISTENING = re.compile(r'"url": "(https?)://([^"]+):([0-9]+)/"')
_LISTENING = re.compile(r'"address": "([^"]+):([0-9]+)"')
# Only a failing test waits so long; on a machine that is busy with other work a start can take a minute.
_START_WITHIN = 120.0
_STOP_WITHIN = 20.0


def configuration(
    amqp_url: str,
    defaults: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - YAML has every type
) -> dict[str, Any]:
    """A configuration document for a broker.

    Args:
        amqp_url: of the broker, with credentials and virtual host.
        defaults: settings for every virtual host, beside the default user.
        **changes: top-level keys to replace.
    """
    parts = urlsplit(amqp_url)
    user = {"login": unquote(parts.username or "guest"), "passcode": unquote(parts.password or "guest")}
    document: dict[str, Any] = {
        "listeners": [{"tcp": "127.0.0.1:0"}],
        "upstream": {"urls": [f"{parts.scheme}://{parts.hostname}:{parts.port}"]},
        # The journal records everything in all tests: neither client nor broker may notice it.
        "defaults": {"default_user": user, "journal": {"level": "message"}, **(defaults or {})},
        "virtual_hosts": {"/": {"aliases": ["localhost", "127.0.0.1"]}},
        # Tests that need the admin listener choose a free port.
        "admin": {"address": None},
        "logging": {"format": "json", "level": "info"},
        "drain_timeout": 10,
    }
    return document | changes


def upstream(address: Address, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
    """The configuration of a broker at an address; ``more`` are further keys."""
    return {"urls": [f"amqp://{address[0]}:{address[1]}"], **more}


def parsed(
    amqp_url: str,
    defaults: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - YAML has every type
) -> GatewayConfig:
    """The same document as a validated configuration, for a gateway inside the test's loop."""
    text = yaml.safe_dump(configuration(amqp_url, defaults, **changes))
    return parse(text, directory=ROOT, name="test.yaml", environment={})


class GatewayProcess:
    """``stomp-gateway serve`` as a child process.

    Args:
        document: its configuration.
        environment: more environment variables.
        descriptors: the most files and sockets that it may have open; None: as many as the tests.
        from_nothing: it loads all its modules itself, where others may be forked from a process that has.
        module: is run in place of ``gateway``, and loads all of it itself, too.
    """

    child: ChildProcess

    def __init__(
        self,
        document: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        descriptors: int | None = None,
        *,
        from_nothing: bool = False,
        module: str = "gateway",
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="stomp-gateway-test-")
        folder = Path(self._directory.name)
        self.log = folder / "gateway.log"
        self.config = folder / "gateway.yaml"
        self.rewrite(document)
        arguments, variables = ["serve", "--config", str(self.config)], {**os.environ, **(environment or {})}
        limiting = () if descriptors is None else ("sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh")
        with self.log.open("wb") as log:
            if limiting or from_nothing or module != "gateway":
                command = [*limiting, sys.executable, "-m", module, *arguments]
                self.child = subprocess.Popen(command, cwd=ROOT, stderr=log, env=variables)
            else:
                self.child = prefork.start(arguments, variables, log.fileno())
        self.address = self._wait()

    def rewrite(self, document: Mapping[str, Any]) -> None:
        """Replace its configuration file in one step; it reads the file again only when it is asked to."""
        beside = self.config.with_suffix(".new")
        beside.write_text(yaml.safe_dump(dict(document)))
        beside.replace(self.config)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    @property
    def memory(self) -> int:
        """Bytes of memory that it has in use (resident set)."""
        return int(psutil.Process(self.pid).memory_info().rss)

    @property
    def admin(self) -> Address:
        """Address of its admin listener, which opens a moment later."""
        found = self._found(_ADMIN_LISTENING)
        return found[2], int(found[3])

    @property
    def peak_memory(self) -> int:
        """The most bytes that it ever had in use."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) << 10

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The log lines of an event, with their fields."""
        # What follows the last line end is a line that is still being written.
        *lines, _ = self.log.read_text().split("\n")
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [record for record in records if record.get("event") == event]

    async def until_logged(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until there are so many log lines of an event, and return all of them."""

        async def lines() -> list[dict[str, Any]]:
            return self.logged(event)

        return await until(lines, lambda found: len(found) >= count)

    def assert_no_internal_errors(self) -> None:
        """Nothing failed that the gateway does not expect to fail."""
        assert self.logged("internal error") == []
        assert self.logged("background task failed") == []

    def _wait(self) -> Address:
        found = self._found(_LISTENING)
        return found[1], int(found[2])

    def _found(self, line: re.Pattern[str]) -> re.Match[str]:
        """Wait for the log line that says that a port is open."""
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline:
            found = line.search(self.log.read_text())
            if found is not None:
                return found
            if self.child.poll() is not None:
                break
            time.sleep(0.02)
        text = self.log.read_text()
        self.stop()
        raise AssertionError(f"the gateway did not start: {text}")

    def terminate(self) -> None:
        """Ask it to drain and stop."""
        self.child.send_signal(signal.SIGTERM)

    async def reload(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Replace its configuration file and send SIGHUP; the log line that answers."""
        before = len(self._reloads())
        self.rewrite(document)
        self.child.send_signal(signal.SIGHUP)

        async def reloads() -> list[dict[str, Any]]:
            return self._reloads()

        return (await until(reloads, lambda found: len(found) > before))[-1]

    def _reloads(self) -> list[dict[str, Any]]:
        lines = [line for event in ("configuration reloaded", "reload refused") for line in self.logged(event)]
        return sorted(lines, key=lambda line: str(line["timestamp"]))

    async def exit_code(self, seconds: float) -> int:
        """Wait until it has ended.

        Raises:
            TimeoutExpired: it did not end in time.
        """
        return await asyncio.to_thread(self.child.wait, seconds)

    def stop(self) -> None:
        """Stop it, and remove its files."""
        if self.child.poll() is None:
            self.child.terminate()
        try:
            self.child.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._directory.cleanup()


@contextlib.contextmanager
def gateway_process(
    document: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
    descriptors: int | None = None,
    *,
    from_nothing: bool = False,
    module: str = "gateway",
) -> Iterator[GatewayProcess]:
    """A gateway as a child process, for the time of a ``with`` block; see `GatewayProcess`."""
    process = GatewayProcess(document, environment, descriptors, from_nothing=from_nothing, module=module)
    try:
        yield process
    finally:
        process.stop()


def listening(process: GatewayProcess, count: int) -> list[Address]:
    """The addresses of its listeners, once so many of them are open."""
    deadline = time.monotonic() + _START_WITHIN
    while len(lines := process.logged("listening")) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return [(host.strip("[]"), int(port)) for host, _, port in (line["address"].rpartition(":") for line in lines)]


@contextlib.asynccontextmanager
async def gateway_here(config: GatewayConfig) -> AsyncIterator[Gateway]:
    """A gateway inside the running event loop, shut down cleanly afterwards."""
    gateway = Gateway(config)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()
