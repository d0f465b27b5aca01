"""Each check fails on a recording in which what it checks is broken, and only there."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.chaos.checks import judged, of_streams_made_again, unserved
from tests.chaos.client import GAVE_UP
from tests.chaos.history import Promise
from tests.chaos.messages import content
from tests.chaos.recording import (
    EARLIER,
    REPLIES,
    STRANGER,
    Began,
    Confirmed,
    Copy,
    Delivered,
    Ended,
    Event,
    Fault,
    Recording,
    Sent,
    Settled,
    Subscribed,
)
from tests.chaos.run import touched
from tests.chaos.schedule import (
    PROBE,
    QUORUMS,
    SUBSCRIPTIONS,
    Ack,
    ConsumerPlan,
    Harm,
    Kind,
    Place,
    ProducerPlan,
    Receipts,
    Schedule,
    Transport,
    Variant,
)
from tests.chaos.verdict import Check, Excuse, Outcome, Verdict

QUEUE = "chaos-queue-0"
RIDING = Promise()
ENDING = Promise(ride_through=False)
CLUSTER = Promise(is_cluster=True)
NEWEST = Promise(is_cluster=True, release=4)


def scheduled(
    ack: Ack = Ack.CLIENT,
    receipts: Receipts = Receipts.ALL,
    kind: Kind = Kind.QUEUE,
    unit_size: int = 0,
    nacks: int = 0,
) -> Schedule:
    """One producer and two consumers of one place; only the queue of a topic or stream is each consumer's own."""
    of_queue = kind in (Kind.QUEUE, Kind.QUORUM)
    consumers = tuple(
        ConsumerPlan(name, Transport.TCP, "1.2", QUEUE, QUEUE if of_queue else name, 0, 1, False, nacks, 0.0, None)
        for name in ("c", "d")
    )
    producer = ProducerPlan("p", Transport.TCP, (QUEUE,), 9, unit_size, receipts, 1.0, (0, 9), 1, 1, 0.0)
    return Schedule(1, Variant.SHARED, (Place(QUEUE, kind, ack),), (producer,), consumers, ())


def copy(number: int, connection: int = 1) -> Copy:
    return Copy("p", number, connection)


def sent(
    at: float,
    number: int,
    connection: int = 1,
    *,
    persistent: bool = True,
    aborted: bool = False,
    unit: int | None = None,
) -> Sent:
    return Sent(at, copy(number, connection), QUEUE, persistent, aborted, unit)


def confirmed(at: float, number: int, connection: int = 1) -> Confirmed:
    return Confirmed(at, copy(number, connection))


def delivered(
    at: float,
    number: int,
    connection: int = 1,
    *,
    to: str = "c",
    redelivered: bool = False,
    whole: bool = True,
    queue: str = QUEUE,
) -> Delivered:
    return Delivered(at, to, 1, queue, copy(number, connection), redelivered, whole)


def settled(at: float, number: int) -> Settled:
    return Settled(at, "c", 1, QUEUE, copy(number))


def judgement(events: tuple[Event, ...], schedule: Schedule | None = None, promise: Promise = RIDING) -> Verdict:
    return judged(schedule or scheduled(), Recording(list(events)), promise)


def told(*events: Event, schedule: Schedule | None = None, promise: Promise = RIDING) -> list[str]:
    """The findings, each by its first word, without those that say that nothing was checked."""
    found = judgement(events, schedule, promise).findings
    return [line.partition(":")[0] for line in found if not line.startswith("nothing was checked")]


def excuses(*events: Event, schedule: Schedule | None = None, promise: Promise = RIDING) -> set[Excuse]:
    """Why something need not hold, in a recording without findings."""
    assert not told(*events, schedule=schedule, promise=promise)
    return {excuse for _, excuse in judgement(events, schedule, promise).excused}


def test_a_run_in_which_all_is_well() -> None:
    events = (
        Began(0, "c", 1),
        sent(1, 0),
        confirmed(2, 0),
        delivered(2, 0),
        settled(2.5, 0),
        Ended(3, "c", 1, "", True),
    )
    verdict = judgement(events)
    assert not verdict.findings
    assert not verdict.excused
    kinds = (Check.KEPT, Check.CONTENT, Check.ORDER, Check.SETTLED, Check.SESSION)
    assert verdict.checked == dict.fromkeys(kinds, 1)


