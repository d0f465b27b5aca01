"""Several SUBSCRIBEs of a session are under way together, and the client sees them take effect one after the other."""

from collections.abc import Iterable

import pytest

from gateway.session import ops
from gateway.session.context import Hold, State
from gateway.session.pending_operations import MOST_SUBSCRIBES
from tests.support.playbook import FRAME_MAX, Playbook, ack_id, deliver, stomp


def subscribes(numbers: Iterable[int], *headers: str) -> bytes:
    return b"".join(
        stomp("SUBSCRIBE", f"id:{n}", f"destination:/queue/{n}", f"receipt:r{n}", *headers) for n in numbers
    )


def asked(play: Playbook) -> list[ops.Subscribe]:
    """All that the broker is asked for now."""
    operations = []
    while (operation := play.asked()) is not None:
        assert isinstance(operation, ops.Subscribe), operation
        operations.append(operation)
    return operations


def refuse(play: Playbook, operation: ops.Operation) -> None:
    play.broker(ops.OperationFailed(404, "NOT_FOUND - no queue"), operation)


def interrupt(play: Playbook, operation: ops.Operation, code: int = 320) -> None:
    play.broker(ops.OperationInterrupted(code, "CONNECTION_FORCED - gone"), operation)


def come_back(play: Playbook) -> None:
    """Let a recovery bring nothing back: there was nothing but what was under way."""
    recover = play.asked()
    assert isinstance(recover, ops.Recover), recover
    play.recover(recover)


def test_receipts_come_in_the_order_of_the_frames_whatever_the_order_of_the_answers(play: Playbook) -> None:
    play.data(subscribes(range(3)))
    first, second, third = asked(play)
    play.subscribed(third)
    play.subscribed(second)
    assert play.said() == []
    play.subscribed(first)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1", "RECEIPT r2"]
    assert not play.session.holds


def test_messages_wait_for_the_receipts_of_all_subscribes_before(play: Playbook) -> None:
    play.data(subscribes(range(2)))
    first, second = asked(play)
    play.subscribed(second)
    deliver(second.subscription, 1, "early")
    play.session.subscriptions.settle_auto_acks()
    assert (play.said(), play.settled()) == ([], [])
    play.subscribed(first)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1", "MESSAGE 1 #1 early"]


def test_no_more_than_a_few_are_under_way_and_others_follow_as_they_are_answered(play: Playbook) -> None:
    count = MOST_SUBSCRIBES + 2
    play.data(subscribes(range(count)))
    operations = asked(play)
    assert len(operations) == MOST_SUBSCRIBES
    assert play.session.holds == {Hold.OPERATION}
    for each in operations[1:]:
        play.subscribed(each)
    # The first one is not answered yet.
    assert asked(play) == []
    play.subscribed(operations[0])
    for each in asked(play):
        play.subscribed(each)
    assert play.said() == [f"RECEIPT r{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        (stomp("UNSUBSCRIBE", "id:0", "receipt:x"), "UNSUBSCRIBE"),
        (stomp("SEND", "destination:/queue/0", "receipt:x"), "SEND"),
        (stomp("DISCONNECT", "receipt:x"), "DISCONNECT"),
        (stomp("BEGIN", "transaction:t", "receipt:x"), "RECEIPT"),
    ],
)
def test_any_other_frame_waits_until_all_are_answered(play: Playbook, frame: bytes, answer: str) -> None:
    play.data(subscribes(range(2)) + frame)
    first, second = asked(play)
    assert play.session.holds == {Hold.OPERATION}
    play.subscribed(second)
    assert play.said() == []
    play.subscribed(first)
    expected = ["RECEIPT r0", "RECEIPT r1"]
    operation = play.asked()
    if answer == "UNSUBSCRIBE":
        assert operation == ops.Unsubscribe(first.subscription, None)
        play.broker(ops.Unsubscribed(), operation)
    elif answer == "SEND":
        assert isinstance(operation, ops.PreparePublisher)
        play.broker(ops.PublisherPrepared(play.publishing, FRAME_MAX, confirms=True), operation)
        assert play.published() == ["- 0 "]
        play.confirm(1)
    elif answer == "DISCONNECT":
        assert operation == ops.CloseUpstream()
        play.broker(ops.UpstreamClosed(), operation)
    assert play.said() == [*expected, "RECEIPT x"]


def test_what_is_wrong_with_a_later_one_is_told_after_the_receipts_before(play: Playbook) -> None:
    play.data(subscribes([0]) + stomp("SUBSCRIBE", "id:1", "receipt:bad") + subscribes([2]))
    (first,) = asked(play)
    assert play.said() == []
    play.subscribed(first)
    receipt, error = play.said()
    assert receipt == "RECEIPT r0"
    assert error.startswith("ERROR for bad Missing destination")
    for each in asked(play):
        play.subscribed(each)
    play.said()


def test_an_id_that_is_taken_by_a_subscribe_under_way_is_refused_after_its_receipt(play: Playbook) -> None:
    play.data(subscribes([0]) + stomp("SUBSCRIBE", "id:0", "destination:/queue/other", "receipt:twice"))
    (first,) = asked(play)
    play.subscribed(first)
    receipt, error = play.said()
    assert receipt == "RECEIPT r0"
    assert error.startswith("ERROR for twice Duplicated subscription identifier")


def test_a_queue_that_a_subscribe_under_way_declares_is_not_declared_again(play: Playbook) -> None:
    frames = [stomp("SUBSCRIBE", f"id:{n}", "destination:/queue/q", f"receipt:r{n}") for n in range(2)]
    play.data(b"".join(frames))
    (first,) = asked(play)
    assert first.queue is not None
    play.subscribed(first)
    (second,) = asked(play)
    assert (second.queue, second.queue_name) == (None, "q")
    play.subscribed(second)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1"]


