"""The broker's time for what a session waits for, on a clock that is set by hand. It is the default, 30 seconds."""

from __future__ import annotations

import pytest

from gateway.errors import CloseReason
from gateway.server.client.client_deadlines import OperationDeadline
from gateway.session import ops
from tests.support.playbook import Playbook

ASKED_TO_CLOSE = "The gateway asked it to close the session's channels.\n"


@pytest.fixture
def play() -> Playbook:
    """A session that has logged in."""
    playbook = Playbook()
    playbook.connect()
    return playbook


def missed(deadline: OperationDeadline, now: float) -> str | None:
    error = deadline.missed(now)
    return None if error is None else error.body.decode()


def test_each_operation_has_its_own_time(play: Playbook) -> None:
    deadline = OperationDeadline(play.session, lambda _: False)
    assert missed(deadline, 0) is None
    play.client("SUBSCRIBE", "id:1", "destination:/topic/a")
    assert [missed(deadline, now) for now in (100, 130)] == [None, None]
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.broker(ops.Subscribed(operation.subscription, "q"))
    play.client("SUBSCRIBE", "id:2", "destination:/topic/b")
    assert [missed(deadline, now) for now in (131, 161)] == [None, None]
    error = deadline.missed(162)
    assert error is not None
    assert (error.message, error.close) == ("Broker timeout", CloseReason.OPERATION_TIMEOUT)
    assert error.body.decode() == (
        "The broker did not answer within 30 seconds. The gateway asked it to start a subscription to '/topic/b'.\n"
    )


def test_an_alarm_does_not_count_but_the_end_of_a_session_has_a_deadline_even_then(play: Playbook) -> None:
    alarm = True
    deadline = OperationDeadline(play.session, lambda _: alarm)
    play.client("SEND", "destination:/topic/a")
    assert isinstance(play.asked(), ops.PreparePublisher)
    assert [missed(deadline, now) for now in (0, 100, 200)] == [None, None, None]
    alarm = False
    assert [missed(deadline, now) for now in (201, 230)] == [None, None]
    assert missed(deadline, 231) is not None
    alarm = True
    play.broker(ops.PublisherPrepared(1, 131072, True))
    play.client("DISCONNECT", "receipt:bye")
    assert [missed(deadline, now) for now in (300, 330)] == [None, None]
    asked = "The gateway asked it to confirm a message.\n"
    assert missed(deadline, 331) == f"The broker did not answer within 30 seconds. {asked}"


def test_the_end_of_a_session_has_its_time_once_for_confirms_and_channels(play: Playbook) -> None:
    deadline = OperationDeadline(play.session, lambda _: False)
    play.client("SEND", "destination:/topic/a", "receipt:r")
    play.prepare()
    play.client("DISCONNECT")
    assert [missed(deadline, now) for now in (0, 29)] == [None, None]
    play.confirm(1)
    assert isinstance(play.asked(), ops.CloseUpstream)
    assert missed(deadline, 31) == f"The broker did not answer within 30 seconds. {ASKED_TO_CLOSE}"


def test_a_commit_that_is_never_confirmed_ends_the_session_but_not_one_whose_confirms_come(play: Playbook) -> None:
    alarm = True
    deadline = OperationDeadline(play.session, lambda _: alarm)
    play.client("BEGIN", "transaction:t")
    play.client("SEND", "destination:/topic/a", "transaction:t")
    play.client("SEND", "destination:/topic/a", "transaction:t")
    play.client("COMMIT", "transaction:t", "receipt:r")
    play.prepare()
    # An alarm of the broker does not count, and its confirms begin the time anew.
    assert [missed(deadline, now) for now in (0, 100)] == [None, None]
    alarm = False
    assert [missed(deadline, now) for now in (101, 160)] == [None, None]
    play.confirm(1)
    assert [missed(deadline, now) for now in (161, 221)] == [None, None]
    # As long as a session outlives the loss of the broker: its queue may have no leader until then.
    asked = "The gateway asked it to confirm a message.\n"
    assert missed(deadline, 222) == f"The broker did not answer within 60 seconds. {asked}"


def test_messages_that_hold_nobody_may_be_confirmed_at_any_time(play: Playbook) -> None:
    deadline = OperationDeadline(play.session, lambda _: False)
    play.client("SEND", "destination:/topic/a", "receipt:r")
    play.prepare()
    assert [missed(deadline, now) for now in (0, 1000)] == [None, None]