class TestMissing:
    def test_a_message_with_a_receipt_that_is_nowhere(self) -> None:
        assert told(sent(1, 0), confirmed(2, 0)) == ["lost"]

    def test_a_message_without_a_receipt_may_be_nowhere(self) -> None:
        assert not told(sent(1, 0))

    def test_another_copy_is_as_good(self) -> None:
        assert not told(sent(1, 0), sent(5, 0, 2), confirmed(6, 0, 2), delivered(6, 0, 1))

    def test_a_persistent_message_outlives_its_broker(self) -> None:
        kill = Fault(3, 9, Harm.BROKER_KILL)
        assert told(sent(1, 0), confirmed(2, 0), kill) == ["lost"]
        assert excuses(sent(1, 0, persistent=False), confirmed(2, 0), kill) == {Excuse.NOT_PERSISTENT}

    def test_a_message_that_the_new_broker_confirmed_is_there(self) -> None:
        assert told(sent(1, 0, persistent=False), confirmed(11, 0), Fault(3, 9, Harm.BROKER_KILL)) == ["lost"]

    def test_the_receipt_of_disconnect_does_not_say_when_a_message_was_there(self) -> None:
        kill = Fault(3, 9, Harm.BROKER_KILL)
        events = (sent(1, 0, persistent=False), Confirmed(30, copy(0), of_disconnect=True))
        assert excuses(*events, kill) == {Excuse.NOT_PERSISTENT}
        later = (sent(11, 0, persistent=False), Confirmed(30, copy(0), of_disconnect=True))
        assert told(*later, kill) == ["lost"]

    def test_every_message_of_a_quorum_queue_outlives_its_broker(self) -> None:
        events = (sent(1, 0, persistent=False), confirmed(2, 0), Fault(3, 9, Harm.BROKER_KILL))
        assert told(*events, schedule=scheduled(kind=Kind.QUORUM)) == ["lost"]

    def test_a_message_in_memory_is_lost_with_the_node_of_its_classic_queue_only(self) -> None:
        events = (sent(1, 0, persistent=False), confirmed(2, 0))
        for harm in (Harm.NODE_KILL, Harm.NODE_CUT, Harm.ALL_DOWN):
            assert told(*events, Fault(3, 9, harm), promise=CLUSTER) == ["lost"]
            other = Fault(3, 9, harm, queues=("chaos-queue-1",))
            assert told(*events, other, promise=CLUSTER) == ["lost"]
            assert excuses(*events, Fault(3, 9, harm, queues=(QUEUE,)), promise=CLUSTER) == {Excuse.NOT_PERSISTENT}
        drain = Fault(3, 9, Harm.NODE_DRAIN, queues=(QUEUE,))
        assert told(*events, drain, promise=CLUSTER) == ["lost"]

    def test_what_is_sent_to_a_queue_that_is_away_is_not_lost(self) -> None:
        kill = Fault(3, 9, Harm.NODE_KILL, queues=(QUEUE,))
        assert told(sent(5, 0), confirmed(6, 0), kill, promise=CLUSTER) == ["lost"]

    def test_what_is_sent_to_a_topic_misses_a_classic_queue_that_is_away_before_rabbitmq_4(self) -> None:
        place = "chaos.durable.1"
        [queue, other] = SUBSCRIPTIONS[place]
        schedule = replace(scheduled(), places=(Place(place, Kind.DURABLE, Ack.CLIENT),), consumers=())
        kill = Fault(3, 9, Harm.NODE_KILL, queues=(queue,))

        def events(at: float) -> tuple[Event, ...]:
            message = Sent(at, copy(0), place, True, False)
            return message, confirmed(at + 0.1, 0), delivered(at + 1, 0, queue=other), kill

        assert excuses(*events(5), schedule=schedule, promise=CLUSTER) == {Excuse.SUBSCRIPTION_AWAY}
        assert told(*events(5), schedule=schedule, promise=NEWEST) == ["lost"]
        assert told(*events(15), schedule=schedule, promise=CLUSTER) == ["lost"]
        assert told(*events(1), schedule=schedule, promise=CLUSTER) == ["lost"]
        # What stood still is apart from the others when it goes on: for those who are connected to it, they are away.
        message = events(5)[:-1]
        freeze = Fault(3, 9, Harm.NODE_FREEZE)
        assert excuses(*message, freeze, schedule=schedule, promise=CLUSTER) == {Excuse.SUBSCRIPTION_AWAY}
        assert told(*message, freeze, schedule=schedule, promise=NEWEST) == ["lost"]

    def test_a_queue_that_is_deleted_takes_what_was_in_it(self) -> None:
        deletion = Fault(3, 8, Harm.QUEUE_DELETION, queues=(QUEUE,))
        assert excuses(sent(1, 0), confirmed(2, 0), deletion) == {Excuse.QUEUE_DELETED}
        assert told(sent(1, 0), confirmed(2, 0), replace(deletion, queues=("chaos-queue-1",))) == ["lost"]
        # The gateway has declared it again for these.
        assert told(sent(5, 0), confirmed(6, 0), deletion) == ["lost"]
        # It does not declare these.
        assert excuses(sent(5, 0), confirmed(6, 0), deletion, schedule=scheduled(kind=Kind.QUORUM)) == {
            Excuse.QUEUE_DELETED
        }
        assert told(sent(10, 0), confirmed(11, 0), deletion, schedule=scheduled(kind=Kind.QUORUM)) == ["lost"]

    def test_a_virtual_host_that_is_deleted_takes_only_what_was_in_it(self) -> None:
        deletion = Fault(3, 5, Harm.VHOST_DELETION)
        assert excuses(sent(1, 0), confirmed(2, 0), deletion) == {Excuse.VHOST_DELETED}
        assert told(sent(1, 0), confirmed(7, 0), deletion) == ["lost"]

    def test_a_message_outlives_a_link_even_if_it_is_not_persistent(self) -> None:
        assert told(sent(1, 0, persistent=False), confirmed(2, 0), Fault(3, 3, Harm.LINK_RESET)) == ["lost"]


