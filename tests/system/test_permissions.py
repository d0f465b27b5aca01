"""RabbitMQ decides what a user may do, and the gateway passes its answer on in the words of the plugin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.local.broker import Broker
from gateway.parity.amqp_broker import AmqpBroker
from tests.support.brokers import until_queue_gone
from tests.support.deadline import within
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.management import EVERYTHING, PASSCODE, Management
from tests.support.stomp_client import StompClient, error_text, final_error

pytestmark = pytest.mark.system

NOTHING = "^$"
LOGIN_CACHE = 0
"""Seconds: these tests ask the broker each time."""


class Case(NamedTuple):
    """A user's permissions, a frame that they do not allow, and what the broker refuses."""

    rights: tuple[str, str, str]
    frame: dict[str, str]
    refused: str


KIND = "(?:configure |write |read )?"
"""What newer releases name in front of `access`."""
SEND, SUBSCRIBE = "SEND", "SUBSCRIBE"
CASES = {
    "SEND declares a queue": Case(
        (NOTHING, ".*", ".*"), {"command": SEND, "destination": "/queue/secret"}, "queue 'secret'"
    ),
    "SEND writes to the default exchange": Case(
        (".*", NOTHING, ".*"), {"command": SEND, "destination": "/amq/queue/secret"}, "exchange 'amq.default'"
    ),
    "SEND writes to the exchange of topics": Case(
        (".*", NOTHING, ".*"), {"command": SEND, "destination": "/topic/secret"}, "exchange 'amq.topic'"
    ),
    "SEND writes to an exchange": Case(
        (".*", "^amq.topic$", ".*"), {"command": SEND, "destination": "/exchange/amq.direct/a"}, "exchange 'amq.direct'"
    ),
    "SEND makes a queue for replies": Case(
        ("^other$", ".*", ".*"),
        {"command": SEND, "destination": "/topic/a", "reply_to": "/temp-queue/a"},
        "queue 'amq.gen-",
    ),
    "SUBSCRIBE declares a queue": Case(
        (NOTHING, ".*", ".*"), {"command": SUBSCRIBE, "destination": "/queue/secret"}, "queue 'secret'"
    ),
    "SUBSCRIBE reads a queue": Case(
        (".*", ".*", NOTHING), {"command": SUBSCRIBE, "destination": "/queue/secret"}, "queue 'secret'"
    ),
    "SUBSCRIBE reads the exchange of topics": Case(
        (".*", ".*", "^stomp-"), {"command": SUBSCRIBE, "destination": "/topic/secret"}, "exchange 'amq.topic'"
    ),
    "SUBSCRIBE reads an exchange": Case(
        (".*", ".*", "^stomp-"), {"command": SUBSCRIBE, "destination": "/exchange/amq.fanout"}, "exchange 'amq.fanout'"
    ),
    "SUBSCRIBE writes to its queue when it binds it": Case(
        (".*", NOTHING, ".*"),
        {"command": SUBSCRIBE, "destination": "/topic/secret", "x_queue_name": "bound"},
        "queue 'bound'",
    ),
    "a dead-letter exchange must be written to": Case(
        (".*", "^bound$", ".*"),
        {"command": SUBSCRIBE, "destination": "/queue/bound", "x_dead_letter_exchange": "amq.direct"},
        "exchange 'amq.direct'",
    ),
}
TOPICS = {
    "SEND": ({"command": SEND, "destination": "/topic/secret.a"}, "ACCESS_REFUSED - "),
    "SEND to the exchange": ({"command": SEND, "destination": "/exchange/amq.topic/secret.a"}, "ACCESS_REFUSED - "),
    # The plugin asks for this permission before everything else, and answers without the error's name.
    "SUBSCRIBE": ({"command": SUBSCRIBE, "destination": "/topic/secret.a"}, ""),
    "SUBSCRIBE, durable": ({"command": SUBSCRIBE, "destination": "/topic/secret.a", "durable": "true"}, ""),
    "SUBSCRIBE to the exchange": (
        {"command": SUBSCRIBE, "destination": "/exchange/amq.topic/secret.a"},
        "ACCESS_REFUSED - ",
    ),
}


