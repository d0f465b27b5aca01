"""Events at the broker while sessions are open: deleted queues, closed connections, limits."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import pytest
import pytest_asyncio

from deploy.local.broker import Broker
from gateway.parity.amqp_broker import AmqpBroker
from gateway.parity.steps import Release
from tests.support.brokers import release_of
from tests.support.deadline import until, within
from tests.support.gateway import Address, GatewayProcess, configuration, gateway_process, upstream
from tests.support.management import PASSCODE, Management
from tests.support.stomp_client import Frame, StompClient, error_text, final_error

pytestmark = pytest.mark.system

CANCELLED = 'The server has canceled a subscription.\nNo more messages will be delivered for "{}".\n'


@pytest.fixture(scope="module")
def process(laboratory: Broker) -> Iterator[GatewayProcess]:
    hosts: dict[str, Any] = {"/": {}, "*": {}}
    # The same happens to the sessions as with the plugin; tests/fault/test_ride_through.py is about the other way.
    ending = upstream((laboratory.host, laboratory.amqp_port), ride_through=0)
    with gateway_process(configuration(laboratory.amqp_url, virtual_hosts=hosts, upstream=ending)) as process:
        yield process
        process.assert_no_internal_errors()


@pytest.fixture
def gateway(process: GatewayProcess) -> Address:
    return process.address


@pytest.fixture
def both(gateway: Address, laboratory_plugin: Address) -> tuple[Address, Address]:
    return gateway, laboratory_plugin


@pytest_asyncio.fixture
async def amqp(laboratory: Broker) -> AsyncIterator[AmqpBroker]:
    async with AmqpBroker.connected(laboratory.amqp_url) as connected:
        yield connected


# Queues.


async def test_a_deleted_queue_ends_its_subscriptions_and_nothing_else(
    both: tuple[Address, Address], management: Management, queue: str
) -> None:
    destination = f"/queue/{queue}"
    for address in both:
        async with StompClient.logged_in(address) as client, within():
            await client.ask("SUBSCRIBE", id="other", destination="/topic/other")
            await client.ask("SUBSCRIBE", id="a b", ack="client", prefetch_count="1", destination=destination)
            await client.ask("SUBSCRIBE", ack="client", prefetch_count="1", destination=destination)
            client.write("SEND", b"unanswered", destination=destination)
            message = await client.expect("MESSAGE", b"unanswered")
            await management.delete_queue(queue)
            frames = [await client.receive() for _ in range(2)]
            assert {frame["subscription"]: error_text(frame) for frame in frames} == {
                name: ("Server cancelled subscription", CANCELLED.format(f"{kind}='{name}'"))
                for name, kind in (("a b", "id"), (destination, "destination"))
            }
            # What it delivered can no longer be acknowledged.
            client.write("ACK", id=message["ack"])
            await client.expect("ERROR", message="Subscription not found")
            # The id is free again, and the other subscription goes on.
            await client.ask("SUBSCRIBE", id="a b", destination="/topic/new")
            for name in ("new", "other"):
                client.write("SEND", name.encode(), destination=f"/topic/{name}")
                await client.expect("MESSAGE", name.encode(), subscription="a b" if name == "new" else name)
            await client.disconnect()


# The delivery acknowledgement timeout.

_LONG: Final = 1_800_000
"""The broker's default, in milliseconds."""


@pytest.fixture
def impatient(laboratory: Broker) -> Iterator[None]:
    """A broker whose delivery acknowledgement timeout is half a second, checked often."""
    if release_of(laboratory) >= Release(4, 3):
        pytest.skip("RabbitMQ 4.3 has this timeout for quorum queues only, and ends no session by it")
    laboratory.ctl("eval", set_environment(consumer_timeout=500, channel_tick_interval=100))
    yield
    laboratory.ctl("eval", set_environment(consumer_timeout=_LONG, channel_tick_interval=60_000))


