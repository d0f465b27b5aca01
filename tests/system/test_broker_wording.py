"""What only the broker's words tell. A release that says it otherwise fails here; docs/compatibility.md lists what ran.

AMQP closes the whole channel for one bad message and does not number it. So which SEND an ERROR belongs to is read out
of the text (`receipt_of_failure`), and nothing else is. That an expired token is told by its text, test_token.py shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from deploy.local.broker import Broker
from tests.support.deadline import within
from tests.support.gateway import Address, configuration, gateway_process
from tests.support.management import PASSCODE, Management
from tests.support.stomp_client import StompClient

pytestmark = pytest.mark.system


class Refused(NamedTuple):
    """A destination that the broker refuses, others that it takes, and what its text says of the first."""

    destination: str
    others: tuple[str, ...]
    words: str


TOPICS = ("/topic/open.a", "/topic/open.b")
CASES = {
    "no exchange": Refused("/exchange/missing/k", TOPICS, "no exchange 'missing'"),
    "an internal exchange": Refused(
        "/exchange/amq.rabbitmq.trace/k", TOPICS, "cannot publish to internal exchange 'amq.rabbitmq.trace'"
    ),
    "no right to the default exchange": Refused("/amq/queue/secret", TOPICS, "access to exchange 'amq.default'"),
    "no right to an exchange": Refused("/exchange/amq.direct/k", TOPICS, "access to exchange 'amq.direct'"),
    "no right to a topic": Refused(
        "/topic/secret.a", ("/topic/open.secret.a", *TOPICS), "access to topic 'secret.a' in exchange 'amq.topic'"
    ),
}


@pytest.fixture(scope="module")
def gateway(laboratory: Broker) -> Iterator[Address]:
    with gateway_process(configuration(laboratory.amqp_url, {"login_cache": 0})) as process:
        yield process.address
        process.assert_no_internal_errors()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_broker_names_the_exchange_or_topic_of_the_message_that_it_refuses(
    gateway: Address, management: Management, user: str, case: Refused
) -> None:
    await management.permit(user, rights=(".*", "^(amq\\.topic|missing|amq\\.rabbitmq\\.trace)$", ".*"))
    await management.permit_topics(user, write="^open\\.", read=".*")
    async with (
        StompClient.logged_in(gateway) as guest,
        StompClient.logged_in(gateway, login=user, passcode=PASSCODE) as client,
        within(),
    ):
        # What goes to a queue is confirmed by the queue: too late for the others to be out of the question.
        await guest.ask("SUBSCRIBE", id="all", destination="/topic/open.#")
        await client.ask("SEND", destination="/topic/open.first")
        for destination in (*case.others, case.destination, *case.others):
            client.write("SEND", destination=destination, receipt=destination)
        while (frame := await client.receive()).command == "RECEIPT":
            assert frame["receipt-id"] in case.others
        assert frame.command == "ERROR"
        assert case.words in frame.body.decode()
        assert frame["receipt-id"] == case.destination


@pytest.mark.parametrize(
    ("headers", "words"),
    [({"user_id": "somebody"}, "user_id property set to 'somebody'"), ({"expiration": "soon"}, "invalid expiration")],
    ids=["user-id", "expiration"],
)
async def test_a_text_that_names_no_exchange_is_of_the_only_message(
    gateway: Address, headers: dict[str, str], words: str
) -> None:
    async with StompClient.logged_in(gateway) as client, within():
        await client.ask("SEND", destination="/topic/open.first")
        client.write("SEND", destination="/topic/open.a", receipt="r", **headers)
        frame = await client.expect("ERROR", receipt_id="r")
        assert words in frame.body.decode()
        assert "exchange" not in frame.body.decode()
