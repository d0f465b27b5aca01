"""Every mistake is reported at once, with its place, and without anybody's secret."""

from pathlib import Path

import pytest

from gateway.config.loader import load, parse
from gateway.errors import ConfigError, Mistake
from tests.support.certificates import Authority

SECRET = "correct-horse-battery"


def mistakes(text: str, directory: Path | None = None, **environment: str) -> dict[str, Mistake]:
    with pytest.raises(ConfigError) as caught:
        parse(text, directory=directory, environment=environment)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    return {mistake.path: mistake for mistake in caught.value.mistakes}


def only_mistake(text: str, directory: Path | None = None, **environment: str) -> Mistake:
    (mistake,) = mistakes(text, directory, **environment).values()
    return mistake


def test_mistakes_of_every_kind_are_reported_together() -> None:
    found = mistakes("""
listeners:
  - tcp: 61613
upstraem: {}
upstream:
  urls: [amqp://a, http://b]
defaults:
  links: shraed
  max_frame_size: 4MB
  links: dedicated
  default_user: {login: "${NOBODY_SET_THIS}", passcode: 1234}
default_vhost: ordres
virtual_hosts:
  orders:
    aliases: [one, one]
    transactions: {max_opne: 5}
drain_timeout: 10 parsecs
""")
    assert list(found) == [
        "listeners[0].tcp",
        "upstraem",
        "upstream.urls[1]",
        "defaults.max_frame_size",
        "defaults.links",
        "defaults.default_user.login",
        "defaults.default_user.passcode",
        "default_vhost",
        "virtual_hosts.orders.aliases[1]",
        "virtual_hosts.orders.transactions.max_opne",
        "drain_timeout",
    ]
    assert [mistake.line for mistake in found.values()] == [3, 4, 6, 9, 10, 11, 11, 12, 15, 16, 17]


@pytest.mark.parametrize(
    ("text", "path", "suggestion"),
    [
        ("listners: []", "listners", "Did you mean listeners?"),
        ("defaults: {default-user: null}", "defaults.default-user", "Did you mean default_user?"),
        ("defaults: {Links: shared}", "defaults.Links", "Did you mean links?"),
        ("logging: {level: warn}", "logging.level", "Did you mean warning?"),
        ("defaults: {max_frame_size: 64K}", "defaults.max_frame_size", "Write KiB, as in 4KiB"),
        ("heartbeat: 5s", "heartbeat", "It belongs under upstream."),
        ("links: shared", "links", "It belongs under defaults."),
        ("defaults: {aliases: []}", "defaults.aliases", "It belongs under virtual_hosts.*."),
        ("listeners: [{tcp: 61613}]", "listeners[0].tcp", "127.0.0.1:61613, with your port, for this machine only"),
        ('listeners: [{tcp: "::1:61613"}]', "listeners[0].tcp", '"[::1]:61613"'),
        ('listeners: [{tcp: ":61613"}]', "listeners[0].tcp", "for every IPv4 address"),
        ("virtual_hosts: {/: {aliases: [12]}}", "virtual_hosts./.aliases[0]", "Put it in quotes."),
        ("default_vhost: ordres\nvirtual_hosts: {orders: }", "default_vhost", "Did you mean orders?"),
    ],
)
def test_a_mistake_comes_with_what_to_write_instead(text: str, path: str, suggestion: str) -> None:
    mistake = only_mistake(text)
    assert mistake.path == path
    assert suggestion in (mistake.suggestion or "")


