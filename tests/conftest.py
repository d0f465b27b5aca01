"""What all tests share: one broker with RabbitMQ's own STOMP plugin, one gateway in front of it, and a leak check."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
import pytest_asyncio
import structlog
from hypothesis import HealthCheck, Phase, settings

from deploy.local.broker import Broker, running
from deploy.local.given import GivenBroker
from gateway.parity.amqp_broker import AmqpBroker, BrokerRefusalError
from tests.support.brokers import until_queue_gone
from tests.support.browser import CHROMIUM, Browser
from tests.support.chaos import ChaosProxy, chaos
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.prefork import forking

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

# How often transports and tasks are looked at until they have closed by themselves: for a second, or for longer if this
# process gets no processor for a while.
_LOOKS: Final = 50
_LOOK_AGAIN: Final = 0.02

# How many examples Hypothesis tries: HYPOTHESIS_PROFILE=fast (default) for every run, deep for a long search, and few
# for mutants, each of which runs them again. The machine that runs this may be busy: a slow example is not a wrong one.
_COMMON: Final = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# What varies without making a difference is explained in a long search only: it takes longer than the run itself.
_PHASES: Final = [Phase.explicit, Phase.generate, Phase.shrink]
settings.register_profile("fast", _COMMON, max_examples=100, derandomize=True, phases=_PHASES)
settings.register_profile("few", _COMMON, max_examples=20, derandomize=True, phases=[Phase.explicit, Phase.generate])
settings.register_profile("deep", _COMMON, max_examples=5_000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# A shell makes its background jobs ignore SIGINT, and the processes that the tests start and interrupt inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Give all workers the same hash seed: test ids made from sets must be the same in each."""
    os.environ.setdefault("PYTHONHASHSEED", str(secrets.randbits(32)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """Distribute the tests among the workers, if there are several."""
    from tests.support.scheduling import FileScheduling  # noqa: PLC0415 - needs pytest-xdist

    config.option.loadscopereorder = False  # in_order() decides
    return FileScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check every asynchronous test for leaks, after the teardown of all its other fixtures."""
    if hasattr(config, "workerinput"):
        from tests.support.scheduling import in_order  # noqa: PLC0415 - needs pytest-xdist

        items[:] = in_order(items)
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("asyncio") is not None:
            item.fixturenames.insert(0, "no_leaks")


@pytest_asyncio.fixture
async def no_leaks() -> AsyncIterator[None]:
    """A test may leave nothing in the event loop: no task, no transport, no live timer."""
    yield
    found = await _leaks()
    assert not found, "\n".join(["left in the event loop:", *found])


async def _leaks() -> list[str]:
    """Describe the tasks, transports and timers that are left in the running loop."""
    loop = asyncio.get_running_loop()
    for _ in range(_LOOKS):
        if not any(_left(loop)) and not _is_closing(loop):
            break
        await asyncio.sleep(_LOOK_AGAIN)
    return list(_left(loop))


def _is_closing(loop: Any) -> bool:  # noqa: ANN401 - as below
    """Whether a transport still has its socket. The end of the loop would cut its closing short, with a warning."""
    transports = list(getattr(loop, "_transports", {}).values())
    return any(transport.is_closing() and getattr(transport, "_sock", None) is not None for transport in transports)


def _left(loop: Any) -> Iterator[str]:  # noqa: ANN401 - private attributes of asyncio's loops
    for task in asyncio.all_tasks(loop):
        if task is not asyncio.current_task() and not task.done():
            yield f"task {task!r}"
    for transport in list(getattr(loop, "_transports", {}).values()):
        if not transport.is_closing():
            yield f"transport {transport!r}"
    own = getattr(loop, "_ssock", None)
    selector = getattr(loop, "_selector", None)
    for key in list(selector.get_map().values()) if selector is not None and selector.get_map() else ():
        if key.fileobj is not own and key.fd != (own.fileno() if own else -1):
            yield f"socket watched {key!r}"
    for timer in list(getattr(loop, "_scheduled", ())):
        if not timer.cancelled():
            yield f"timer {timer!r}"


@pytest.fixture(scope="session", autouse=True)
def journals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gateways without a configured journal directory write their journals below this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATE_DIRECTORY", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def gateways_are_forked() -> Iterator[None]:
    """Gateways start in a tenth of the time."""
    with forking():
        yield


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A test that configures the logs of its own process, as many commands do, leaves them as they were."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A broker for the tests, with the STOMP plugin enabled."""
    with running(plugins=["rabbitmq_stomp"]) as broker:
        yield broker
        if not isinstance(broker, GivenBroker):
            broker.kill()  # an orderly stop takes seconds, and nobody needs the node's data


@pytest.fixture(scope="session")
def own_broker(broker: Broker) -> Broker:
    """The same broker, for tests that need rabbitmqctl."""
    if isinstance(broker, GivenBroker):
        pytest.skip("the tests may not change the broker that AMQP_URL names")
    return broker


@pytest_asyncio.fixture
async def proxy(broker: Broker) -> AsyncIterator[ChaosProxy]:
    """A proxy in front of the broker, for a gateway whose link is to be disturbed."""
    async with chaos((broker.host, broker.amqp_port)) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def broker_url(broker: Broker) -> str:
    """AMQP URL of the broker, with credentials."""
    return broker.amqp_url


@pytest.fixture(scope="session")
def plugin_address(broker: Broker) -> Address:
    """Address of RabbitMQ's own STOMP plugin."""
    if broker.stomp_port is None:
        pytest.skip("this broker has no STOMP plugin to compare with")
    return broker.host, broker.stomp_port


@pytest.fixture(scope="session")
def gateway_address(broker_url: str) -> Iterator[Address]:
    """Address of a gateway that runs in a process of its own."""
    with gateway_process(configuration(broker_url)) as process:
        yield process.address


@pytest_asyncio.fixture
async def amqp(broker_url: str) -> AsyncIterator[AmqpBroker]:
    """The broker, over AMQP."""
    async with AmqpBroker.connected(broker_url) as connected:
        yield connected


@pytest_asyncio.fixture
async def queue(amqp: AmqpBroker) -> AsyncIterator[str]:
    """The name of a queue that no other test uses, deleted at the end."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    try:
        await amqp.delete_queue(name)
    except BrokerRefusalError:  # an exclusive queue, which goes with its connection, on RabbitMQ 4 a moment later
        await until_queue_gone(amqp, name)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A Chromium."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()