@pytest.fixture(scope="module")
def gateway(laboratory: Broker) -> Iterator[Address]:
    with gateway_process(configuration(laboratory.amqp_url, {"login_cache": LOGIN_CACHE})) as process:
        yield process.address
        process.assert_no_internal_errors()


@pytest.fixture
def both(gateway: Address, laboratory_plugin: Address) -> tuple[Address, Address]:
    return gateway, laboratory_plugin


def write(client: StompClient, frame: dict[str, str]) -> None:
    headers = {name: value for name, value in frame.items() if name != "command"}
    client.write(frame["command"], **headers, **({"id": "a"} if frame["command"] == SUBSCRIBE else {}))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_frame_without_the_right_to_it_ends_the_session_as_with_the_plugin(
    both: tuple[Address, Address], laboratory: Broker, management: Management, user: str, case: Case
) -> None:
    await management.permit(user, rights=case.rights)
    errors = []
    async with AmqpBroker.connected(laboratory.amqp_url) as amqp:
        for address in both:
            async with StompClient.logged_in(address, login=user, passcode=PASSCODE) as client, within():
                write(client, case.frame)
                errors.append(await final_error(client))
            # From 4.3 on it is the session's alone, and RabbitMQ deletes it a moment later.
            await until_queue_gone(amqp, "bound")
    assert errors[0].message == "access_refused"
    assert re.match(rf"ACCESS_REFUSED - {KIND}access to {re.escape(case.refused)}", errors[0].body)
    # A queue name that the broker chose is different each time.
    assert "amq.gen-" in errors[0].body or errors[0] == errors[1]


