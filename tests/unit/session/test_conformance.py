"""`conformance: strict` closes after every ERROR; otherwise only after those after which the plugin closes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from gateway.config.virtual_host import TransactionLimits, VirtualHost
from gateway.errors import CloseReason
from gateway.session import ops
from gateway.session.connect import ClientFacts
from gateway.session.context import State
from tests.support.playbook import IDENTITY, Playbook, ack_id, deliver

PLUGIN = VirtualHost(name="/", transactions=TransactionLimits(max_open=1, max_actions=1))
STRICT = PLUGIN.model_copy(update={"conformance": "strict"})

Mistake = Callable[[Playbook], None]


@dataclass(frozen=True, slots=True)
class Case:
    """Something that is answered by an ERROR after which the plugin goes on."""

    message: str
    mistake: Mistake


def _frame(command: str, *headers: str) -> Mistake:
    return lambda play: play.client(command, *headers)


def _refused_login(play: Playbook) -> None:
    play.client("CONNECT", "host:/", "login:a", "passcode:b")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))


def _accepted_login(*headers: str, is_local: bool = True) -> Mistake:
    def mistake(play: Playbook) -> None:
        play.session.set_client(ClientFacts(is_local=is_local))
        play.client("CONNECT", "host:/", "login:guest", "passcode:guest", *headers)
        assert isinstance(play.asked(), ops.Login)
        play.broker(ops.LoggedIn())

    return mistake


BEFORE_LOGIN = {
    "a command before CONNECT": Case("Illegal command", _frame("SEND", "destination:/queue/q")),
    "an unknown command before CONNECT": Case("Illegal command", _frame("NONSENSE")),
    "no common version": Case("Version mismatch", _frame("CONNECT", "accept-version:2.0", "host:/")),
    "an unknown virtual host": Case("Bad CONNECT", _frame("CONNECT", "accept-version:1.2", "host:nowhere")),
    "a refused login": Case("Bad CONNECT", _refused_login),
    "a user from elsewhere": Case("Bad CONNECT", _accepted_login(is_local=False)),
    "heart-beats that make no sense": Case("Processing error", _accepted_login("heart-beat:often")),
}


def _rejected(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/a", "receipt:r1")
    play.prepare()
    assert play.published()
    play.confirm(1, accepted=False)


def _cancelled(play: Playbook) -> None:
    play.broker(ops.ConsumerCancelled(play.subscribe("1")))


def _expired(play: Playbook) -> None:
    play.client("BEGIN", "transaction:t")
    play.session.time_passed(0.0)
    play.session.time_passed(1e9)


def _gone(play: Playbook) -> None:
    """An ACK of a subscription that has ended."""
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    play.client("UNSUBSCRIBE", "id:1")
    assert isinstance(play.asked(), ops.Unsubscribe)
    play.broker(ops.Unsubscribed())
    assert play.said() == ["MESSAGE 1 #1 "]
    play.client("ACK", f"id:{ack_id(subscription, 1)}")


def _second_transaction(play: Playbook) -> None:
    play.client("BEGIN", "transaction:t")
    play.client("BEGIN", "transaction:u")


AFTER_LOGIN = {
    "an unknown command": Case("Bad command", _frame("NONSENSE")),
    "no destination": Case("Missing destination", _frame("SEND")),
    "a wrong destination": Case("Invalid destination", _frame("SUBSCRIBE", "id:1", "destination:/topic/a/b")),
    "an unknown destination": Case("Unknown destination", _frame("SEND", "destination:/a/b")),
    "a message-id of its own": Case("Invalid header", _frame("SEND", "destination:/topic/a", "message-id:1")),
    "not a number": Case("Processing error", _frame("SEND", "destination:/topic/a", "priority:high")),
    "a name that is too long": Case("Invalid header", _frame("SEND", f"destination:/queue/{'q' * 256}")),
    "not an ack mode": Case("Processing error", _frame("SUBSCRIBE", "id:1", "destination:/queue/q", "ack:no")),
    "durable without id": Case("Missing Header", _frame("SUBSCRIBE", "destination:/topic/a", "durable:true")),
    "UNSUBSCRIBE of nothing": Case("Missing destination or id", _frame("UNSUBSCRIBE")),
    "UNSUBSCRIBE of a temporary queue": Case("Invalid id", _frame("UNSUBSCRIBE", "id:/temp-queue/a")),
    "UNSUBSCRIBE of something unknown": Case("No subscription found", _frame("UNSUBSCRIBE", "id:1")),
    "ACK of nothing": Case("Missing header", _frame("ACK")),
    "ACK of no ack id": Case("Invalid header", _frame("ACK", "id:1")),
    "ACK of a stranger": Case("Subscription not found", _frame("ACK", f"id:T_1@@{IDENTITY.decode()}@@1")),
    "ACK of a subscription that ended": Case("Subscription not found", _gone),
    "BEGIN of nothing": Case("Missing transaction", _frame("BEGIN")),
    "COMMIT of what was not begun": Case("Bad transaction", _frame("COMMIT", "transaction:t")),
    "too many transactions": Case("Transaction limit exceeded", _second_transaction),
    "a transaction that took too long": Case("Transaction expired", _expired),
    "a rejected message": Case("Message rejected", _rejected),
    "a subscription that the broker cancels": Case("Server cancelled subscription", _cancelled),
}


def _message(word: str) -> str:
    """The `message` of an ERROR, without the receipt that it may be for."""
    return re.sub(r"ERROR (?:for \w+ )?", "", word).partition(":")[0]


def _answer(case: Case, settings: VirtualHost, *, logged_in: bool) -> Playbook:
    """Make the mistake; the ERROR must be the same whatever the configuration."""
    play = Playbook(settings)
    if logged_in:
        play.connect()
    case.mistake(play)
    assert [_message(word) for word in play.said()] == [case.message]
    return play


@pytest.mark.parametrize("case", BEFORE_LOGIN.values(), ids=BEFORE_LOGIN)
def test_before_the_login_strict_closes_where_the_plugin_waits_for_another_connect(case: Case) -> None:
    assert _answer(case, PLUGIN, logged_in=False).state() is State.CONNECTING
    strict = _answer(case, STRICT, logged_in=False)
    assert strict.state() is State.CLOSED
    assert strict.session.close_reason is CloseReason.PROTOCOL_ERROR


@pytest.mark.parametrize("case", AFTER_LOGIN.values(), ids=AFTER_LOGIN)
def test_after_the_login_strict_closes_where_the_plugin_goes_on(case: Case) -> None:
    assert _answer(case, PLUGIN, logged_in=True).state() is State.CONNECTED
    strict = _answer(case, STRICT, logged_in=True)
    assert strict.state() is State.CLOSED
    assert strict.session.close_reason is CloseReason.PROTOCOL_ERROR


def test_strict_sends_one_error_and_carries_out_nothing_behind_it() -> None:
    play = Playbook(STRICT)
    play.connect()
    play.data(b"NONSENSE\nreceipt:r1\n\n\0BEGIN\ntransaction:t\nreceipt:r2\n\n\0COMMIT\ntransaction:u\n\n\0")
    assert play.said() == ['ERROR for r1 Bad command: Could not interpret command "NONSENSE"']
    play.finish()


def test_strict_sends_one_error_for_several_messages_that_are_rejected_at_once() -> None:
    play = Playbook(STRICT)
    play.connect()
    for number in range(3):
        play.client("SEND", "destination:/topic/a", f"receipt:r{number}")
        if not number:
            play.prepare()
    assert len(play.published()) == 3
    play.confirm(3, multiple=True, accepted=False)
    assert play.said() == ["ERROR for r0 Message rejected: The broker did not accept the message for '/topic/a'."]
    assert play.state() is State.CLOSED


def test_what_closes_anyway_keeps_its_reason_under_strict() -> None:
    play = Playbook(STRICT)
    play.connect()
    play.broker(ops.ChannelClosed(404, "NOT_FOUND - no exchange 'e' in vhost '/'", True))
    assert [_message(word) for word in play.said()] == ["not_found"]
    assert play.session.close_reason is CloseReason.BROKER_ERROR


def test_strict_is_a_matter_of_the_virtual_host_that_was_asked_for() -> None:
    """A client that names a lenient virtual host is dealt with leniently, though the default is strict."""
    play = Playbook(STRICT, other=PLUGIN.model_copy(update={"name": "lenient"}))
    play.client("CONNECT", "host:lenient", "login:a", "passcode:b")
    assert isinstance(play.asked(), ops.Login)
    play.broker(ops.LoginFailed(403, "ACCESS_REFUSED - Login was refused"))
    assert [_message(word) for word in play.said()] == ["Bad CONNECT"]
    assert play.state() is State.CONNECTING
