"""What all tests share: one broker with RabbitMQ's own STOMP plugin, one gateway in front of it, and a leak check."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from deploy.local.broker import Broker, running
from deploy.local.given import GivenBroker
from gateway.parity import AmqpBroker
from tests.support.browser import CHROMIUM, Browser
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.leaks import leaks

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling


# A shell lets its background jobs ignore Ctrl-C, and so would whatever the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """All workers see sets in the same order, by chance as ever: else they could disagree on which tests there are."""
    os.environ.setdefault("PYTHONHASHSEED", str(secrets.randbits(32)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Share the tests out among workers, if there are several."""
    from tests.support.shares import Shares  # noqa: PLC0415 - one worker does without pytest-xdist

    config.option.loadscopereorder = False  # the order is ours
    return Shares(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every asynchronous test for leaks, after all its other fixtures are gone; the others pay nothing for it."""
    if hasattr(config, "workerinput"):
        from tests.support.shares import in_order  # noqa: PLC0415 - the same

        items[:] = in_order(items)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio") is not None:
            item.fixturenames.insert(0, "no_leaks")


@pytest_asyncio.fixture
async def no_leaks() -> AsyncIterator[None]:
    """After the test nothing of it may be left in the loop: no task, no transport, no live timer."""
    yield
    found = await leaks()
    assert not found, "\n".join(["left in the event loop:", *found])


@pytest.fixture(scope="session", autouse=True)
def journals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways that are told nothing else write their journals below this directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker of the tests' own, with the plugin enabled."""
    with running(plugins=["rabbitmq_stomp"]) as broker:
        yield broker


@pytest.fixture(scope="session")
def own_broker(broker: Broker) -> Broker:
    """The same, for tests that need rabbitmqctl."""
    if isinstance(broker, GivenBroker):
        pytest.skip("the broker that AMQP_URL names is not ours to control")
    return broker


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


@pytest_asyncio.fixture
async def amqp(broker_url: str) -> AsyncIterator[AmqpBroker]:
    """The broker seen from behind, over AMQP."""
    async with AmqpBroker.connected(broker_url) as connected:
        yield connected


@pytest_asyncio.fixture
async def queue(amqp: AmqpBroker) -> AsyncIterator[str]:
    """The name of a queue that no other test uses, deleted in the end."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    await amqp.delete_queue(name)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()
