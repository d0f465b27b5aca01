"""Login: RabbitMQ decides about users and virtual hosts, and its answer is cached for a limited time."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections import Counter
from collections.abc import Iterator

import pytest

from deploy.local.broker import Broker
from tests.support.chaos import ChaosProxy
from tests.support.deadline import until, within
from tests.support.gateway import Address, gateway_here, parsed, upstream
from tests.support.stomp_client import Frame, StompClient, encoded

pytestmark = pytest.mark.system

RIGHT, WRONG, CHANGED = "correct", "wrong", "changed"
USERS = 20
"""More than the tests that need one."""
REFUSED = "Access refused for user '{}'\n"


@pytest.fixture(scope="module")
def users(own_broker: Broker) -> Iterator[str]:
    """Users with the passcode "correct" who may use the virtual host /, all created in one call."""
    names = [f"user-{secrets.token_hex(4)}" for _ in range(USERS)]
    add_user = 'rabbit_auth_backend_internal:add_user(<<"{}">>, <<"{}">>, <<"tests">>)'
    erlang(own_broker, ", ".join(f"{add_user.format(name, RIGHT)}, {permit(name, '/')}" for name in names) + ".")
    return iter(names)


@pytest.fixture
def user(users: Iterator[str]) -> str:
    """A user that no other test has."""
    return next(users)


@pytest.fixture(scope="module")
def twins(own_broker: Broker) -> Iterator[tuple[str, str]]:
    """Two virtual hosts on the broker that guest may use."""
    names = tuple(f"twin-{secrets.token_hex(4)}" for _ in range(2))
    for name in names:
        erlang(own_broker, f'rabbit_vhost:add(<<"{name}">>, <<"tests">>), {permit("guest", name)}.')
    yield names[0], names[1]
    for name in names:
        erlang(own_broker, f'rabbit_vhost:delete(<<"{name}">>, <<"tests">>).')


def permit(user: str, vhost: str) -> str:
    """The Erlang expression that gives a user all permissions in a virtual host."""
    everything = ", ".join(['<<".*">>'] * 3)
    return f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"{vhost}">>, {everything}, <<"tests">>)'


def erlang(broker: Broker, expression: str) -> str:
    """Run several steps in one rabbitmqctl, which takes about a second to start."""
    return broker.ctl("eval", expression)


async def change_passcode(broker: Broker, user: str) -> None:
    change = f'rabbit_auth_backend_internal:change_password(<<"{user}">>, <<"{CHANGED}">>, <<"tests">>).'
    await asyncio.to_thread(erlang, broker, change)


async def try_login(address: Address, login: str, passcode: str, **headers: str) -> Frame:
    async with StompClient.dialled(address) as client:
        client.write("CONNECT", accept_version="1.2", login=login, passcode=passcode, **headers)
        frame = await client.receive()
        if frame.command == "CONNECTED":
            await client.disconnect()
        return frame


async def test_what_a_client_sends_with_its_login_is_carried_out_after_it(gateway_address: Address, queue: str) -> None:
    """Also where the broker need not be asked about the login, and a refusal comes as fast."""
    async with StompClient.logged_in(gateway_address), StompClient.dialled(gateway_address) as client, within():
        wrong = encoded("CONNECT", accept_version="1.2", heart_beat="often")
        send = encoded("SEND", b"hi", destination=f"/queue/{queue}", receipt="1")
        client.writer.write(wrong + encoded("CONNECT", accept_version="1.2") + send)
        await client.expect("ERROR")
        await client.expect("CONNECTED")
        await client.expect("RECEIPT", receipt_id="1")
        await client.disconnect()


# Refusals.


@pytest.mark.parametrize(("login", "passcode"), [("guest", WRONG), ("nobody", "guest"), ("", ""), ("guest", "")])
async def test_a_refused_login_may_be_tried_again_on_the_same_connection(
    gateway_address: Address, login: str, passcode: str
) -> None:
    async with StompClient.dialled(gateway_address) as client, within():
        for _ in range(2):
            client.write("CONNECT", accept_version="1.2", login=login, passcode=passcode)
            error = await client.expect("ERROR", REFUSED.format(login).encode(), message="Bad CONNECT")
            assert WRONG not in str(error.headers)
        client.write("SEND", b"", destination="/queue/never")
        await client.expect("ERROR", message="Illegal command")
        await client.connect(login="guest", passcode="guest")
        await client.disconnect()


async def test_passcodes_never_show_in_the_log(broker_url: str, capfd: pytest.CaptureFixture[str]) -> None:
    async with gateway_here(parsed(broker_url)) as gateway, within():
        await try_login(gateway.addresses[0], "guest", "a-wrong-passcode")
        await try_login(gateway.addresses[0], "guest", "guest", host="a-wrong-host")
    said = "".join(capfd.readouterr())
    assert "listening" in said
    assert "a-wrong-passcode" not in said


# The cache of logins.


async def test_without_a_cache_the_broker_is_asked_each_time(own_broker: Broker, proxy: ChaosProxy, user: str) -> None:
    config = parsed(own_broker.amqp_url, {"login_cache": 0}, upstream=upstream(proxy.address))
    async with gateway_here(config) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT):
            for asked in range(1, 4):
                assert proxy.accepted == asked
                assert (await try_login(address, user, RIGHT)).command == "CONNECTED"
            await change_passcode(own_broker, user)
            assert (await try_login(address, user, RIGHT)).body.decode() == REFUSED.format(user)
            assert (await try_login(address, user, CHANGED)).command == "CONNECTED"


async def test_the_cache_accepts_only_exactly_the_same_credentials(
    own_broker: Broker, proxy: ChaosProxy, user: str
) -> None:
    config = parsed(own_broker.amqp_url, {"login_cache": 60}, upstream=upstream(proxy.address))
    async with gateway_here(config) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT):
            await change_passcode(own_broker, user)
            assert proxy.accepted == 1
            assert (await try_login(address, user, RIGHT)).command == "CONNECTED"
            assert proxy.accepted == 1, "the broker was asked though the answer was known"
            for passcode in (WRONG, RIGHT[:-1], RIGHT + " ", ""):
                assert (await try_login(address, user, passcode)).body.decode() == REFUSED.format(user)
            assert (await try_login(address, user, CHANGED)).command == "CONNECTED"
            # The refused login has not replaced the accepted one in the cache.
            asked = proxy.accepted
            assert (await try_login(address, user, RIGHT)).command == "CONNECTED"
            assert proxy.accepted == asked


async def test_the_broker_is_asked_again_when_the_cache_time_is_over(
    own_broker: Broker, proxy: ChaosProxy, user: str
) -> None:
    config = parsed(own_broker.amqp_url, {"login_cache": 10}, upstream=upstream(proxy.address))
    async with gateway_here(config) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT) as early:
            assert (await try_login(address, user, RIGHT)).command == "CONNECTED"
            assert proxy.accepted == 1
            # This may take longer than the cache keeps the login.
            await change_passcode(own_broker, user)

            async def answer() -> str:
                return (await try_login(address, user, RIGHT)).command

            await until(answer, lambda command: command == "ERROR")
            # Sessions that logged in before go on.
            await early.ask("SEND", b"", destination="/topic/nobody")
            await early.disconnect()


async def test_a_deleted_user_cannot_log_in_again(own_broker: Broker, user: str) -> None:
    async with gateway_here(parsed(own_broker.amqp_url, {"login_cache": 600})) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT) as client:
            delete = f'rabbit_auth_backend_internal:delete_user(<<"{user}">>, <<"tests">>).'
            await asyncio.to_thread(erlang, own_broker, delete)

            # RabbitMQ closes the user's connections; without a link no login is trusted.
            async def answer() -> str:
                return (await try_login(address, user, RIGHT)).command

            await until(answer, lambda command: command == "ERROR")
            client.write("SEND", b"", destination="/topic/nobody", receipt="r")
            assert (await client.receive()).command == "ERROR"


async def test_many_logins_at_once_with_a_wrong_one_among_them(broker: Broker) -> None:
    async with gateway_here(parsed(broker.amqp_url)) as gateway, within(30):
        address = gateway.addresses[0]
        passcodes = ["guest", WRONG] * 20
        frames = await asyncio.gather(*(try_login(address, "guest", passcode) for passcode in passcodes))
        for frame, passcode in zip(frames, passcodes, strict=True):
            assert frame.command == ("CONNECTED" if passcode == "guest" else "ERROR")


# Links.


async def connections(broker: Broker) -> Counter[str]:
    """The number of AMQP connections, by the names that the gateway gives them."""
    listing = await asyncio.to_thread(broker.ctl, "list_connections", "client_properties")
    return Counter(re.findall(r'"connection_name","(stomp-gateway [^"]+)"', listing))


async def test_shared_links_are_few(own_broker: Broker, user: str) -> None:
    async with gateway_here(parsed(own_broker.amqp_url)) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT) as first:
            clients = [StompClient.logged_in(address, login=user, passcode=RIGHT) for _ in range(30)]
            opened = [await client.__aenter__() for client in clients]
            for number, client in enumerate(opened):
                await client.ask("SUBSCRIBE", id="a", destination=f"/topic/shared.{user}.{number}")
                await client.ask("SEND", b"", destination="/topic/nobody")
            found = await connections(own_broker)
            assert sum(count for name, count in found.items() if user in name) <= 2
            for client in opened:
                await client.disconnect()
            for context in clients:
                await context.__aexit__(None, None, None)
            await first.disconnect()


async def test_each_session_has_its_own_dedicated_link(own_broker: Broker, user: str) -> None:
    async with gateway_here(parsed(own_broker.amqp_url, {"links": "dedicated"})) as gateway, within(60):
        address = gateway.addresses[0]
        async with (
            StompClient.logged_in(address, login=user, passcode=RIGHT) as one,
            StompClient.logged_in(address, login=user, passcode=RIGHT) as two,
        ):
            peers = [":".join(map(str, client.writer.get_extra_info("sockname"))) for client in (one, two)]
            found = await connections(own_broker)
            assert [sum(count for name, count in found.items() if peer in name) for peer in peers] == [1, 1]
            await one.disconnect()

            async def left() -> list[int]:
                now = await connections(own_broker)
                return [sum(count for name, count in now.items() if peer in name) for peer in peers]

            await until(left, lambda counts: counts == [0, 1])
            await two.disconnect()


async def test_a_dedicated_link_checks_the_passcode_each_time(own_broker: Broker, user: str) -> None:
    async with gateway_here(parsed(own_broker.amqp_url, {"links": "dedicated"})) as gateway, within(60):
        address = gateway.addresses[0]
        async with StompClient.logged_in(address, login=user, passcode=RIGHT):
            await change_passcode(own_broker, user)
            assert (await try_login(address, user, RIGHT)).command == "ERROR"


# Virtual hosts.


async def test_virtual_hosts_by_name_alias_mapping_and_pass_through(broker: Broker, twins: tuple[str, str]) -> None:
    hosts = {
        "/": {"aliases": ["localhost"]},
        "orders": {"aliases": ["stomp.example.org"], "amqp_vhost": twins[0]},
        "*": {},
    }
    async with gateway_here(parsed(broker.amqp_url, virtual_hosts=hosts)) as gateway, within(60):
        address = gateway.addresses[0]
        where = {"orders": twins[0], "stomp.example.org": twins[0], twins[0]: twins[0], twins[1]: twins[1], "/": "/"}
        for host, vhost in where.items():
            async with (
                StompClient.logged_in(address, host=vhost) as behind,
                StompClient.logged_in(address, host=host) as client,
            ):
                await behind.ask("SUBSCRIBE", id="a", destination="/topic/hello")
                await client.ask("SEND", host.encode(), destination="/topic/hello")
                await behind.expect("MESSAGE", host.encode())
                await client.disconnect()
                await behind.disconnect()
        absent = await try_login(address, "guest", "guest", host="no-such-vhost")
        assert absent.body == b"Virtual host 'no-such-vhost' access denied"
        assert absent["message"] == "Bad CONNECT"
        # It goes to the broker like any other, although it is a name of this machine.
        assert (await try_login(address, "guest", "guest", host="::1")).command == "ERROR"


async def test_an_unknown_virtual_host_is_refused_without_asking_the_broker(
    broker: Broker, twins: tuple[str, str]
) -> None:
    async with gateway_here(parsed(broker.amqp_url)) as gateway, within():
        for host in (twins[0], "unknown", ""):
            frame = await try_login(gateway.addresses[0], "guest", "guest", host=host)
            assert (frame.command, frame["message"]) == ("ERROR", "Bad CONNECT")
            assert host in frame.body.decode()


async def test_two_virtual_hosts_with_topic_exchanges_of_their_own(broker: Broker, twins: tuple[str, str]) -> None:
    hosts = {
        "one": {"amqp_vhost": twins[0], "default_topic_exchange": "amq.topic"},
        "two": {"amqp_vhost": twins[1], "default_topic_exchange": "amq.fanout"},
    }
    config = parsed(broker.amqp_url, virtual_hosts=hosts, default_vhost="one")
    async with gateway_here(config) as gateway, within():
        address = gateway.addresses[0]
        seen = {}
        for host in hosts:
            async with StompClient.logged_in(address, host=host) as client:
                await client.ask("SUBSCRIBE", id="a", destination="/topic/heard")
                client.write("SEND", b"other key", destination="/topic/not.heard")
                client.write("SEND", b"key", destination="/topic/heard")
                message = await client.expect("MESSAGE")
                seen[host] = (message.body, message["destination"])
                await client.ask("UNSUBSCRIBE", id="a") if host == "one" else None
        assert seen == {"one": (b"key", "/topic/heard"), "two": (b"other key", "/exchange/amq.fanout/not.heard")}


async def test_a_passcode_that_is_too_long_for_the_broker_is_a_refused_login(broker: Broker) -> None:
    """RabbitMQ closes the connection without an answer. A token may be so long."""
    async with gateway_here(parsed(broker.amqp_url)) as gateway, within():
        frame = await try_login(gateway.addresses[0], "guest", "x" * 20_000)
        assert (frame["message"], frame.body) == ("Bad CONNECT", b"Access refused for user 'guest'\n")
