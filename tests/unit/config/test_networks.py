"""Networks in the file: what they mean, and what is none."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from gateway.config.loader import parse
from gateway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("10.0.0.0/8", "10.0.0.0/8"),
        ("192.0.2.7", "192.0.2.7/32"),
        ("'2001:db8::/32'", "2001:db8::/32"),
        ("'::1'", "::1/128"),
        ("'::/0'", "::/0"),
        ("'::ffff:10.0.0.0/104'", "10.0.0.0/8"),
        ("'::ffff:192.0.2.7'", "192.0.2.7/32"),
        ("${NETWORK}", "0.0.0.0/0"),
    ],
)
def test_a_network_is_an_address_with_or_without_the_length_of_its_prefix(text: str, meaning: str) -> None:
    file = f'listeners: [{{tcp: a:1, denied_networks: ["{text}"]}}]' if "$" in text else _denying(text)
    assert parse(file, environment={"NETWORK": "0.0.0.0/0"}).listeners[0].denied_networks == (ip_network(meaning),)


def _denying(network: str) -> str:
    return f"listeners: [{{tcp: a:1, denied_networks: [{network}]}}]"


@pytest.mark.parametrize("text", ["example.org", "10.0.0.0/33", "10.0.0.0/255.0.0.0", "10", "10.0", "'fe80::1%eth0'"])
def test_what_is_no_network_is_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(_denying(text))
    (mistake,) = refused.value.mistakes
    assert mistake.path == "listeners[0].denied_networks[0]"
    assert mistake.sentence.startswith("A network is an IP address")


@pytest.mark.parametrize("text", ["10.1.2.3/8", "'2001:db8::1/32'", "'::ffff:10.1.2.3/104'"])
def test_an_address_that_is_not_the_first_of_its_network_is_a_mistake(text: str) -> None:
    with pytest.raises(ConfigError, match="bits that are set after the prefix"):
        parse(_denying(text))


@pytest.mark.parametrize("more", ["", ", proxy_protocol: false"])
def test_proxies_that_say_nothing_of_their_clients_cannot_be_trusted(more: str) -> None:
    with pytest.raises(ConfigError, match="Without proxy_protocol there are no proxies here"):
        parse(_trusting(more))
    assert parse(_trusting(", proxy_protocol: 'true'")).listeners[0].trusted_proxies


def _trusting(more: str) -> str:
    return f"listeners: [{{tcp: a:1, trusted_proxies: [10.0.0.0/8]{more}}}]"
