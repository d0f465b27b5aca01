"""What a session counts of itself adds up, whatever its client does with its messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import DestinationKind
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Subscriptions
from gateway.session.traffic import OTHER, TrafficByDestination, TrafficCounter
from tests.support.playbook import Playbook

ROUTE = b"\0\x01q"
NO_PROPERTIES = b"\0\0"


def _subscription(mode: AckMode) -> Subscription:
    return Subscription(b"T_1", b"1", mode, b"session-x", destination=b"/queue/q")


def _delivered(mode: AckMode, count: int) -> Subscription:
    subscription = _subscription(mode)
    for tag in range(1, count + 1):
        subscription.deliver(tag, tag == 1, ROUTE, NO_PROPERTIES, b"xx")
    return subscription


@pytest.mark.parametrize(
    ("mode", "settle", "expected"),
    [
        (AckMode.CLIENT, lambda each: each.ledger.acknowledge(3), (3, 0, 0)),
        (AckMode.CLIENT, lambda each: each.ledger.refuse(3, requeue=True), (0, 3, 0)),
        (AckMode.CLIENT, lambda each: each.ledger.refuse(0, requeue=False), (0, 0, 5)),
        (AckMode.CLIENT_INDIVIDUAL, lambda each: each.ledger.acknowledge(3), (1, 0, 0)),
        (AckMode.CLIENT_INDIVIDUAL, lambda each: each.ledger.refuse(3, requeue=True), (0, 1, 0)),
        (AckMode.CLIENT_INDIVIDUAL, lambda each: each.ledger.refuse(3, requeue=False), (0, 0, 1)),
        (AckMode.AUTO, lambda each: each.settle_delivered(), (5, 0, 0)),
    ],
)
def test_what_became_of_messages_is_known(
    mode: AckMode, settle: Callable[[Subscription], object], expected: tuple[int, int, int]
) -> None:
    subscription = _delivered(mode, 5)
    settle(subscription)
    stats = subscription.stats
    assert (stats.delivered, stats.delivered_bytes, stats.redelivered) == (5, 10, 1)
    assert (stats.acknowledged, stats.requeued, stats.discarded) == expected
    assert stats.outstanding == 5 - sum(expected)


class _Told:
    """A counter that writes down what became of deliveries."""

    def __init__(self) -> None:
        self.settlements: list[tuple[int, int, bool | None]] = []

    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        pass

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        self.settlements.append((tag, count, requeue))

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        pass


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (AckMode.CLIENT, [(2, 2, None), (4, 2, "refused")]),
        (AckMode.CLIENT_INDIVIDUAL, [(2, 1, None), (4, 1, "refused")]),
    ],
)
def test_the_observer_learns_which_deliveries_were_settled_and_how(
    mode: AckMode, expected: list[tuple[int, int, object]], requeue: bool
) -> None:
    subscription, told = _subscription(mode), _Told()
    subscription.set_counter(told)
    for tag in range(1, 6):
        subscription.deliver(tag, False, ROUTE, NO_PROPERTIES, b"")
    subscription.ledger.acknowledge(2)
    subscription.ledger.refuse(4, requeue=requeue)
    assert told.settlements == [(tag, count, requeue if how else None) for tag, count, how in expected]


def test_what_was_refused_adds_up() -> None:
    subscription = _delivered(AckMode.CLIENT_INDIVIDUAL, 4)
    for tag in (1, 2, 3):
        subscription.ledger.refuse(tag, requeue=tag == 3)
    assert (subscription.stats.discarded, subscription.stats.requeued) == (2, 1)


def test_what_a_client_settled_before_it_went_is_counted_after_it() -> None:
    subscription = _delivered(AckMode.CLIENT_INDIVIDUAL, 3)
    subscription.stop()
    subscription.deliver(4, False, ROUTE, NO_PROPERTIES, b"to nobody")
    subscription.ledger.acknowledge(1)
    subscription.ledger.refuse(2, requeue=False)
    stats = subscription.stats
    assert stats.delivered == 3
    assert (stats.acknowledged, stats.requeued, stats.discarded, stats.outstanding) == (1, 0, 1, 1)


def test_what_is_shed_was_neither_delivered_nor_acknowledged() -> None:
    subscription = _delivered(AckMode.AUTO, 2)
    subscription.drop_for_requeue(3, False, ROUTE, NO_PROPERTIES, b"xx")
    assert (subscription.stats.delivered, subscription.stats.acknowledged) == (2, 0)
    subscription.ledger.requeue_dropped()
    subscription.settle_delivered()
    assert (subscription.stats.delivered, subscription.stats.acknowledged) == (2, 2)
    assert subscription.stats.requeued == 0


_STEPS = st.lists(
    st.one_of(
        st.just(("deliver", 0)),
        st.tuples(st.sampled_from(("acknowledge", "requeue", "discard", "shed")), st.integers(1, 30)),
        st.just(("give back", 0)),
    ),
    max_size=60,
)


@given(st.sampled_from((AckMode.CLIENT, AckMode.CLIENT_INDIVIDUAL)), _STEPS)
def test_no_message_is_counted_twice(mode: AckMode, steps: list[tuple[str, int]]) -> None:
    subscription, tag, returned = _subscription(mode), 0, 0
    shedding = False
    for step, number in steps:
        if step == "deliver" and not shedding:
            tag += 1
            subscription.deliver(tag, False, ROUTE, NO_PROPERTIES, b"")
        elif step == "shed":
            tag += 1
            returned += 1
            shedding = True
            subscription.drop_for_requeue(tag, False, ROUTE, NO_PROPERTIES, b"")
        elif step == "give back":
            shedding = False
            subscription.ledger.requeue_dropped()
        elif subscription.ledger.is_outstanding(number):
            if step == "acknowledge":
                subscription.ledger.acknowledge(number)
            else:
                subscription.ledger.refuse(number, requeue=step == "requeue")
    subscription.ledger.requeue_dropped()
    stats = subscription.stats
    assert stats.delivered == tag - returned
    settled = stats.acknowledged + stats.requeued + stats.discarded
    assert min(stats.acknowledged, stats.requeued, stats.discarded) >= 0
    assert settled + stats.outstanding == stats.delivered


def test_counts_of_a_destination_are_shared_and_bounded() -> None:
    sends = TrafficByDestination()
    assert sends.counter(b"/queue/a", DestinationKind.QUEUE) is sends.counter(b"/queue/a", DestinationKind.QUEUE)
    for number in range(3000):
        for kind in (DestinationKind.QUEUE, DestinationKind.TOPIC):
            sends.counter(b"/%b/%d" % (kind.value, number), kind).published += 1
    assert len(sends) == 1024 + 2
    assert sum(counter.published for counter in sends.values()) == 6000
    assert {kind for destination, kind in sends if destination == OTHER} == {
        DestinationKind.QUEUE,
        DestinationKind.TOPIC,
    }


def test_what_subscriptions_brought_is_kept_by_destination() -> None:
    subscriptions = Subscriptions()
    for _ in range(2):
        subscription = _delivered(AckMode.CLIENT, 2)
        subscriptions.add(subscription, "q")
        subscription.ledger.acknowledge(1)
        subscriptions.remove(subscription)
    [((destination, kind), counter)] = subscriptions.past.items()
    assert (destination, kind) == (b"/queue/q", DestinationKind.QUEUE)
    assert (counter.delivered, counter.delivered_bytes, counter.redelivered, counter.acknowledged) == (4, 8, 2, 2)


def test_a_difference_and_its_start_add_up_to_the_counter() -> None:
    counter = TrafficCounter(*range(1, 10))
    earlier = TrafficCounter(*[1] * 9)
    new = counter.since(earlier)
    assert new == TrafficCounter(*range(9))
    earlier.add(new)
    assert earlier == counter


def test_what_is_published_adds_up() -> None:
    play = Playbook()
    play.connect()
    for body in ("abc", "defgh"):
        play.client("SEND", "destination:/topic/t", body=body)
        if body == "abc":
            play.prepare()
    play.client("SEND", "destination:/topic/u", body="i")
    sends = play.session.traffic.sends
    sent = {destination: (each.published, each.published_bytes) for (destination, _), each in sends.items()}
    assert sent == {b"/topic/t": (2, 8), b"/topic/u": (1, 1)}
