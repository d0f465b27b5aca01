"""Gateways for tests: as a process of its own, as users run it, or inside the test's event loop."""

from __future__ import annotations

import contextlib
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

import yaml

from gateway.config import GatewayConfig, parse
from gateway.server.gateway import Gateway

ROOT = Path(__file__).parents[2]
Address = tuple[str, int]

_LISTENING = re.compile(r'"address": "([^"]+):([0-9]+)"')
_START_WITHIN = 30.0


def configuration(amqp_url: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML has every type
    """A configuration document for a broker.

    Args:
        amqp_url: of the broker, with credentials and virtual host.
        **changes: top-level keys to replace.
    """
    parts = urlsplit(amqp_url)
    document: dict[str, Any] = {
        "listeners": [{"tcp": "127.0.0.1:0"}],
        "upstream": {"urls": [f"{parts.scheme}://{parts.hostname}:{parts.port}"]},
        "defaults": {"default_user": {"login": unquote(parts.username or "guest"), "passcode": unquote(parts.password or "guest")}},
        "virtual_hosts": {"/": {"aliases": ["localhost", "127.0.0.1"]}},
        "logging": {"format": "json", "level": "info"},
        "drain_timeout": 10,
    }
    return document | changes


def parsed(amqp_url: str, **changes: Any) -> GatewayConfig:  # noqa: ANN401 - YAML has every type
    """The same as values, for a gateway inside the test's loop."""
    return parse(yaml.safe_dump(configuration(amqp_url, **changes)), directory=ROOT, name="test.yaml", environment={})


class GatewayProcess:
    """``stomp-gateway serve`` as a child process.

    Args:
        document: its configuration.
        environment: more environment variables.
    """

    def __init__(self, document: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="stomp-gateway-test-")
        folder = Path(self._directory.name)
        self.log = folder / "gateway.log"
        config = folder / "gateway.yaml"
        config.write_text(yaml.safe_dump(dict(document)))
        with self.log.open("wb") as log:
            self.child = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "gateway", "serve", "--config", str(config)],
                cwd=ROOT,
                stderr=log,
                env={**os.environ, **(environment or {})},
            )
        self.address = self._wait()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.child.pid

    def _wait(self) -> Address:
        deadline = time.monotonic() + _START_WITHIN
        while time.monotonic() < deadline:
            found = _LISTENING.search(self.log.read_text())
            if found is not None:
                return found[1], int(found[2])
            if self.child.poll() is not None:
                break
            time.sleep(0.02)
        self.stop()
        raise AssertionError(f"the gateway did not start: {self.log.read_text()}")

    def terminate(self) -> None:
        """Ask it to drain and stop."""
        self.child.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it, and remove its files."""
        self.child.terminate()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._directory.cleanup()


@contextlib.contextmanager
def gateway_process(document: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Iterator[GatewayProcess]:
    """A gateway as a child process, for the time of a ``with`` block."""
    process = GatewayProcess(document, environment)
    try:
        yield process
    finally:
        process.stop()


@contextlib.asynccontextmanager
async def gateway_here(config: GatewayConfig) -> AsyncIterator[Gateway]:
    """A gateway inside the running event loop, stopped in order afterwards."""
    gateway = Gateway(config)
    await gateway.start()
    try:
        yield gateway
    finally:
        await gateway.stop()
