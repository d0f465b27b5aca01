"""Whatever the files say, the result is a mistake with a place, or a configuration that passes `check`."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gateway.config import parse
from gateway.errors import UsageError
from gateway.migrate.erlang import read_terms
from gateway.migrate.from_conf import from_conf
from gateway.migrate.from_terms import from_terms
from gateway.migrate.keys import LISTS, PLACES, PROPERTY_LISTS, RABBIT, STOMP, WEB, Kind, Place
from gateway.migrate.proof import prove
from gateway.migrate.remarks import MigrateError, Remarks
from gateway.migrate.settings import Settings
from gateway.migrate.terms import Atom, Term, Tuple, printed
from gateway.migrate.translation import Wishes, translate

MISSING = "no/such.pem"  # a file that is not here is said to be missing, and is no mistake
WORDS = ["verify_peer", "verify_none", "text", "binary", "common_name", "subject_alternative_name", "email"]
SWITCHES = ["true", "false"]
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
CHOICES: dict[Kind, list[str]] = {
    "switch": SWITCHES,
    "name": SWITCHES,
    "number": [str(number) for number in NUMBERS],
    "text": [*TEXTS, "$(UNSET)", "$(stomp.default_user)", "encrypted:x"],
    "none": ["none"],
    "address": ["none", "61613", "15674", *(f"{host}:61613" for host in HOSTS)],
}
FITTING = {
    "verify": ["verify_peer", "verify_none"],
    "fail_if_no_peer_cert": SWITCHES,
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
    place = PLACES[key]
    fitting = FITTING.get(place.part or place.key) or CHOICES.get(place.kind, WORDS)
    value = st.sampled_from(fitting) if fitting else st.just("x")
    return value.map(lambda text: f"{key.replace('$', '1')} = {text or 'x'}\n")


def of_kind(place: Place) -> st.SearchStrategy[Term]:
    """A term that the broker takes in most cases."""
    fitting = FITTING.get(place.part or place.key)
    if place.kind in ("switch", "word"):
        return st.sampled_from(fitting or SWITCHES).map(Atom)
    if place.kind == "number":
        return st.sampled_from(NUMBERS)
    if place.kind == "address":
        return st.sampled_from(HOSTS).map(lambda host: Tuple((host, 61613)))
    return st.sampled_from([*(fitting or TEXTS), *(text.encode() for text in fitting or TEXTS)])


def entry(key: tuple[str, str]) -> st.SearchStrategy[Term]:
    """A key of the Erlang form with its value."""
    app, name = key
    places = [place for place in PLACES.values() if (place.app, place.key) == key and place.kind != "none"]
    if key in PROPERTY_LISTS:
        some = st.sampled_from([place for place in places if not place.listed]).flatmap(
            lambda place: of_kind(place).map(lambda value: Tuple((Atom(str(place.part)), value)))
        )
        value: st.SearchStrategy[Term] = st.lists(some, max_size=4)
    elif key in LISTS:
        value = st.lists(of_kind(places[0]), max_size=2)
    else:
        value = of_kind(places[0])
    return value.map(lambda term: Tuple((Atom(app), [Tuple((Atom(name), term))])))


ENTRIES = sorted({(place.app, place.key) for place in PLACES.values() if place.app in (STOMP, WEB, RABBIT)})


def checked(found: Settings, remarks: Remarks) -> None:
    """Translate, and see that `check` would pass."""
    try:
        made = translate(found, frozenset((STOMP, WEB)), Wishes(port_offset=0), remarks)
        text = made.text(["rabbitmq.conf"], remarks)
        prove(text, Path(), {}, remarks)  # anything but what has to be brought is a FaultError
    except (MigrateError, UsageError) as error:
        event(f"mistakes {error if os.environ.get('SHOW') else ''}")
        return
    event("a configuration")
    if MISSING not in text and "UNSET" not in text:
        parse(text, environment={})


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(sorted(PLACES)).flatmap(conf_line), max_size=10).map("".join))
def test_a_rabbitmq_conf(conf: str) -> None:
    remarks = Remarks()
    checked(from_conf([("rabbitmq.conf", conf)], remarks, {}, lenient=False), remarks)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(ENTRIES).flatmap(entry), max_size=8))
def test_an_advanced_config(entries: list[Term]) -> None:
    (again,) = read_terms(f"{printed(entries)}.")
    remarks = Remarks()
    assert isinstance(again, list)
    checked(from_terms(again, "advanced.config", remarks, lenient=False), remarks)
