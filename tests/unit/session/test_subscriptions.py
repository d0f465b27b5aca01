"""The subscriptions of a session, and which delivery an acknowledgement means."""

import gc
from collections.abc import Iterator

import pytest

from gateway.errors import StompError
from gateway.pieces import Body
from gateway.session import ops
from gateway.session.acknowledge import AckHandler
from gateway.session.context import SessionContext
from gateway.session.delivery_ledger import AckMode
from gateway.session.queues import QueueSpec
from gateway.session.subscription import Subscription
from gateway.session.subscriptions import Subscriptions
from tests.support.playbook import OF_STREAM, TO_QUEUE, Playbook, deliver, settlements_in_words, stomp

SESSION = b"session-x"


def subscription(tag: bytes = b"T_1", mode: AckMode = AckMode.CLIENT_INDIVIDUAL, delivered: int = 0) -> Subscription:
    found = Subscription(tag, tag[2:], mode, SESSION)
    for number in range(1, delivered + 1):
        deliver(found, number)
    return found


class Acknowledgements(AckHandler):
    """What a client acknowledges, with its subscriptions at hand."""

    def __init__(self, *those: Subscription) -> None:
        context = SessionContext(SESSION, strict=False)
        super().__init__(context)
        self.subscriptions = context.subscriptions
        for each in those:
            self.subscriptions.add(each, "q")
            each.start(context.output, self.subscriptions.auto_acks)


def settled(of: Acknowledgements | Subscriptions) -> dict[bytes, list[str]]:
    known = of if isinstance(of, Subscriptions) else of.subscriptions
    return {each.tag: settlements_in_words(frames) for each, frames in known.take_settlements()}


@pytest.mark.parametrize("command", [b"ACK", b"NACK"])
@pytest.mark.parametrize("name", [b"id", b"message-id"])
def test_an_acknowledgement_needs_its_identifier(command: bytes, name: bytes) -> None:
    with pytest.raises(StompError, match="Missing header") as found:
        Acknowledgements().find_settlement(command, name, None, None)
    assert found.value.body == b'"%b" must include the "%b" header\n' % (command, name)


@pytest.mark.parametrize("ack_id", [b"", b"1", b"T_1@@1", b"@@", b"T_1@session-x@1"])
def test_an_identifier_has_three_parts(ack_id: bytes) -> None:
    with pytest.raises(StompError, match="Invalid header") as found:
        Acknowledgements(subscription()).find_settlement(b"ACK", b"id", ack_id, None)
    assert found.value.body == b'"ACK" must include a valid "id" header\n'


@pytest.mark.parametrize("number", [b"", b"one", b"-1", b" 1", b"1.0", "٣".encode(), b"9" * 5000])
def test_the_third_part_is_a_number(number: bytes) -> None:
    with pytest.raises(StompError) as found:
        Acknowledgements(subscription()).find_settlement(b"ACK", b"id", b"T_1@@session-x@@" + number, None)
    assert found.value.message == "Processing error"


@pytest.mark.parametrize(
    "ack_id", [b"T_2@@session-x@@1", b"T_1@@session-y@@1", b"Q_1@@session-x@@1", b"@@session-x@@1"]
)
def test_an_identifier_of_another_subscription_or_session_means_nothing(ack_id: bytes) -> None:
    with pytest.raises(StompError, match="Subscription not found") as found:
        Acknowledgements(subscription(delivered=1)).find_settlement(b"ACK", b"id", ack_id, None)
    assert found.value.body == b'Message with id "%b" has no subscription' % ack_id
    assert found.value.close is None


@pytest.mark.parametrize("tag", [b"T_", b"T_a@@b", b"T_@@", b"Q_/queue/a@@b@@c", b"T_a b"])
def test_every_id_can_be_acknowledged(tag: bytes) -> None:
    one = subscription(tag, delivered=1)
    known = Acknowledgements(one)
    settlement = known.find_settlement(b"ACK", b"id", tag + b"@@session-x@@1", None)
    assert (settlement.subscription, settlement.tag) == (one, 1)
    known.subscriptions.settle(settlement)
    assert settled(known) == {tag: ["ack 1 multiple"]}


def test_a_stream_takes_acknowledgements_and_nothing_back() -> None:
    """RabbitMQ would close the whole link over a basic.nack, other sessions' channels included."""
    one = subscription()
    one.deliver(1, False, TO_QUEUE, OF_STREAM, b"")
    found = Acknowledgements(one)
    with pytest.raises(StompError, match="not_implemented") as refused:
        found.find_settlement(b"NACK", b"id", b"T_1@@session-x@@1", True)
    assert refused.value.close is not None
    found.subscriptions.settle(found.find_settlement(b"ACK", b"id", b"T_1@@session-x@@1", None))
    assert settled(found) == {b"T_1": ["ack 1 multiple"]}


def test_settling_is_per_subscription() -> None:
    one, two = subscription(b"T_1", delivered=3), subscription(b"T_2", AckMode.CLIENT, delivered=3)
    known = Acknowledgements(one, two)
    for tag, number in ((b"T_1", 1), (b"T_2", 3), (b"T_1", 2)):
        known.subscriptions.settle(known.find_settlement(b"ACK", b"id", b"%b@@session-x@@%d" % (tag, number), None))
    # A subscription that is settled twice is named once.
    taken = known.subscriptions.take_settlements()
    assert [(each, settlements_in_words(frames)) for each, frames in taken] == [
        (one, ["ack 2 multiple"]),
        (two, ["ack 3 multiple"]),
    ]
    assert (one.ledger.outstanding, two.ledger.outstanding) == (1, 0)