class TestOnItsWay:
    """Under ``ack:auto`` a client that vanishes loses what was on its way to it, and nothing else."""

    GONE = (Fault(4, 4, Harm.CLIENT_RESET, "c"), Ended(4, "c", 1, "", False))
    AUTO = scheduled(Ack.AUTO)

    def test_only_under_auto(self) -> None:
        events = (sent(1, 0), confirmed(2, 0), *self.GONE)
        assert excuses(*events, schedule=self.AUTO) == {Excuse.ON_ITS_WAY, Excuse.CLIENT_CUT}
        assert told(*events, schedule=scheduled(Ack.CLIENT)) == ["lost"]

    def test_not_what_was_sent_later(self) -> None:
        assert told(sent(6, 0), confirmed(7, 0), *self.GONE, schedule=self.AUTO) == ["lost"]

    def test_not_what_was_in_front_of_what_the_client_got(self) -> None:
        events = (sent(1, 0), confirmed(1.5, 0), sent(2, 1), delivered(3, 1), *self.GONE)
        assert told(*events, schedule=self.AUTO) == ["lost"]

    def test_unless_it_returned_to_its_place_meanwhile(self) -> None:
        events = (sent(1, 0), confirmed(1.5, 0), sent(2, 1), delivered(2.5, 1), Fault(3, 3, Harm.LINK_RESET))
        assert Excuse.ON_ITS_WAY in excuses(*events, *self.GONE, schedule=self.AUTO)

    def test_not_if_only_a_client_of_another_queue_vanished(self) -> None:
        other = (Fault(4, 4, Harm.CLIENT_RESET, "p"), Ended(4, "p", 1, "", False))
        assert told(sent(1, 0), confirmed(2, 0), *other, schedule=self.AUTO) == ["lost"]


class TestToEach:
    """Subscribers of a topic or a stream."""

    TOPIC = scheduled(kind=Kind.TOPIC)
    STREAM = scheduled(kind=Kind.STREAM)
    MISSED = (
        Subscribed(0.5, "c", 1),
        sent(1, 5),
        confirmed(2, 5),
        sent(3, 6),
        delivered(4, 6, queue="c"),
    )

    @pytest.mark.parametrize("schedule", [TOPIC, STREAM])
    def test_what_is_behind_it_shows_that_a_message_is_missing(self, schedule: Schedule) -> None:
        assert told(*self.MISSED, schedule=schedule) == ["missed"]
        assert not told(*self.MISSED, delivered(4, 5, queue="c", redelivered=True), schedule=schedule)
        assert not told(*self.MISSED[:-1], schedule=schedule)

    def test_another_subscriber_gets_its_own(self) -> None:
        assert told(*self.MISSED, delivered(4, 5, to="d", queue="d"), schedule=self.TOPIC) == ["missed"]

    def test_not_what_was_sent_before_it_subscribed(self) -> None:
        assert not told(Subscribed(1.5, "c", 1), *self.MISSED[1:], schedule=self.TOPIC)

    def test_not_what_was_confirmed_behind_it(self) -> None:
        late = (Subscribed(0.5, "c", 1), sent(1, 0), sent(3, 1), confirmed(3.5, 0), delivered(4, 1, queue="c"))
        assert not told(*late, schedule=self.TOPIC)

    def test_a_transient_queue_is_lost_with_its_link(self) -> None:
        lost = Fault(2.5, 2.5, Harm.LINK_RESET)
        assert excuses(*self.MISSED, lost, schedule=self.TOPIC) == {Excuse.QUEUE_LOST}
        assert told(*self.MISSED, Fault(9, 9, Harm.LINK_RESET), schedule=self.TOPIC) == ["missed"]

    def test_until_it_was_seen_to_be_there_again(self) -> None:
        lost = (Subscribed(0.5, "c", 1), Fault(2, 2, Harm.LINK_RESET))
        gap = (sent(5, 5), confirmed(6, 5), sent(8, 6), delivered(9, 6, queue="c"))
        assert excuses(*lost, *gap, schedule=self.TOPIC) == {Excuse.QUEUE_LOST}
        back = (sent(4, 2), delivered(4.5, 2, queue="c"))
        assert told(*lost, *back, *gap, schedule=self.TOPIC) == ["missed"]

    def test_for_a_while_at_most(self) -> None:
        lost = (Subscribed(0.5, "c", 1), Fault(2, 2, Harm.LINK_RESET))
        gap = (sent(25, 0), confirmed(26, 0), sent(28, 1), delivered(29, 1, queue="c"))
        assert told(*lost, *gap, schedule=self.TOPIC) == ["missed"]

    def test_a_stream_goes_on_behind_what_was_delivered(self) -> None:
        lost = Fault(2.5, 2.5, Harm.LINK_RESET)
        assert excuses(*self.MISSED, lost, schedule=self.STREAM) == {Excuse.OFFSET_UNKNOWN}
        first = (Subscribed(0.2, "c", 1), sent(0.3, 4), delivered(0.6, 4, queue="c"))
        assert told(*first, *self.MISSED[1:], lost, schedule=self.STREAM) == ["missed"]

    def test_a_stream_of_which_nothing_was_delivered_goes_on_when_it_is_there_again(self) -> None:
        events = (Subscribed(0.5, "c", 1), sent(3.2, 5), confirmed(3.3, 5), sent(3.5, 6), delivered(4, 6, queue="c"))
        assert excuses(*events, Fault(2, 3, Harm.LINK_RESET), schedule=self.STREAM) == {Excuse.OFFSET_UNKNOWN}
        assert told(*events, Fault(5, 6, Harm.LINK_RESET), schedule=self.STREAM) == ["missed"]

    def test_a_stream_is_deleted_with_its_virtual_host(self) -> None:
        first = (Subscribed(0.2, "c", 1), sent(0.3, 4), delivered(0.6, 4, queue="c"))
        deletion = Fault(2.5, 3, Harm.VHOST_DELETION)
        assert excuses(*first, *self.MISSED[1:], deletion, schedule=self.STREAM) == {Excuse.VHOST_DELETED}

    def test_a_stream_that_was_made_again_is_not_told_from_the_old_one(self) -> None:
        deletion = Fault(2, 3, Harm.VHOST_DELETION)
        before = (sent(0.6, 4), delivered(1, 4, queue="c"))
        behind = (sent(5, 5), confirmed(6, 5), sent(8, 6), delivered(9, 6, queue="c"))
        subscribed = Subscribed(0.5, "c", 1)
        assert excuses(subscribed, *before, *behind, deletion, schedule=self.STREAM) == {Excuse.STREAM_MADE_AGAIN}
        amid = (sent(2.1, 4), delivered(2.5, 4, queue="c"))
        assert excuses(subscribed, *amid, *behind, deletion, schedule=self.STREAM) == {Excuse.STREAM_MADE_AGAIN}
        assert told(subscribed, *behind, sent(7, 7), deletion, schedule=self.STREAM) == ["missed"]
        later = Subscribed(4, "c", 1)
        assert told(later, *behind, deletion, schedule=self.STREAM) == ["missed"]