ROW = re.compile(r"^\| (SEND|SUBSCRIBE) `(\S+)` \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "docs/security.md"


def only(cell: str, *, without: bool = False) -> str:
    """The permission that a cell of the table names, or none at all."""
    names = re.findall(r"`([^`]+)`", cell)
    return f"^({'|'.join(names)})$" if names and not without else NOTHING


@pytest.mark.parametrize("row", ROW.findall(PAGE.read_text("utf-8")), ids=" ".join)
async def test_the_permissions_in_the_table_are_enough_and_each_is_needed(
    both: tuple[Address, Address], laboratory: Broker, management: Management, user: str, row: tuple[str, ...]
) -> None:
    command, destination, *cells = row
    needed = [position for position, cell in enumerate(cells) if only(cell) != NOTHING]
    async with AmqpBroker.connected(laboratory.amqp_url) as amqp:
        for address in both:
            for left_out in (None, *needed):
                await amqp.declare_queue("orders", durable=True, auto_delete=False, arguments={})
                rights = [only(cell, without=position == left_out) for position, cell in enumerate(cells)]
                await management.permit(user, rights=(rights[0], rights[1], rights[2]))
                async with StompClient.logged_in(address, login=user, passcode=PASSCODE) as client, within():
                    client.write(command, id="a", destination=destination, receipt="r")
                    answer = await client.receive()
                    assert answer.command == ("RECEIPT" if left_out is None else "ERROR"), (rights, answer)
        await amqp.delete_queue("orders")


@pytest.mark.parametrize(("frame", "prefix"), TOPICS.values(), ids=TOPICS)
async def test_a_topic_without_the_right_to_it_ends_the_session_as_with_the_plugin(
    both: tuple[Address, Address], management: Management, user: str, frame: dict[str, str], prefix: str
) -> None:
    await management.permit_topics(user, write="^open\\.", read="^{username}\\.")
    errors = []
    for address in both:
        async with StompClient.logged_in(address, login=user, passcode=PASSCODE) as client, within():
            # These two are allowed; the broker replaces {username}.
            await client.ask(SUBSCRIBE, id="own", destination=f"/topic/{user}.a")
            await client.ask(SEND, b"", destination="/topic/open.a")
            write(client, frame)
            errors.append(await final_error(client))
    assert errors[0] == errors[1]
    topic = f"access to topic 'secret.a' in exchange 'amq.topic' in vhost '/' refused for user '{user}'"
    assert errors[0].message == "access_refused"
    assert re.fullmatch(prefix + KIND + topic, errors[0].body)


@pytest.mark.parametrize(
    ("frame", "refused"),
    [
        ({"command": SEND, "destination": "/queue/other"}, "queue 'other'"),
        ({"command": SUBSCRIBE, "destination": "/queue/other"}, "queue 'other'"),
        ({"command": "UNSUBSCRIBE", "id": "kept", "durable": "true", "x_queue_name": "other"}, "queue 'other'"),
    ],
    ids=["SEND", "SUBSCRIBE", "UNSUBSCRIBE"],
)
async def test_rights_taken_while_a_session_is_open(
    both: tuple[Address, Address], management: Management, user: str, frame: dict[str, str], refused: str
) -> None:
    """Open subscriptions go on, as in the broker itself; new requests are refused."""
    errors = []
    for number, address in enumerate(both):
        await management.permit(user)
        # Each has a queue of its own: a server may still be ending the subscription of the session before.
        kept = f"/topic/kept-{number}"
        async with (
            StompClient.logged_in(address, login=user, passcode=PASSCODE) as client,
            StompClient.logged_in(address) as guest,
            within(),
        ):
            await client.ask(SEND, b"", destination="/topic/nobody")
            await client.ask(SUBSCRIBE, id="kept", destination=kept, durable="true")
            await management.permit(user, rights=(NOTHING, NOTHING, NOTHING))
            await guest.ask(SEND, b"still", destination=kept)
            await client.expect("MESSAGE", b"still", subscription="kept")
            headers = {name: value for name, value in frame.items() if name != "command"}
            client.write(frame["command"], **headers, **({} if "id" in headers else {"id": "b"}))
            errors.append(await final_error(client))
            await guest.disconnect()
    assert errors[0] == errors[1]
    assert errors[0].message == "access_refused"
    assert re.match(rf"ACCESS_REFUSED - {KIND}access to {re.escape(refused)}", errors[0].body)


async def test_a_user_without_access_to_the_virtual_host_keeps_sessions_but_cannot_log_in(
    both: tuple[Address, Address], management: Management, user: str
) -> None:
    for address in both:
        await management.permit(user)
        async with (
            StompClient.logged_in(address, login=user, passcode=PASSCODE) as client,
            StompClient.logged_in(address) as guest,
            within(),
        ):
            await client.ask(SUBSCRIBE, id="a", destination="/topic/kept")
            await management.forbid(user)
            await guest.ask(SEND, b"still", destination="/topic/kept")
            await client.expect("MESSAGE", b"still")
            async with StompClient.dialled(address) as another:
                another.write("CONNECT", accept_version="1.2", login=user, passcode=PASSCODE)
                assert error_text(await another.receive()) == ("Bad CONNECT", "Virtual host '/' access denied")
                # The connection stays open, and the login succeeds once the user has permission again.
                await management.permit(user, rights=EVERYTHING)
                await another.connect(login=user, passcode=PASSCODE)
                await another.disconnect()


async def test_one_session_refused_does_not_disturb_another_of_the_same_user(
    gateway: Address, management: Management, user: str
) -> None:
    await management.permit(user, rights=("^(open|stomp-.*)$", ".*", ".*"))
    async with (
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as refused,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as other,
        within(),
    ):
        await other.ask(SUBSCRIBE, id="a", destination="/queue/open")
        refused.write(SUBSCRIBE, id="a", destination="/queue/secret")
        assert (await final_error(refused)).message == "access_refused"
        other.write(SEND, b"undisturbed", destination="/queue/open")
        await other.expect("MESSAGE", b"undisturbed")
        await other.disconnect()
