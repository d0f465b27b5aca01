"""Settings of a virtual host with a real broker: destination rules, queue arguments, queue conflicts, prefetch."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from deploy.local.broker import Broker
from gateway.config.model import GatewayConfig
from gateway.parity.amqp_broker import AmqpBroker, BrokerRefusalError
from gateway.server.process.gateway import Gateway
from tests.support.brokers import until_queue_gone
from tests.support.deadline import until, within
from tests.support.gateway import gateway_here, parsed
from tests.support.management import PASSCODE
from tests.support.stomp_client import ErrorText, StompClient, final_error

pytestmark = pytest.mark.system

QUORUM = {"x-queue-type": "quorum"}
BOUNDED = {"x-max-length": 3}


def policy_config(broker_url: str, **settings: Any) -> GatewayConfig:  # noqa: ANN401 - YAML has every type
    return parsed(broker_url, settings)


def denied(command: str, destination: str, login: str) -> ErrorText:
    text = f"a destination rule of the gateway denies {command} to '{destination}' for user '{login}'"
    return ErrorText("access_refused", f"ACCESS_REFUSED - {text}")


def client_of(gateway: Gateway) -> AbstractAsyncContextManager[StompClient]:
    return StompClient.logged_in(gateway.addresses[0])


async def is_declared_so(amqp: AmqpBroker, queue: str, arguments: dict[str, Any]) -> bool:
    """Whether a durable queue has exactly these arguments: the broker refuses to declare it again with others."""
    try:
        await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments=arguments)
    except BrokerRefusalError:
        return False
    return True


@pytest_asyncio.fixture
async def other(amqp: AmqpBroker) -> AsyncIterator[str]:
    """The name of a second queue, deleted at the end."""
    name = f"test-{secrets.token_hex(6)}"
    yield name
    await amqp.delete_queue(name)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("topic_slashes", "shown"), [("dots", "/topic/{}.a.b"), ("dots_and_back", "/topic/{}/a/b")], ids=["dots", "back"]
)
async def test_slashes_of_a_topic_are_dots_for_the_broker(
    broker_url: str, queue: str, topic_slashes: str, shown: str
) -> None:
    config = policy_config(broker_url, topic_slashes=topic_slashes)
    async with gateway_here(config) as gateway, client_of(gateway) as client:
        await client.ask("SUBSCRIBE", id="one", destination=f"/topic/{queue}/a/*")
        await client.ask("SUBSCRIBE", id="all", destination=f"/topic/{queue}/**")
        for destination in (f"/topic/{queue}/a/b", f"/topic/{queue}.a.b"):
            client.write("SEND", b"x", destination=destination)
            messages = await client.messages(2)
            assert {message["subscription"] for message in messages} == {"one", "all"}
            assert {message["destination"] for message in messages} == {shown.format(queue)}
        await client.ask("UNSUBSCRIBE", id="all")


# Destination rules.


async def test_a_rewrite_rule_moves_messages_and_subscriptions(broker_url: str, amqp: AmqpBroker, queue: str) -> None:
    rules = [{"action": "rewrite", "destination": "/queue/*", "to": f"/queue/{queue}"}]
    async with gateway_here(policy_config(broker_url, destination_rules=rules)) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SEND", b"one", destination=f"/queue/{queue}-a")
            assert await amqp.count(queue) == 1
            assert await amqp.count(f"{queue}-a") is None
            client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}-b")
            await client.expect("MESSAGE", b"one", destination=f"/queue/{queue}", subscription="1")
            await client.ask("UNSUBSCRIBE", id="1")
            await client.disconnect()


async def test_a_rewritten_topic_is_another_topic(broker_url: str) -> None:
    rules = [{"action": "rewrite", "destination": "/topic/*", "to": "/topic/{login}.*"}]
    async with gateway_here(policy_config(broker_url, destination_rules=rules)) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", id="1", destination="/topic/#")
            client.write("SEND", b"one", destination="/topic/a.b")
            await client.expect("MESSAGE", b"one", destination="/topic/guest.a.b")
            await client.disconnect()


async def test_a_durable_subscription_comes_back_to_its_messages(broker_url: str, amqp: AmqpBroker) -> None:
    topic = f"t-{secrets.token_hex(6)}"
    rules = [{"action": "rewrite", "destination": "/topic/old.*", "to": "/topic/new.*"}]
    headers = {"id": "d", "destination": f"/topic/old.{topic}", "durable": "true", "auto_delete": "false"}
    async with gateway_here(policy_config(broker_url, destination_rules=rules)) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", **headers)
            await client.disconnect()
        async with client_of(gateway) as client:
            await client.ask("SEND", b"meanwhile", destination=f"/topic/new.{topic}")
            client.write("SUBSCRIBE", **headers)
            await client.expect("MESSAGE", b"meanwhile")
            await client.ask("UNSUBSCRIBE", id="d", durable="true")
            # Its queue is deleted: this message is not stored.
            await client.ask("SEND", b"late", destination=f"/topic/new.{topic}")
            await client.ask("SUBSCRIBE", **headers)
            await client.ask("UNSUBSCRIBE", id="d", durable="true")
            await client.disconnect()


async def test_rules_of_some_logins(laboratory: Broker, user: str) -> None:
    rules = [
        {"action": "allow", "destination": "/queue/{login}.*"},
        {"action": "deny", "destination": "/queue/*", "logins": ["user-*"], "on": "send"},
    ]
    config = policy_config(laboratory.amqp_url, destination_rules=rules)
    async with gateway_here(config) as gateway, within():
        async with StompClient.logged_in(gateway.addresses[0], login=user, passcode=PASSCODE) as client:
            await client.ask("SUBSCRIBE", id="1", destination="/queue/shared", auto_delete="true")
            await client.ask("SUBSCRIBE", id="2", destination=f"/queue/{user}.own", auto_delete="true")
            client.write("SEND", b"mine", destination=f"/queue/{user}.own", auto_delete="true")
            await client.expect("MESSAGE", b"mine", subscription="2")
            async with client_of(gateway) as guest:
                await guest.ask("SEND", b"guest", destination="/queue/shared", auto_delete="true")
                await guest.disconnect()
            await client.expect("MESSAGE", b"guest", subscription="1")
            client.write("SEND", b"x", destination="/amq/queue/shared", receipt="r")
            assert await final_error(client) == denied("SEND", "/amq/queue/shared", user)


async def test_a_denied_frame_does_not_disturb_other_sessions_on_the_link(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    rules = [{"action": "deny", "destination": "/topic/*"}]
    async with gateway_here(policy_config(broker_url, destination_rules=rules)) as gateway, within():
        async with client_of(gateway) as client, client_of(gateway) as culprit:
            await client.ask("SEND", b"before", destination=f"/queue/{queue}")
            culprit.write("SUBSCRIBE", id="1", destination="/topic/t", receipt="r")
            assert await final_error(culprit) == denied("SUBSCRIBE", "/topic/t", "guest")
            await client.ask("SEND", b"after", destination=f"/queue/{queue}")
            await client.disconnect()
        # It is not the broker's error.
        host = gateway.stats.host("/")
        assert (host.errors, host.ended["destination-denied"]) == ({"destination-denied": 1}, 1)
    assert await amqp.count(queue) == 2


# Queue arguments.


@pytest.mark.parametrize("command", ["SEND", "SUBSCRIBE"])
async def test_quorum_queues_for_clients_that_do_not_ask_for_them(
    broker_url: str, amqp: AmqpBroker, queue: str, command: str
) -> None:
    entries = [{"destination": "/queue/test-*", "arguments": {**QUORUM, "x-delivery-limit": 5}}]
    async with gateway_here(policy_config(broker_url, queue_arguments=entries)) as gateway, within():
        # Each session declares the queue: a difference would be a conflict.
        async with client_of(gateway) as client:
            await client.ask(command, id="1", destination=f"/queue/{queue}", ack="client")
            await client.disconnect()
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}")
            client.write("SEND", b"one", destination=f"/queue/{queue}")
            while (await client.receive()).body != b"one":
                pass
            await client.disconnect()
    assert await is_declared_so(amqp, queue, {**QUORUM, "x-delivery-limit": 5})


async def test_queues_that_cannot_be_quorum_queues_get_the_other_arguments(broker_url: str) -> None:
    entries = [{"destination": "/*", "arguments": {**QUORUM, "x-delivery-limit": 5, **BOUNDED}}]
    async with gateway_here(policy_config(broker_url, queue_arguments=entries)) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", id="1", destination="/topic/a", ack="client", prefetch_count="1")
            send = {"destination": "/topic/a", "reply_to": "/temp-queue/r"}
            for number in range(5):
                client.write("SEND", b"%d" % number, **send)
            ack = (await client.expect("MESSAGE", b"0"))["ack"]
            # The receipt comes when the queue has them all.
            await client.ask("SEND", b"5", **send)
            client.write("ACK", id=ack)
            # One was unacknowledged; of the waiting ones the oldest were dropped.
            await client.expect("MESSAGE", b"3")
            await client.disconnect()


async def test_durable_subscriptions_collect_in_a_bounded_queue(broker_url: str) -> None:
    topic = f"/topic/t-{secrets.token_hex(6)}"
    entries = [{"destination": "/topic/t-*", "arguments": {**QUORUM, **BOUNDED}}]
    headers = {"id": "d", "destination": topic, "durable": "true", "auto_delete": "false"}
    async with gateway_here(policy_config(broker_url, queue_arguments=entries)) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", **headers)
            await client.ask("UNSUBSCRIBE", id="d")
            for number in range(5):
                await client.ask("SEND", b"%d" % number, destination=topic)
            client.write("SUBSCRIBE", **headers)
            assert [message.body for message in await client.messages(3)] == [b"2", b"3", b"4"]
            await client.ask("UNSUBSCRIBE", id="d", durable="true")
            await client.disconnect()


# Queues with other properties than a client asks for.


async def test_a_queue_with_other_properties_is_an_error_by_default(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments=BOUNDED)
    async with gateway_here(policy_config(broker_url)) as gateway, within():
        async with client_of(gateway) as client:
            client.write("SEND", b"x", destination=f"/queue/{queue}")
            error = await final_error(client)
    assert error.message == "precondition_failed"


async def test_an_existing_queue_is_used_as_it_is(broker_url: str, amqp: AmqpBroker, queue: str, other: str) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments=BOUNDED)
    with capture_logs() as logs:
        async with gateway_here(policy_config(broker_url, on_queue_conflict="use_existing")) as gateway, within():
            async with client_of(gateway) as client:
                # Sent first on the same channel: it is not lost when the broker refuses the declaration.
                client.write("SEND", b"first", destination=f"/queue/{other}", receipt="first")
                client.write("SEND", b"one", destination=f"/queue/{queue}", receipt="one")
                await client.expect("RECEIPT", receipt_id="first")
                await client.expect("RECEIPT", receipt_id="one")
                await client.disconnect()
            async with client_of(gateway) as client:
                client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", x_message_ttl="60000")
                await client.expect("MESSAGE", b"one")
                await client.ask("SUBSCRIBE", id="2", destination="/topic/taken", x_queue_name=queue, exclusive="false")
                client.write("SEND", b"two", destination="/topic/taken")
                await client.expect("MESSAGE", b"two")
                await client.ask("UNSUBSCRIBE", id="1")
                await client.ask("UNSUBSCRIBE", id="2")
                await client.disconnect()
    assert await amqp.count(other) == 1
    assert await is_declared_so(amqp, queue, BOUNDED)
    taken = [line for line in logs if line["event"] == "existing queue used"]
    assert [(line["queue"], line["virtual_host"]) for line in taken] == [(queue, "/")]
    assert "inequivalent arg 'x-max-length'" in taken[0]["reason"]


async def test_an_invalid_queue_argument_is_an_error_even_with_use_existing(broker_url: str, queue: str) -> None:
    async with gateway_here(policy_config(broker_url, on_queue_conflict="use_existing")) as gateway, within():
        async with client_of(gateway) as client:
            client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", x_expires="0")
            error = await final_error(client)
    assert error.message == "precondition_failed"
    assert "invalid arg 'x-expires'" in error.body


async def test_a_durable_subscription_uses_its_queue_as_it_is(broker_url: str, amqp: AmqpBroker) -> None:
    topic = f"/topic/t-{secrets.token_hex(6)}"
    headers = {"id": "d", "destination": topic, "durable": "true", "auto_delete": "false"}
    async with gateway_here(policy_config(broker_url, on_queue_conflict="use_existing")) as gateway, within():
        async with client_of(gateway) as client:
            await client.ask("SUBSCRIBE", **headers, x_max_length="5")
            await client.disconnect()
        async with client_of(gateway) as client:
            await client.ask("SEND", b"meanwhile", destination=topic)
            client.write("SUBSCRIBE", **headers)
            await client.expect("MESSAGE", b"meanwhile")
            await client.ask("UNSUBSCRIBE", id="d", durable="true")
            await client.disconnect()


async def test_an_exclusive_queue_of_another_session_is_refused_even_with_use_existing(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    async with gateway_here(policy_config(broker_url, on_queue_conflict="use_existing")) as gateway, within():
        async with client_of(gateway) as owner, client_of(gateway) as client:
            await owner.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", durable="false", exclusive="true")
            client.write("SUBSCRIBE", id="1", destination=f"/queue/{queue}", durable="false")
            assert (await final_error(client)).message == "resource_locked"
            await owner.ask("SEND", b"still", destination="/topic/nowhere")
            await owner.disconnect()
    await until_queue_gone(amqp, queue)


async def test_a_subscription_that_fails_deletes_no_existing_queue(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    await amqp.declare_queue(queue, durable=True, auto_delete=False, arguments={})
    async with gateway_here(policy_config(broker_url, on_queue_conflict="use_existing")) as gateway, within():
        async with client_of(gateway) as client:
            # SUBSCRIBE asks for a transient queue, bound to an exchange that does not exist.
            client.write("SUBSCRIBE", id="1", destination="/exchange/nowhere/k", x_queue_name=queue, exclusive="false")
            assert (await final_error(client)).message == "not_found"
    assert await amqp.count(queue) == 0


# Prefetch.


async def test_a_subscription_has_no_more_unacknowledged_messages_than_its_prefetch(
    broker_url: str, amqp: AmqpBroker, queue: str
) -> None:
    config = policy_config(broker_url, prefetch={"default": 2, "max": 3})
    async with gateway_here(config) as gateway, within():
        async with client_of(gateway) as client:
            for number in range(8):
                await client.ask("SEND", b"%d" % number, destination=f"/queue/{queue}")
            await client.ask("SUBSCRIBE", id="1", destination=f"/queue/{queue}", ack="client")
            await client.messages(2)
            await until(lambda: amqp.count(queue), lambda count: count == 6)
            client.write("SUBSCRIBE", id="2", destination=f"/queue/{queue}", ack="client", prefetch_count="0")
            await client.messages(3)
            # Any further message would come before this receipt.
            await client.ask("SEND", b"", destination="/topic/nowhere")
            assert await amqp.count(queue) == 3
            await client.disconnect()
