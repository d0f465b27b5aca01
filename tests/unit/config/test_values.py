"""What valid files mean: units, variables, secrets, defaults."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path

import pytest
from aiormq.connection import Connection
from pydantic import SecretStr, ValidationError
from yarl import URL

from gateway.cli.commands import duration, size_or_null
from gateway.config.addresses import BrokerUrl
from gateway.config.loader import load, parse
from gateway.config.model import GatewayConfig
from gateway.errors import ConfigError
from tests.support.addresses import tcp

SECRET = "correct-horse-battery"


@pytest.mark.parametrize("text", ["", "# nothing", "---", "defaults:\nvirtual_hosts:\nlisteners:\nupstream:\n  tls:"])
def test_an_empty_file_means_the_defaults(text: str) -> None:
    assert parse(text) == GatewayConfig()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 5),
        ("0.25", 0.25),
        ("0", 0),
        ("500ms", 0.5),
        ("60s", 60),
        ("10min", 600),
        ("1h", 3600),
        ("1.5 h", 5400),
        ("5m", 300),
        ("1h30m", 5400),
        ("1d 2h 3min 4s 5ms", 93_784.005),
        ("${TIME}", 90),
    ],
)
def test_durations_are_seconds_or_have_a_unit(text: str, seconds: float) -> None:
    assert parse(f"drain_timeout: {text}", environment={"TIME": "1m30s"}).drain_timeout == seconds
    if "$" not in text and seconds:
        assert duration(text) == seconds, "an option of the command line reads it in another way"


NO_DURATIONS = [
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "5x",
    "1h30",
    "m",
    "5 parsecs",
    "1e9",
    "30m1h",
    "1m1m1m",
    "1min1m",
    "1ms1s",
]


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_an_option_refuses_what_is_no_duration_above_zero(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="duration"):
        _ = duration(text)


@pytest.mark.parametrize(
    ("read", "text", "advice"),
    [
        (size_or_null, "4M", "Write MiB, as in 4MiB"),
        (duration, "30m1h", "Write the largest unit first, and each unit once."),
    ],
)
def test_an_option_has_the_advice_of_a_file(read: Callable[[str], object], text: str, advice: str) -> None:
    with pytest.raises(ArgumentTypeError, match=advice):
        _ = read(text)
    key = "drain_timeout" if read is duration else "defaults: {client_buffer"
    with pytest.raises(ConfigError, match=advice):
        parse(f"{key}: {text}" + ("}" if "{" in key else ""))


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("virtual_hosts: {/, orders}", "virtual_hosts: {/: , orders: }"),
        ("admin: {address: 127.0.0.1:1, tls}", "admin: {address: 127.0.0.1:1, tls: }"),
        ("upstream: {tls}", "upstream: {tls: }"),
        ("virtual_hosts:\n  ? /\n  ? orders", "virtual_hosts: {/: , orders: }"),
    ],
)
def test_a_key_alone_has_no_value(text: str, full: str) -> None:
    assert parse(text) == parse(full)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000", 1000),
        ("512B", 512),
        ("64KiB", 65536),
        ("4 MiB", 4 << 20),
        ("1.5KiB", 1536),
        ("1GiB", 1 << 30),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert parse(f"defaults: {{client_buffer: {text}}}").defaults.client_buffer == size


@pytest.mark.parametrize("key", ["drain_timeout: ", "defaults:\n  client_buffer: "])
def test_a_number_too_large_for_a_float_is_a_mistake(key: str) -> None:
    with pytest.raises(ConfigError, match="1 mistake"):
        parse(f"{key}1{'0' * 400}")


@pytest.mark.parametrize(
    ("url", "parsed"),
    [
        ("amqp://rabbit", "amqp://rabbit:5672"),
        ("amqps://rabbit", "amqps://rabbit:5671"),
        ("amqp://[::1]:1234", "amqp://[::1]:1234"),
        ("AMQP://Rabbit:1", "amqp://rabbit:1"),
    ],
)
def test_urls_have_the_ports_of_their_schemes(url: str, parsed: str) -> None:
    assert str(parse(f"upstream: {{urls: ['{url}']}}").upstream.urls[0]) == parsed


def test_ipv6_listeners_stand_in_brackets() -> None:
    address = tcp(parse('listeners: [{tcp: "[::1]:61613"}]').listeners[0].address)
    assert (address.host, address.port) == ("::1", 61613)


def test_variables_work_in_every_kind_of_value() -> None:
    config = parse(
        """
listeners: [{tcp: "${HOST}:${PORT}", backlog: "${COUNT}"}]
upstream: {urls: ["amqp://${HOST}"]}
defaults:
  default_user: {login: "${EMPTY}${WHO}", passcode: "${SECRET}"}
  links: ${LINKS}
  default_nack_requeue: ${SWITCH}
  client_buffer: ${SIZE}
