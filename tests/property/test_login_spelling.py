"""A login within a destination stays one word of it, and is nobody else's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.config.rules import DestinationRule
from gateway.config.virtual_host import VirtualHost
from gateway.patterns import Pattern
from gateway.session.destination_rules import DestinationRules, spelled_login
from gateway.session.destinations import parse

LOGINS = st.one_of(st.binary(max_size=20), st.text("a./%*#{}", max_size=6).map(str.encode))
NAMES = st.text("ab.%*#", min_size=1, max_size=6).map(str.encode)
RULES = VirtualHost(
    name="/",
    destination_rules=(
        DestinationRule(action="rewrite", destination=Pattern(b"/topic/*"), to=Pattern(b"/topic/{login}.*")),
    ),
)


@given(one=LOGINS, other=LOGINS)
def test_two_logins_are_spelt_differently(one: bytes, other: bytes) -> None:
    assert (spelled_login(one) == spelled_login(other)) == (one == other)


@given(one=LOGINS, other=LOGINS, name=NAMES, another=NAMES)
def test_two_logins_never_mean_the_same_destination(one: bytes, other: bytes, name: bytes, another: bytes) -> None:
    meant = [
        DestinationRules(RULES, login).for_send(b"/topic/" + text).destination
        for login, text in ((one, name), (other, another))
    ]
    assert one == other or meant[0] != meant[1]


@given(login=LOGINS, name=NAMES)
def test_what_a_client_names_stays_behind_its_login(login: bytes, name: bytes) -> None:
    meant = DestinationRules(RULES, login).for_subscribe(b"/topic/" + name).destination
    word, _, rest = meant.name.partition(b".")
    assert rest == name
    assert not set(b"*#./") & set(word.replace(b"/", b"") if b"/" in login else word)
    assert parse(b"/topic/" + meant.name.replace(b"/", b"%2F")) == meant
