"""The account of a subscription agrees with the broker's, whatever is delivered and settled in whatever order.

The client here knows what it got and what it settled. The broker knows nothing but the AMQP frames it is sent, and is
as strict as RabbitMQ: a tag that it does not know closes the channel. In the end both must mean the same.
"""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gateway.config.virtual_host import VirtualHost
from gateway.message_selectors.selector import read_selector
from gateway.pieces import joined
from gateway.session.acknowledge import AckHandler
from gateway.session.context import SessionContext
from gateway.session.delivery_ledger import AckMode
from gateway.session.selective_subscription import Selection, SelectiveSubscription
from gateway.session.subscription import Subscription
from tests.support.playbook import NO_PROPERTIES, TO_QUEUE
from tests.support.unacked import Unacked

SESSION = b"session-x"
NOT_SELECTED = b"\0\1x"


class Ledger(RuleBasedStateMachine):
    """One subscription between a client and a broker."""

    mode = AckMode.CLIENT_INDIVIDUAL

    def __init__(self) -> None:
        super().__init__()
        context = self.context = SessionContext(SESSION, strict=False)
        self.acknowledgements = AckHandler(context)
        self.output = context.output
        self.subscriptions = context.subscriptions
        self.subscription = self.new_subscription()
        self.subscription.set_channel(1)
        self.subscriptions.add(self.subscription, "q")
        self.subscription.start(context.output, self.subscriptions.auto_acks)
        self.broker = Unacked()
        self.last = 0
        self.shown = 0
        self.shedding = False
        # The client's side: what it holds, and what it did with the rest.
        self.held: list[int] = []
        self.acked: set[int] = set()
        self.given_back: set[int] = set()
        self.discarded: set[int] = set()
        self.drop_for_requeue: set[int] = set()

    def new_subscription(self) -> Subscription:
        return Subscription(b"T_1", b"1", self.mode, SESSION, window=8)

    # The broker.

    @rule(count=st.integers(1, 5))
    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.last += 1
            self.broker.waiting.add(self.last)
            if self.shedding:
                self.drop_for_requeue.add(self.last)
                self.subscription.drop_for_requeue(self.last, False, TO_QUEUE, NO_PROPERTIES, b"x")
            else:
                self.held.append(self.last)
                self.shown += 1
                self.subscription.deliver(self.last, False, TO_QUEUE, NO_PROPERTIES, b"x")

    @rule()
    def flush(self) -> None:
        for _, frames in self.subscriptions.take_settlements():
            self.broker.apply(frames)

    # The client's connection.

    @rule()
    def fall_behind(self) -> None:
        self.shedding = True

    @rule()
    def catch_up(self) -> None:
        self.shedding = False
        self.subscription.ledger.requeue_dropped()
        if self.mode is AckMode.AUTO and self.drop_for_requeue:
            # What went out before is settled with what comes back.
            self.acked.update(self.held)
            self.held.clear()
        self.given_back |= self.drop_for_requeue
        self.drop_for_requeue.clear()
        self.broker.apply(self.subscription.ledger.take_frames())

    # The client.

    def settle(self, tag: int, requeue: bool | None) -> None:
        """What ACK and NACK do; the client counts for itself what it means."""
        settlement = self.acknowledgements.find_settlement(b"ACK", b"id", b"T_1@@%b@@%d" % (SESSION, tag), requeue)
        meant = self._meant(tag)
        assert settlement.is_acceptable is (bool(meant) or tag == 0)
        if settlement.is_acceptable:
            self.subscriptions.settle(settlement)
        where = self.acked if requeue is None else self.given_back if requeue else self.discarded
        where |= meant
        self.held = [each for each in self.held if each not in meant]

    def _meant(self, tag: int) -> set[int]:
        if self.mode is AckMode.AUTO:
            return set()
        if self.mode is AckMode.CLIENT and (tag == 0 or tag in self.held):
            return {each for each in self.held if each <= tag or tag == 0}
        return {tag} & set(self.held)

    @precondition(lambda self: self.held and self.mode is not AckMode.AUTO)
    @rule(place=st.integers(0, 30), requeue=st.none() | st.booleans())
    def settle_one(self, place: int, requeue: bool | None) -> None:
        self.settle(self.held[place % len(self.held)], requeue)

    @precondition(lambda self: self.held and self.mode is not AckMode.AUTO)
    @rule(count=st.integers(1, 10))
    def acknowledge_in_order(self, count: int) -> None:
        for tag in self.held[:count]:
            self.settle(tag, None)

    @rule(tag=st.integers(1, 40))
    def acknowledge_what_is_not_there(self, tag: int) -> None:
        if tag not in self.held and tag not in self.drop_for_requeue:
            assert not self.subscription.ledger.is_outstanding(tag)

    @rule()
    def settle_auto(self) -> None:
        self.subscriptions.settle_auto_acks()
        if self.mode is AckMode.AUTO and not self.drop_for_requeue:
            self.acked.update(self.held)
            self.held.clear()

    @property
    def kept_from_client(self) -> set[int]:
        """Deliveries that are not settled and that the client has not seen, so that it cannot name them."""
        return self.drop_for_requeue

    # What must always be true.

    @invariant()
    def delivered_is_settled_plus_outstanding(self) -> None:
        assert self.subscription.ledger.outstanding == len(self.held) + len(self.drop_for_requeue)

    @invariant()
    def what_the_client_holds_is_what_it_may_settle(self) -> None:
        possible = [
            tag
            for tag in range(1, self.last + 2)
            if self.subscription.ledger.is_outstanding(tag) and tag not in self.kept_from_client
        ]
        assert possible == self.held

    @invariant()
    def nothing_leaves_the_broker_before_its_time(self) -> None:
        """Settlements that were not flushed yet are late, never early: nothing is gone that nobody settled."""
        assert self.broker.acked <= self.acked
        assert self.broker.requeued <= self.given_back
        assert self.broker.discarded <= self.discarded

    def teardown(self) -> None:
        self.catch_up()
        self.settle_auto()
        self.flush()
        assert self.broker == Unacked(set(self.held), self.acked, self.given_back, self.discarded)
        assert joined(self.output).count(b"MESSAGE\n") == self.shown


