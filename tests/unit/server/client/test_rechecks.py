"""How often the broker is asked again about logins, and what about. `tests/system/test_recheck.py` has the outcome."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from pamqp import commands
from pamqp.base import Frame

from gateway.config.model import Logging
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.broker_errors import LinkDownError, UpstreamError
from gateway.server.broker.link import Link
from gateway.server.client.rechecks import Rechecks
from gateway.server.log_limits import LogLimits
from gateway.server.stats import GatewayStats
from tests.support.scripted_broker import BridgedClient, ScriptedBroker, play, usual_answer
from tests.support.virtual_time import run_in_virtual_time

INTERVAL: Final = 60.0
# A second more, since the first refusal may have been noticed at once, and questions take time.
CONFIRMED: Final = 6.0
BAD_ARGUMENT = commands.Channel.Close(406, "PRECONDITION_FAILED - invalid arg 'x-priority'", 60, 20)
REFUSED = commands.Channel.Close(403, "ACCESS_REFUSED - access refused", 60, 20)
SUBSCRIBE: Final = "SUBSCRIBE\nid:{0}\nack:client\nprefetch-count:9\ndestination:{1}\n\n"


def rechecks_of(broker: ScriptedBroker, client: BridgedClient) -> tuple[Rechecks, GatewayStats]:
    pool = SimpleNamespace(distrust=lambda links: None, log_limits=LogLimits(Logging(), lambda: 0.0))
    stats = GatewayStats(["/"])
    return Rechecks(cast(Any, pool), client._spawn, broker.paced, stats), stats


class Permissions:
    """What the broker answers to questions; ``asked`` are the queues and bindings that it was asked about."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.refuses: set[str] = set()
        broker.script = self._answer

    def _answer(self, link: Link, method: Frame) -> Frame | None:
        if link.purpose != "login":
            return usual_answer(method)
        if isinstance(method, commands.Basic.Consume):
            self.asked.append((method.queue,))
            return REFUSED if method.queue in self.refuses else BAD_ARGUMENT
        if isinstance(method, commands.Queue.Unbind):
            self.asked.append((method.exchange, method.routing_key))
            return commands.Queue.UnbindOk()
        return usual_answer(method)


def test_what_many_sessions_of_a_login_consume_is_asked_about_once() -> None:
    """Queues that sessions get for themselves differ in their names alone."""

    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        rechecks, stats = rechecks_of(broker, client)
        others = [BridgedClient(broker, client.session.settings, client) for _ in range(20)]
        for each in others:
            await each.connect()
            topics = [SUBSCRIBE.format(number, "/topic/t") for number in (2, 3)]
            await each.say(SUBSCRIBE.format(1, "/queue/q"), *topics)
        permissions, links = Permissions(broker), len(broker.links)
        for each in others:
            rechecks.add(each.bridge, each.links, INTERVAL)
        await asyncio.sleep(INTERVAL)
        [first, *more] = permissions.asked
        assert (first, more[0][0][:19], more[1:]) == (("q",), "stomp-subscription-", [("amq.topic", "t")])
        assert len(broker.links) == links + 1
        assert broker.links[-1].closed is not None
        for each in others:
            rechecks.remove(each.bridge)
        await asyncio.sleep(2 * INTERVAL)
        assert len(permissions.asked) == 3
        assert stats.host("/").rechecks == {"allowed": 1}

    play(scene)


def test_a_refusal_ends_only_what_is_refused_once_more() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        rechecks, stats = rechecks_of(broker, client)
        await client.say(SUBSCRIBE.format(1, "/queue/a"), SUBSCRIBE.format(2, "/queue/b"))
        rechecks.add(client.bridge, client.links, INTERVAL)
        permissions = Permissions(broker)
        permissions.refuses = {"a", "b"}
        await asyncio.sleep(0)
        while not stats.host("/").rechecks["doubted"]:
            assert client.output.count(b"ERROR") == 0
            await asyncio.sleep(1)
        permissions.refuses = {"b"}
        await asyncio.sleep(CONFIRMED)
        assert [subscription.tag for subscription in client.session.subscriptions.all] == [b"T_1"]
        assert client.output.count(b"ERROR") == client.output.count(b"subscription:2") == 1
        rechecks.remove(client.bridge)

    play(scene)


