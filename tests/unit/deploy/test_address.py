"""AMQP URLs, as AMQP_URL has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.local.address import Address
from deploy.local.errors import LocalError


def test_everything_is_taken_from_the_url() -> None:
    address = Address.parse("amqps://al%40ice:s%2Fcret@rabbit.example:5673/%2Forders")

    assert address == Address("amqps", "rabbit.example", 5673, "al@ice", "s/cret", "/orders")


@pytest.mark.parametrize(
    ("url", "port"),
    [("amqp://rabbit", 5672), ("amqps://rabbit", 5671), ("amqp://rabbit/", 5672), ("amqp://:@rabbit", 5672)],
)
def test_what_is_left_out_has_defaults(url: str, port: int) -> None:
    address = Address.parse(url)

    assert (address.port, address.login, address.passcode, address.vhost) == (port, "guest", "guest", "/")


def test_upstream_has_neither_credentials_nor_virtual_host() -> None:
    assert Address.parse("amqp://alice:secret@[::1]:5673/orders").upstream == "amqp://[::1]:5673"


@given(login=st.text(min_size=1), passcode=st.text(min_size=1), vhost=st.text(min_size=1))
def test_any_credentials_survive_a_url(login: str, passcode: str, vhost: str) -> None:
    address = Address("amqp", "rabbit", 5672, login, passcode, vhost)

    assert Address.parse(address.url) == address


@pytest.mark.parametrize(
    "url",
    [
        "rabbit:5672",
        "http://alice:secret@rabbit",
        "amqp://alice:secret@rabbit:port",
        "amqp://alice:secret@rabbit:70000",
        "amqp://alice:secret@",
        "amqp://alice:secret@rabbit/a/b",
        "amqp://alice:secret@rabbit/?heartbeat=5",
    ],
)
def test_anything_else_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(LocalError, match="AMQP_URL") as refusal:
        Address.parse(url)

    assert "secret" not in str(refusal.value)