def set_environment(**values: int) -> str:
    """Erlang that sets keys of the broker's application."""
    return ", ".join(f"application:set_env(rabbit, {name}, {value})" for name, value in values.items()) + "."


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("prefetch", ["1", "0"])
async def test_a_delivery_that_is_not_acknowledged_in_time(
    laboratory: Broker, both: tuple[Address, Address], amqp: AmqpBroker, queue: str, prefetch: str
) -> None:
    errors = []
    names = (queue, f"{queue}-plugin")
    async with contextlib.AsyncExitStack() as stack, within(60):
        stack.push_async_callback(amqp.delete_queue, names[1])
        readers = [await stack.enter_async_context(StompClient.logged_in(address)) for address in both]
        for slow, name in zip(readers, names, strict=True):
            await slow.ask("SUBSCRIBE", id="a", ack="client", prefetch_count=prefetch, destination=f"/queue/{name}")
        # A channel keeps the timeout that it was opened with: the others may be slow where that is not the subject.
        await asyncio.to_thread(laboratory.ctl, "eval", set_environment(consumer_timeout=_LONG))
        for address, slow, name in zip(both, readers, names, strict=True):
            async with StompClient.logged_in(address) as other, StompClient.logged_in(address) as next_client:
                await other.ask("SUBSCRIBE", id="o", destination=f"/topic/{name}")
                await other.ask("SEND", b"kept", destination=f"/queue/{name}")
                await slow.expect("MESSAGE", b"kept", redelivered="false")
                errors.append(await final_error(slow))
                # The message is back in its queue, and other sessions on the same link are not disturbed.
                await next_client.ask("SUBSCRIBE", id="a", destination=f"/queue/{name}")
                await next_client.expect("MESSAGE", b"kept", redelivered="true")
                other.write("SEND", b"undisturbed", destination=f"/topic/{name}")
                await other.expect("MESSAGE", b"undisturbed")
                await next_client.disconnect()
                await other.disconnect()
    # The channel's number differs.
    messages, bodies = zip(*errors, strict=True)
    assert set(messages) == {"precondition_failed"}
    assert len({re.sub("channel [0-9]+", "channel", body) for body in bodies}) == 1
    assert bodies[0].startswith("PRECONDITION_FAILED - delivery acknowledgement on channel")
    assert "Timeout value used: 500 ms" in bodies[0]


# Operators.


async def test_an_operator_closes_the_connections_of_a_user(
    laboratory: Broker, gateway: Address, user: str, queue: str
) -> None:
    async with (
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as reader,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as sender,
        StompClient.logged_in(gateway) as guest,
        within(),
    ):
        await guest.ask("SUBSCRIBE", id="a", destination="/topic/other")
        await reader.ask("SUBSCRIBE", id="a", ack="client", destination=f"/queue/{queue}")
        await sender.ask("SEND", b"kept", destination=f"/queue/{queue}")
        await reader.expect("MESSAGE", b"kept", redelivered="false")
        await asyncio.to_thread(laboratory.ctl, "close_all_user_connections", user, "Wartung, 12 Uhr")
        for client in (reader, sender):
            assert await final_error(client) == ("connection_forced", "CONNECTION_FORCED - Wartung, 12 Uhr")
        # Other users are not disturbed, and this one may log in again at once.
        async with StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as again:
            await again.ask("SUBSCRIBE", id="a", destination=f"/queue/{queue}")
            await again.expect("MESSAGE", b"kept", redelivered="true")
            await again.disconnect()
        guest.write("SEND", b"undisturbed", destination="/topic/other")
        await guest.expect("MESSAGE", b"undisturbed")
        await guest.disconnect()