class TestComesAgain:
    EVENTS = (sent(1, 0), Confirmed(1.1, copy(0)), delivered(5, 0), settled(6, 0))

    def test_after_the_receipt_of_its_ack(self) -> None:
        assert told(*self.EVENTS, delivered(9, 0, redelivered=True)) == ["came again"]

    def test_even_if_a_client_was_cut(self) -> None:
        cut = Fault(5.5, 6, Harm.CLIENT_CUT, "c")
        assert told(*self.EVENTS, delivered(9, 0, redelivered=True), cut) == ["came again"]

    def test_but_not_if_its_link_was_lost_meanwhile(self) -> None:
        again = delivered(9, 0, redelivered=True)
        assert excuses(*self.EVENTS, again, Fault(5.5, 6, Harm.LINK_RESET)) == {Excuse.ACK_LOST}

    def test_not_because_of_a_loss_long_before_or_after(self) -> None:
        again = delivered(20, 0, redelivered=True)
        assert told(*self.EVENTS, again, Fault(3.5, 3.5, Harm.LINK_RESET)) == ["came again"]
        assert told(*self.EVENTS, again, Fault(12, 12, Harm.LINK_RESET)) == ["came again"]

    def test_a_broker_that_is_killed_forgets_acknowledgements(self) -> None:
        again = delivered(20, 0, redelivered=True)
        assert excuses(*self.EVENTS, again, Fault(10, 18, Harm.BROKER_KILL)) == {Excuse.ACK_FORGOTTEN}
        assert told(*self.EVENTS, again, Fault(12, 18, Harm.BROKER_KILL)) == ["came again"]
        assert told(*self.EVENTS, delivered(20, 0, redelivered=True), Fault(10, 18, Harm.BROKER_RESTART)) == [
            "came again"
        ]

    def test_but_not_if_a_stalled_link_took_the_ack_with_it(self) -> None:
        stall = Fault(5, 12, Harm.LINK_STALL)
        assert not told(*self.EVENTS, delivered(20, 0, redelivered=True), stall, Fault(12, 12, Harm.LINK_RESET))

    def test_but_not_if_it_was_published_again(self) -> None:
        events = (sent(1, 0), Confirmed(4, copy(0)), delivered(5.5, 0), settled(6, 0), delivered(9, 0))
        assert not told(*events, Fault(2, 2, Harm.LINK_RESET))

    def test_what_was_not_settled_may_come_again(self) -> None:
        assert not told(sent(1, 0), delivered(2, 0), delivered(3, 0, redelivered=True))