drain_timeout: ${PORT}
""",
        environment={
            "HOST": "127.0.0.2",
            "PORT": "61614",
            "COUNT": "7",
            "EMPTY": "",
            "WHO": "me",
            "SECRET": "0123",
            "LINKS": "dedicated",
            "SWITCH": "false",
            "SIZE": "2KiB",
        },
    )
    user = config.defaults.default_user
    assert user is not None
    assert str(config.listeners[0].tcp) == "127.0.0.2:61614"
    assert (config.listeners[0].backlog, config.drain_timeout) == (7, 61614)
    assert str(config.upstream.urls[0]) == "amqp://127.0.0.2:5672"
    assert (user.login, user.passcode.get_secret_value()) == ("me", "0123")
    assert (config.defaults.links, config.defaults.default_nack_requeue) == ("dedicated", False)
    assert config.defaults.client_buffer == 2048


@pytest.mark.parametrize(
    ("text", "name"),
    [("a$$b", "a$b"), ("$${A}", "${A}"), ("a$b$", "a$b$"), ("$$$$", "$$"), ("$${${A}}", "${/}"), ("$A", "$A")],
)
def test_dollars_are_escaped_by_doubling(text: str, name: str) -> None:
    config = parse(f"virtual_hosts: {{/: {{amqp_vhost: '{text}'}}}}", environment={"A": "/"})
    assert config.virtual_hosts["/"].amqp_vhost == name


def test_what_a_variable_holds_is_not_expanded_again() -> None:
    user = parse(
        "defaults: {default_user: {login: a, passcode: '${P}'}}", environment={"P": "$${P}$"}
    ).defaults.default_user
    assert user is not None
    assert user.passcode.get_secret_value() == "$${P}$"


@pytest.mark.parametrize("content", [SECRET, f"{SECRET}\n", f"{SECRET}\r\n"])
def test_a_passcode_comes_from_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "passcode").write_bytes(content.encode())
    (tmp_path / "gateway.yaml").write_text(
        "defaults: {default_user: {login: a, passcode_file: passcode}}\n"
        "virtual_hosts: {/: {default_user: {login: b, passcode: null, passcode_file: '${HERE}/passcode'}}}\n"
    )
    config = load(tmp_path / "gateway.yaml", environment={"HERE": str(tmp_path)})
    for user in (config.defaults.default_user, config.virtual_hosts["/"].default_user):
        assert user is not None
        assert user.passcode.get_secret_value() == SECRET


def test_only_one_line_end_is_taken_off_a_passcode_file(tmp_path: Path) -> None:
    (tmp_path / "passcode").write_text(f" {SECRET} \n\n")
    user = parse("defaults: {default_user: {login: a, passcode_file: passcode}}", directory=tmp_path).defaults
    assert user.default_user is not None
    assert user.default_user.passcode == SecretStr(f" {SECRET} \n")


def test_passcodes_do_not_show_in_a_printed_configuration() -> None:
    config = parse(f"defaults: {{default_user: {{login: a, passcode: {SECRET}}}}}")
    shown = [
        repr(config),
        str(config),
        repr(config.virtual_host("/")),
        config.model_dump_json(),
        str(hash(config.upstream)),
    ]
    assert not [text for text in shown if SECRET in text]


def test_a_configuration_cannot_be_changed() -> None:
    config = parse("")
    with pytest.raises(ValidationError):
        config.drain_timeout = 1  # type: ignore[misc]


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    (tmp_path / "gateway.yaml").write_text("drain_timeout: 1", encoding="utf-8-sig")
    assert load(tmp_path / "gateway.yaml").drain_timeout == 1


def test_yaml_anchors_and_merge_keys_work() -> None:
    config = parse("""
virtual_hosts:
  /: &usual {links: dedicated, login_cache: 5s}
  orders: {<<: *usual, login_cache: 7s}
""")
    orders = config.virtual_host("orders")
    assert orders is not None
    assert (orders.links, orders.login_cache) == ("dedicated", 7)


def test_text_that_yaml_takes_for_a_date_or_for_base_sixty_stays_text() -> None:
    config = parse("virtual_hosts: {/: {aliases: [2024-01-31, 10:30]}, 2024-02-01: }")
    assert config.virtual_hosts["/"].aliases == ("2024-01-31", "10:30")
    assert config.virtual_host("2024-02-01")


@pytest.mark.parametrize("text", ["admin: off", "admin: 'off'", "admin: {address: null}"])
def test_the_admin_listener_can_be_switched_off(text: str) -> None:
    assert parse(text).admin.address is None


@pytest.mark.parametrize("text", ["", "admin:", "admin: {users: []}"])
def test_the_admin_listener_is_on_unless_somebody_says_otherwise(text: str) -> None:
    assert str(parse(text).admin.address) == "127.0.0.1:15693"


@pytest.mark.parametrize("name", ["/", "a/b", "..", "a/../b", "a b", "a@b:c", "?x#y", "100%", "+", "\N{PILE OF POO}"])
@pytest.mark.parametrize("host", ["rabbit-a", "::1"])
async def test_the_amqp_library_finds_user_and_virtual_host_in_a_url_as_they_are(name: str, host: str) -> None:
    read = Connection(URL(BrokerUrl("amqps", host, 5671).with_login(name, name, name), encoded=True))
    assert (read.url.scheme, read.url.host, read.url.port) == ("amqps", host, 5671)
    assert (read.url.user, read.url.password, read.vhost) == (name, name, name)
