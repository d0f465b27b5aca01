"""Which virtual host a CONNECT frame's host header means, and with which settings."""

import pytest

from gateway.config.loader import parse
from gateway.config.virtual_host import VirtualHost

CONFIG = parse("""
upstream: {urls: [amqps://shared-a, amqps://shared-b], connect_timeout: 3s, tls: {verify: false}}
defaults:
  default_user: {login: everyone, passcode: everyone-secret}
  links: dedicated
  transactions: {max_open: 7, max_age: 1h}
virtual_hosts:
  /:
    aliases: [localhost, stomp.example.org]
  orders:
    aliases: [orders.example.org]
    amqp_vhost: /orders-prod
    upstream: {urls: [amqps://own], tls: {verify: true}}
    default_user: {login: orders, passcode: orders-secret}
    links: shared
    transactions: {max_open: 9}
    confirm_window: {messages: 5}
  closed:
    default_user: null
""")

PASSING = parse("""
default_vhost: anything
defaults: {login_cache: 5s}
virtual_hosts:
  orders: {amqp_vhost: /orders-prod}
  "*": {links: dedicated}
""")


def resolved(host: str | None) -> VirtualHost:
    found = CONFIG.virtual_host(host)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host", "name", "amqp_vhost"),
    [
        (None, "/", "/"),
        ("/", "/", "/"),
        ("localhost", "/", "/"),
        ("stomp.example.org", "/", "/"),
        ("orders", "orders", "/orders-prod"),
        ("orders.example.org", "orders", "/orders-prod"),
    ],
)
def test_names_and_aliases_mean_their_virtual_host(host: str | None, name: str, amqp_vhost: str) -> None:
    assert (resolved(host).name, resolved(host).amqp_vhost) == (name, amqp_vhost)


@pytest.mark.parametrize("host", ["", "Localhost", "localhost ", "/orders-prod", "unknown", "*"])
def test_any_other_host_is_refused(host: str) -> None:
    assert CONFIG.virtual_host(host) is None


def test_a_virtual_host_has_the_defaults_where_it_says_nothing() -> None:
    everyday = resolved("/")
    assert everyday.default_user is not None
    assert everyday.default_user.login == "everyone"
    assert (everyday.links, everyday.transactions.max_open, everyday.transactions.max_age) == ("dedicated", 7, 3600)
    assert everyday.upstream == CONFIG.upstream


def test_what_a_virtual_host_says_goes_before_the_defaults_key_by_key() -> None:
    orders = resolved("orders")
    assert orders.links == "shared"
    assert (orders.transactions.max_open, orders.transactions.max_age) == (9, 3600)
    assert (orders.confirm_window.messages, orders.confirm_window.bytes) == (5, 64 << 20)
    assert [str(url) for url in orders.upstream.urls] == ["amqps://own:5671"]
    assert (orders.upstream.connect_timeout, orders.upstream.tls.verify) == (3, True)


def test_a_default_user_is_replaced_as_a_whole_or_taken_away() -> None:
    orders = resolved("orders").default_user
    assert orders is not None
    assert (orders.login, orders.passcode.get_secret_value()) == ("orders", "orders-secret")
    assert resolved("closed").default_user is None


def test_resolving_builds_nothing_new() -> None:
    assert resolved("localhost") is resolved(None)


@pytest.mark.parametrize("host", ["unknown", "*", "/", "\N{SNOWMAN}"])
def test_a_star_passes_unknown_hosts_to_the_broker_as_they_are(host: str) -> None:
    passed = PASSING.virtual_host(host)
    assert passed is not None
    assert (passed.name, passed.amqp_vhost, passed.links, passed.login_cache) == (host, host, "dedicated", 5)


def test_a_star_does_not_pass_an_empty_host() -> None:
    """RabbitMQ has no such virtual host; the AMQP library would take it for the default one."""
    assert PASSING.virtual_host("") is None


def test_a_configured_host_goes_before_the_star() -> None:
    orders = PASSING.virtual_host("orders")
    assert orders is not None
    assert (orders.amqp_vhost, orders.links) == ("/orders-prod", "shared")


def test_without_a_host_the_star_passes_the_default_name() -> None:
    passed = PASSING.virtual_host(None)
    assert passed is not None
    assert passed.amqp_vhost == "anything"


@pytest.mark.parametrize("host", ["x" * 256, "\N{SNOWMAN}" * 86, "\udcff"])
def test_a_host_that_amqp_cannot_carry_is_refused_even_with_a_star(host: str) -> None:
    assert PASSING.virtual_host(host) is None


def test_a_star_with_a_broker_name_sends_every_unknown_host_there() -> None:
    config = parse('virtual_hosts: {/: , "*": {amqp_vhost: /lobby}}')
    passed = config.virtual_host("whatever.example.org")
    assert passed is not None
    assert (passed.name, passed.amqp_vhost) == ("whatever.example.org", "/lobby")


def test_the_default_may_be_an_alias() -> None:
    config = parse("default_vhost: home\nvirtual_hosts: {orders: {aliases: [home]}}")
    found = config.virtual_host(None)
    assert found is not None
    assert found.name == "orders"
