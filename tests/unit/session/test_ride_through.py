"""A session outlives the loss of a link: what it asks for, what it sends again, and what its client hears."""

from types import SimpleNamespace
from typing import cast

import pytest
from pamqp.header import ContentHeader

from gateway.config.virtual_host import ConfirmWindow, VirtualHost
from gateway.errors import CloseReason
from gateway.session import ops
from gateway.session.context import Hold
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription
from gateway.session.traffic import DeliveryCounter
from tests.support.playbook import (
    ENDS_WITH_ITS_LINK,
    FRAME_MAX,
    OF_STREAM,
    TO_QUEUE,
    Playbook,
    ack_id,
    amqp_frames,
    deliver,
    stomp,
)

LOST = "ERROR connection_forced: CONNECTION_FORCED - gone"
INTERRUPTED = (
    "ERROR for c Transaction interrupted: The connection to the broker was lost. The messages that the transaction "
    "acknowledges will be delivered again; nothing was acknowledged."
)


def sending(play: Playbook, *frames: tuple[str, str, str]) -> None:
    """SENDs, of which nothing is confirmed: destination, receipt and body."""
    for number, (destination, receipt, body) in enumerate(frames):
        play.client("SEND", f"destination:{destination}", *([f"receipt:{receipt}"] if receipt else []), body=body)
        if not number:
            play.prepare()
    assert len(play.published()) == len(frames)


def last_channel(play: Playbook, subscription: Subscription) -> list[int]:
    """The channels that settlements are written to."""
    return [
        channel
        for each, data in play.session.subscriptions.take_settlements()
        if each is subscription
        for channel, _ in amqp_frames(data)
    ]


# The hold, and what is asked for.


def test_a_lost_link_holds_the_session_and_the_client_hears_nothing(play: Playbook) -> None:
    subscription = play.subscribe()
    operation = play.lose(subscription)
    assert play.session.holds == {Hold.LINK_LOST}
    play.client("SEND", "destination:/topic/t", "receipt:r", body="behind")
    assert (play.said(), play.published(), play.asked()) == ([], [], None)
    play.recover(operation)
    assert Hold.LINK_LOST not in play.session.holds
    assert play.prepare().confirms
    assert play.published() == ["amq.topic t behind"]
    assert not play.session.holds


def test_subscriptions_come_back_in_their_order_and_as_they_were(play: Playbook) -> None:
    third = play.subscribe("c", "/topic/t", "ack:client", "prefetch-count:7")
    first = play.subscribe("a", "/queue/q", "durable:false", "exclusive:true", "x-priority:3")
    second = play.subscribe("b", "/amq/queue/other")
    operation = play.lose(first, second, third)
    requests = operation.subscriptions
    assert [each.subscription for each in requests] == [third, first, second]
    # A transient queue of a topic may be lost with its node, and is not asked for again.
    (third_queue, *others) = [each.queue_name for each in requests]
    assert third_queue.startswith("stomp-subscription-")
    assert third_queue != third.queue
    assert others == ["q", "other"]
    assert [each.prefetch for each in requests] == [7, 2000, 2000]
    assert [each.binding for each in requests] == [("amq.topic", "t"), None, None]
    assert requests[1].arguments == {"x-priority": 3}
    assert requests[1].queue == QueueSpec("q", exclusive=True, auto_delete=True)
    assert requests[2].queue is None
    assert not operation.publishing


def test_only_what_was_on_the_lost_link_comes_back(play: Playbook) -> None:
    kept, lost = play.subscribe("1"), play.subscribe("2")
    sending(play, ("/topic/t", "r", "x"))
    operation = play.lose(lost)
    assert [each.subscription for each in operation.subscriptions] == [lost]
    assert not operation.publishing
    deliver(kept, 1, "goes on")
    play.confirm(1)
    assert play.said() == ["MESSAGE 1 #1 goes on", "RECEIPT r"]
    play.recover(operation)
    operation = play.lose(publishing=True)
    assert (operation.subscriptions, operation.publishing) == ((), True)


