"""Fixtures of the system tests: a broker whose settings, users and virtual hosts may be changed."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from tests.support.brokers import private_broker
from tests.support.gateway import Address
from tests.support.management import Management


@pytest.fixture(scope="session")
def web_stomp_port() -> int:
    """The port of the laboratory's Web STOMP plugin."""
    return free_ports(1)[0]


@pytest.fixture(scope="session")
def laboratory(web_stomp_port: int) -> Iterator[Broker]:
    """A private node whose settings, users and virtual hosts may be changed."""
    plugins = ["rabbitmq_stomp", "rabbitmq_management", "rabbitmq_web_stomp"]
    web_stomp = ["web_stomp.tcp.ip = 127.0.0.1", f"web_stomp.tcp.port = {web_stomp_port}"]
    with private_broker(plugins, web_stomp) as broker:
        yield broker


@pytest.fixture(scope="session")
def management(laboratory: Broker) -> Management:
    """The laboratory's management interface."""
    return Management(laboratory)


@pytest.fixture
def laboratory_plugin(laboratory: Broker) -> Address:
    """Address of the laboratory's own STOMP plugin."""
    assert laboratory.stomp_port is not None
    return laboratory.host, laboratory.stomp_port


@pytest_asyncio.fixture
async def user(management: Management) -> AsyncIterator[str]:
    """A user of the laboratory with all permissions in the virtual host /, deleted at the end."""
    name = f"user-{secrets.token_hex(4)}"
    await management.add_user(name)
    yield name
    # Add it first: the test may have deleted it.
    await management.add_user(name)
    await management.delete_user(name)


@pytest_asyncio.fixture
async def vhost(management: Management) -> AsyncIterator[str]:
    """A virtual host of the laboratory that guest may use, deleted at the end."""
    name = f"vhost-{secrets.token_hex(4)}"
    await management.add_vhost(name)
    yield name
    await management.add_vhost(name)
    await management.delete_vhost(name)