class AutoLedger(Ledger):
    mode = AckMode.AUTO


class ClientLedger(Ledger):
    mode = AckMode.CLIENT


class CountingLedger(ClientLedger):
    """What is refused is requeued by basic.reject, which has no ``multiple``."""

    def __init__(self) -> None:
        super().__init__()
        self.context.settings = VirtualHost(name="/", nack_counts=True)


class SelectiveLedgerMachine(Ledger):
    """Some messages are not for the client, and are acknowledged without it."""

    def __init__(self) -> None:
        super().__init__()
        self.filtered: set[int] = set()

    def new_subscription(self) -> Subscription:
        subscription = SelectiveSubscription(b"T_1", b"1", self.mode, SESSION, window=8)
        selector = read_selector(b"destination = '/queue/q'")
        assert selector is not None
        subscription.selection = Selection(selector)
        return subscription

    @precondition(lambda self: not self.shedding)
    @rule(count=st.integers(1, 5), alike=st.booleans())
    def deliver_what_is_not_selected(self, count: int, alike: bool) -> None:
        first, self.last = self.last + 1, self.last + count
        tags = range(first, self.last + 1)
        self.broker.waiting.update(tags)
        self.filtered.update(tags)
        if alike:
            self.subscription.deliver(first, False, NOT_SELECTED, NO_PROPERTIES, b"x")
            self.subscription.deliver_alike(first + 1, [b"x"] * (count - 1))
        else:
            for tag in tags:
                self.subscription.deliver(tag, False, NOT_SELECTED, NO_PROPERTIES, b"x")
        self.acked.update(tags)

    @invariant()
    def messages_are_counted_where_they_went(self) -> None:
        stats = self.subscription.stats
        assert stats.delivered == self.shown
        assert stats.filtered == len(self.filtered)
        assert stats.outstanding == len(self.held) + len(self.drop_for_requeue)
        gone = self.shown - len(self.held)
        assert stats.acknowledged + stats.requeued + stats.discarded == gone


class SelectiveClientLedger(SelectiveLedgerMachine):
    mode = AckMode.CLIENT


class SelectiveAutoLedger(SelectiveLedgerMachine):
    mode = AckMode.AUTO

    @property
    def kept_from_client(self) -> set[int]:
        return self.drop_for_requeue | self.filtered


class NumberZeroLedger(ClientLedger):
    """Number 0 means everything so far."""

    @rule(requeue=st.none() | st.booleans())
    def settle_everything(self, requeue: bool | None) -> None:
        self.settle(0, requeue)


class GuessingLedger(Ledger):
    """A client that names deliveries it never got."""

    @rule()
    def acknowledge_what_was_shed(self) -> None:
        for tag in self.drop_for_requeue:
            assert not self.subscription.ledger.is_outstanding(tag)


STEPS = settings(stateful_step_count=40)


@pytest.mark.parametrize(
    "ledger", [Ledger, AutoLedger, ClientLedger, CountingLedger], ids=lambda ledger: ledger.__name__
)
def test_the_accounts_of_client_and_broker_agree(ledger: type[Ledger]) -> None:
    run_state_machine_as_test(ledger, settings=STEPS)


@pytest.mark.parametrize(
    "ledger",
    [SelectiveLedgerMachine, SelectiveAutoLedger, SelectiveClientLedger],
    ids=lambda ledger: ledger.mode.value.decode(),
)
def test_the_accounts_agree_with_a_selector(ledger: type[Ledger]) -> None:
    run_state_machine_as_test(ledger, settings=settings(STEPS, max_examples=50))


def test_the_accounts_agree_when_everything_is_settled_at_once() -> None:
    run_state_machine_as_test(NumberZeroLedger, settings=STEPS)


def test_the_accounts_agree_when_the_client_guesses() -> None:
    run_state_machine_as_test(GuessingLedger, settings=STEPS)


@pytest.mark.parametrize(
    "ledger",
    [Ledger, ClientLedger, NumberZeroLedger, GuessingLedger, SelectiveClientLedger],
)
def test_the_accounts_agree_where_the_floor_rises_over_what_is_outstanding(
    ledger: type[Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.session.delivery_ledger._MOST_OUT_OF_ORDER", 1)
    monkeypatch.setattr("gateway.session.delivery_ledger._RATIO", 0)
    run_state_machine_as_test(ledger, settings=STEPS)
