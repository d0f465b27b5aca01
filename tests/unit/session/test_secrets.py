"""No passcode comes out of a session by any way: frames, representations, errors."""

import pytest
from pydantic import SecretStr

from gateway.config.broker_user import User
from gateway.config.virtual_host import VirtualHost
from gateway.session import ops
from gateway.session.connect import read_connect
from tests.support.playbook import Playbook

SECRET = "correct-horse"
CONNECT = ("CONNECT", "accept-version:1.2", "login:guest", f"passcode:{SECRET}")


def _shown(*things: object) -> str:
    return " ".join(f"{thing!r} {thing}" for thing in things)


def test_what_a_session_asks_for_does_not_show_the_passcode() -> None:
    play = Playbook()
    play.client(*CONNECT)
    operation = play.asked()
    assert isinstance(operation, ops.Login)
    assert operation.passcode == SECRET.encode()
    session, context = play.session, play.session.context
    parts = [getattr(each, name) for each in (session, context, session._connect) for name in type(each).__slots__]
    assert operation in (each.operation for each in context.pending.asked)
    parts.append(context.pending.asked)
    assert SECRET not in _shown(operation, session, parts)


def test_a_connect_does_not_show_the_passcode() -> None:
    connect = read_connect({b"passcode": SECRET.encode()}, lambda _: VirtualHost(name="/"))
    assert SECRET not in _shown(connect)


def test_settings_do_not_show_the_default_passcode() -> None:
    assert SECRET not in _shown(VirtualHost(name="/", default_user=User(login="guest", passcode=SecretStr(SECRET))))


@pytest.mark.parametrize(
    "headers",
    [
        ("host:nowhere",),
        ("heart-beat:soon",),
        ("accept-version:9.9",),
        ("host:/",),
    ],
    ids=["virtual host", "heart-beat", "version", "refused"],
)
def test_an_error_for_connect_does_not_show_the_passcode(headers: tuple[str, ...]) -> None:
    play = Playbook()
    play.client("CONNECT", *headers, "accept-version:1.2", "login:guest", f"passcode:{SECRET}")
    if play.asked() is not None and headers == ("heart-beat:soon",):
        play.broker(ops.LoggedIn())
    elif play.session.holds:
        play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    (error,) = play.said()
    assert error.startswith("ERROR")
    assert SECRET not in error


def test_a_passcode_on_a_line_of_its_own_is_not_echoed() -> None:
    play = Playbook()
    play.data(f"CONNECT\nlogin:guest\n{SECRET}\n\n\0".encode())
    (error,) = play.said()
    assert error.startswith("ERROR Malformed frame")
    assert SECRET not in error


def test_a_second_connect_does_not_show_the_passcode() -> None:
    play = Playbook()
    play.connect()
    play.client(*CONNECT)
    (error,) = play.said()
    assert SECRET not in error