def test_a_settlement_that_is_no_longer_outstanding_is_carried_out_as_nothing() -> None:
    one = subscription(delivered=1)
    known = Acknowledgements(one)
    settlement = known.find_settlement(b"NACK", b"id", b"T_1@@session-x@@1", True)
    known.subscriptions.settle(settlement)
    known.subscriptions.settle(settlement)
    assert settled(known) == {b"T_1": ["nack 1 requeue"]}


def test_auto_is_none_of_the_clients_business() -> None:
    known = Acknowledgements(subscription(mode=AckMode.AUTO, delivered=1))
    assert not known.find_settlement(b"ACK", b"id", b"T_1@@session-x@@1", None).is_acceptable


def test_auto_is_settled_together() -> None:
    one, two = subscription(b"T_1", AckMode.AUTO, delivered=2), subscription(b"T_2", AckMode.AUTO)
    three = subscription(b"T_3", AckMode.CLIENT, delivered=1)
    known = Acknowledgements(one, two, three)
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {b"T_1": ["ack 2 multiple"]}
    deliver(two, 1)
    deliver(one, 3)
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {b"T_2": ["ack 1 multiple"], b"T_1": ["ack 3 multiple"]}
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {}


def test_auto_waits_while_some_of_it_is_shed() -> None:
    one = subscription(mode=AckMode.AUTO, delivered=1)
    known = Acknowledgements(one)
    one.drop_for_requeue(2, False, b"\0\1q", b"\0\0", b"")
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {}
    one.ledger.requeue_dropped()
    assert sorted(settlements_in_words(one.ledger.take_frames())) == ["ack 1 multiple", "nack 2 requeue"]
    deliver(one, 3)
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {b"T_1": ["ack 3 multiple"]}


def test_the_messages_of_a_forgotten_subscription_reach_nobody() -> None:
    output: list[Body] = []
    one = subscription(mode=AckMode.AUTO)
    known = Subscriptions()
    known.add(one, "q")
    one.start(output, known.auto_acks)
    known.remove(one)
    deliver(one, 1)
    known.settle_auto_acks()
    assert (output, settled(known), one.tag in known) == ([], {}, False)


def test_what_a_forgotten_subscription_delivered_and_nobody_settled_goes_back() -> None:
    one, two = subscription(b"T_1", AckMode.AUTO, delivered=1), subscription(b"T_2", AckMode.AUTO, delivered=1)
    known = Acknowledgements(one, two)
    known.subscriptions.remove(one)
    known.subscriptions.settle_auto_acks()
    assert settled(known) == {b"T_2": ["ack 1 multiple"]}


def test_the_queue_behind_a_temporary_destination_is_known_as_long_as_it_is_there() -> None:
    one = subscription(b"T_/temp-queue/a", AckMode.AUTO)
    known = Subscriptions()
    known.add(one, "amq.gen-é")
    assert known.temp_queues == {b"/temp-queue/a": "amq.gen-é".encode()}
    known.remove(one)
    assert known.temp_queues == {}


def test_a_subscription_is_current_only_as_long_as_no_other_has_its_place() -> None:
    one, other = subscription(), subscription()
    known = Acknowledgements(one)
    assert (known.subscriptions.is_current(one), known.subscriptions.is_current(other)) == (True, False)
    assert known.subscriptions.get(b"T_1") is one


@pytest.fixture
def no_search() -> Iterator[None]:
    """Python does not look for garbage: what nothing refers to is gone all the same, unless it refers to itself."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(isinstance(each, Subscription) for each in gc.get_objects())


def subscribed(play: Playbook, count: int) -> None:
    play.data(b"".join(stomp("SUBSCRIBE", f"id:{n}", f"destination:/queue/{n}") for n in range(count)))
    while (operation := play.asked()) is not None:
        assert isinstance(operation, ops.Subscribe), operation
        play.subscribed(operation)


@pytest.mark.usefixtures("no_search")
def test_a_subscription_that_has_ended_is_gone_without_a_search_for_garbage(play: Playbook) -> None:
    before = alive()
    subscribed(play, 3)
    assert alive() == before + 3
    play.data(stomp("UNSUBSCRIBE", "id:1"))
    operation = play.asked()
    assert isinstance(operation, ops.Unsubscribe)
    play.broker(ops.Unsubscribed(), operation)
    del operation
    assert alive() == before + 2


@pytest.mark.usefixtures("no_search")
def test_a_session_that_is_over_lets_go_of_its_subscriptions_a_part_at_a_time(play: Playbook) -> None:
    before, count = alive(), 500
    subscribed(play, count)
    play.session.client_gone()
    left = [alive() - before for _ in play.session.subscriptions.dismantle()]
    assert left == [300, 100, 0]


def test_a_queue_that_is_only_consumed_is_declared_by_the_first_send(play: Playbook) -> None:
    play.subscribe("1", "/amq/queue/q")
    play.client("SEND", "destination:/queue/q")
    play.prepare()
    play.published()
    assert play.declared == [QueueSpec("q", durable=True)]


def test_the_queue_of_a_reply_to_has_the_window_of_automatic_acknowledgement(play: Playbook) -> None:
    play.client("SEND", "destination:/topic/t", "reply-to:/temp-queue/r")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    assert operation.prefetch == 2000