def test_a_subscription_without_a_prefetch_comes_alone(play: Playbook) -> None:
    # Nothing bounds what the broker delivers before its RECEIPT, so the RECEIPT must wait for nobody.
    play.data(subscribes([0]) + subscribes([1], "ack:client", "prefetch-count:0"))
    first, *others = asked(play)
    assert others == []
    play.subscribed(first)
    (second,) = asked(play)
    assert second.needs_pausable_link
    play.subscribed(second)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1"]


def test_an_error_stands_where_its_receipt_would_and_ends_the_session_then(play: Playbook) -> None:
    play.data(subscribes(range(3)))
    first, second, third = asked(play)
    refuse(play, second)
    play.subscribed(third)
    assert play.said() == []
    play.subscribed(first)
    receipt, error = play.said()
    assert receipt == "RECEIPT r0"
    assert error.startswith("ERROR for r1 ")
    assert play.state() is State.CLOSED


def test_a_consumer_that_is_cancelled_before_its_turn_has_its_receipt_and_then_its_error(play: Playbook) -> None:
    play.data(subscribes(range(2)))
    first, second = asked(play)
    play.subscribed(second)
    play.broker(ops.ConsumerCancelled(second.subscription))
    assert play.said() == []
    play.subscribed(first)
    *receipts, error = play.said()
    assert receipts == ["RECEIPT r0", "RECEIPT r1"]
    assert error.startswith("ERROR")
    assert "id='1'" in error


def test_a_stopping_gateway_finishes_the_subscribes_under_way_and_takes_no_frame_behind(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", "receipt:s")
    play.prepare()
    assert play.published() == ["amq.topic t "]
    play.data(subscribes(range(2)) + stomp("SEND", "destination:/queue/0", "receipt:late"))
    first, second = asked(play)
    play.session.shut_down()
    play.subscribed(second)
    play.subscribed(first)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1"]
    assert (play.asked(), play.published()) == (None, [])
    play.confirm(1)
    assert play.asked() == ops.CloseUpstream()
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT s", "ERROR Shutting down: The gateway is stopping; connect again."]
    assert play.published() == []


# The loss of a link.


def test_what_a_lost_link_interrupted_is_asked_for_again_one_by_one(play: Playbook) -> None:
    play.data(subscribes(range(3)) + stomp("BEGIN", "transaction:t", "receipt:t"))
    operations = asked(play)
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", tuple(each.subscription for each in operations)))
    for each in reversed(operations):
        # Nothing comes back before the broker is done with all of them.
        assert play.asked() is None
        interrupt(play, each)
    come_back(play)
    for number, each in enumerate(operations):
        (again,) = asked(play)
        assert again.subscription is each.subscription
        play.subscribed(again)
        assert play.said()[0] == f"RECEIPT r{number}"
    assert not play.session.holds


def test_an_answer_is_worth_nothing_once_its_link_is_lost(play: Playbook) -> None:
    play.data(subscribes(range(2)))
    first, second = asked(play)
    play.subscribed(second)
    deliver(second.subscription, 1, "early")
    # The link of the second one only.
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", (second.subscription,)))
    play.subscribed(first)
    assert play.said() == ["RECEIPT r0"]
    come_back(play)
    (again,) = asked(play)
    assert again.subscription is second.subscription
    play.subscribed(again)
    deliver(again.subscription, 1, "again")
    assert play.said() == ["RECEIPT r1", "MESSAGE 1 #1 again"]


def test_an_answer_on_another_link_is_good_after_a_loss(play: Playbook) -> None:
    play.data(subscribes(range(2)))
    first, second = asked(play)
    play.subscribed(second)
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", (first.subscription,)))
    interrupt(play, first)
    come_back(play)
    (again,) = asked(play)
    assert again.subscription is first.subscription
    play.subscribed(again)
    assert play.said() == ["RECEIPT r0", "RECEIPT r1"]


def test_the_subscribe_that_makes_the_broker_close_the_link_ends_the_session_and_others_have_their_receipts(
    play: Playbook,
) -> None:
    play.data(subscribes(range(3)))
    operations = asked(play)
    for each in operations:
        interrupt(play, each, 541)
    come_back(play)
    (again,) = asked(play)
    play.subscribed(again)
    (poison,) = asked(play)
    assert poison.subscription is operations[1].subscription
    interrupt(play, poison, 504)
    come_back(play)
    (poison,) = asked(play)
    assert poison.subscription is operations[1].subscription
    # It happens again, in this session's turn.
    play.broker(ops.RecoveryFailed(504, "CHANNEL_ERROR - no"))
    receipt, error = play.said()
    assert receipt == "RECEIPT r0"
    assert error.startswith("ERROR")
    assert play.state() is State.CLOSED


def test_an_ack_behind_a_subscribe_waits_for_its_answer() -> None:
    play = Playbook()
    play.connect()
    subscription = play.subscribe("0", "/queue/q", "ack:client-individual")
    for tag in range(1, 5):
        deliver(subscription, tag)
    acks = [stomp("ACK", f"id:{ack_id(subscription, tag)}") for tag in range(1, 5)]
    play.data(acks[0] + subscribes([1]) + acks[1] + acks[2])
    assert play.settled() == ["ack 1 multiple"]
    play.subscribed(asked(play)[0])
    assert play.settled() == ["ack 3 multiple"]
    assert "RECEIPT r1" in play.said()
    play.finish()