def test_a_queue_comes_back_as_the_session_first_declared_it(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/q", "x-max-length:5")
    play.prepare()
    play.published()
    subscription = play.subscribe("1", "/queue/q", "auto-delete:true")
    operation = play.lose(subscription)
    assert operation.subscriptions[0].queue == QueueSpec("q", durable=True, arguments={"x-max-length": 5})


def test_a_queue_of_two_subscriptions_comes_back_as_the_first_one_declared_it(play: Playbook) -> None:
    play.subscribe("1", "/queue/q", "x-max-length:5")
    second = play.subscribe("2", "/queue/q", "auto-delete:true")
    operation = play.lose(second)
    assert operation.subscriptions[0].queue == QueueSpec("q", durable=True, arguments={"x-max-length": 5})


def test_another_loss_meanwhile_is_recovered_too(play: Playbook) -> None:
    one, other = play.subscribe("1"), play.subscribe("2")
    operation = play.lose(one)
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - again", (other,)))
    assert play.asked() is None
    play.recover(operation)
    assert play.session.holds == {Hold.LINK_LOST}
    again = play.asked()
    assert isinstance(again, ops.Recover)
    assert [each.subscription for each in again.subscriptions] == [other]
    play.recover(again)
    assert not play.session.holds


def test_a_queue_that_was_perhaps_declared_and_never_consumed_is_declared_under_the_same_name(play: Playbook) -> None:
    """The broker deletes an auto-delete queue with its last consumer, so nobody would delete this one."""
    subscription = play.subscribe("1", "/topic/t")
    (first,) = play.lose(subscription).subscriptions
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - again", (subscription,)))
    (again,) = play.session.recovery_request().subscriptions
    assert again.queue_name == first.queue_name != subscription.queue


# Publishing.


def test_what_is_not_confirmed_is_published_again_in_order_before_anything_new(play: Playbook) -> None:
    sending(play, ("/topic/a", "r1", "1"), ("/topic/b", "", "2"), ("/topic/a", "r3", "3"), ("/topic/c", "r4", "4"))
    play.confirm(2)
    play.confirm(3)
    assert play.said() == ["RECEIPT r3"]
    operation = play.lose(publishing=True)
    play.client("SEND", "destination:/topic/a", "receipt:r5", body="5")
    play.recover(operation)
    assert play.published() == ["amq.topic a 1", "amq.topic c 4", "amq.topic a 5"]
    # Publish sequence numbers begin anew with the channel.
    play.confirm(2)
    play.confirm(1)
    play.confirm(3)
    assert play.said() == ["RECEIPT r4", "RECEIPT r1", "RECEIPT r5"]
    play.confirm(4)
    assert play.said() == []


def test_much_is_published_again_in_pieces_and_nothing_new_comes_between(play: Playbook) -> None:
    body = "x" * (40 << 10)
    sending(play, *(("/topic/a", f"r{number}", body) for number in range(6)))
    operation = play.lose(publishing=True)
    play.recover(operation)
    assert play.session.holds == {Hold.REPLAY}
    play.client("SEND", "destination:/topic/a", body="new")
    sizes = []
    while play.session.publisher.output:
        sizes.append(sum(map(len, play.session.publisher.output.take(64 << 10))))
    # What is encoded at once, and then a message after which the piece is large enough.
    assert len(sizes) > 1
    assert max(sizes) < 5 * len(body)
    assert not play.session.holds
    play.go_on()
    assert play.published() == ["amq.topic a new"]


def test_what_is_published_again_has_the_receipt_among_its_headers_as_before(play: Playbook) -> None:
    """A broker that returns it names it by that."""
    play.client("SEND", "destination:/topic/t", "receipt:r1", "x:y")
    play.prepare()
    before = b"".join(play.session.publisher.output.take())
    assert b"\x07receiptS\0\0\0\x02r1" in before
    play.recover(play.lose(publishing=True))
    again = [found for _, found in amqp_frames(b"".join(play.session.publisher.output.take()))]
    assert [found.properties.headers for found in again if isinstance(found, ContentHeader)] == [
        found.properties.headers for _, found in amqp_frames(before) if isinstance(found, ContentHeader)
    ]


@pytest.mark.parametrize(
    ("settings", "headers", "can"),
    [
        (VirtualHost(name="/"), (), True),
        (VirtualHost(name="/"), ("auto-delete:true",), False),
        (VirtualHost(name="/"), ("exclusive:true",), False),
        (ENDS_WITH_ITS_LINK, (), False),
    ],
)
def test_a_session_moves_to_another_link_if_it_can_bring_everything_back(
    settings: VirtualHost, headers: tuple[str, ...], can: bool
) -> None:
    play = Playbook(settings)
    play.connect()
    subscription = play.subscribe("1", "/queue/q", *headers)
    assert play.session.can_leave([subscription]) is can
    assert play.session.can_leave([]) is (settings is not ENDS_WITH_ITS_LINK)


def test_what_is_published_again_fits_the_frames_of_the_new_link(play: Playbook) -> None:
    sending(play, ("/topic/t", "r", "x" * 10_000))
    play.lose(publishing=True)
    play.broker(ops.Recovered((), ops.PublisherPrepared(7, 4096, confirms=True)))
    _, _, *bodies = [found for _, found in amqp_frames(b"".join(play.session.publisher.output.take()))]
    assert [len(each.value) for each in bodies] == [4088, 4088, 1824]


def test_what_was_not_written_yet_is_not_written_twice(play: Playbook) -> None:
    sending(play, ("/topic/a", "r1", "1"))
    play.client("SEND", "destination:/topic/a", "receipt:r2", body="2")
    play.recover(play.lose(publishing=True))
    assert play.published() == ["amq.topic a 1", "amq.topic a 2"]


def test_the_window_stays_as_full_as_it_was() -> None:
    play = Playbook(VirtualHost(name="/", confirm_window=ConfirmWindow(messages=2)))
    play.connect()
    sending(play, ("/topic/a", "r1", "xx"), ("/topic/a", "r2", "yyy"))
    play.recover(play.lose(publishing=True))
    assert play.session.holds == {Hold.CONFIRM_WINDOW}
    assert (len(play.session.confirms), play.session.confirms.unconfirmed_bytes) == (2, 5)
    play.published()
    play.confirm(2, multiple=True)
    assert not play.session.holds
    assert play.said() == ["RECEIPT r1", "RECEIPT r2"]


def test_a_returned_message_is_not_published_again(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", "mandatory:true", "receipt:r1", body="1")
    play.prepare()
    play.client("SEND", "destination:/topic/t", "mandatory:true", "receipt:r2", body="2")
    play.published()
    play.return_message("amq.topic", "t", size=1, receipt="r1")
    assert len(play.said()) == 1
    play.recover(play.lose(publishing=True))
    assert play.published() == ["mandatory amq.topic t 2"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r2"]


def test_the_queues_of_old_messages_are_declared_again_before_them(play: Playbook) -> None:
    sending(play, ("/queue/q", "", "1"))
    operation = play.lose(publishing=True)
    assert operation.queues == (QueueSpec("q", durable=True),)
    play.recover(operation)
    assert play.published() == ["- q 1"]
    play.client("SEND", "destination:/queue/q", "color:red", body="2")
    assert play.published() == ["- q 2"]


def test_a_queue_without_unconfirmed_messages_is_declared_again_for_the_next_one(play: Playbook) -> None:
    sending(play, ("/queue/q", "", "1"))
    play.confirm(1)
    operation = play.lose(publishing=True)
    assert operation.queues == ()
    play.recover(operation)
    play.client("SEND", "destination:/queue/q", body="2")
    assert play.published() == ["- q 2"]
    assert play.declared == [QueueSpec("q", durable=True)] * 2


def test_an_alarm_of_the_lost_broker_holds_nobody(play: Playbook) -> None:
    sending(play, ("/topic/t", "", "1"))
    play.session.publisher.set_blocked(True)
    play.client("SEND", "destination:/topic/t", body="2")
    assert play.session.holds == {Hold.BROKER_BLOCKED}
    play.recover(play.lose(publishing=True))
    assert not play.session.holds
    assert play.published() == ["amq.topic t 1", "amq.topic t 2"]


def test_on_receipt_messages_before_the_first_receipt_are_not_kept() -> None:
    play = Playbook(VirtualHost(name="/", confirms="on_receipt"))
    play.connect()
    play.client("SEND", "destination:/topic/t", body="1")
    assert not play.prepare().confirms
    play.published()
    play.recover(play.lose(publishing=True))
    assert play.published() == []
    play.client("SEND", "destination:/topic/t", "receipt:r", body="2")
    assert play.published() == ["amq.topic t 2"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r"]


def test_a_reply_queue_that_gets_another_name_is_named_by_what_is_published_again(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", "reply-to:/temp-queue/a")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.broker(ops.OperationFailed(403, "ACCESS_REFUSED"))
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    subscription = play.subscribed(operation)
    play.prepare()
    assert b"amq.gen-1" in b"".join(play.session.publisher.output.take())
    play.recover(play.lose(subscription, publishing=True))
    assert b"amq.gen-2" in b"".join(play.session.publisher.output.take())


def unsettled(play: Playbook) -> None:
    """A node of the broker has died a moment ago."""
    play.session.context.brokers_changed = lambda *_: True


REJECTED = "ERROR for {} Message rejected: The broker did not accept the message for '{}'."


def test_what_the_broker_does_not_take_for_a_while_is_published_again_before_anything_new(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"), ("/topic/b", "r2", "2"), ("/topic/a", "r3", "3"))
    play.confirm(3, accepted=False)
    play.confirm(1, accepted=False)
    play.client("SEND", "destination:/topic/a", "receipt:r4", body="4")
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    assert (operation.publishing, operation.has_refused) == (True, True)
    # The old channel still answers.
    play.confirm(2)
    assert play.said() == ["RECEIPT r2"]
    play.recover(operation)
    assert play.published() == ["amq.topic a 1", "amq.topic a 3", "amq.topic a 4"]
    play.confirm(3, multiple=True)
    assert play.said() == ["RECEIPT r1", "RECEIPT r3", "RECEIPT r4"]
    assert not play.session.confirms
    assert play.session.confirms.unconfirmed_bytes == 0


def test_a_confirm_of_many_does_not_confirm_what_was_refused(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"), ("/topic/b", "r2", "2"), ("/topic/a", "r3", "3"))
    play.confirm(2, multiple=True, accepted=False)
    play.confirm(3, multiple=True)
    assert play.said() == ["RECEIPT r3"]
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    play.recover(operation)
    assert play.published() == ["amq.topic a 1", "amq.topic b 2"]
    play.confirm(2, multiple=True)
    play.said()


def test_what_the_broker_does_not_take_until_the_time_is_up_gets_its_error_and_the_session_goes_on(
    play: Playbook,
) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"), ("/topic/a", "r2", "2"))
    play.confirm(2, multiple=True, accepted=False)
    assert isinstance(play.asked(), ops.Recover)
    play.broker(ops.RecoveryFailed())
    assert play.said() == [REJECTED.format("r1", "/topic/a"), REJECTED.format("r2", "/topic/a")]
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    assert (operation.publishing, operation.has_refused, operation.is_again) == (True, False, False)
    play.recover(operation)
    play.client("SEND", "destination:/topic/a", "receipt:r3", body="3")
    assert play.published() == ["amq.topic a 3"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r3"]
    assert not play.session.holds


def test_a_session_whose_channel_does_not_come_back_is_told_what_began_it(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"))
    play.confirm(1, accepted=False)
    for _ in range(2):
        assert isinstance(play.asked(), ops.Recover)
        play.broker(ops.RecoveryFailed())
    assert play.said() == [
        REJECTED.format("r1", "/topic/a"),
        "ERROR connection_forced: CONNECTION_FORCED - the broker accepted no messages",
    ]


def test_a_message_that_is_refused_again_has_no_more_time(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"))
    for is_again in (False, True, True):
        play.confirm(1, accepted=False)
        operation = play.asked()
        assert isinstance(operation, ops.Recover)
        assert operation.is_again is is_again
        play.recover(operation)
        assert play.published() == ["amq.topic a 1"]
    play.session.context.brokers_changed = lambda *_: False
    play.confirm(1, accepted=False)
    assert play.said() == [REJECTED.format("r1", "/topic/a")]


def test_what_was_on_its_way_with_a_message_that_is_given_up_has_the_whole_time(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"), ("/topic/b", "r2", "2"))
    for is_again in (False, True):
        play.confirm(1, accepted=False)
        operation = play.asked()
        assert isinstance(operation, ops.Recover)
        assert operation.is_again is is_again
        if is_again:
            play.broker(ops.RecoveryFailed())
        else:
            play.recover(operation)
            play.published()
    assert play.said() == [REJECTED.format("r1", "/topic/a")]
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    assert not operation.is_again
    play.recover(operation)
    assert play.published() == ["amq.topic b 2"]


@pytest.mark.parametrize("overflow", ["reject-publish", "reject-publish-dlx"])
def test_a_queue_that_was_declared_to_refuse_what_it_has_no_room_for_is_full(overflow: str) -> None:
    arguments = {"destination": "/queue/*", "arguments": {"x-overflow": overflow}}
    play = Playbook(VirtualHost.model_validate({"name": "/", "queue_arguments": [arguments]}))
    play.connect()
    unsettled(play)
    play.client("SEND", "destination:/queue/q", "receipt:r1")
    play.prepare()
    play.published()
    play.confirm(1, accepted=False)
    assert play.said() == [REJECTED.format("r1", "/queue/q")]
    assert play.asked() is None


def test_what_a_commit_publishes_is_taken_in_the_end_or_the_commit_gets_an_error(play: Playbook) -> None:
    for outcome in ("RECEIPT c", "ERROR for c Message rejected"):
        unsettled(play)
        _transaction(play, stomp("SEND", "destination:/topic/t", "transaction:t", body="a"))
        if outcome == "RECEIPT c":
            play.prepare()
        play.client("COMMIT", "transaction:t", "receipt:c")
        play.published()
        play.confirm(1 if outcome == "RECEIPT c" else 2, accepted=False)
        operation = play.asked()
        assert isinstance(operation, ops.Recover)
        if outcome == "RECEIPT c":
            play.recover(operation)
            assert play.published() == ["amq.topic t a"]
            play.confirm(1)
        else:
            play.broker(ops.RecoveryFailed())
            again = play.asked()
            assert isinstance(again, ops.Recover)
            play.recover(again)
        assert [word[: len(outcome)] for word in play.said()][-1] == outcome
        assert not play.session.holds


def test_a_disconnect_waits_for_what_the_broker_did_not_take_yet(play: Playbook) -> None:
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"))
    play.client("DISCONNECT", "receipt:bye")
    play.confirm(1, accepted=False)
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    play.recover(operation)
    assert play.published() == ["amq.topic a 1"]
    play.confirm(1)
    assert isinstance(play.asked(), ops.CloseUpstream)
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT r1", "RECEIPT bye"]


def test_a_session_that_ends_with_its_link_keeps_no_message() -> None:
    play = Playbook(ENDS_WITH_ITS_LINK)
    play.connect()
    unsettled(play)
    sending(play, ("/topic/a", "r1", "1"))
    assert [body for *_, body, _ in play.session.confirms.messages] == [None]
    play.confirm(1, accepted=False)
    assert play.said() == [REJECTED.format("r1", "/topic/a")]


# Deliveries.


def test_an_acknowledgement_of_a_lost_delivery_is_accepted_and_does_nothing(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1, "one")
    deliver(subscription, 2, "two")
    old = [ack_id(subscription, 1), ack_id(subscription, 2)]
    play.said()
    play.recover(play.lose(subscription))
    deliver(subscription, 1, "one", redelivered=True)
    play.client("ACK", f"id:{old[0]}", "receipt:r1")
    play.client("NACK", f"id:{old[1]}", "receipt:r2")
    assert play.said() == ["MESSAGE 1 #3 again one", "RECEIPT r1", "RECEIPT r2"]
    assert play.settled() == []
    play.client("ACK", f"id:{ack_id(subscription, 1)}", "receipt:r3")
    assert play.said() == ["RECEIPT r3"]
    assert play.settled() == ["ack 1 multiple"]


def test_a_cumulative_acknowledgement_of_a_lost_delivery_does_not_reach_the_new_ones(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    old = ack_id(subscription, 3)
    play.recover(play.lose(subscription))
    for tag in (1, 2):
        deliver(subscription, tag)
    play.client("ACK", f"id:{old}")
    assert play.settled() == []
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]
    assert [word for word in play.said() if word.startswith("ERROR")] == []


def test_a_number_that_was_never_delivered_is_an_error_as_before(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    deliver(subscription, 1)
    play.recover(play.lose(subscription))
    play.said()
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - unknown delivery tag 2"]


def test_what_was_settled_and_not_written_is_not_written_to_another_channel(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    deliver(subscription, 2)
    play.client("ACK", f"id:{ack_id(subscription, 2)}")
    play.recover(play.lose(subscription))
    assert play.settled() == []
    deliver(subscription, 1)
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert last_channel(play, subscription) == [subscription.ledger.channel]
    play.said()


def test_what_the_client_acknowledges_is_still_left_to_it(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client")
    play.recover(play.lose(subscription))
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []
    play.said()


def test_automatic_acknowledgement_goes_on_with_the_new_channel(play: Playbook) -> None:
    subscription = play.subscribe()
    deliver(subscription, 1)
    deliver(subscription, 2)
    operation = play.lose(subscription)
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == []
    play.recover(operation)
    deliver(subscription, 1)
    assert play.session.subscriptions.auto_acks.subscriptions
    play.session.subscriptions.settle_auto_acks()
    assert play.settled() == ["ack 1 multiple"]
    play.said()


def test_the_counters_go_on(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    for tag in (1, 2, 3):
        deliver(subscription, tag, "xx")
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    play.client("NACK", f"id:{ack_id(subscription, 2)}")
    play.recover(play.lose(subscription))
    stats = subscription.stats
    assert (stats.delivered, stats.acknowledged, stats.requeued, stats.outstanding) == (3, 1, 1, 0)
    deliver(subscription, 1, "xx", redelivered=True)
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    play.client("UNSUBSCRIBE", "id:1")
    assert isinstance(play.asked(), ops.Unsubscribe)
    stats = subscription.stats
    assert (stats.delivered, stats.delivered_bytes, stats.redelivered) == (4, 8, 1)
    assert (stats.acknowledged, stats.requeued, stats.outstanding) == (2, 1, 0)
    play.said()
    play.settled()


def test_the_observer_learns_which_deliveries_went_with_the_channel(play: Playbook) -> None:
    told: list[object] = []
    counter = SimpleNamespace(
        delivered=lambda *what: None, settled=lambda *what: None, lost=lambda *what: told.append(what)
    )
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    subscription.set_counter(cast(DeliveryCounter, counter))
    for tag in (1, 2, 3):
        deliver(subscription, tag)
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    play.lose(subscription)
    assert told == [(3, 2)]
    play.said()
    play.settled()


def test_a_stream_that_is_made_anew_is_read_from_its_beginning(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client", "prefetch-count:10", "x-stream-offset:next")
    subscription.deliver(1, False, TO_QUEUE, OF_STREAM, b"x")
    play.said()
    subscription.queue_gone()
    (request,) = play.lose(subscription).subscriptions
    assert request.arguments == {"x-stream-offset": 0}


def test_a_stream_goes_on_behind_the_last_message_that_came(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client", "prefetch-count:10", "x-stream-offset:first")
    operation = play.lose(subscription)
    assert operation.subscriptions[0].arguments["x-stream-offset"] == "first"
    play.recover(operation)
    subscription.deliver(1, False, TO_QUEUE, OF_STREAM, b"")
    assert play.lose(subscription).subscriptions[0].arguments["x-stream-offset"] == 8
    play.said()


def test_the_identifier_of_an_earlier_subscription_is_still_not_this_ones(play: Playbook) -> None:
    earlier = play.subscribe("1", "/queue/q", "ack:client")
    deliver(earlier, 1)
    old = ack_id(earlier, 1)
    play.client("UNSUBSCRIBE", "id:1")
    play.asked()
    play.broker(ops.Unsubscribed())
    play.recover(play.lose(play.subscribe("1", "/queue/q", "ack:client")))
    play.said()
    play.client("ACK", f"id:{old}")
    assert play.said()[0].startswith("ERROR Subscription not found")


# Transactions.


def _transaction(play: Playbook, *frames: bytes) -> None:
    play.data(stomp("BEGIN", "transaction:t") + b"".join(frames))


def test_a_commit_under_way_is_finished(play: Playbook) -> None:
    sending(play, ("/topic/t", "", "0"))
    play.confirm(1)
    _transaction(play, *(stomp("SEND", "destination:/topic/t", "transaction:t", body=body) for body in "ab"))
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.published() == ["amq.topic t a", "amq.topic t b"]
    play.confirm(2)
    play.recover(play.lose(publishing=True))
    assert play.published() == ["amq.topic t b"]
    assert play.said() == []
    play.confirm(1)
    assert play.said() == ["RECEIPT c"]
    assert not play.session.holds


@pytest.mark.parametrize("publishing", [True, False], ids=["all links", "that of the delivery"])
def test_a_commit_under_way_that_acknowledges_a_lost_delivery_is_an_error(play: Playbook, publishing: bool) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    play.said()
    sending(play, ("/topic/t", "", "0"))
    play.confirm(1)
    ack = stomp("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    _transaction(play, stomp("SEND", "destination:/topic/t", "transaction:t", body="a"), ack)
    play.client("COMMIT", "transaction:t", "receipt:c")
    play.client("SEND", "destination:/topic/t", body="behind")
    assert play.published() == ["amq.topic t a"]
    play.recover(play.lose(subscription, publishing=publishing))
    if not publishing:
        assert play.said() == []
        play.confirm(2)
    assert play.said() == [INTERRUPTED]
    assert play.published() == ["amq.topic t behind"]
    assert play.settled() == []
    assert not play.session.holds


def test_a_transaction_that_was_open_and_acknowledges_a_lost_delivery_is_not_sent_by_half(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    sending(play, ("/topic/t", "", "0"))
    ack = stomp("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t", "receipt:a")
    _transaction(play, stomp("SEND", "destination:/topic/t", "transaction:t", body="a"))
    play.recover(play.lose(subscription, publishing=True))
    play.published()
    play.said()
    play.data(ack)
    assert play.said() == ["RECEIPT a"]
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == [INTERRUPTED]
    assert (play.published(), play.settled()) == ([], [])


def test_a_transaction_of_acknowledgements_alone_is_accepted(play: Playbook) -> None:
    subscription = play.subscribe("1", "/queue/q", "ack:client-individual")
    deliver(subscription, 1)
    old = stomp("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t")
    play.recover(play.lose(subscription))
    deliver(subscription, 1)
    _transaction(play, old, stomp("ACK", f"id:{ack_id(subscription, 1)}", "transaction:t"))
    play.said()
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.said() == ["RECEIPT c"]
    assert play.settled() == ["ack 1 multiple"]


def test_the_queue_of_a_transactions_message_is_declared_again_before_it_is_published(play: Playbook) -> None:
    _transaction(play, stomp("SEND", "destination:/queue/q", "transaction:t", body="a"))
    play.prepare()
    play.recover(play.lose(publishing=True))
    play.client("COMMIT", "transaction:t", "receipt:c")
    assert play.prepare().queue == QueueSpec("q", durable=True)
    assert play.published() == ["- q a"]
    play.confirm(1)
    assert play.said() == ["RECEIPT c"]


def test_a_transactions_headers_may_be_too_large_for_the_broker_that_answers_now(play: Playbook) -> None:
    large = "x:" + "y" * 5000
    _transaction(
        play, *(stomp("SEND", "destination:/topic/t", "transaction:t", each, body="a") for each in ("x:y", large))
    )
    play.prepare()
    play.lose(publishing=True)
    play.broker(ops.Recovered((), ops.PublisherPrepared(7, 4096, confirms=True)))
    play.client("COMMIT", "transaction:t", "receipt:c")
    [said] = play.said()
    assert said.startswith("ERROR for c")
    assert "4096" in said
    assert play.published() == []


# Operations that the loss interrupts.


def test_an_interrupted_operation_ends_a_session_that_ends_with_its_link(mortal: Playbook) -> None:
    mortal.client("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r")
    mortal.asked()
    mortal.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
    assert mortal.said() == [LOST]


def test_an_interrupted_operation_is_asked_for_again(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q", "receipt:r")
    asked = play.asked()
    assert isinstance(asked, ops.Subscribe)
    asked.subscription.set_channel(9)
    deliver(asked.subscription, 1, "of the lost channel")
    play.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
    recover = play.asked()
    assert recover == ops.Recover()
    assert play.session.holds == {Hold.LINK_LOST}
    assert isinstance(recover, ops.Recover)
    play.recover(recover)
    assert play.asked() == asked
    play.subscribed(asked)
    deliver(asked.subscription, 1, "of the new one")
    assert play.said() == ["RECEIPT r", "MESSAGE 1 #1 of the new one"]


def test_a_frame_that_waits_for_an_interrupted_operation_is_carried_out_once(play: Playbook) -> None:
    play.client("SEND", "destination:/queue/q", "receipt:r", body="x")
    asked = play.asked()
    play.broker(ops.LinkLost(320, "CONNECTION_FORCED - gone", (), publishing=True))
    assert play.asked() is None
    play.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
    recover = play.asked()
    assert isinstance(recover, ops.Recover)
    play.recover(recover)
    assert play.asked() == asked
    play.broker(ops.PublisherPrepared(play.publishing, FRAME_MAX, confirms=True))
    assert play.published() == ["- q x"]
    play.confirm(1)
    assert play.said() == ["RECEIPT r"]


def test_what_is_interrupted_again_has_no_more_time_than_at_first(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/queue/q")
    play.asked()
    for is_again in (False, True, True):
        play.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
        recover = play.asked()
        assert isinstance(recover, ops.Recover)
        assert recover.is_again is is_again
        play.recover(recover)
        operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    play.subscribed(operation)
    play.client("UNSUBSCRIBE", "id:1")
    play.asked()
    play.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
    recover = play.asked()
    assert isinstance(recover, ops.Recover)
    assert not recover.is_again


def test_messages_of_which_none_is_confirmed_after_a_recovery_have_no_more_time_either(play: Playbook) -> None:
    sending(play, ("/topic/t", "r1", "1"), ("/topic/t", "r2", "2"))
    first = play.lose(publishing=True)
    play.recover(first)
    second = play.lose(publishing=True)
    play.recover(second)
    play.confirm(1)
    third = play.lose(publishing=True)
    assert [first.is_again, second.is_again, third.is_again] == [False, True, False]
    play.recover(third)
    play.published()
    play.said()


# The end.


def test_when_it_takes_too_long_the_client_gets_the_error_of_the_loss(play: Playbook) -> None:
    play.lose(play.subscribe())
    play.broker(ops.RecoveryFailed())
    assert play.said() == [LOST]
    assert play.session.close_reason is CloseReason.LINK_LOST


def test_a_refusal_is_the_error_that_the_broker_gives(play: Playbook) -> None:
    play.lose(play.subscribe())
    play.broker(ops.RecoveryFailed(406, "PRECONDITION_FAILED - inequivalent arg"))
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - inequivalent arg"]
    assert play.session.close_reason is CloseReason.LINK_LOST


def test_a_disconnect_waits_for_what_is_published_again_and_for_no_subscription(play: Playbook) -> None:
    subscription = play.subscribe()
    sending(play, ("/topic/t", "r", "x"))
    play.client("DISCONNECT", "receipt:bye")
    operation = play.lose(subscription, publishing=True)
    assert (operation.subscriptions, operation.publishing) == ((), True)
    play.recover(operation)
    assert play.published() == ["amq.topic t x"]
    play.confirm(1)
    assert isinstance(play.asked(), ops.CloseUpstream)
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["RECEIPT r", "RECEIPT bye"]


def test_a_link_that_is_lost_while_the_session_closes_its_channels_changes_nothing(play: Playbook) -> None:
    sending(play, ("/topic/t", "", "x"))
    play.client("DISCONNECT", "receipt:bye")
    play.confirm(1)
    assert isinstance(play.asked(), ops.CloseUpstream)
    play.broker(ops.OperationInterrupted(320, "CONNECTION_FORCED - gone"))
    assert play.said() == ["RECEIPT bye"]
    assert play.session.close_reason is CloseReason.DISCONNECT


def test_a_gateway_that_stops_does_not_wait_for_a_session_with_nothing_to_finish(play: Playbook) -> None:
    play.lose(play.subscribe())
    play.session.shut_down()
    assert isinstance(play.asked(), ops.CloseUpstream)
    play.broker(ops.UpstreamClosed())
    assert play.said() == ["ERROR Shutting down: The gateway is stopping; connect again."]


def test_a_gateway_that_stops_waits_for_what_is_published_again(play: Playbook) -> None:
    sending(play, ("/topic/t", "r", "x"))
    operation = play.lose(publishing=True)
    play.session.shut_down()
    assert play.asked() is None
    play.recover(operation)
    play.published()
    play.confirm(1)
    assert isinstance(play.asked(), ops.CloseUpstream)
    assert play.said() == ["RECEIPT r"]


def test_an_interrupted_subscribe_declares_again_what_a_send_had_declared(play: Playbook) -> None:
    headers = "destination:/queue/q", "durable:false", "auto-delete:true"
    play.client("SEND", *headers)
    play.prepare()
    play.published()
    play.confirm(1)
    play.client("SUBSCRIBE", "id:1", *headers)
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.queue is None
    play.broker(ops.LinkLost(320, "gone", (operation.subscription,), publishing=True))
    play.broker(ops.OperationInterrupted(320, "gone"))
    recovery = play.asked()
    assert isinstance(recovery, ops.Recover)
    play.recover(recovery)
    again = play.asked()
    assert isinstance(again, ops.Subscribe)
    assert again.queue is not None
    assert again.queue.name == "q"
    play.broker(ops.Subscribed(again.subscription, "q"))


# A virtual host that is being deleted: its exchanges go first, its connections some time later.

_NO_EXCHANGE = "NOT_FOUND - no exchange 'amq.topic' in vhost '/'"


def _come_back(play: Playbook) -> None:
    operation = play.asked()
    assert isinstance(operation, ops.Recover)
    play.recover(operation)


def test_a_message_that_comes_after_the_exchanges_of_a_virtual_host_waits_for_its_return(play: Playbook) -> None:
    sending(play, ("/topic/t", "r", "one"))
    play.broker(ops.ChannelClosed(404, _NO_EXCHANGE, publishing=True))
    assert play.session.holds == {Hold.LINK_LOST}
    _come_back(play)
    assert (play.said(), play.published()) == ([], ["amq.topic t one"])
    play.confirm(1)
    assert play.said() == ["RECEIPT r"]


def test_what_is_asked_for_with_such_a_message_is_asked_for_again(play: Playbook) -> None:
    sending(play, ("/topic/t", "r", "one"))
    play.client("SEND", "destination:/queue/q", "exclusive:true", "receipt:s", body="two")
    play.broker(ops.OperationFailed(404, _NO_EXCHANGE, of_publish=True))
    _come_back(play)
    assert play.published() == ["amq.topic t one"]
    play.prepare()
    assert play.published() == ["- q two"]
    assert not play.said()


def test_an_exchange_that_a_client_has_invented_is_an_error(play: Playbook) -> None:
    sending(play, ("/topic/t", "", "one"), ("/exchange/e/k", "r", "two"))
    play.broker(ops.ChannelClosed(404, "NOT_FOUND - no exchange 'e' in vhost '/'", publishing=True))
    assert play.said() == ["ERROR for r not_found: NOT_FOUND - no exchange 'e' in vhost '/'"]


def test_a_virtual_host_that_does_not_come_back_is_the_error_that_the_broker_gave(play: Playbook) -> None:
    sending(play, ("/topic/t", "", "one"))
    play.broker(ops.ChannelClosed(404, _NO_EXCHANGE, publishing=True))
    play.broker(ops.RecoveryFailed())
    assert play.said() == [f"ERROR not_found: {_NO_EXCHANGE}"]