async def test_an_operator_closes_one_link(laboratory: Broker, gateway: Address, user: str) -> None:
    """Sessions with a channel on the link end with an ERROR, and no others."""
    async with (
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as reader,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as sender,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as idle,
        within(),
    ):
        await sender.ask("SEND", b"", destination="/topic/any")
        await reader.ask("SUBSCRIBE", id="a", destination="/topic/any")
        close = (
            f'[rabbit_networking:close_connection(Pid, <<"no more reading">>)'
            f' || [{{pid, Pid}}, {{user, <<"{user}">>}}, {{client_properties, Properties}}]'
            f" <- rabbit_networking:connection_info_all([pid, user, client_properties]),"
            f' {{<<"connection_name">>, longstr, <<"stomp-gateway consume", _/binary>>}} <- Properties].'
        )
        assert "ok" in await asyncio.to_thread(laboratory.ctl, "eval", close)
        assert await final_error(reader) == ("connection_forced", "CONNECTION_FORCED - no more reading")
        # RabbitMQ 4.3 may reject a message to a topic while it deletes a queue of that topic, so another one is used.
        await sender.ask("SEND", b"", destination="/topic/other")
        await idle.ask("SUBSCRIBE", id="a", destination="/topic/other")
        sender.write("SEND", b"read again", destination="/topic/other")
        await idle.expect("MESSAGE", b"read again")
        await idle.disconnect()
        await sender.disconnect()


async def test_the_sessions_of_a_deleted_user_end(
    both: tuple[Address, Address], management: Management, user: str
) -> None:
    for address in both:
        await management.add_user(user)
        async with StompClient.logged_in(address, login=user, passcode=PASSCODE) as client, within():
            await client.ask("SUBSCRIBE", id="a", destination="/topic/any")
            await management.delete_user(user)
            error = await final_error(client)
            # The plugin shows the reason as an Erlang term.
            assert f"user '{user}' is deleted" in error.body
            if address == both[0]:
                assert error == ("connection_forced", f"CONNECTION_FORCED - user '{user}' is deleted")
            # The gateway trusts the login until the broker has closed all of its connections, one after the other.
            await until(management.connections, lambda found: all(each.get("user") != user for each in found))
            refusal = error_text(await _first_answer(address, user))
            assert refusal.message == "Bad CONNECT"
            assert refusal.body.rstrip("\n") == f"Access refused for user '{user}'"  # 4.3 leaves the line feed out


async def _first_answer(address: Address, user: str) -> Frame:
    async with StompClient.dialled(address) as client:
        client.write("CONNECT", accept_version="1.2", login=user, passcode=PASSCODE)
        return await client.receive()


async def test_the_sessions_of_a_deleted_virtual_host_end(
    both: tuple[Address, Address], management: Management, vhost: str
) -> None:
    for address in both:
        await management.add_vhost(vhost)
        async with (
            StompClient.logged_in(address, host=vhost) as sender,
            StompClient.logged_in(address) as elsewhere,
            within(),
        ):
            await elsewhere.ask("SUBSCRIBE", id="a", destination="/topic/other")
            await sender.ask("SEND", b"", destination="/topic/any")
            await management.delete_vhost(vhost)
            error = await final_error(sender)
            # The broker stops the virtual host and closes the connections, in either order.
            assert re.search(f"vhost '{vhost}' is (deleted|down)", error.body)
            if address == both[0]:
                assert error.message == "connection_forced"
                assert error.body.startswith("CONNECTION_FORCED - ")
            async with StompClient.dialled(address) as again:
                again.write("CONNECT", accept_version="1.2", host=vhost)
                assert error_text(await again.receive()) == ("Bad CONNECT", f"Virtual host '{vhost}' access denied")
            elsewhere.write("SEND", b"undisturbed", destination="/topic/other")
            await elsewhere.expect("MESSAGE", b"undisturbed")
            await elsewhere.disconnect()


# Limits.


@pytest.mark.parametrize("kind", ["vhost", "user"])
async def test_a_limit_of_connections_is_a_refused_connect(
    both: tuple[Address, Address], management: Management, user: str, vhost: str, kind: str
) -> None:
    await management.permit(user, vhost)
    await management.limit(kind, vhost if kind == "vhost" else user, "max-connections", 0)
    for address in both:
        async with StompClient.dialled(address) as client, within():
            client.write("CONNECT", accept_version="1.2", login=user, passcode=PASSCODE, host=vhost)
            assert error_text(await client.receive()) == ("Bad CONNECT", f"Virtual host '{vhost}' access denied")
            # The connection stays open.
            await client.connect(login="guest", passcode="guest")
            await client.disconnect()