class TestDoubled:
    def test_a_second_copy_that_nobody_sent(self) -> None:
        assert told(sent(1, 0), delivered(2, 0), delivered(3, 0, to="d")) == ["twice"]

    def test_a_lost_link_explains_it(self) -> None:
        events = (sent(1, 0), Confirmed(1.5, copy(0)), delivered(2, 0), delivered(3, 0))
        assert excuses(*events, Fault(1, 1, Harm.LINK_CUT)) == {Excuse.NOT_CONFIRMED}
        assert told(*events, Fault(4, 4, Harm.LINK_CUT)) == ["twice"]

    def test_another_queue_of_the_topic_that_was_deleted_explains_it(self) -> None:
        """RabbitMQ rejects the message for that one, and keeps it in this one."""
        place = "chaos.durable.0"
        queue, other = SUBSCRIPTIONS[place]
        schedule = replace(scheduled(), places=(Place(place, Kind.DURABLE, Ack.CLIENT),), consumers=())
        first, second = delivered(2, 0, queue=queue), delivered(3, 0, queue=queue)
        events = (Sent(1, copy(0), place, True, False), first, second, delivered(3, 0, queue=other), confirmed(4, 0))
        deletion = Fault(2, 3, Harm.QUEUE_DELETION, queues=(other,))
        assert Excuse.REJECTED in excuses(*events, deletion, schedule=schedule)
        for elsewhere in (replace(deletion, queues=(QUEUE,)), Fault(5, 6, Harm.QUEUE_DELETION, queues=(other,))):
            assert told(*events, elsewhere, schedule=schedule) == ["twice"]

    def test_a_broker_that_ended_between_explains_it(self) -> None:
        events = (sent(1, 0), Confirmed(1.5, copy(0)), delivered(2, 0), delivered(9.5, 0))
        assert excuses(*events, Fault(4, 8, Harm.BROKER_KILL)) == {Excuse.DELIVERY_FORGOTTEN}
        assert told(*events, Fault(12, 14, Harm.BROKER_KILL)) == ["twice"]
        assert told(*events, delivered(11, 0), Fault(4, 8, Harm.BROKER_KILL)) == ["twice"]

    def test_a_broker_that_ended_before_explains_what_a_consumer_has_refused(self) -> None:
        events = (
            Fault(0.2, 0.8, Harm.BROKER_KILL),
            sent(1, 0),
            Confirmed(1.5, copy(0)),
            delivered(2, 0),
            delivered(3, 0),
        )
        assert excuses(*events, schedule=scheduled(nacks=7)) == {Excuse.DELIVERY_FORGOTTEN}
        assert told(*events) == ["twice"]


class TestReplies:
    REPLY = Delivered(3, "p", 1, REPLIES + "p", copy(0), False, True)

    def test_one_to_each_question(self) -> None:
        assert not told(sent(1, 0), delivered(2, 0), self.REPLY)
        assert told(sent(1, 0), delivered(2, 0), self.REPLY, self.REPLY) == ["answered too often"]

    def test_a_question_that_came_twice_may_be_answered_twice(self) -> None:
        twice = (sent(1, 0), delivered(2, 0), delivered(2.5, 0, redelivered=True))
        assert not excuses(*twice, self.REPLY, self.REPLY)
        assert told(*twice, self.REPLY, self.REPLY, self.REPLY) == ["answered too often"]

    def test_a_lost_link_may_publish_it_again(self) -> None:
        lost = Fault(2.5, 2.5, Harm.LINK_RESET)
        assert Excuse.NOT_CONFIRMED in excuses(sent(1, 0), delivered(2, 0), self.REPLY, self.REPLY, lost)


class TestTransactions:
    PLAN = scheduled(unit_size=2)
    BOTH = (sent(1, 0, unit=0), sent(1, 1, unit=0))

    def test_all_or_nothing(self) -> None:
        assert not told(*self.BOTH, schedule=self.PLAN)
        assert not told(*self.BOTH, delivered(2, 0), delivered(2, 1), schedule=self.PLAN)
        assert told(*self.BOTH, delivered(2, 0), schedule=self.PLAN) == ["not whole"]

    def test_of_each_connection(self) -> None:
        again = (sent(3, 0, 2, unit=0), sent(3, 1, 2, unit=0))
        one_of_each = (delivered(2, 0), delivered(4, 1, 2))
        assert told(*self.BOTH, *again, *one_of_each, schedule=self.PLAN) == ["not whole"] * 2

    def test_nothing_of_one_whose_commit_was_never_sent(self) -> None:
        assert told(sent(1, 0, unit=0), delivered(2, 0), schedule=self.PLAN) == ["not whole"]
        assert not told(sent(1, 0, unit=0), schedule=self.PLAN)

    def test_a_gateway_may_be_killed_in_the_middle(self) -> None:
        events = (*self.BOTH, delivered(2, 0))
        assert excuses(*events, Fault(1, 3, Harm.GATEWAY_KILL), schedule=self.PLAN) == {Excuse.GATEWAY_KILLED}
        assert told(*events, Fault(9, 12, Harm.GATEWAY_KILL), schedule=self.PLAN) == ["not whole"]
        assert told(*events, Fault(1, 1, Harm.LINK_RESET), schedule=self.PLAN) == ["not whole"]

    def test_nobody_rides_through_for_a_client_that_is_gone(self) -> None:
        gone = (Fault(1.5, 2, Harm.CLIENT_RESET, "p"), Ended(1.5, "p", 1, "", False))
        events = (*self.BOTH, delivered(2, 0), *gone)
        assert told(*events, schedule=self.PLAN) == ["not whole"]
        assert Excuse.CLIENT_AND_LINK in excuses(*events, Fault(1.6, 1.6, Harm.LINK_RESET), schedule=self.PLAN)

    def test_a_broker_that_ended_may_have_lost_some(self) -> None:
        events = (sent(1, 0, unit=0), sent(1, 1, unit=0, persistent=False), delivered(9, 0))
        kill = Fault(3, 8, Harm.BROKER_KILL)
        assert excuses(*events, kill, schedule=self.PLAN) == {Excuse.NOT_PERSISTENT}


