"""Each check fails on a recording in which what it checks is broken, and only there."""

from __future__ import annotations

import pytest

from tests.chaos.checks import Promise, findings, unserved
from tests.chaos.recording import (
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
)
from tests.chaos.schedule import (
    PROBE,
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

QUEUE = "chaos-queue-0"
RIDING = Promise(ride_through=True)
ENDING = Promise(ride_through=False)


def scheduled(ack: Ack = Ack.CLIENT, receipts: Receipts = Receipts.ALL) -> Schedule:
    """One producer and two consumers of one queue."""
    consumers = tuple(
        ConsumerPlan(name, Transport.TCP, "1.2", QUEUE, QUEUE, 0, 1, False, 0, 0.0, None) for name in ("c", "d")
    )
    producer = ProducerPlan("p", Transport.TCP, (QUEUE,), 9, 0, receipts, 1.0, (0, 9), 1, 1, 0.0)
    return Schedule(1, Variant.SHARED, (Place(QUEUE, Kind.QUEUE, ack),), (producer,), consumers, ())


def copy(number: int, connection: int = 1) -> Copy:
    return Copy("p", number, connection)


def sent(at: float, number: int, connection: int = 1, *, persistent: bool = True, aborted: bool = False) -> Sent:
    return Sent(at, copy(number, connection), QUEUE, persistent, aborted)


def delivered(
    at: float, number: int, connection: int = 1, *, to: str = "c", redelivered: bool = False, whole: bool = True
) -> Delivered:
    return Delivered(at, to, 1, QUEUE, copy(number, connection), redelivered, whole)


def settled(at: float, number: int) -> Settled:
    return Settled(at, "c", 1, QUEUE, copy(number))


def told(*events: Event, schedule: Schedule | None = None, promise: Promise = RIDING) -> list[str]:
    """The findings, each by its first word."""
    found = findings(schedule or scheduled(), Recording(list(events)), promise)
    return [line.partition(":")[0] for line in found]


def test_a_run_in_which_all_is_well() -> None:
    assert not told(
        Began(0, "c", 1),
        sent(1, 0),
        Confirmed(2, copy(0)),
        delivered(2, 0),
        settled(2.5, 0),
        Ended(3, "c", 1, "", True),
    )


class TestMissing:
    def test_a_message_with_a_receipt_that_is_nowhere(self) -> None:
        assert told(sent(1, 0), Confirmed(2, copy(0))) == ["lost"]

    def test_a_message_without_a_receipt_may_be_nowhere(self) -> None:
        assert not told(sent(1, 0))

    def test_another_copy_is_as_good(self) -> None:
        assert not told(sent(1, 0), sent(5, 0, 2), Confirmed(6, copy(0, 2)), delivered(6, 0, 1))

    def test_a_persistent_message_outlives_its_broker(self) -> None:
        kill = Fault(3, 9, Harm.BROKER_KILL)
        assert told(sent(1, 0), Confirmed(2, copy(0)), kill) == ["lost"]
        assert not told(sent(1, 0, persistent=False), Confirmed(2, copy(0)), kill)

    def test_a_message_outlives_a_link_even_if_it_is_not_persistent(self) -> None:
        assert told(sent(1, 0, persistent=False), Confirmed(2, copy(0)), Fault(3, 3, Harm.LINK_RESET)) == ["lost"]

    def test_a_client_that_vanishes_under_auto_may_lose_what_was_on_its_way(self) -> None:
        events = (sent(1, 0), Confirmed(2, copy(0)), Fault(3, 3, Harm.CLIENT_RESET, "c"), Ended(3, "c", 1, "", False))
        assert not told(*events, schedule=scheduled(Ack.AUTO))
        assert told(*events, schedule=scheduled(Ack.CLIENT)) == ["lost"]


class TestComesAgain:
    EVENTS = (sent(1, 0), Confirmed(1.1, copy(0)), delivered(5, 0), settled(6, 0))

    def test_after_the_receipt_of_its_ack(self) -> None:
        assert told(*self.EVENTS, delivered(9, 0, redelivered=True)) == ["came again"]

    def test_even_if_a_client_was_cut(self) -> None:
        cut = Fault(5.5, 6, Harm.CLIENT_CUT, "c")
        assert told(*self.EVENTS, delivered(9, 0, redelivered=True), cut) == ["came again"]

    def test_but_not_if_its_link_was_lost_meanwhile(self) -> None:
        assert not told(*self.EVENTS, delivered(9, 0, redelivered=True), Fault(5.5, 6, Harm.LINK_RESET))

    def test_not_because_of_a_loss_long_before_or_after(self) -> None:
        again = delivered(20, 0, redelivered=True)
        assert told(*self.EVENTS, again, Fault(3.5, 3.5, Harm.LINK_RESET)) == ["came again"]
        assert told(*self.EVENTS, again, Fault(12, 12, Harm.LINK_RESET)) == ["came again"]

    def test_a_broker_that_is_killed_forgets_acknowledgements(self) -> None:
        assert not told(*self.EVENTS, delivered(20, 0, redelivered=True), Fault(10, 18, Harm.BROKER_KILL))
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
        assert not told(*events, Fault(1, 1, Harm.LINK_CUT))
        assert told(*events, Fault(4, 4, Harm.LINK_CUT)) == ["twice"]
        assert not told(*events, Fault(4, 4, Harm.BROKER_KILL))

    def test_a_reply_may_be_given_twice(self) -> None:
        reply = Delivered(2, "p", 1, REPLIES + "p", copy(0), False, True)
        assert not told(sent(1, 0), reply, reply)


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

    def test_holds_over_connections_if_all_receipts_are_asked_for(self) -> None:
        events = (sent(1, 0), sent(2, 1, 2), delivered(3, 1, 2), delivered(4, 0, 1))
        assert told(*events) == ["out of order"]
        assert not told(*events, schedule=scheduled(receipts=Receipts.SOME))


def test_what_arrives_is_what_was_sent() -> None:
    assert told(sent(1, 0), delivered(2, 0, whole=False)) == ["changed"]
    assert told(delivered(2, 0)) == ["never sent"]
    stranger = Delivered(2, "c", 1, QUEUE, STRANGER, True, False)
    assert told(stranger) == ["never sent"]
    assert not told(stranger, Fault(1, 2, Harm.BROKER_KILL))


def test_a_reply_comes_to_who_asked() -> None:
    assert told(sent(1, 0), Delivered(2, "q", 1, REPLIES + "q", copy(0), False, True)) == ["astray"]


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
        assert not told(ended, Fault(1.5, 2, Harm.CLIENT_CUT, "c"))
        assert told(ended, Fault(1.5, 2, Harm.CLIENT_CUT, "d")) == ["ended"]
        assert told(ended, Fault(1.5, 2, Harm.CLIENT_STALL, "c")) == ["ended"]

    def test_a_gateway_is_killed(self) -> None:
        assert not told(Ended(2, "c", 1, "", False), Fault(1.9, 3, Harm.GATEWAY_KILL))

    def test_a_lost_link_ends_none_if_the_gateway_rides_through(self) -> None:
        events = (Ended(2, "c", 1, "connection_forced", False), Fault(1.9, 2, Harm.LINK_RESET))
        assert told(*events) == ["ended"]
        assert not told(*events, promise=ENDING)

    def test_a_login_waits_for_the_broker_but_not_for_ever(self) -> None:
        refused = Ended(12, "c", 1, "Upstream unavailable", False)
        assert told(refused, Fault(9, 13, Harm.BROKER_KILL)) == ["ended"]
        assert not told(refused, Fault(1, 13, Harm.BROKER_KILL))
        assert told(Began(0, "c", 1), refused, Fault(1, 13, Harm.BROKER_KILL)) == ["ended"]


def test_a_consumer_that_gets_no_probe_is_named() -> None:
    probe = Delivered(1, "c", 1, QUEUE, Copy(PROBE.name, 0, 1), False, True)
    assert unserved(scheduled(), Recording([probe])) == ["d"]
    assert unserved(scheduled(), Recording([delivered(1, 0)])) == ["c", "d"]


def test_many_findings_of_a_kind_are_counted() -> None:
    events = [event for number in range(9) for event in (sent(1, number), Confirmed(2, copy(number)))]
    found = findings(scheduled(), Recording(list(events)), RIDING)
    assert [line.partition(":")[0] for line in found] == ["lost"] * 3 + ["... and 6 more like that"]
