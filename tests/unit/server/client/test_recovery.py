"""When a recovery tries, how often, and what ends it. What is restored is the bridge's affair, and made up here."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.connector import Credentials
from gateway.server.broker.login_links import LoginLinks
from gateway.server.client.recovery import Recovery, Restorer
from gateway.session import ops
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import Subscription
from tests.support.virtual_time import run_in_virtual_time

PREPARED = ops.PublisherPrepared(7, 4096, confirms=True)
FOREVER = 100.0


class Bridge:
    """Restores what is wanted, and fails as often as it is told to."""

    def __init__(self, *identifiers: str, publishing: bool = False) -> None:
        self.wanted = [
            ops.Subscribe(Subscription(b"T_" + each.encode(), each.encode(), AckMode.AUTO, b"s"), None, each, None, 1)
            for each in identifiers
        ]
        self.publishing = publishing
        self.failures: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.is_down = False
        self._is_up = asyncio.Event()
        # How often the publishing link is lost again while the rest comes back.
        self.publisher_losses = 0
        self.said: list[str] = []
        self.context = cast(
            Any,
            SimpleNamespace(
                session=SimpleNamespace(recovery_request=self.recovery_request),
                recovery_begins=lambda: None,
                log_wait=self.said.append,
                links=SimpleNamespace(
                    come_back=self._come_back,
                    restoring=asyncio.Semaphore(1),
                    turn=asyncio.Lock(),
                    queue_watch=SimpleNamespace(knows_away=False),
                ),
            ),
        )

    def come_up(self) -> None:
        self.is_down = False
        self._is_up.set()
        self._is_up = asyncio.Event()

    async def _come_back(self) -> None:
        if self.is_down:
            await self._is_up.wait()
        self._fail("link")

    def _fail(self, what: str) -> None:
        if self.failures.get(what):
            raise self.failures[what].pop(0)

    def recovery_request(self) -> ops.Recover:
        return ops.Recover(tuple(self.wanted), self.publishing)

    def lacks_consumer(self, subscription: Subscription) -> bool:
        return any(each.subscription is subscription for each in self.wanted)

    @property
    def lacks_publisher(self) -> bool:
        return self.publisher_losses > 0

    async def find_away(self) -> None:
        pass

    async def restore_queues(self, operation: ops.Recover) -> None:
        pass

    async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed:
        self.calls.append(operation.queue_name)
        await asyncio.sleep(0)
        self._fail(operation.queue_name)
        self.wanted.remove(operation)
        return ops.Subscribed(operation.subscription, operation.queue_name)

    async def restore_publisher(self, operation: ops.Recover) -> ops.PublisherPrepared:
        self.calls.append("publisher")
        self._fail("publisher")
        self.publisher_losses -= 1
        return PREPARED


def recovery_of(bridge: Bridge) -> Recovery:
    return Recovery(cast("Restorer", bridge))


async def test_the_subscriptions_come_back_in_their_order_and_publishing_last() -> None:
    bridge = Bridge("a", "b", publishing=True)
    event = await recovery_of(bridge).run(bridge.recovery_request(), FOREVER)
    assert bridge.calls == ["a", "b", "publisher"]
    assert isinstance(event, ops.Recovered)
    assert [each.queue_name for each in event.subscribed] == ["a", "b"]
    assert event.publisher == PREPARED


@pytest.mark.parametrize("code", [320, 404, 405, 530, 541])
async def test_what_passes_is_waited_for_and_what_is_back_stays_back(code: int) -> None:
    bridge = Bridge("a", "b", "c")
    bridge.failures["b"] = [UpstreamError(code, "for a while")]
    event = await recovery_of(bridge).run(bridge.recovery_request(), FOREVER)
    assert bridge.calls == ["a", "b", "b", "c"]
    assert bridge.said == ["for a while"]
    assert isinstance(event, ops.Recovered)
    assert [each.queue_name for each in event.subscribed] == ["a", "b", "c"]


async def test_a_stream_without_a_replica_is_waited_for() -> None:
    bridge = Bridge("a")
    bridge.failures["a"] = [UpstreamError(406, "no replica on the local node", 60 << 16 | 20)]
    assert isinstance(await recovery_of(bridge).run(bridge.recovery_request(), FOREVER), ops.Recovered)
    bridge = Bridge("a")
    bridge.failures["a"] = [UpstreamError(406, "another queue type", 50 << 16 | 10)]
    assert await recovery_of(bridge).run(bridge.recovery_request(), FOREVER) == ops.RecoveryFailed(
        406, "another queue type"
    )


async def test_a_link_that_is_lost_again_is_waited_for() -> None:
    bridge = Bridge("a", publishing=True)
    bridge.failures["publisher"] = [LinkDownError(320, "lost again")]
    assert isinstance(await recovery_of(bridge).run(bridge.recovery_request(), FOREVER), ops.Recovered)
    assert bridge.calls == ["a", "publisher", "publisher"]


async def test_it_lasts_until_all_is_there_at_the_same_time() -> None:
    bridge = Bridge("a", publishing=True)
    bridge.publisher_losses = 2
    assert isinstance(await recovery_of(bridge).run(bridge.recovery_request(), FOREVER), ops.Recovered)
    assert bridge.calls == ["a", "publisher", "publisher"]


@pytest.mark.parametrize("what", ["link", "a", "publisher"])
@pytest.mark.parametrize("code", [403, 406, 540])
async def test_a_refusal_that_is_meant_ends_it(what: str, code: int) -> None:
    bridge = Bridge("a", publishing=True)
    bridge.failures[what] = [UpstreamError(code, "never")]
    assert await recovery_of(bridge).run(bridge.recovery_request(), FOREVER) == ops.RecoveryFailed(code, "never")


def test_permissions_that_are_gone_for_a_moment_end_nothing() -> None:
    """RabbitMQ takes those of a virtual host away before it deletes it."""

    async def work() -> None:
        bridge, refusal = Bridge("a"), UpstreamError(403, "no permission", 50 << 16 | 10)
        bridge.failures["a"] = [refusal, refusal]
        assert isinstance(await recovery_of(bridge).run(bridge.recovery_request(), FOREVER), ops.Recovered)
        bridge = Bridge("a")
        bridge.failures["a"] = [refusal] * 1000
        assert await recovery_of(bridge).run(bridge.recovery_request(), FOREVER) == ops.RecoveryFailed(
            403, "no permission"
        )

    run_in_virtual_time(work())


async def test_the_time_is_up() -> None:
    bridge = Bridge("a")
    bridge.is_down = True
    assert await recovery_of(bridge).run(bridge.recovery_request(), 0.01) == ops.RecoveryFailed(is_down=True)


def test_what_failed_again_has_the_time_that_is_left() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        bridge = Bridge()
        recovery = recovery_of(bridge)
        bridge.is_down = True
        loop.call_later(40, bridge.come_up)
        assert isinstance(await recovery.run(ops.Recover(), 60), ops.Recovered)
        # What the session lives in between does not count.
        await asyncio.sleep(50)
        bridge.is_down = True
        loop.call_later(15, bridge.come_up)
        assert isinstance(await recovery.run(ops.Recover(is_again=True), 60), ops.Recovered)
        bridge.is_down = True
        loop.call_later(15, bridge.come_up)
        assert await recovery.run(ops.Recover(is_again=True), 60) == ops.RecoveryFailed(is_down=True)
        # After a long time all of it is there again.
        await asyncio.sleep(60)
        bridge.is_down = True
        loop.call_later(59, bridge.come_up)
        assert isinstance(await recovery.run(ops.Recover(is_again=True), 60), ops.Recovered)
        # Another loss has the whole time.
        assert isinstance(await recovery.run(ops.Recover(), 60), ops.Recovered)

    run_in_virtual_time(work())


@pytest.mark.parametrize(("lives", "fewest", "most"), [(0.01, 100, 200), (10, 30, 30)])
def test_recoveries_that_do_not_hold_become_rare(lives: float, fewest: int, most: int) -> None:
    async def work() -> int:
        recovery = recovery_of(Bridge())
        count = 0
        while asyncio.get_running_loop().time() < 300:
            assert isinstance(await recovery.run(ops.Recover(), 60), ops.Recovered)
            count += 1
            await asyncio.sleep(lives)
        return count

    assert fewest <= run_in_virtual_time(work()) <= most


async def test_one_that_is_stopped_ends_without_an_outcome() -> None:
    bridge = Bridge("a")
    bridge.is_down = True
    recovery = recovery_of(bridge)
    running = asyncio.ensure_future(recovery.run(bridge.recovery_request(), FOREVER))
    await asyncio.sleep(0)
    recovery.stop()
    assert await running is None
    assert await recovery.run(bridge.recovery_request(), FOREVER) is None


async def test_of_a_login_a_few_dozen_sessions_restore_at_a_time() -> None:
    """All at once, the first one to be back would be the last one."""
    restoring = LoginLinks(VirtualHost(name="/"), Credentials("a", "b"), cast(Any, None)).restoring
    running = most = 0

    class Counting(Bridge):
        async def restore_consumer(self, operation: ops.Subscribe) -> ops.Subscribed:
            nonlocal running, most
            running += 1
            most = max(most, running)
            for _ in range(3):
                await asyncio.sleep(0)
            running -= 1
            return await super().restore_consumer(operation)

    bridges = [Counting("a") for _ in range(100)]
    for bridge in bridges:
        bridge.context.links.restoring = restoring
    events = await asyncio.gather(*(recovery_of(each).run(each.recovery_request(), FOREVER) for each in bridges))
    assert {type(event) for event in events} == {ops.Recovered}
    assert most == 32
