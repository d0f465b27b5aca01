"""With ``recheck`` a user who loses a permission gets no more messages, which RabbitMQ itself goes on delivering."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from deploy.local.broker import Broker
from gateway.parity.amqp_broker import AmqpBroker, BrokerMessage
from gateway.server.process.gateway import Gateway
from tests.support.deadline import PATIENCE, until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.management import EVERYTHING, PASSCODE, Management
from tests.support.stomp_client import ConnectionOverError, ErrorText, StompClient, error_text, final_error

pytestmark = pytest.mark.system

READS_NOTHING = (".*", ".*", "^$")
READS_TOPICS = (".*", ".*", "^(amq.topic|stomp-subscription-.*)$")
OFTEN, SELDOM = 0.2, 3.0
"""Seconds. A subscription ends at the second refusal."""


@pytest_asyncio.fixture
async def amqp(laboratory: Broker) -> AsyncIterator[AmqpBroker]:
    async with AmqpBroker.connected(laboratory.amqp_url) as connected:
        yield connected


@asynccontextmanager
async def rechecking(
    laboratory: Broker,
    seconds: float = OFTEN,
    **settings: Any,  # noqa: ANN401 - YAML has every type
) -> AsyncIterator[Gateway]:
    async with gateway_here(parsed(laboratory.amqp_url, {"recheck": seconds, **settings})) as gateway:
        yield gateway


@asynccontextmanager
async def client_of(gateway: Gateway, user: str) -> AsyncIterator[StompClient]:
    passcode = "guest" if user == "guest" else PASSCODE
    async with (
        StompClient.logged_in(gateway.addresses[0], login=user, passcode=passcode) as client,
        within(3 * PATIENCE),
    ):
        yield client


async def checked(gateway: Gateway, result: str, times: int = 1) -> None:
    """Wait until so many checks more have had this result."""
    rechecks = gateway.stats.host("/").rechecks
    before = rechecks[result]

    async def more() -> int:
        return rechecks[result] - before

    await until(more, lambda found: found >= times)


async def refused_at_subscribe(gateway: Gateway, user: str, **headers: str) -> ErrorText:
    """The ERROR that another session gets now for the same SUBSCRIBE."""
    async with client_of(gateway, user) as client:
        client.write("SUBSCRIBE", id="1", **headers)
        return await final_error(client)


@pytest.mark.parametrize("links", ["shared", "dedicated"])
async def test_a_queue_that_may_not_be_read_any_more_is_not_consumed_any_more(
    laboratory: Broker, management: Management, amqp: AmqpBroker, queue: str, user: str, links: str
) -> None:
    """Nothing else ends: the session, and its other subscriptions. What the client has settled stays settled."""
    wanted = {"destination": f"/queue/{queue}", "ack": "client"}
    # So seldom that the ACK comes before the subscription ends.
    async with rechecking(laboratory, SELDOM, links=links) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", **wanted)
        await client.ask("SUBSCRIBE", id="2", destination="/topic/allowed")
        client.write("SEND", b"before", destination=f"/queue/{queue}")
        message = await client.expect("MESSAGE", b"before", subscription="1")
        await checked(gateway, "allowed")
        await management.permit(user, rights=READS_TOPICS)
        client.write("ACK", id=message["ack"])
        error = await client.expect("ERROR", subscription="1")
        assert error_text(error) == await refused_at_subscribe(gateway, user, **wanted)
        await client.ask("SEND", b"after", destination=f"/queue/{queue}")
        assert await amqp.count(queue) == 1
        client.write("SEND", b"allowed", destination="/topic/allowed")
        await client.expect("MESSAGE", b"allowed", subscription="2")


@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "not durable"])
async def test_a_topic_that_may_not_be_read_any_more_is_not_consumed_any_more(
    laboratory: Broker, management: Management, user: str, is_durable: bool
) -> None:
    wanted = {"destination": "/topic/secret.a", **({"durable": "true", "auto_delete": "false"} if is_durable else {})}
    async with rechecking(laboratory) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", **wanted)
        await client.ask("SUBSCRIBE", id="2", destination="/topic/open.a")
        await management.permit_topics(user, write=".*", read="^open")
        error = error_text(await client.expect("ERROR", subscription="1"))
        assert error == await refused_at_subscribe(gateway, user, **wanted)
        assert re.match("(read )?access to topic 'secret.a' in exchange 'amq.topic'", error.body)
        await client.ask("SEND", b"x", destination="/topic/secret.a")
        client.write("SEND", b"y", destination="/topic/open.a")
        await client.expect("MESSAGE", b"y", subscription="2")
        if is_durable:
            await management.permit_topics(user, write=".*", read=".*")
            client.write("SUBSCRIBE", id="1", **wanted)
            await client.expect("MESSAGE", b"x", subscription="1")
            await client.ask("UNSUBSCRIBE", id="1", durable="true")


async def test_all_sessions_of_a_login_that_the_broker_refuses_now_end(
    laboratory: Broker, management: Management, user: str
) -> None:
    """The login cache lets nobody in with the old passcode either."""
    async with rechecking(laboratory) as gateway, client_of(gateway, user) as one, client_of(gateway, user) as two:
        await one.ask("SUBSCRIBE", id="1", destination="/topic/a")
        await management.add_user(user, passcode="another")
        for client in (one, two):
            error = await final_error(client)
            assert error.message == "access_refused"
            assert error.body.startswith("ACCESS_REFUSED - Login was refused")
        async with StompClient.dialled(gateway.addresses[0]) as late, within():
            late.write("CONNECT", accept_version="1.2", login=user, passcode=PASSCODE)
            assert error_text(await late.receive()) == ("Bad CONNECT", f"Access refused for user '{user}'\n")
        assert gateway.stats.host("/").ended["access-revoked"] == 2


async def test_a_user_without_any_permission_in_the_virtual_host_is_out(
    laboratory: Broker, management: Management, user: str
) -> None:
    async with rechecking(laboratory) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", destination="/topic/a")
        await management.forbid(user)
        error = await final_error(client)
        assert error == ("access_refused", f"NOT_ALLOWED - access to vhost '/' refused for user '{user}'")


async def test_a_limit_of_connections_says_nothing_about_the_login(
    laboratory: Broker, management: Management, user: str
) -> None:
    async with rechecking(laboratory) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", destination="/topic/a")
        await client.ask("SEND", destination="/topic/b")
        await management.limit("user", user, "max-connections", 1)
        await checked(gateway, "unanswered", 3)
        client.write("SEND", b"x", destination="/topic/a")
        await client.expect("MESSAGE", b"x")


async def test_a_permission_that_comes_back_in_time_ends_nothing(
    laboratory: Broker, management: Management, queue: str, user: str
) -> None:
    """A directory of users may be away for a moment."""
    async with rechecking(laboratory, SELDOM) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}")
        await management.permit(user, rights=READS_NOTHING)
        await checked(gateway, "doubted")
        await management.permit(user, rights=EVERYTHING)
        await checked(gateway, "allowed")
        await client.ask("BEGIN", transaction="t")


async def test_without_recheck_the_broker_goes_on_delivering(
    laboratory: Broker, management: Management, amqp: AmqpBroker, queue: str, user: str
) -> None:
    async with rechecking(laboratory, 0) as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}")
        await management.permit(user, rights=READS_NOTHING)
        await amqp.publish("", queue, BrokerMessage(body=b"x"))
        await client.expect("MESSAGE", b"x")
        assert not gateway.stats.host("/").rechecks


async def test_a_strict_session_ends_with_its_subscription(
    laboratory: Broker, management: Management, queue: str, user: str
) -> None:
    async with rechecking(laboratory, conformance="strict") as gateway, client_of(gateway, user) as client:
        await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}")
        await management.permit(user, rights=READS_NOTHING)
        await client.expect("ERROR", subscription="1", message="access_refused")
        with pytest.raises(ConnectionOverError):
            await client.receive()
