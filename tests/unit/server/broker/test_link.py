"""The client-properties of links: they leave room for long credentials, and name a session only where there is one."""

from __future__ import annotations

import pytest
from pamqp import commands, frame
from pamqp.common import FieldTable

from gateway.server.broker.link import ClientProperties

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
