"""A client that leaves out CONNECT, where its listener lets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from gateway.config.broker_user import User
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import State
from tests.support.playbook import Playbook

SETTINGS = VirtualHost(name="/", default_user=User(login="somebody", passcode=SecretStr("secret")))
SUBSCRIBE = b"SUBSCRIBE\nid:1\ndestination:/amq/queue/q\nreceipt: r1\n\n\0"


@pytest.fixture
def play() -> Iterator[Playbook]:
    """A session that has heard nothing yet and does without CONNECT."""
    playbook = Playbook(SETTINGS)
    playbook.session.set_client(ClientFacts(implicit_connect=True))
    yield playbook
    playbook.finish()


def test_the_first_frame_waits_for_the_login_and_is_carried_out_then(play: Playbook) -> None:
    play.data(SUBSCRIBE + b"BEGIN\ntransaction:t\nreceipt:r2\n\n\0")
    assert play.asked() == ops.Login(SETTINGS, b"somebody", b"secret", is_from_file=True)
    assert play.said() == []
    play.broker(ops.LoggedIn())
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.subscribed(operation)
    # STOMP 1.0: the receipt has lost its leading space.
    assert play.said() == ["RECEIPT r1", "RECEIPT r2"]
    assert play.session.heartbeats.send == play.session.heartbeats.expect == 0


def test_a_login_that_the_broker_refuses_closes_and_names_the_receipt(play: Playbook) -> None:
    play.data(SUBSCRIBE + SUBSCRIBE)
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    assert play.said() == ["ERROR for r1 Bad CONNECT: Access refused for user 'somebody'"]
    assert play.state() is State.CLOSED
    assert play.session.close_reason is CloseReason.LOGIN_REFUSED


def test_a_default_user_who_may_not_come_from_elsewhere_is_closed(play: Playbook) -> None:
    local = SETTINGS.model_copy(update={"loopback_users": (b"somebody",)})
    playbook = Playbook(local)
    playbook.session.set_client(ClientFacts(is_local=False, implicit_connect=True))
    playbook.data(SUBSCRIBE)
    assert isinstance(playbook.asked(), ops.Login)
    playbook.broker(ops.LoggedIn())
    assert playbook.said() == ["ERROR for r1 Bad CONNECT: non-loopback access denied"]
    assert playbook.state() is State.CLOSED


def test_a_connect_that_was_refused_leaves_the_next_frame_to_log_in(play: Playbook) -> None:
    play.client("CONNECT", "host:/", "login:a", "passcode:b")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    assert play.said() == ["ERROR Bad CONNECT: Access refused for user 'a'"]
    assert play.state() is State.CONNECTING
    play.client("BEGIN", "transaction:t", "receipt:r1")
    assert play.asked() == ops.Login(SETTINGS, b"somebody", b"secret", is_from_file=True)
    play.broker(ops.LoggedIn())
    assert play.said() == ["RECEIPT r1"]


def test_a_connect_afterwards_is_a_second_one(play: Playbook) -> None:
    play.client("BEGIN", "transaction:t")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoggedIn())
    play.client("CONNECT", "host:/")
    assert play.said() == ["ERROR Illegal command: You are already connected."]
    assert play.state() is State.CLOSED


def test_where_there_is_no_default_user_the_first_frame_closes() -> None:
    play = Playbook(SETTINGS.model_copy(update={"default_user": None}))
    play.session.set_client(ClientFacts(implicit_connect=True))
    play.data(SUBSCRIBE)
    assert play.said() == ["ERROR for r1 Bad CONNECT: Missing login or passcode header(s)"]
    assert play.state() is State.CLOSED


def test_a_client_that_vanishes_during_the_login_leaves_nothing(play: Playbook) -> None:
    play.data(SUBSCRIBE)
    assert isinstance(play.asked(), ops.Login)
    play.session.client_gone()
    play.broker(ops.LoggedIn())
    assert play.state() is State.CLOSED
