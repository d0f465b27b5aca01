"""Frames take effect in their order, and what comes of them comes out in the right one."""

import re

import pytest

from gateway.session import ops
from gateway.session.queues import QueueSpec
from tests.support.playbook import FRAME_MAX, IDENTITY, PUBLISHING, Playbook, ack_id, deliver, stomp


def test_the_receipt_of_subscribe_precedes_messages_that_the_broker_delivered_before_its_answer(
    play: Playbook,
) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r1")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    deliver(operation.subscription, 1, "early")
    deliver(operation.subscription, 2, "early, too")
    assert play.said() == []
    play.subscribed(operation)
    deliver(operation.subscription, 3, "late")
    assert play.said() == ["RECEIPT r1", "MESSAGE 1 #1 early", "MESSAGE 1 #2 early, too", "MESSAGE 1 #3 late"]
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == ["ack 3 multiple"]


def test_what_was_delivered_before_the_answer_is_not_settled_before_it(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    deliver(operation.subscription, 1, "early")
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []
    play.subscribed(operation)
    assert play.said() == ["MESSAGE 1 #1 early"]
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == ["ack 1 multiple"]


def test_frames_behind_an_operation_wait_and_keep_their_order(play: Playbook) -> None:
    play.data(
        stomp("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r1")
        + stomp("SEND", "destination:/queue/q", body="one")
        + stomp("BEGIN", "transaction:t", "receipt:r2")
        + stomp("SEND", "destination:/topic/t", body="two")
        + stomp("SEND", "destination:/queue/q", body="three")
    )
    assert not play.session.wants_read
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert play.said() == []
    assert play.published() == []
    play.subscribed(operation)
    assert play.said() == ["RECEIPT r1"]
    # The queue was declared by the SUBSCRIBE; what is missing is the channel.
    assert play.prepare() == ops.PreparePublisher(confirms=True, queue=None)
    assert play.said() == ["RECEIPT r2"]
    assert play.published() == ["- q one", "amq.topic t two", "- q three"]
    assert play.session.wants_read


def test_a_queue_is_declared_before_the_first_message_for_it_and_only_then(mortal: Playbook) -> None:
    mortal.client("SEND", "destination:/queue/q", body="one")
    assert mortal.published() == []
    assert mortal.prepare() == ops.PreparePublisher(confirms=False, queue=QueueSpec("q", durable=True))
    assert mortal.published() == ["- q one"]
    mortal.client("SEND", "destination:q", "color:red", body="two")
    assert mortal.published() == ["- q two"]


def test_bytes_that_come_while_an_operation_is_under_way_wait(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/a", body="one")
    assert isinstance(play.asked(), ops.PreparePublisher)
    play.client("SEND", "destination:/topic/t", body="two")
    assert play.asked() is None
    assert play.published() == []
    play.broker(ops.PublisherPrepared(PUBLISHING, FRAME_MAX, confirms=True))
    assert play.published() == ["- a one", "amq.topic t two"]


def test_an_operation_is_asked_for_once(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/a")
    assert play.asked() is not None
    play.go_on()
    assert play.asked() is None


def test_confirms_are_switched_on_by_the_first_receipt(mortal: Playbook) -> None:
    mortal.client("SEND", "destination:/topic/t", body="one")
    assert mortal.prepare() == ops.PreparePublisher(confirms=False, queue=None)
    mortal.client("SEND", "destination:/topic/t", "receipt:r1", body="two")
    assert mortal.published() == ["amq.topic t one"]
    assert mortal.prepare() == ops.PreparePublisher(confirms=True, queue=None)
    assert mortal.published() == ["amq.topic t two"]
    mortal.client("SEND", "destination:/topic/t", body="three")
    mortal.client("SEND", "destination:/topic/t", "receipt:r2", body="four")
    assert mortal.published() == ["amq.topic t three", "amq.topic t four"]
    # Publish sequence numbers count from the moment that confirms were switched on.
    mortal.confirm(3)
    assert mortal.said() == ["RECEIPT r2"]
    mortal.confirm(1)
    assert mortal.said() == ["RECEIPT r1"]
    mortal.confirm(2)
    assert mortal.said() == []


def test_a_temporary_queue_is_there_before_the_message_that_names_it(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", "reply-to:/temp-queue/a", "receipt:r1", body="request")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    # A name of the gateway's own, so that it can be declared again when its link is lost.
    assert operation.queue == QueueSpec(operation.queue_name, exclusive=True, auto_delete=True)
    assert re.fullmatch("stomp-subscription-[A-Za-z0-9_-]{22}", operation.queue_name)
    assert play.published() == []
    subscription = play.subscribed(operation)
    assert play.said() == []
    assert play.prepare() == ops.PreparePublisher(confirms=True, queue=None)
    assert play.published() == ["amq.topic t request"]
    play.confirm(1)
    deliver(subscription, 1, "reply")
    assert play.said() == ["RECEIPT r1", "MESSAGE /temp-queue/a #1 reply"]


def test_the_broker_names_a_temporary_queue_whose_name_it_refuses_or_that_need_not_come_back(
    play: Playbook, mortal: Playbook
) -> None:
    for which in (mortal, play):
        which.client("SEND", "destination:/topic/t", "reply-to:/temp-queue/a", body="request")
    play.asked()
    play.broker(ops.OperationFailed(403, "ACCESS_REFUSED - access to queue refused"))
    for which in (mortal, play):
        operation = which.asked()
        assert isinstance(operation, ops.Subscribe)
        assert operation.queue == QueueSpec("", exclusive=True, auto_delete=True)
        which.broker(ops.OperationFailed(403, "ACCESS_REFUSED - access to queue refused"))
        assert which.said() == ["ERROR access_refused: ACCESS_REFUSED - access to queue refused"]


def test_unsubscribe_settles_first_and_delivers_nothing_afterwards(play: Playbook) -> None:
    subscription = play.subscribe()
    deliver(subscription, 1, "before")
    play.client("UNSUBSCRIBE", "id:1", "receipt:r1")
    assert play.said() == ["MESSAGE 1 #1 before"]
    assert play.settled() == ["ack 1 multiple"]
    assert play.asked() == ops.Unsubscribe(subscription, None)
    deliver(subscription, 2, "on its way")
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []
    play.broker(ops.Unsubscribed())
    assert play.said() == ["RECEIPT r1"]


def test_a_subscription_may_come_back_under_its_id(play: Playbook) -> None:
    first = play.subscribe("1", "/queue/q", "ack:client")
    deliver(first, 1)
    play.client("UNSUBSCRIBE", "id:1")
    assert play.asked() == ops.Unsubscribe(first, None)
    play.broker(ops.Unsubscribed())
    second = play.subscribe("1", "/queue/q", "ack:client")
    # A cancellation of the first one, late, does not concern the second.
    play.broker(ops.ConsumerCancelled(first))
    deliver(second, 1)
    deliver(second, 2)
    play.client("ACK", f"id:{ack_id(second, 2)}")
    assert play.said() == ["MESSAGE 1 #1 ", "MESSAGE 1 #2 ", "MESSAGE 1 #3 "]
    assert play.settled() == ["ack 2 multiple"]


def test_an_acknowledgement_of_an_earlier_subscription_means_nothing_to_a_later_one(play: Playbook) -> None:
    first = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(first, 1)
    play.client("UNSUBSCRIBE", "id:1")
    assert play.asked() == ops.Unsubscribe(first, None)
    play.broker(ops.Unsubscribed())
    second = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(second, 1)
    assert play.said() == ["MESSAGE 1 #1 ", "MESSAGE 1 #2 "]
    stale = ack_id(first, 1)
    play.client("ACK", f"id:{stale}")
    play.client("BEGIN", "transaction:t")
    play.client("NACK", f"id:{stale}", "transaction:t")
    refusal = f'ERROR Subscription not found: Message with id "{stale}" has no subscription'
    assert play.said() == [refusal, refusal]
    assert play.settled() == []
    # A number that is too high is told as the client knows it.
    play.client("ACK", f"id:{ack_id(second, 2)}")
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - unknown delivery tag 3"]


def test_zero_means_everything_of_a_later_subscription_too(play: Playbook) -> None:
    first = play.subscribe("1", "/queue/q", "ack:client")
    deliver(first, 1)
    play.broker(ops.ConsumerCancelled(first))
    second = play.subscribe("1", "/queue/q", "ack:client")
    deliver(second, 1)
    deliver(second, 2)
    play.client("ACK", f"id:T_1@@{IDENTITY.decode()}@@0")
    assert len(play.said()) == 4
    assert play.settled() == ["ack 2 multiple"]


def test_acknowledgements_of_one_batch_are_one_amqp_frame(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    for tag in range(1, 101):
        deliver(subscription, tag)
    assert len(play.said()) == 100
    for tag in range(1, 101):
        play.client("ACK", f"id:{ack_id(subscription, tag)}")
    assert play.settled() == ["ack 100 multiple"]


@pytest.mark.parametrize("command", ["SUBSCRIBE", "SEND"])
def test_a_refusal_answers_for_the_frame_that_waited_and_nothing_behind_it_happens(
    play: Playbook, command: str
) -> None:
    play.data(
        stomp(command, "id:1", "destination:/queue/q", "receipt:r1")
        + stomp("SEND", "destination:/topic/t", body="behind")
    )
    assert play.asked() is not None
    play.broker(ops.OperationFailed(404, "NOT_FOUND - no such thing"))
    assert play.said() == ["ERROR for r1 not_found: NOT_FOUND - no such thing"]
    assert play.published() == []


def test_a_temporary_queue_that_the_broker_took_away_is_made_anew(play: Playbook) -> None:
    request = ("SEND", "destination:/topic/t", "reply-to:/temp-queue/a")
    play.client(*request, body="one")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    subscription = play.subscribed(operation)
    play.prepare()
    assert play.published() == ["amq.topic t one"]
    play.broker(ops.ConsumerCancelled(subscription))
    assert len(play.said()) == 1
    play.client(*request, body="two")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.broker(ops.Subscribed(operation.subscription, "amq.gen-2"))
    data = b"".join(play.session.publisher.output.take())
    assert (data.count(b"amq.gen-2"), data.count(b"amq.gen-1")) == (1, 0)
