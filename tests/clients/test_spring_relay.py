"""Spring's broker relay with 50 browsers against RabbitMQ's plugin and the gateway with `config/spring.yaml`."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Final, Literal

import pytest
import yaml

from deploy.local.broker import Broker
from deploy.local.ports import free_ports
from tests.clients.spring_relay import Browser, SpringRelay, UnavailableError
from tests.support.brokers import private_broker
from tests.support.deadline import until, within
from tests.support.gateway import ROOT, Address, GatewayProcess, gateway_process

pytestmark = pytest.mark.system

SPRING: Final = ROOT / "config" / "spring.yaml"
BROWSERS: Final = 50
Side = Literal["plugin", "gateway"]


@pytest.fixture(scope="module")
def spring_broker() -> Iterator[Broker]:
    """A node that may be killed."""
    with private_broker(["rabbitmq_stomp"]) as broker:
        yield broker


@pytest.fixture(scope="module")
def environment(spring_broker: Broker) -> dict[str, str]:
    """The variables that the file reads."""
    stomp, admin = free_ports(2)
    return {
        "STOMP_ADDRESS": f"127.0.0.1:{stomp}",
        "RABBITMQ_URL": f"amqp://{spring_broker.host}:{spring_broker.amqp_port}",
        "ADMIN_ADDRESS": f"127.0.0.1:{admin}",
    }


@pytest.fixture(scope="module")
def spring_gateway(environment: dict[str, str]) -> Iterator[GatewayProcess]:
    """A gateway with the shipped file, as it is."""
    with gateway_process(yaml.safe_load(SPRING.read_text()), environment) as process:
        yield process
        process.assert_no_internal_errors()


@pytest.fixture(params=["plugin", "gateway"])
def side(request: pytest.FixtureRequest) -> Side:
    """Which server it is."""
    chosen: Side = request.param
    return chosen


@pytest.fixture
def address(side: Side, spring_broker: Broker, spring_gateway: GatewayProcess) -> Address:
    """Of plugin or gateway."""
    assert spring_broker.stomp_port is not None
    return (spring_broker.host, spring_broker.stomp_port) if side == "plugin" else spring_gateway.address


class Shop:
    """An application with its browsers: a topic for all, and a user destination for each."""

    def __init__(self, relay: SpringRelay) -> None:
        self.relay = relay
        self.key = secrets.token_hex(4)
        self.topic = f"/topic/prices-{self.key}"
        self.browsers: list[Browser] = []

    async def open(self) -> None:
        """Let the browsers come, and wait until all of them hear the topic and their own queue."""
        for browser in await asyncio.gather(*(self.relay.browser(str(each)) for each in range(BROWSERS))):
            await self.arrives(browser)

    async def arrives(self, browser: Browser) -> None:
        """A browser's page subscribes."""
        self.browsers.append(browser)
        browser.subscribe("topic", self.topic)
        browser.subscribe("user", self.own_queue(browser))
        # When this has come back, the two subscriptions are there.
        self.relay.send(browser, self.own_queue(browser), b"ready")
        await browser.until(b"ready")

    def own_queue(self, browser: Browser) -> str:
        """What Spring makes of /user/queue/offers for a browser's session."""
        return f"/queue/offers-{self.key}-user{browser.name}"

    async def works(self, mark: bytes) -> None:
        """All browsers get what the application sends to the topic, and to themselves."""
        await self.relay.convert_and_send(self.topic, b"topic " + mark)
        for browser in self.browsers:
            await self.relay.convert_and_send(self.own_queue(browser), mark)
        for browser in self.browsers:
            await browser.until(mark, b"topic " + mark)


@asynccontextmanager
async def shop(address: Address) -> AsyncIterator[Shop]:
    async with SpringRelay.started(address) as relay:
        opened = Shop(relay)
        await opened.open()
        yield opened