async def test_sessions_on_shared_links_need_no_connections_of_their_own(
    gateway: Address, management: Management, user: str, vhost: str
) -> None:
    """A publishing and a consuming link serve any number of sessions."""
    await management.permit(user, vhost)
    await management.limit("user", user, "max-connections", 2)
    who: dict[str, Any] = {"login": user, "passcode": PASSCODE, "host": vhost}
    async with (
        StompClient.logged_in(gateway, **who) as one,
        StompClient.logged_in(gateway, **who) as two,
        StompClient.logged_in(gateway, **who) as three,
        within(),
    ):
        for client in (one, two, three):
            await client.ask("SUBSCRIBE", id="a", destination="/topic/all")
        for client in (one, two, three):
            client.write("SEND", b"x", destination="/topic/all")
            for receiver in (one, two, three):
                await receiver.expect("MESSAGE", b"x")
        # A subscription that needs a link of its own gets none; the shared links stay open.
        one.write("SUBSCRIBE", id="b", ack="client", destination="/topic/all", receipt="b")
        error = await final_error(one)
        assert error.message == "not_allowed"
        assert f"user '{user}'" in error.body
        two.write("SEND", b"y", destination="/topic/all")
        await three.expect("MESSAGE", b"y")


async def test_a_limit_of_queues(both: tuple[Address, Address], management: Management, vhost: str) -> None:
    await management.limit("vhost", vhost, "max-queues", 0)
    errors = []
    for address in both:
        async with StompClient.logged_in(address, host=vhost) as client, within():
            client.write("SUBSCRIBE", id="a", destination="/queue/one-too-many")
            errors.append(await final_error(client))
    assert errors[0] == errors[1]
    text = f"cannot declare queue 'one-too-many': queue limit in vhost '{vhost}' (0) is reached"
    assert errors[0] == ("precondition_failed", f"PRECONDITION_FAILED - {text}")


async def test_a_limit_of_channels_ends_all_sessions_of_the_link(
    laboratory: Broker, gateway: Address, management: Management, user: str
) -> None:
    """The broker closes the whole connection on which one channel too many is opened."""
    count = f'rabbit_channel_tracking:count_tracked_items_in({{user, <<"{user}">>}}).'
    await management.limit("user", user, "max-channels", 1)
    async with (
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as one,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as two,
        StompClient.logged_in(gateway) as guest,
        within(60),
    ):
        await one.ask("SUBSCRIBE", id="a", destination="/topic/all")
        # The broker counts a channel some time after it has opened it.
        await until(lambda: asyncio.to_thread(laboratory.ctl, "eval", count), lambda answer: answer.strip() == "1")
        two.write("SUBSCRIBE", id="a", destination="/topic/all")
        for client in (one, two):
            error = await final_error(client)
            assert error.message == "not_allowed"
            # RabbitMQ 4.0 names another user.
            assert re.search(r"number of channels opened for user '[^']+' has reached the maximum", error.body)
        await guest.ask("SEND", b"", destination="/topic/other")
        await guest.disconnect()


async def test_the_error_names_the_send_that_was_refused_and_not_the_one_behind_it(
    gateway: Address, queue: str
) -> None:
    """The second SEND waits for its queue when the broker refuses the first, and says that it refused a publish."""
    async with StompClient.logged_in(gateway) as client, within():
        await client.ask("SEND", b"", destination="/topic/nobody")
        client.write("SEND", b"", destination="/exchange/there-is-none/a", receipt="refused")
        client.write("SEND", b"", destination=f"/queue/{queue}", receipt="behind")
        await client.expect("ERROR", message="not_found", receipt_id="refused")
