"""Any settings give a mistake with a place, or a configuration that passes `check`."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gateway.config.loader import parse
from gateway.errors import UsageError
from gateway.migrate.broker_settings import BrokerSettings
from gateway.migrate.conf_schema import LISTS, MAPPINGS, PROPERTY_LISTS, STOMP, WEB_STOMP, KeyMapping, ValueType
from gateway.migrate.erlang_terms import Atom, Term, Tuple, read_terms
from gateway.migrate.migration import check_configuration
from gateway.migrate.output import MigrateError, MigrationReport
from gateway.migrate.rabbitmq_conf import ConfFile, settings_of_conf
from gateway.migrate.source_files import Sources, settings_of_terms
from gateway.migrate.translation import translate
from tests.support.erlang_text import formatted

MISSING = "no/such.pem"  # a missing file is in the report, and not a mistake
WORDS = ["verify_peer", "verify_none", "text", "binary", "common_name", "subject_alternative_name", "email"]
BOOLEANS = ["true", "false"]
TEXTS = [
    "guest",
    "/",
    "/ws",
    "orders",
    "*",
    "$${X}",
    "# no",
    "a: b",
    "'x'",
    "- x",
    "yes",
    "1.5",
    "",
    MISSING,
    "ü\u2028",
]
NUMBERS = [0, 1, 128, 61613, 15674, 70000, 10**12, -1]
HOSTS = ["127.0.0.1", "0.0.0.0", "::1", "::", "fe80::1%eth0", "1.2.3.4"]  # noqa: S104 - only written
CHOICES: dict[ValueType, list[str]] = {
    "boolean": BOOLEANS,
    "name": BOOLEANS,
    "integer": [str(number) for number in NUMBERS],
    "string": [*TEXTS, "$(UNSET)", "$(stomp.default_user)", "encrypted:x"],
    "none": ["none"],
    "address": ["none", "61613", "15674", *(f"{host}:61613" for host in HOSTS)],
}
FITTING = {
    "verify": ["verify_peer", "verify_none"],
    "fail_if_no_peer_cert": BOOLEANS,
    "ssl_cert_login_from": ["common_name", "subject_alt_name"],
    "ssl_cert_login_san_type": ["dns", "email"],
    "ws_frame": ["text", "binary"],
    "ws_path": ["/ws", "/a/b"],
    "ip": HOSTS,
    "certfile": [MISSING],
    "keyfile": [MISSING],
    "cacertfile": [MISSING],
}


def conf_line(key: str) -> st.SearchStrategy[str]:
    """A line that the broker takes in most cases."""
    mapping = MAPPINGS[key]
    fitting = FITTING.get(mapping.property_name or mapping.key) or CHOICES.get(mapping.value_type, WORDS)
    value = st.sampled_from(fitting) if fitting else st.just("x")
    return value.map(lambda text: f"{key.replace('$', '1')} = {text or 'x'}\n")


def of_type(mapping: KeyMapping) -> st.SearchStrategy[Term]:
    """A term that the broker takes in most cases."""
    fitting = FITTING.get(mapping.property_name or mapping.key)
    if mapping.value_type in ("boolean", "atom"):
        return st.sampled_from(fitting or BOOLEANS).map(Atom)
    if mapping.value_type == "integer":
        return st.sampled_from(NUMBERS)
    if mapping.value_type == "address":
        return st.sampled_from(HOSTS).map(lambda host: Tuple((host, 61613)))
    return st.sampled_from([*(fitting or TEXTS), *(text.encode() for text in fitting or TEXTS)])


def entry(key: tuple[str, str]) -> st.SearchStrategy[Term]:
    """A key of the Erlang form with its value."""
    app, name = key
    of_key = [mapping for mapping in MAPPINGS.values() if (mapping.app, mapping.key) == key]
    mappings = [mapping for mapping in of_key if mapping.value_type != "none"]
    if key in PROPERTY_LISTS:
        some = st.sampled_from([mapping for mapping in mappings if not mapping.in_list]).flatmap(
            lambda mapping: of_type(mapping).map(lambda value: Tuple((Atom(str(mapping.property_name)), value)))
        )
        value: st.SearchStrategy[Term] = st.lists(some, max_size=4)
    elif key in LISTS:
        value = st.lists(of_type(mappings[0]), max_size=2)
    else:
        value = of_type(mappings[0])
    return value.map(lambda term: Tuple((Atom(app), [Tuple((Atom(name), term))])))


ENTRIES = sorted({(mapping.app, mapping.key) for mapping in MAPPINGS.values()})


def translate_and_check(found: BrokerSettings) -> None:
    """Translate, and see that `check` would pass."""
    try:
        sources = Sources(found, frozenset((STOMP, WEB_STOMP)), ["rabbitmq.conf"])
        text = translate(sources, upstream=(), port_offset=0, passcode_variable="").text(found.report)
        check_configuration(text, Path(), {}, found.report)  # a fault of the command is another GatewayError
    except (MigrateError, UsageError) as error:
        event(f"mistakes {error if os.environ.get('SHOW') else ''}")
        return
    event("a configuration")
    if MISSING not in text and "UNSET" not in text:
        parse(text, environment={})


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(MAPPINGS)).flatmap(conf_line), max_size=10).map("".join))
def test_a_rabbitmq_conf(conf: str) -> None:
    translate_and_check(
        settings_of_conf([ConfFile(Path("/no such folder/x"), "rabbitmq.conf", conf)], MigrationReport(), {})
    )


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(ENTRIES).flatmap(entry), max_size=8))
def test_an_advanced_config(entries: list[Term]) -> None:
    (again,) = read_terms(f"{formatted(entries)}.")
    assert isinstance(again, list)
    translate_and_check(settings_of_terms(again, "advanced.config", MigrationReport()))
