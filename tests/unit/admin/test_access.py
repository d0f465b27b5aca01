"""Access to the admin listener, without a listener."""

from __future__ import annotations

import asyncio
import base64

import pytest

from gateway.admin.access import Access, Guesses, WrongPasscodeError, credentials, may
from gateway.config.listener_settings import AdminSettings
from gateway.config.loader import parse
from gateway.config.model import FailedLoginLimits
from gateway.server.client.failed_logins import TooManyFailedLoginsError
from gateway.server.listen.accepted_connection import Peer
from gateway.server.stats import AdminLoginStats


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
        ("", None),
    ],
)
async def test_users_are_known_by_login_and_passcode(authorization: str, user: str | None) -> None:
    assert await _found(Access(_admin(USERS)), *credentials(authorization)) == user


async def _found(access: Access, login: str, passcode: str) -> str | None:
    try:
        return (await access.user(login, passcode)).login
    except WrongPasscodeError:
        return None


# Made by `htpasswd -nbB -C 4`: of the passcode x, and of 80 letters a.
HASH = "$2y$04$42d7cgL7WqIYsWNXLMeCzuMRUIX7g0pnU75k3cXoXNhS7TY4XnqKO"
LONG = "$2y$04$Ve/5NlfQDNo9i5NSxsCTtuzZ.K7vMNK4WCR5clCrCFO32LoXzfLEC"


async def test_a_hashed_passcode_is_as_good_as_a_plain_one() -> None:
    users = (
        f"[{{login: bea, passcode_hash: {HASH}}}, {{login: ida, passcode_hash: {LONG}}}, {{login: anna, passcode: y}}]"
    )
    access = Access(_admin(f"admin: {{users: {users}}}"))
    for _ in range(2):  # what a hash has accepted is remembered
        assert await _found(access, "bea", "x") == "bea"
        assert await _found(access, "ida", "a" * 80) == "ida"
        assert await _found(access, "anna", "y") == "anna"
        for login, passcode in (
            ("bea", "y"),
            ("bea", ""),
            ("ida", "x"),
            ("anna", "x"),
            ("nobody", "x"),
            ("bea", "\0x"),
        ):
            assert await _found(access, login, passcode) is None


@pytest.mark.parametrize(
    ("role", "method", "path", "is_allowed"),
    [
        ("full", "POST", "/api/reload", True),
        ("full", "GET", "/metrics", True),
        ("read_only", "GET", "/api/sessions", True),
        ("read_only", "HEAD", "/", True),
        ("read_only", "POST", "/api/trace", False),
        ("read_only", "DELETE", "/api/sessions/1", False),
        ("metrics", "GET", "/metrics", True),
        ("metrics", "POST", "/metrics", False),
        ("metrics", "GET", "/api/overview", False),
    ],
)
def test_a_role_allows(role: str, method: str, path: str, *, is_allowed: bool) -> None:
    [user] = _admin(f"admin: {{users: [{{login: a, passcode: b, role: {role}}}]}}").users
    assert may(user, method, path) is is_allowed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_guesses_are_refused_without_looking_and_lock_their_address_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, stats, waits = Clock(), AdminLoginStats(), list[float]()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    limits = FailedLoginLimits(delay_after=2, delay=3, per_login=4, lock_out_after=6, lock_out_except=())
    guesses, access = Guesses(limits, clock, stats), Access(_admin(USERS))
    operator, stranger = Peer("192.0.2.1", 1), Peer("192.0.2.2", 1)
    assert (await guesses.check(operator, "anna", "x", access)).login == "anna"
    for peer in (operator, stranger):
        for _ in range(4):
            with pytest.raises(WrongPasscodeError):
                await guesses.check(peer, "anna", "wrong", access)
        with pytest.raises(TooManyFailedLoginsError):
            await guesses.check(peer, "anna", "wrong", access)
    assert waits == [0, 0, 3, 3, 0] * 2
    with pytest.raises(TooManyFailedLoginsError):
        await guesses.check(stranger, "anna", "x", access)
    # What was accepted from an address lately is not stopped by others there who guess.
    assert (await guesses.check(operator, "anna", "x", access)).login == "anna"
    assert guesses.lock_outs.is_locked_out(stranger.host)
    assert not guesses.lock_outs.is_locked_out(operator.host)
    assert (stats.failed, stats.lock_outs) == (11, 1)
    clock.now = 61
    assert (await guesses.check(stranger, "anna", "x", access)).login == "anna"


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
