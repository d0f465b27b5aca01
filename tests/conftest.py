"""What all tests share: one broker with RabbitMQ's own STOMP plugin, one gateway in front of it, and a leak check."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from deploy.local.broker import Broker, running
from tests.support.gateway import Address, configuration, gateway_process


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker of the tests' own, with the plugin enabled."""
    with running(plugins=["rabbitmq_stomp"]) as broker:
        yield broker


@pytest.fixture(scope="session")
def broker_url(broker: Broker) -> str:
    """AMQP URL of the broker, with credentials."""
    return broker.amqp_url


@pytest.fixture(scope="session")
def plugin_address(broker: Broker) -> Address:
    """Where RabbitMQ's own STOMP plugin listens."""
    if broker.stomp_port is None:
        pytest.skip("this broker has no STOMP plugin to compare with")
    return broker.host, broker.stomp_port


@pytest.fixture(scope="session")
def gateway_address(broker_url: str) -> Iterator[Address]:
    """Where a gateway listens that runs as a process of its own."""
    with gateway_process(configuration(broker_url)) as process:
        yield process.address


@pytest_asyncio.fixture(autouse=True)
async def no_leaks(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """After an asynchronous test nothing of it may be left in the loop: no task, no transport's reader, no timer."""
    yield
    if request.node.get_closest_marker("asyncio") is None:
        return
    for _ in range(20):
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task() and not task.done()]
        if not left:
            return
        await asyncio.wait(left, timeout=0.25)
    pytest.fail(f"tasks left over: {left}")