@pytest.mark.parametrize(
    ("text", "path", "sentence"),
    [
        ("- a", "", "A mapping belongs here"),
        ("listeners: []", "listeners", "at least one entry"),
        ("listeners: {tcp: a:1}", "listeners", "A list belongs here"),
        ("listeners: [{backlog: 5}]", "listeners[0]", "either tcp, websocket or unix"),
        ("listeners: [{tcp: 'a..b:1'}]", "listeners[0].tcp", "not the name of a host"),
        ("listeners: [{tcp: '.a:1'}]", "listeners[0].tcp", "not the name of a host"),
        (f"listeners: [{{tcp: '{'x' * 64}:1'}}]", "listeners[0].tcp", "not the name of a host"),
        (f"listeners: [{{tcp: '{'ä' * 60}:1'}}]", "listeners[0].tcp", "not the name of a host"),
        ('listeners: [{tcp: "a\\0b:1"}]', "listeners[0].tcp", "not the name of a host"),
        ("upstream: {urls: ['amqp://a..b:1']}", "upstream.urls[0]", "not the name of a host"),
        (f"upstream: {{urls: ['amqps://{'x' * 64}']}}", "upstream.urls[0]", "not the name of a host"),
        (f"listeners: [{{tcp: 'a:{'9' * 5000}'}}]", "listeners[0].tcp", "0 to 65535"),
        ("listeners: [{tcp: a:65536}]", "listeners[0].tcp", "0 to 65535"),
        ("upstream: {urls: []}", "upstream.urls", "at least one entry"),
        ("upstream: {urls: amqp://a}", "upstream.urls", "A list belongs here"),
        ("upstream: {urls: [amqp://a/]}", "upstream.urls[0]", "no path"),
        ("upstream: {urls: [amqp://a/b]}", "upstream.urls[0]", "no path"),
        ('upstream: {urls: ["amqp://a?heartbeat=3"]}', "upstream.urls[0]", "nothing after the port"),
        ("upstream: {urls: [amqp://a:0]}", "upstream.urls[0]", "1 to 65535"),
        ("upstream: {urls: [amqp://a:99999]}", "upstream.urls[0]", "1 to 65535"),
        ('upstream: {urls: ["amqp://a:x"]}', "upstream.urls[0]", "1 to 65535"),
        ("upstream: {urls: [rabbit-a]}", "upstream.urls[0]", "amqp://host:port"),
        ("upstream: {heartbeat: 1.5}", "upstream.heartbeat", "whole number of seconds"),
        ("upstream: {heartbeat: 70000}", "upstream.heartbeat", "at most 65535"),
        ("upstream: {connect_timeout: 0}", "upstream.connect_timeout", "more than 0"),
        ("upstream: {tls: {verify: maybe}}", "upstream.tls.verify", "true or false"),
        ("drain_timeout: -1", "drain_timeout", "0 or more"),
        ("drain_timeout: .inf", "drain_timeout", "0 or more"),
        ("drain_timeout: true", "drain_timeout", "A duration is"),
        ("drain_timeout:", "drain_timeout", "no value"),
        ("logging: {level: }", "logging.level", "no value"),
        ("listeners: [null]", "listeners[0]", "A mapping belongs here"),
        ("defaults: {client_buffer: 0}", "defaults.client_buffer", "at least 1 byte"),
        ("defaults: {client_buffer: 0.3KiB}", "defaults.client_buffer", "whole number of bytes"),
        ("defaults: {transactions: {max_open: 2147483648}}", "defaults.transactions.max_open", "1 to 2147483647"),
        ("defaults: {auto_ack_window: 65536}", "defaults.auto_ack_window", "from 1 to 65535"),
        ("defaults: {auto_ack_window: many}", "defaults.auto_ack_window", "whole number"),
        ('defaults: {server_header: "Apollo/1:7"}', "defaults.server_header", "neither colon nor backslash"),
        ('defaults: {server_header: "Apollo/1\\n"}', "defaults.server_header", "printable ASCII"),
        ("defaults: {server_header: Apöllo/1}", "defaults.server_header", "printable ASCII"),
        ("defaults: {server_header: ' Apollo'}", "defaults.server_header", "one space between"),
        (f"defaults: {{server_header: {'x' * 256}}}", "defaults.server_header", "at most 255"),
        ("defaults: {default_user: guest}", "defaults.default_user", "A mapping belongs here"),
        ("defaults: {default_user: {login: a}}", "defaults.default_user", "A passcode is missing"),
        ("defaults: {default_user: {login: a, passcode: }}", "defaults.default_user", "A passcode is missing"),
        ("defaults: {default_user: {login: a, passcode: ''}}", "defaults.default_user.passcode", "not be empty"),
        ("defaults: {default_user: {passcode: a}}", "defaults.default_user", "The key login is missing"),
        ("default_vhost:", "default_vhost", "no value"),
        ("default_vhost: other", "default_vhost", "not among the virtual_hosts"),
        ('default_vhost: "*"\nvirtual_hosts: {"*": }', "default_vhost", "name of one virtual host"),
        ("virtual_hosts: {}", "virtual_hosts", "The default_vhost, which is / unless set, is missing"),
        ("virtual_hosts: {/: , 17: }", "virtual_hosts.17", "A key is text"),
        ("virtual_hosts: {/: , yes: }", "virtual_hosts.yes", "A key is text"),
        (f"virtual_hosts: {{/: {{amqp_vhost: {'x' * 256}}}}}", "virtual_hosts./.amqp_vhost", "at most 255 bytes"),
        ("logging: {level: info}\nlogging: {level: info}", "logging", "stands here twice: in lines 1 and 2"),
        ("logging: {format: console, format: json}", "logging.format", "stands here twice"),
        ("default_vhost: !secret x", "default_vhost", "YAML cannot make sense"),
        ("default_vhost: !!bool x", "default_vhost", "YAML cannot make sense"),
        ("default_vhost: !!int ''", "default_vhost", "YAML cannot make sense"),
        ("logging: !mine {level: info}", "logging", "YAML tags"),
        ("upstream: &u {tls: *u}", "upstream.tls", "part of"),
    ],
)
def test_a_value_that_cannot_be_used_is_a_mistake(text: str, path: str, sentence: str) -> None:
    mistake = only_mistake(text)
    assert mistake.path == path
    assert sentence in mistake.sentence


