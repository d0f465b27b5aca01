"""Tokens: when they expire, and the frame TOKEN that brings another."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason
from gateway.session import ops
from gateway.session.connect import expiry_of, grant_the_same, renews_tokens
from gateway.session.context import Hold, State
from tests.support.playbook import Playbook, stomp

WITH_TOKENS = VirtualHost(name="/", token_renewal=True)
EXPIRED = "ERROR{} Token expired: Your token has expired; connect again with a new one."
REFUSED_FOR_AGE = (
    "ACCESS_REFUSED - access to queue 'q' in vhost '/' refused for user 'app', backend rabbit_auth_backend_oauth2 "
    'returned an error: "Provided JWT token has expired at timestamp 1 (validated at 2)"'
)


def segment(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def token(claims: object) -> str:
    return f"{segment(b'{}')}.{segment(json.dumps(claims).encode())}.signature"


def expiring(at: float) -> str:
    return token({"exp": at, "sub": "app"})


def begin(
    passcode: str = "", settings: VirtualHost = WITH_TOKENS, broker_version: tuple[int, ...] = (3, 10, 8)
) -> Playbook:
    play = Playbook(settings)
    play.client("CONNECT", "accept-version:1.2", "login:app", f"passcode:{passcode or expiring(1000)}")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoggedIn(broker_version, renews_tokens(settings, broker_version)))
    assert play.said() == ["CONNECTED 1.2"]
    return play


# When a token expires.


@pytest.mark.parametrize(
    ("passcode", "expiry"),
    [
        (expiring(1795277000), 1795277000),
        (expiring(0.5), 0.5),
        (token({"exp": 10**400}), 10**400),
        (token({"sub": "app"}), None),
        (token({"exp": "soon"}), None),
        (token({"exp": True}), None),
        (token({"exp": None}), None),
        (token([1795277000]), None),
        (token("exp"), None),
        ("guest", None),
        ("a.b", None),
        ("a.b.c.d", None),
        ("..", None),
        ("a.%%%.c", None),
        (f"a.{segment(b'not json')}.c", None),
        (f"a.{segment(bytes(range(128, 256)))}.c", None),
        (f"a.{segment(b'[' * 100_000)}.c", None),
        (f"a.{segment(b'9' * 10_000)}.c", None),
        ("a.b\u00e9.c", None),
    ],
)  # fmt: skip
def test_what_says_when_it_expires_is_a_token(passcode: str, expiry: float | None) -> None:
    assert expiry_of(passcode.encode()) == expiry


def test_a_session_expires_with_its_token() -> None:
    session = begin(expiring(1000)).session
    assert not session.token_expired(999.9)
    assert session.token_expired(1000.0)


@pytest.mark.parametrize(
    ("passcode", "settings"),
    [("guest", WITH_TOKENS), (expiring(1000), VirtualHost(name="/")), (token({}), WITH_TOKENS)],
)
def test_without_a_token_or_where_none_can_be_renewed_nothing_expires(passcode: str, settings: VirtualHost) -> None:
    assert not begin(passcode, settings).session.token_expired(1e12)


@pytest.mark.parametrize("version", [(3, 10, 8), (4, 0, 5), (4, 3, 6), (5,), ()])
def test_unless_it_is_configured_tokens_expire_where_the_broker_ends_connections_with_them(
    version: tuple[int, ...],
) -> None:
    play = begin(settings=VirtualHost(name="/"), broker_version=version)
    ends = version >= (4, 3)
    assert play.session.token_expired(1000) is ends
    play.client("TOKEN", f"token:{expiring(2000)}", "receipt:t")
    assert (play.asked() is not None) is ends


@pytest.mark.parametrize("version", [(3, 10, 8), (4, 3, 6)])
def test_where_it_is_switched_off_nothing_expires_and_there_is_no_token_frame(version: tuple[int, ...]) -> None:
    play = begin(settings=VirtualHost(name="/", token_renewal=False), broker_version=version)
    assert not play.session.token_expired(1e12)
    play.client("TOKEN", "token:abc", "receipt:t")
    assert play.said() == ['ERROR for t Bad command: Could not interpret command "TOKEN"']


@pytest.mark.parametrize(
    ("another", "is_same"),
    [
        ({"sub": "app", "scope": ["a"], "exp": 2, "jti": "2", "iat": 1, "sid": "s"}, True),
        ({"sub": "app", "scope": ["a"]}, True),
        ({"sub": "app", "scope": ["a", "b"], "exp": 1}, False),
        ({"sub": "other", "scope": ["a"], "exp": 1}, False),
        ({"sub": "app", "scope": ["a"], "exp": 1, "aud": "x"}, False),
        ({"sub": "app", "exp": 1}, False),
        (["sub"], False),
    ],
)
def test_tokens_grant_the_same_if_only_times_and_identifiers_differ(another: object, is_same: bool) -> None:
    one = token({"sub": "app", "scope": ["a"], "exp": 1, "jti": "1"}).encode()
    assert grant_the_same(one, token(another).encode()) is is_same
    assert grant_the_same(token(another).encode(), one) is is_same


def test_a_passcode_that_is_no_token_grants_what_no_token_does() -> None:
    assert not grant_the_same(b"guest", b"guest")
    assert not grant_the_same(b"guest", token({"sub": "guest"}).encode())


# TOKEN.


def test_another_token_takes_the_place_of_the_first() -> None:
    play = begin()
    play.data(stomp("TOKEN", f"token:{expiring(2000)}", "receipt:t") + stomp("BEGIN", "transaction:a", "receipt:b"))
    operation = play.asked()
    assert operation == ops.RenewToken(expiring(2000).encode())
    # Frames behind it wait, and the old token's end with them.
    assert play.said() == []
    assert play.session.holds == {Hold.OPERATION}
    assert not play.session.token_expired(1500)
    play.broker(ops.TokenRenewed())
    assert play.said() == ["RECEIPT t", "RECEIPT b"]
    assert not play.session.token_expired(1999)
    assert play.session.token_expired(2000)


def test_the_old_token_is_good_until_its_end_when_another_is_refused() -> None:
    play = begin()
    play.client("TOKEN", "token:nonsense", "receipt:t")
    assert isinstance(play.asked(), ops.RenewToken)
    play.broker(ops.TokenRefused("ACCESS_REFUSED - Login was refused"))
    assert play.said() == ["ERROR for t Token refused: The token was not accepted: ACCESS_REFUSED - Login was refused"]
    assert play.state() is State.CONNECTED
    assert not play.session.token_expired(999)
    assert play.session.token_expired(1000)


def test_strict_closes_over_a_refused_token() -> None:
    play = begin(settings=VirtualHost(name="/", token_renewal=True, conformance="strict"))
    play.client("TOKEN", "token:nonsense")
    play.broker(ops.TokenRefused("no"))
    assert play.said() == ["ERROR Token refused: The token was not accepted: no"]
    assert play.state() is State.CLOSED


@pytest.mark.parametrize("headers", [[], ["token:"], ["Token:abc"]])
def test_a_frame_without_a_token(headers: list[str]) -> None:
    play = begin()
    play.client("TOKEN", *headers, "receipt:t")
    assert play.said() == ['ERROR for t Missing header: "TOKEN" must include the "token" header']
    assert play.asked() is None


def test_unless_it_is_configured_there_is_no_such_command(play: Playbook) -> None:
    play.client("TOKEN", "token:abc", "receipt:t")
    assert play.said() == ['ERROR for t Bad command: Could not interpret command "TOKEN"']
    assert play.asked() is None


def test_no_token_shows() -> None:
    secret = expiring(2000)
    assert secret not in repr(ops.RenewToken(secret.encode()))
    assert secret not in repr(ops.Login(WITH_TOKENS, b"app", secret.encode()))


# What RabbitMQ says of an expired token.


def test_a_refusal_for_an_expired_token_ends_the_session_and_says_why() -> None:
    play = begin()
    play.client("SEND", "destination:/queue/q", "receipt:r")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.broker(ops.OperationFailed(403, REFUSED_FOR_AGE))
    assert play.said() == [EXPIRED.format(" for r")]
    assert play.session.close_reason is CloseReason.TOKEN_EXPIRED


@pytest.mark.parametrize(
    "event",
    [
        ops.ChannelClosed(403, REFUSED_FOR_AGE, publishing=False),
        ops.LinkLost(530, REFUSED_FOR_AGE),
        ops.LinkLost(320, "CONNECTION_FORCED - credential expired"),
    ],
)
def test_so_does_a_channel_or_a_link_that_is_closed_for_it(event: ops.Event) -> None:
    play = begin()
    play.broker(event)
    assert play.said() == [EXPIRED.format("")]
    assert play.session.close_reason is CloseReason.TOKEN_EXPIRED


def test_where_tokens_are_not_renewed_the_brokers_words_stand() -> None:
    play = begin(settings=VirtualHost(name="/"))
    play.broker(ops.ChannelClosed(403, REFUSED_FOR_AGE, publishing=False))
    assert play.said() == [f"ERROR access_refused: {REFUSED_FOR_AGE}"]