class TestOrder:
    def test_of_one_producer(self) -> None:
        assert told(sent(1, 0), sent(1, 1), delivered(2, 1), delivered(3, 0)) == ["out of order"]

    def test_holds_for_each_consumer_alone(self) -> None:
        assert not told(sent(1, 0), sent(1, 1), delivered(2, 1), delivered(3, 0, to="d"))

    def test_is_about_first_deliveries(self) -> None:
        events = (sent(1, 0), sent(1, 1), delivered(2, 0, to="d"), delivered(2, 1))
        assert not told(*events, delivered(3, 0, redelivered=True))
        assert not told(*events, delivered(3, 0), Fault(1, 1, Harm.LINK_RESET))
        back = (delivered(2, 0, redelivered=True), delivered(3, 1), delivered(4, 0, 2))
        assert not told(*events[:2], sent(2, 0, 2), *back, Fault(1, 1, Harm.LINK_RESET))

    def test_the_broker_may_refuse_a_message_and_take_the_next_when_a_node_goes(self) -> None:
        events = (sent(1, 0), sent(1, 1), delivered(2, 1), delivered(30, 0), confirmed(29, 0))
        assert excuses(*events, Fault(5, 9, Harm.NODE_KILL)) == {Excuse.OVERTAKEN}
        assert told(*events, Fault(31, 39, Harm.NODE_KILL)) == ["out of order"]
        assert told(*events, Fault(5, 9, Harm.LINK_RESET)) == ["out of order"]

    def test_holds_over_connections_if_all_receipts_are_asked_for(self) -> None:
        events = (sent(1, 0), sent(2, 1, 2), delivered(3, 1, 2), delivered(4, 0, 1))
        assert told(*events) == ["out of order"]
        assert not told(*events, schedule=scheduled(receipts=Receipts.SOME))


def test_what_arrives_is_what_was_sent() -> None:
    assert told(sent(1, 0), delivered(2, 0, whole=False)) == ["changed"]
    assert told(delivered(2, 0)) == ["never sent"]
    stranger = Delivered(2, "c", 1, QUEUE, STRANGER, True, False)
    assert told(stranger, Fault(1, 2, Harm.BROKER_KILL)) == ["never sent"]


def test_what_an_earlier_run_has_settled_comes_only_from_a_broker_that_was_killed_soon() -> None:
    earlier = Delivered(3, "c", 1, QUEUE, EARLIER, True, False)
    assert told(earlier) == ["of an earlier run"]
    assert excuses(earlier, Fault(1, 2, Harm.BROKER_KILL)) == {Excuse.EARLIER_RUN}
    assert told(earlier, Fault(1, 2, Harm.BROKER_RESTART)) == ["of an earlier run"]
    assert told(earlier, Fault(6, 7, Harm.BROKER_KILL)) == ["of an earlier run"]


def test_a_reply_comes_to_who_asked() -> None:
    astray = Delivered(2, "q", 1, REPLIES + "q", copy(0), False, True)
    assert told(sent(1, 0), delivered(1.5, 0), astray) == ["astray"]


def test_what_was_aborted_is_not_delivered() -> None:
    assert told(sent(1, 0, aborted=True), delivered(2, 0)) == ["aborted"]


