"""The programs of the client libraries. Each is started once for all conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.broker import Broker
from deploy.local.given import GivenBroker
from tests.clients.comparison import Comparison
from tests.clients.library import Library
from tests.support.gateway import Address

_DIALLED = "127.0.0.1"


class Pool:
    """Starts the programs of a library when they are first needed, and again after a failure.

    Args:
        broker: behind the gateway, with the plugin.
        addresses: of plugin and gateway.
        directory: for temporary files.
    """

    def __init__(self, broker: Broker, addresses: dict[str, Address], directory: Path) -> None:
        self._broker = broker
        self._addresses = addresses
        self._directory = directory
        self._started: dict[str, Comparison] = {}
        self._has_virtual_host = False

    def get(self, library: Library) -> Comparison:
        """The programs of a library."""
        if library.name not in self._started:
            if reason := library.missing():
                pytest.skip(reason)
            if not library.chooses_host:
                self._make_virtual_host()
            self._started[library.name] = Comparison(library, self._addresses, "/")
        return self._started[library.name]

    def _make_virtual_host(self) -> None:
        """To the plugin, ``host`` is a virtual host: a library that sends the server's address needs one so named."""
        if isinstance(self._broker, GivenBroker):
            pytest.skip("the broker that AMQP_URL names may not be changed")
        if not self._has_virtual_host:
            everything = {"user": "guest", "vhost": _DIALLED, "configure": ".*", "write": ".*", "read": ".*"}
            definitions = self._directory / "definitions.json"
            definitions.write_text(json.dumps({"vhosts": [{"name": _DIALLED}], "permissions": [everything]}))
            self._broker.ctl("import_definitions", str(definitions))
            self._has_virtual_host = True

    def drop(self, library: Library) -> None:
        """Stop the programs of a library, which may be in the middle of a conversation."""
        if library.name in self._started:
            self._started.pop(library.name).stop()

    def stop(self) -> None:
        """Stop all programs."""
        for comparison in self._started.values():
            comparison.stop()


@pytest.fixture(scope="module")
def pool(
    broker: Broker, plugin_address: Address, gateway_address: Address, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pool]:
    """The running programs."""
    addresses = {"plugin": plugin_address, "gateway": gateway_address}
    pool = Pool(broker, addresses, tmp_path_factory.mktemp("clients"))
    yield pool
    pool.stop()


@pytest.fixture
def comparison(pool: Pool, library: Library) -> Iterator[Comparison]:
    """A library with plugin and gateway."""
    comparison = pool.get(library)
    yield comparison
    if comparison.failed:
        pool.drop(library)
