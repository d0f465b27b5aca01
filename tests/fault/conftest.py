"""Brokers that the tests here may harm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from deploy.local.broker import Broker
from deploy.local.node import PrivateNode
from tests.support.brokers import private_broker, private_cluster


@pytest.fixture(scope="package")
def mortal() -> Iterator[Broker]:
    """A broker that a test may kill."""
    with private_broker() as broker:
        yield broker


@pytest.fixture(scope="package")
def nodes() -> Iterator[list[PrivateNode]]:
    """A cluster whose nodes a test may kill: two nodes of RabbitMQ 4.3 would be no majority without the third."""
    with private_cluster(3) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def running_again(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start what a test that failed has left down: other tests use it."""
    shared: Sequence[Broker | PrivateNode] = ()
    if "mortal" in request.fixturenames:
        shared = (request.getfixturevalue("mortal"),)
    elif "nodes" in request.fixturenames:
        shared = request.getfixturevalue("nodes")
    yield
    for broker in shared:
        if not broker.running:
            broker.start()