class TestSessions:
    @pytest.mark.parametrize("promise", [RIDING, ENDING])
    def test_none_ends_without_a_reason(self, promise: Promise) -> None:
        assert told(Began(0, "c", 1), Ended(2, "c", 1, "", False), promise=promise) == ["ended"]
        assert told(Ended(2, "c", 1, "Login timeout", False), promise=promise) == ["ended"]

    def test_an_error_is_a_finding_even_before_a_disconnect(self) -> None:
        assert told(Began(0, "c", 1), Ended(2, "c", 1, "Message rejected", True)) == ["ended"]

    def test_a_client_is_cut(self) -> None:
        ended = Ended(2, "c", 1, "", False)
        assert excuses(ended, Fault(1.5, 2, Harm.CLIENT_CUT, "c")) == {Excuse.CLIENT_CUT}
        assert told(ended, Fault(1.5, 2, Harm.CLIENT_CUT, "d")) == ["ended"]
        assert told(ended, Fault(1.5, 2, Harm.CLIENT_STALL, "c")) == ["ended"]
        assert told(Ended(9, "c", 1, "", False), Fault(1.5, 2, Harm.CLIENT_RESET, "c")) == ["ended"]

    def test_one_cut_ends_one_session(self) -> None:
        events = (Ended(2, "c", 1, "", False), Ended(2.1, "c", 2, "", False))
        assert told(*events, Fault(1.5, 2, Harm.CLIENT_CUT, "c")) == ["ended"]
        assert not told(*events, *[Fault(1.5, 2, Harm.CLIENT_CUT, "c")] * 2)

    def test_a_half_closed_client_ends_when_what_it_sent_is_carried_out(self) -> None:
        half = Fault(1.5, 2, Harm.CLIENT_HALF_CLOSE, "c")
        late = (Began(0, "c", 1), Ended(9, "c", 1, "", False))
        assert not told(*late, half)
        assert told(Began(5, "c", 2), Ended(9, "c", 2, "", False), half) == ["ended"]
        later = (Began(0, "c", 1), Ended(29, "c", 1, "", False))
        assert told(*later, half) == ["ended"]
        assert not told(*later, half, Fault(3, 22, Harm.BROKER_KILL))

    def test_a_gateway_is_killed(self) -> None:
        kill = Fault(1.9, 3, Harm.GATEWAY_KILL)
        assert excuses(Ended(2, "c", 1, "", False), kill) == {Excuse.GATEWAY_ENDED}
        assert told(Began(3.1, "c", 2), Ended(3.5, "c", 2, "", False), kill) == ["ended"]

    def test_a_worker_is_killed_and_says_nothing(self) -> None:
        kill = Fault(1.9, 3, Harm.WORKER_KILL)
        assert excuses(Ended(2, "c", 1, "", False), kill) == {Excuse.GATEWAY_ENDED}
        assert told(Ended(2, "c", 1, "Shutting down", False), kill) == ["ended"]

    def test_no_more_sessions_are_lost_than_killed_workers_had(self) -> None:
        log = "\n".join(
            json.dumps({"event": event, "session": session})
            for event, session in (("session started", 1), ("session started", 2), ("session ended", 2))
        )
        sessions = [Began(0, "c", 1), Began(0, "d", 1), Ended(2, "c", 1, "", False)]
        kill, cut = Fault(1.9, 3, Harm.WORKER_KILL), Fault(1, 1, Harm.CLIENT_RESET, "d")
        other = Ended(2, "d", 1, "", False)

        def found(*events: Event) -> list[str]:
            return list(touched(log, Recording([*sessions, *events])))

        assert not found(kill)
        assert len(found(kill, other)) == 1
        assert not found(kill, other, cut)
        assert not found(other)

    def test_a_lost_link_ends_none_if_the_gateway_rides_through(self) -> None:
        events = (Ended(2, "c", 1, "connection_forced", False), Fault(1.9, 2, Harm.LINK_RESET))
        assert told(*events) == ["ended"]
        assert not told(*events, promise=ENDING)

    def test_a_login_waits_for_the_broker_but_not_for_ever(self) -> None:
        refused = Ended(12, "c", 1, "Upstream unavailable", False)
        assert told(refused, Fault(9, 13, Harm.BROKER_KILL)) == ["ended"]
        assert excuses(refused, Fault(1, 13, Harm.BROKER_KILL)) == {Excuse.NO_BROKER}
        assert told(Began(0, "c", 1), refused, Fault(1, 13, Harm.BROKER_KILL)) == ["ended"]

    def test_a_login_that_waited_its_time_may_end_between_two_dials(self) -> None:
        before, kill = Ended(1.3, "c", 1, "", True), Fault(1, 9.5, Harm.BROKER_KILL)
        assert excuses(before, Ended(11.4, "c", 2, "Upstream unavailable", False), kill) == {Excuse.NO_BROKER}
        assert told(before, Ended(14, "c", 2, "Upstream unavailable", False), kill) == ["ended"]
        shorter = Ended(2.5, "c", 1, "", True)
        assert told(shorter, Ended(11.4, "c", 2, "Upstream unavailable", False), kill) == ["ended"]
        quick = Fault(2, 9.5, Harm.BROKER_KILL)
        assert told(before, Ended(11.4, "c", 2, "Upstream unavailable", False), quick) == ["ended"]

    def test_a_virtual_host_that_is_away_refuses_new_sessions_only(self) -> None:
        deletion, refused = Fault(2, 5, Harm.VHOST_DELETION), Ended(4, "c", 2, "access_refused", False)
        assert excuses(Began(3, "c", 2), refused, deletion) == {Excuse.NO_VHOST}
        assert excuses(refused, deletion) == {Excuse.NO_VHOST}
        assert told(Began(1, "c", 2), refused, deletion) == ["ended"]
        assert told(Began(3, "c", 2), Ended(9, "c", 2, "access_refused", False), deletion) == ["ended"]


def test_a_consumer_that_gets_no_probe_is_named() -> None:
    probe = Delivered(1, "c", 1, QUEUE, Copy(PROBE.name, 0, 1), False, True)
    assert unserved(scheduled(), Recording([probe])) == ["d"]
    assert unserved(scheduled(), Recording([delivered(1, 0)])) == ["c", "d"]


def test_many_findings_of_a_kind_are_counted() -> None:
    events = [event for number in range(9) for event in (sent(1, number), confirmed(2, number))]
    assert told(*events) == ["lost"] * 3 + ["... and 6 more like that"]


class TestNothingChecked:
    def test_a_run_in_which_nobody_saw_anything(self) -> None:
        found = judgement(()).findings
        assert [line.partition(":")[0] for line in found] == ["nothing was checked"] * 3

    def test_what_is_excused_proves_nothing(self) -> None:
        verdict = Verdict()
        verdict.take([Outcome(Check.KEPT, "lost", Excuse.VHOST_DELETED), Outcome(Check.ORDER)])
        assert verdict.unproven((Check.KEPT, Check.ORDER)) == [f"nothing was checked: {Check.KEPT.value}"]
        assert list(verdict.lines())[1] == (f"excused: 1 of the {Check.KEPT.value}: {Excuse.VHOST_DELETED.value}")

    def test_runs_add_up(self) -> None:
        total, run = Verdict(), judgement((sent(1, 0), confirmed(2, 0)))
        total.add(run)
        total.add(run)
        assert total.checked[Check.KEPT] == 2
        assert sum(line.startswith("lost") for line in total.findings) == 2


