"""Access to the admin listener, without a listener."""

from __future__ import annotations

import base64

import pytest

from gateway.admin.access import Access
from gateway.config.listener_settings import AdminSettings
from gateway.config.loader import parse


def _admin(text: str) -> AdminSettings:
    return parse(text, environment={}).admin


USERS = "admin: {users: [{login: 'a:b', passcode: c}, {login: a, passcode: 'b:c'}, {login: anna, passcode: x}]}"


def _basic(text: str) -> str:
    return "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("authorization", "user"),
    [
        (_basic("a:b:c"), "a"),  # a login cannot hold a colon (RFC 7617), so the first one ends it
        (_basic("anna:x"), "anna"),
        (_basic("anna:x").replace("Basic", "bAsIc"), "anna"),
        (_basic("anna:x "), None),
        (_basic("anna"), None),
        (_basic(":"), None),
        ("Basic \xff", None),
        ("Basic " + base64.b64encode(b"\xff:\xfe").decode(), None),
        (None, None),
    ],
)
def test_users_are_known_by_login_and_passcode(authorization: str | None, user: str | None) -> None:
    assert Access(_admin(USERS)).user(authorization) == user


def test_without_users_it_is_open() -> None:
    assert Access(_admin("")).is_open
    assert not Access(_admin(USERS)).is_open


@pytest.mark.parametrize(
    "host", ["[::1]", "[::1]:80", "fe80::1", "10.0.0.1", "10.0.0.1:1", "a.example", "A.EXAMPLE.:9"]
)
def test_own_names_are_known(host: str) -> None:
    assert Access(_admin("admin: {allowed_hosts: [a.example]}")).is_host_known(host)


@pytest.mark.parametrize("host", ["", ":", "b.example", "a.example.b", "xa.example", "[a.example]x:1:2", "10.0.0.1.b"])
def test_other_names_are_not(host: str) -> None:
    access = Access(_admin("admin: {allowed_hosts: [b.example]}"))
    assert access.is_host_known(host) is (host == "b.example")