def test_a_refusal_of_something_else_confirms_nothing() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        rechecks, stats = rechecks_of(broker, client)
        await client.say(SUBSCRIBE.format(1, "/queue/a"), SUBSCRIBE.format(2, "/queue/b"))
        rechecks.add(client.bridge, client.links, INTERVAL)
        permissions = Permissions(broker)
        permissions.refuses = {"a"}
        while not stats.host("/").rechecks["doubted"]:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(1)
        permissions.refuses = {"b"}
        await asyncio.sleep(CONFIRMED)
        assert stats.host("/").rechecks == {"doubted": 2}
        assert client.output.count(b"ERROR") == 0
        await asyncio.sleep(CONFIRMED)
        assert stats.host("/").rechecks == {"doubted": 2, "revoked": 1}
        assert client.output.count(b"ERROR") == client.output.count(b"subscription:2") == 1
        rechecks.remove(client.bridge)

    play(scene)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("NOT_ALLOWED - access to vhost 'limit (' refused for user 'limit ('", True),
        ("NOT_ALLOWED - access to vhost '/' refused for user 'app': connection limit (5) is reached", False),
        ("NOT_ALLOWED - connection refused for user 'app': user connection limit (5) is reached", False),
        ("NOT_ALLOWED - connection refused: node connection limit (5) is reached", False),
    ],
)
def test_one_connection_too_many_is_no_refusal_whatever_the_names_are(text: str, counts: bool) -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        async def open_link(*_: object) -> Link:
            raise UpstreamError(530, text)

        rechecks, stats = rechecks_of(broker, client)
        client.links._open_link = open_link
        rechecks.add(client.bridge, client.links, INTERVAL)
        await asyncio.sleep(2 * INTERVAL)
        assert ("revoked" in stats.host("/").rechecks) is counts
        rechecks.remove(client.bridge)

    play(scene)


def test_checks_spread_over_the_interval_and_few_are_under_way() -> None:
    """Thousands of users may have logged in at the same moment."""

    async def work() -> None:
        random.seed(1)
        broker = ScriptedBroker()
        settings = VirtualHost(name="/")
        clients = [BridgedClient(broker, settings) for _ in range(100)]
        rechecks, _ = rechecks_of(broker, clients[0])
        for each in clients:
            rechecks.add(each.bridge, each.links, INTERVAL)
        counts, before = [], 0
        for _ in range(10):
            await asyncio.sleep(INTERVAL / 10)
            counts.append(len(broker.links) - before)
            before = len(broker.links)
        assert sum(counts) == 100
        assert max(counts) < 20
        # A broker that takes its time is not dialled for all of them at once.
        under_way, most = 0, 0

        async def open_link(*_: object) -> Link:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(30)
            under_way -= 1
            raise LinkDownError(320, "no broker answers")

        for each in clients:
            each.links._open_link = open_link
        await asyncio.sleep(2 * INTERVAL)
        assert most == 4
        for each in clients:
            rechecks.remove(each.bridge)
        await asyncio.sleep(100 * 30)

    run_in_virtual_time(work())


def test_a_broker_that_does_not_answer_ends_nothing_and_is_asked_again() -> None:
    async def scene(broker: ScriptedBroker, client: BridgedClient) -> None:
        rechecks, stats = rechecks_of(broker, client)
        await client.say(SUBSCRIBE.format(1, "/queue/q"))
        usual = broker.script
        broker.script = lambda link, method: None if link.purpose == "login" else usual(link, method)
        rechecks.add(client.bridge, client.links, INTERVAL)
        await asyncio.sleep(2 * INTERVAL)
        assert set(stats.host("/").rechecks) == {"unanswered"}
        assert all(link.closed for link in broker.links if link.purpose == "login")
        permissions = Permissions(broker)
        await asyncio.sleep(2 * INTERVAL)
        assert set(permissions.asked) == {("q",)}
        assert client.output.count(b"ERROR") == 0
        rechecks.remove(client.bridge)

    play(scene)