def test_aliases_cannot_multiply_a_file_without_end() -> None:
    lines = [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 9)}]" for number in range(1, 30)]
    mistake = only_mistake("\n".join(["a0: &a0 [x]", *lines]))
    assert "more than 500000 values" in mistake.sentence


def test_an_alias_can_mean_only_one_virtual_host() -> None:
    found = mistakes("""
virtual_hosts:
  /: {aliases: [a, orders, "*"]}
  orders: {aliases: [orders, a]}
  "*": {aliases: [b]}
""")
    assert list(found) == [
        "virtual_hosts./.aliases[1]",
        "virtual_hosts./.aliases[2]",
        "virtual_hosts.orders.aliases[1]",
        "virtual_hosts.*.aliases",
    ]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("127.0.0.1:61613", "127.0.0.1:61613"),
        ("127.0.0.1:61613", "0.0.0.0:61613"),
        ("[::]:61613", "[::1]:61613"),
    ],
)
def test_two_listeners_cannot_take_one_address(first: str, second: str) -> None:
    mistake = only_mistake(f'listeners: [{{tcp: "{first}"}}, {{tcp: "{second}"}}]')
    assert mistake.path == "listeners[1].tcp"
    assert "listeners[0].tcp" in mistake.sentence


@pytest.mark.parametrize(
    ("first", "second"),
    [("0.0.0.0:61613", "[::]:61613"), ("127.0.0.1:0", "127.0.0.1:0"), ("127.0.0.1:1", "127.0.0.1:2")],
)
def test_listeners_beside_each_other_are_fine(first: str, second: str) -> None:
    config = parse(f'listeners: [{{tcp: "{first}"}}, {{tcp: "{second}"}}]')
    assert [str(listener.tcp) for listener in config.listeners] == [first, second]


def test_tls_settings_without_effect_are_a_mistake(tmp_path: Path) -> None:
    Authority.make(tmp_path, "ca")
    assert only_mistake("upstream: {tls: {ca_file: ca.pem}}", tmp_path).path == "upstream.tls"
    own = "virtual_hosts: {/: {upstream: {tls: {verify: false}}}}"
    assert only_mistake(own).path == "virtual_hosts./.upstream.tls"
    used = "upstream: {tls: {ca_file: ca.pem}}\nvirtual_hosts: {/: {upstream: {urls: [amqps://a]}}}"
    assert parse(used, directory=tmp_path).virtual_hosts["/"].upstream


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    identity = Authority.make(tmp_path, "authority").identify(tmp_path, "a")
    with identity.certificate.open("ab") as both:
        both.write(identity.key.read_bytes())
    alone = only_mistake("upstream: {urls: [amqps://a], tls: {cert_file: a.pem}}", tmp_path)
    assert (alone.path, alone.sentence) == ("upstream.tls", "cert_file needs key_file beside it.")
    shared = """
upstream: {urls: [amqps://a], tls: {cert_file: a.pem, key_file: a.pem}}
virtual_hosts: {/: {upstream: {tls: {cert_file: a.pem}}}}
"""
    own = parse(shared, directory=tmp_path).virtual_hosts["/"].upstream
    assert own is not None
    assert own.tls.cert_file == tmp_path / "a.pem"


