"""The programs of the client libraries, each started once and used by all conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.broker import Broker
from deploy.local.given import GivenBroker
from tests.clients.both import Both
from tests.clients.library import Library
from tests.support.gateway import Address

_DIALLED = "127.0.0.1"


class Pool:
    """Starts the programs of a library when they are first wanted, and again after a failure.

    Args:
        broker: behind the gateway, with the plugin.
        addresses: of plugin and gateway.
        directory: for a file.
    """

    def __init__(self, broker: Broker, addresses: dict[str, Address], directory: Path) -> None:
        self._broker = broker
        self._addresses = addresses
        self._directory = directory
        self._started: dict[str, Both] = {}
        self._has_virtual_host = False

    def get(self, library: Library) -> Both:
        """The programs of a library."""
        if library.name not in self._started:
            if reason := library.missing():
                pytest.skip(reason)
            if not library.chooses_host:
                self._make_virtual_host()
            self._started[library.name] = Both(library, self._addresses, "/")
        return self._started[library.name]

    def _make_virtual_host(self) -> None:
        """To the plugin, ``host`` is a virtual host; so a library that sends what it dialled needs one of that name."""
        if isinstance(self._broker, GivenBroker):
            pytest.skip("the broker that AMQP_URL names is not ours to give a virtual host")
        if not self._has_virtual_host:
            everything = {"user": "guest", "vhost": _DIALLED, "configure": ".*", "write": ".*", "read": ".*"}
            definitions = self._directory / "definitions.json"
            definitions.write_text(json.dumps({"vhosts": [{"name": _DIALLED}], "permissions": [everything]}))
            self._broker.ctl("import_definitions", str(definitions))
            self._has_virtual_host = True

    def drop(self, library: Library) -> None:
        """End the programs of a library, which may be in the middle of something."""
        if library.name in self._started:
            self._started.pop(library.name).stop()

    def stop(self) -> None:
        """End all."""
        for both in self._started.values():
            both.stop()


@pytest.fixture(scope="module")
def pool(
    broker: Broker, plugin_address: Address, gateway_address: Address, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    """The programs that run."""
    addresses = {"plugin": plugin_address, "gateway": gateway_address}
    pool = Pool(broker, addresses, tmp_path_factory.mktemp("clients"))
    yield pool
    pool.stop()


@pytest.fixture
def both(pool: Pool, library: Library) -> Iterator[Both]:
    """A library facing plugin and gateway."""
    both = pool.get(library)
    yield both
    if both.failed:
        pool.drop(library)