def test_the_file_passes_the_check(spring_broker: Broker, environment: dict[str, str]) -> None:
    # A listener for this machine alone would be odd.
    environment = environment | {"STOMP_ADDRESS": "0.0.0.0:61613", "STOMP_GATEWAY_CHECK_PASSCODE": "guest"}
    command = [sys.executable, "-m", "gateway", "check", "--config", str(SPRING), "--login", "guest"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stdout + done.stderr


async def test_browsers_get_what_the_application_sends(address: Address) -> None:
    async with shop(address) as opened:
        await opened.works(b"1")
        # What a page sends to a topic, too.
        opened.relay.send(opened.browsers[0], opened.topic, b"from a page")
        for browser in opened.browsers:
            await browser.until(b"from a page")
        assert (opened.relay.lost, opened.relay.unavailable) == ([], 0)


async def test_the_application_sends_to_a_missing_exchange(address: Address, side: Side) -> None:
    async with shop(address) as opened:
        relay = opened.relay
        await relay.convert_and_send(f"/exchange/missing-{opened.key}/key", b"lost")
        if side == "gateway":
            await opened.works(b"1")
            for browser in opened.browsers:
                relay.send(browser, opened.topic)
            await opened.works(b"2")
            assert (relay.lost, relay.unavailable) == ([], 0)
        else:
            await until(_unavailable(relay), lambda times: times == 1)
            for browser in opened.browsers:
                relay.send(browser, opened.topic)
            assert len(relay.lost) == BROWSERS


def _unavailable(relay: SpringRelay) -> Callable[[], Awaitable[int]]:
    async def times() -> int:
        return relay.unavailable

    return times


async def test_a_page_does_something_wrong(address: Address, side: Side) -> None:
    """A wrong destination, a queue with other properties, and on the gateway's side a frame that is too large."""
    async with shop(address) as opened:
        wrong, conflict, *_ = opened.browsers
        opened.relay.send(wrong, "/exchange/missing/key")
        # A page subscribes in its own way to a queue that the application sends to.
        queue = f"/queue/basket-{opened.key}"
        conflict.subscribe("basket", queue, auto_delete="true", exclusive="false", durable="false")
        opened.relay.send(conflict, opened.own_queue(conflict), b"subscribed")
        await conflict.until(b"subscribed")
        await opened.relay.convert_and_send(queue, b"for the basket")
        if side == "gateway":
            await conflict.until(b"for the basket")
            opened.relay.send(wrong, opened.topic, b"large" * (1 << 20))
            await opened.works(b"1")
            assert (opened.relay.lost, opened.relay.unavailable) == ([], 0)
        else:
            await until(_unavailable(opened.relay), lambda times: times == 1)
            assert wrong.lost is not None


async def test_destinations_with_slashes(address: Address, side: Side) -> None:
    async with shop(address) as opened:
        browser = opened.browsers[0]
        browser.subscribe("slashes", f"/topic/{opened.key}/prices/*")
        if side == "plugin":
            await until(_lost(opened.relay), lambda lost: lost == ["ERROR Invalid destination"])
            return
        opened.relay.send(browser, opened.own_queue(browser), b"subscribed")
        await browser.until(b"subscribed")
        await opened.relay.convert_and_send(f"/topic/{opened.key}/prices/eur", b"1.08")
        assert (await browser.message())["destination"] == f"/topic/{opened.key}.prices.eur"
        assert opened.relay.lost == []


def _lost(relay: SpringRelay) -> Callable[[], Awaitable[list[str]]]:
    async def lost() -> list[str]:
        return relay.lost

    return lost


async def test_queues_of_user_destinations_expire(address: Address, side: Side, spring_broker: Broker) -> None:
    async with shop(address) as opened:
        pass
    listed = await asyncio.to_thread(spring_broker.ctl, "list_queues", "name", "arguments")
    left = [line for line in listed.splitlines() if f"offers-{opened.key}-user" in line]
    assert len(left) == BROWSERS
    expiring = [line for line in left if "x-expires" in line and "600000" in line]
    assert len(expiring) == (BROWSERS if side == "gateway" else 0)


async def test_the_broker_is_killed_and_starts_again(spring_broker: Broker, spring_gateway: GatewayProcess) -> None:
    """With the plugin every session is lost, also those of browsers that do nothing."""
    assert spring_broker.stomp_port is not None
    plugin = (spring_broker.host, spring_broker.stomp_port)
    async with within(120), shop(plugin) as before, shop(spring_gateway.address) as opened:
        relay = opened.relay
        before_outage = len(spring_gateway.logged("send failed"))
        await asyncio.to_thread(spring_broker.kill)
        starting = asyncio.create_task(asyncio.to_thread(spring_broker.start))
        try:
            await until(_lost(before.relay), lambda lost: len(lost) == BROWSERS)
            with pytest.raises(UnavailableError):
                await before.relay.convert_and_send(before.topic, b"lost")
            with pytest.raises(UnavailableError):
                await before.relay.browser("late")
            assert before.relay.unavailable == 1
            for browser in opened.browsers:
                relay.send(browser, opened.own_queue(browser), b"during the outage", persistent="true")
            late = asyncio.create_task(relay.browser("late"))
        finally:
            await starting
        # Other frames than SEND wait until the session has everything back, however long that takes.
        for browser in opened.browsers:
            browser.subscribe("more", f"/topic/more-{opened.key}", receipt="back")
        for browser in opened.browsers:
            await browser.until(b"back")
        pages = tuple(opened.browsers)
        await opened.arrives(await late)

        async def application_is_back() -> bool:
            await relay.convert_and_send(opened.own_queue(opened.browsers[-1]), b"here I am")
            return opened.browsers[-1].has_seen(b"here I am")

        await until(application_is_back, bool)
        await opened.works(b"again")
        # On a busy machine RabbitMQ may take longer to start than SENDs are held, and the log has them.
        refused = spring_gateway.logged("send failed")[before_outage:]
        for browser in pages if not refused else ():
            await browser.until(b"during the outage")
        assert (relay.lost, relay.unavailable, relay.errors) == ([], 0, [])