def test_only_who_read_a_stream_before_it_was_made_again_connects_again() -> None:
    deletion, stream = Fault(2, 5, Harm.VHOST_DELETION), scheduled(kind=Kind.STREAM)
    events = (Subscribed(0.5, "c", 1), delivered(3, 0, queue="c"), Subscribed(0.5, "d", 1), delivered(6, 0, to="d"))
    assert of_streams_made_again(stream, Recording([*events, deletion])) == ["c"]
    assert of_streams_made_again(stream, Recording([*events, deletion, Subscribed(6, "c", 2)])) == []
    assert of_streams_made_again(stream, Recording([*events, Fault(2, 5, Harm.BROKER_KILL)])) == []
    assert of_streams_made_again(scheduled(), Recording([*events, deletion])) == []


class TestSessionsOfAClusterEnd:
    def test_a_login_finds_the_other_nodes_of_a_cluster(self) -> None:
        refused = Ended(12, "c", 1, "Upstream unavailable", False)
        assert told(refused, Fault(1, 13, Harm.NODE_FREEZE), promise=CLUSTER) == ["ended"]
        assert excuses(refused, Fault(1, 13, Harm.ALL_DOWN), promise=CLUSTER) == {Excuse.NO_BROKER}

    def test_permissions_that_are_taken_end_sessions_while_they_are_away(self) -> None:
        loss = Fault(2, 4, Harm.PERMISSION_LOSS)
        refused = Ended(3, "p", 1, "access_refused: ACCESS_REFUSED - write access refused", False)
        assert excuses(Began(1, "p", 1), refused, loss) == {Excuse.PERMISSION_TAKEN}
        assert told(Began(1, "p", 1), replace(refused, at=9), loss) == ["ended"]
        assert told(Began(1, "p", 1), replace(refused, error="not_found: no queue"), loss) == ["ended"]

    def test_a_queue_that_is_deleted_ends_what_reads_it(self) -> None:
        deletion = Fault(2, 4, Harm.QUEUE_DELETION, queues=(QUEUE,))
        cancelled = Ended(3, "c", 1, "Server cancelled subscription: ...", False)
        assert excuses(Began(1, "c", 1), cancelled, deletion) == {Excuse.CANCELLED}
        assert told(Began(1, "c", 1), cancelled, replace(deletion, queues=("chaos-queue-1",))) == ["ended"]
        assert told(Began(1, "c", 1), replace(cancelled, at=9), deletion) == ["ended"]
        assert told(Began(1, "p", 1), replace(cancelled, client="p"), deletion) == ["ended"]
        kill = Fault(2, 4, Harm.NODE_KILL, queues=(QUEUE,))
        assert told(Began(1, "c", 1), cancelled, kill, promise=CLUSTER) == ["ended"]

    def test_a_stream_of_rabbitmq_3_may_not_answer_when_its_node_went(self) -> None:
        schedule, freeze = scheduled(kind=Kind.STREAM), Fault(4, 14, Harm.NODE_FREEZE)
        ended = Ended(35, "p", 1, "Broker timeout: The broker did not answer within 30 seconds.", False)
        events = (Began(1, "p", 1), sent(5, 0), ended, freeze)
        assert excuses(*events, schedule=schedule, promise=CLUSTER) == {Excuse.NOT_ANSWERED}
        gave_up = replace(ended, error=GAVE_UP)
        assert excuses(*events[:2], gave_up, freeze, schedule=schedule, promise=CLUSTER) == {Excuse.NOT_ANSWERED}
        assert told(*events, schedule=schedule, promise=NEWEST) == ["ended"]
        assert told(*events, promise=CLUSTER) == ["ended"]
        assert told(*events, confirmed(6, 0), schedule=schedule, promise=CLUSTER) == ["ended"]
        assert told(Began(0, "p", 1), sent(1, 0), ended, freeze, schedule=schedule, promise=CLUSTER) == ["ended"]


def test_a_message_overtakes_those_of_a_lower_priority_in_a_quorum_queue_of_rabbitmq_4() -> None:
    queue = QUORUMS[0]
    plan = replace(scheduled().producers[0], places=(queue,), units=400)
    schedule = replace(scheduled(), places=(Place(queue, Kind.QUORUM, Ack.CLIENT),), producers=(plan,), consumers=())
    priorities = [content(1, plan, number).headers.get("priority", "") for number in range(plan.units)]
    low, high = priorities.index("0"), priorities.index("9")
    other = priorities.index("0", low + 1)

    def events(*numbers: int) -> tuple[Event, ...]:
        messages = [Sent(1, copy(number), queue, True, False) for number in sorted(numbers)]
        return (*messages, *(delivered(2 + at, number, queue=queue) for at, number in enumerate(numbers)))

    overtaking = events(*sorted((low, high), reverse=True))
    assert "out of order" in told(*overtaking, schedule=schedule, promise=CLUSTER)
    assert "out of order" not in told(*overtaking, schedule=schedule, promise=NEWEST)
    assert "out of order" in told(*events(other, low), schedule=schedule, promise=NEWEST)