def test_files_that_cannot_be_read_are_mistakes(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    found = mistakes(
        """
upstream: {urls: [amqps://a], tls: {ca_file: nowhere.pem, cert_file: a.pem, key_file: .}}
defaults: {default_user: {login: a, passcode_file: nowhere}}
virtual_hosts:
  /: {default_user: {login: a, passcode_file: empty}}
  b: {default_user: {login: a, passcode_file: binary}}
""",
        tmp_path,
    )
    assert {path: mistake.sentence for path, mistake in found.items()} == {
        "upstream.tls.ca_file": "This file cannot be read: No such file or directory.",
        "upstream.tls.cert_file": "This file cannot be read: No such file or directory.",
        "upstream.tls.key_file": "This file cannot be read: Is a directory.",
        "defaults.default_user.passcode_file": "This file cannot be read: No such file or directory.",
        "virtual_hosts./.default_user.passcode_file": "This file is empty.",
        "virtual_hosts.b.default_user.passcode_file": "This file is not UTF-8 text.",
    }


def test_a_configuration_file_that_cannot_be_read_is_one_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "nowhere.yaml")
    (tmp_path / "latin.yaml").write_bytes("default_vhost: /caf\xe9".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "line", "suggestion"),
    [
        ("virtual_hosts:\n  *: {}", 2, '"*"'),
        ("defaults:\n  default_user: {login: a, passcode: ${P}}", 2, '"${NAME}"'),
        ("a: b: c", 1, "quotes"),
        ("logging:\n\tlevel: info", 2, "Write spaces."),
        (f"defaults:\n  default_user: {{login: a, passcode: *{SECRET}}}", 2, "quotes"),
        (f"a: '{SECRET}", 1, None),
        (f"a: '{SECRET}\n", 1, "Close it"),
        ("listeners: [\n", 2, None),
        (f"a: b\n---\nc: {SECRET}", 2, None),
        (f"? !!bool {SECRET}\n: a", 1, None),
        (f"a: !{SECRET}!x y", 1, None),
        ("a: \x07", 1, None),
        ("[" * 5000, None, None),
    ],
)
def test_what_is_not_yaml_is_one_mistake_with_its_line(text: str, line: int | None, suggestion: str | None) -> None:
    mistake = only_mistake(text)
    assert mistake.line == line
    assert suggestion is None or suggestion in (mistake.suggestion or "")


@pytest.mark.parametrize(
    "text",
    [
        f"defaults: {{default_user: {{login: a, passcode: [{SECRET}]}}}}",
        f"defaults: {{default_user: {{login: a, passcod: {SECRET}}}}}",
        f"defaults: {{default_user: {SECRET}}}",
        f"defaults: {{default_user: {{login: a, passcode: {SECRET}, passcode_file: x}}}}",
        f"upstream: {{urls: ['amqp://guest:{SECRET}@host']}}",
        f"upstream: {{urls: ['http://guest:{SECRET}@host:port']}}",
        f"upstream: {{urls: ['amqp://[{SECRET}']}}",
        f"listeners: [{{tcp: 'a:{SECRET}@b'}}]",
        f"logging: {{level: {SECRET}}}",
        f"drain_timeout: {SECRET}",
        f"default_vhost: {SECRET}",
        f"passcode: {SECRET}",
    ],
)
def test_no_mistake_repeats_a_value(text: str) -> None:
    assert mistakes(text)  # which looks for the secret in all that is said


def test_no_mistake_repeats_what_a_variable_held() -> None:
    assert mistakes("logging: {level: '${WRONG_ONE}'}", WRONG_ONE=SECRET)
    assert mistakes("upstream: {urls: ['${WRONG_ONE}']}", WRONG_ONE=f"amqp://a:{SECRET}@b")


def test_a_name_with_dots_is_quoted_in_paths() -> None:
    assert only_mistake("virtual_hosts: {/: , orders.eu: {link: shared}}").path == 'virtual_hosts["orders.eu"].link'


def test_an_unset_variable_is_one_mistake_and_not_two() -> None:
    mistake = only_mistake("logging: {level: '${LEVEL}'}")
    assert mistake.sentence == "The environment variable LEVEL is not set."


@pytest.mark.parametrize("text", ["${}", "${A-B}", "${A:-x}", "${A", "x${A B}"])
def test_a_variable_that_is_not_written_as_one_is_a_mistake(text: str) -> None:
    assert "${NAME}" in only_mistake(f"default_vhost: '{text}'", A="/").sentence


def test_a_variable_in_a_key_is_a_mistake() -> None:
    assert "not in keys" in only_mistake("virtual_hosts: {/: , '${A}': }", A="a").sentence
