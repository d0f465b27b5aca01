"""The client-properties of links, which leave room for long credentials, and how many log lines links may cause."""

from __future__ import annotations

from typing import Any, cast

import pytest
import structlog
from pamqp import commands, frame
from pamqp.common import FieldTable

from gateway.config.model import Logging
from gateway.config.scalars import BrokerUrl
from gateway.server.broker.client_properties import ClientProperties
from gateway.server.broker.link import Link, Tuning
from gateway.server.log_limits import LogLimits

# What RabbitMQ takes in one frame before the login, and what of it the gateway promises to credentials.
_FRAME = 4096
_CREDENTIALS = 3000

# What the AMQP library adds.
_OF_THE_LIBRARY: FieldTable = {
    "capabilities": dict.fromkeys(
        ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify",
         "publisher_confirms"), True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("letter", ["v", "ü", "\N{GRINNING FACE}"])
def test_long_credentials_fit_into_the_first_frame(letter: str) -> None:
    long = letter * 255
    peer = "[2001:0db8:85a3:0000:0000:8a2e:0370:7334]:65535"
    client_properties = ClientProperties("consume", long, long, long, peer, "session-" + "x" * 22)
    properties: FieldTable = {**_OF_THE_LIBRARY, **client_properties.as_table()}
    response = "\0" + "x" * _CREDENTIALS + "\0"
    data = frame.marshal(commands.Connection.StartOk(properties, "PLAIN", response, "en_US"), 0)
    assert len(data) <= _FRAME


def test_a_shared_link_names_no_session() -> None:
    client_properties = ClientProperties("publish", "/", "guest", "gw")
    assert client_properties.connection_name == "stomp-gateway publish / guest"
    assert not [key for key in client_properties.as_table() if key.startswith("stomp_")]


async def test_a_client_that_opens_links_of_its_own_again_and_again_does_not_fill_the_log() -> None:
    now = 0.0
    limits = LogLimits(Logging(lines_per_address=3), lambda: now)

    def open_and_close(client: str) -> None:
        whose = ClientProperties("own", "/", "guest", "gw", client, "s")
        link = Link(whose, BrokerUrl("amqp", "broker", 5672), lambda: None, limits)
        link.opened(cast(Any, None), cast(Any, object()), Tuning())
        link.connection_lost(None, by_broker=True)

    with structlog.testing.capture_logs() as lines:
        for port in range(10):
            open_and_close(f"[2001:db8::{port}]:{port + 1000}")
        open_and_close("192.0.2.1:1000")
        now += 11
        open_and_close("[2001:db8::1]:2000")
    assert [line["event"].removeprefix("link ") for line in lines] == [
        *("opened", "closed", "opened"), *("opened", "closed"), *("opened", "closed"),
    ]  # fmt: skip
    assert [line.get("left_out") for line in lines] == [None] * 5 + [17, None]
    assert limits.left_out == 17
