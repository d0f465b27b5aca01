"""The subscriptions of a session: who is there, and which delivery an acknowledgement means."""

import pytest

from gateway.errors import StompError
from gateway.session.subscription import AckMode, Subscription
from gateway.session.subscriptions import Subscriptions
from tests.support.playbook import OF_STREAM, TO_QUEUE, deliver, settlements_in_words

SESSION = b"session-x"


def subscription(tag: bytes = b"T_1", mode: AckMode = AckMode.CLIENT_INDIVIDUAL, delivered: int = 0) -> Subscription:
    found = Subscription(tag, tag[2:], mode, SESSION)
    for number in range(1, delivered + 1):
        deliver(found, number)
    return found


def subscriptions(*those: Subscription) -> Subscriptions:
    found = Subscriptions(SESSION, [])
    for each in those:
        found.add(each, "q")
        found.start(each)
    return found


def settled(of: Subscriptions) -> dict[bytes, list[str]]:
    return {each.tag: settlements_in_words(each.take_settlements()) for each in of.take_settling()}


@pytest.mark.parametrize("command", [b"ACK", b"NACK"])
@pytest.mark.parametrize("name", [b"id", b"message-id"])
def test_an_acknowledgement_needs_its_identifier(command: bytes, name: bytes) -> None:
    with pytest.raises(StompError, match="Missing header") as found:
        subscriptions().settlement(command, name, None, None)
    assert found.value.body == b'"%b" must include the "%b" header\n' % (command, name)


@pytest.mark.parametrize("ack_id", [b"", b"1", b"T_1@@1", b"@@", b"T_1@session-x@1"])
def test_an_identifier_has_three_parts(ack_id: bytes) -> None:
    with pytest.raises(StompError, match="Invalid header") as found:
        subscriptions(subscription()).settlement(b"ACK", b"id", ack_id, None)
    assert found.value.body == b'"ACK" must include a valid "id" header\n'


@pytest.mark.parametrize("number", [b"", b"one", b"-1", b" 1", b"1.0", "٣".encode(), b"9" * 5000])
def test_the_third_part_is_a_number(number: bytes) -> None:
    with pytest.raises(StompError) as found:
        subscriptions(subscription()).settlement(b"ACK", b"id", b"T_1@@session-x@@" + number, None)
    assert found.value.message == "Processing error"


@pytest.mark.parametrize(
    "ack_id", [b"T_2@@session-x@@1", b"T_1@@session-y@@1", b"Q_1@@session-x@@1", b"@@session-x@@1"]
)
def test_an_identifier_of_another_subscription_or_session_means_nothing(ack_id: bytes) -> None:
    with pytest.raises(StompError, match="Subscription not found") as found:
        subscriptions(subscription(delivered=1)).settlement(b"ACK", b"id", ack_id, None)
    assert found.value.body == b'Message with id "%b" has no subscription' % ack_id
    assert found.value.close is None


@pytest.mark.parametrize("tag", [b"T_", b"T_a@@b", b"T_@@", b"Q_/queue/a@@b@@c", b"T_a b"])
def test_every_id_can_be_acknowledged(tag: bytes) -> None:
    one = subscription(tag, delivered=1)
    known = subscriptions(one)
    settlement = known.settlement(b"ACK", b"id", tag + b"@@session-x@@1", None)
    assert (settlement.subscription, settlement.tag) == (one, 1)
    known.settle(settlement)
    assert settled(known) == {tag: ["ack 1 multiple"]}


def test_a_stream_takes_acknowledgements_and_nothing_back() -> None:
    """RabbitMQ would close the whole link over a basic.nack, other sessions' channels included."""
    one = subscription()
    one.deliver(1, False, TO_QUEUE, OF_STREAM, b"")
    found = subscriptions(one)
    with pytest.raises(StompError, match="not_implemented") as refused:
        found.settlement(b"NACK", b"id", b"T_1@@session-x@@1", True)
    assert refused.value.close is not None
    found.settle(found.settlement(b"ACK", b"id", b"T_1@@session-x@@1", None))
    assert settled(found) == {b"T_1": ["ack 1 multiple"]}


def test_settling_is_per_subscription() -> None:
    one, two = subscription(b"T_1", delivered=3), subscription(b"T_2", AckMode.CLIENT, delivered=3)
    known = subscriptions(one, two)
    for tag, number in ((b"T_1", 1), (b"T_2", 3), (b"T_1", 2)):
        known.settle(known.settlement(b"ACK", b"id", b"%b@@session-x@@%d" % (tag, number), None))
    # A subscription may be named twice; what it has to tell, it tells once.
    taken = known.take_settling()
    assert set(taken) == {one, two}
    assert settlements_in_words(b"".join(each.take_settlements() for each in taken if each is one)) == [
        "ack 2 multiple"
    ]
    assert settlements_in_words(two.take_settlements()) == ["ack 3 multiple"]
    assert (one.outstanding, two.outstanding) == (1, 0)


def test_a_settlement_that_is_no_longer_outstanding_is_carried_out_as_nothing() -> None:
    one = subscription(delivered=1)
    known = subscriptions(one)
    settlement = known.settlement(b"NACK", b"id", b"T_1@@session-x@@1", True)
    known.settle(settlement)
    known.settle(settlement)
    assert settled(known) == {b"T_1": ["nack 1 requeue"]}


def test_auto_is_none_of_the_clients_business() -> None:
    known = subscriptions(subscription(mode=AckMode.AUTO, delivered=1))
    assert not known.settlement(b"ACK", b"id", b"T_1@@session-x@@1", None).is_outstanding


def test_auto_is_settled_together() -> None:
    one, two = subscription(b"T_1", AckMode.AUTO, delivered=2), subscription(b"T_2", AckMode.AUTO)
    three = subscription(b"T_3", AckMode.CLIENT, delivered=1)
    known = subscriptions(one, two, three)
    known.settle_auto()
    assert settled(known) == {b"T_1": ["ack 2 multiple"]}
    deliver(two, 1)
    deliver(one, 3)
    known.settle_auto()
    assert settled(known) == {b"T_2": ["ack 1 multiple"], b"T_1": ["ack 3 multiple"]}
    known.settle_auto()
    assert settled(known) == {}


def test_auto_waits_while_some_of_it_is_shed() -> None:
    one = subscription(mode=AckMode.AUTO, delivered=1)
    known = subscriptions(one)
    one.drop_for_requeue(2, False, b"\0\1q", b"\0\0", b"")
    known.settle_auto()
    assert settled(known) == {}
    one.requeue_dropped()
    assert sorted(settlements_in_words(one.take_settlements())) == ["ack 1 multiple", "nack 2 requeue"]
    deliver(one, 3)
    known.settle_auto()
    assert settled(known) == {b"T_1": ["ack 3 multiple"]}


def test_the_messages_of_a_forgotten_subscription_reach_nobody() -> None:
    output: list[bytes] = []
    one = subscription(mode=AckMode.AUTO)
    known = Subscriptions(SESSION, output)
    known.add(one, "q")
    known.start(one)
    known.forget(one)
    deliver(one, 1)
    known.settle_auto()
    assert (output, settled(known), one.tag in known) == ([], {}, False)


def test_what_a_forgotten_subscription_delivered_and_nobody_settled_goes_back() -> None:
    one, two = subscription(b"T_1", AckMode.AUTO, delivered=1), subscription(b"T_2", AckMode.AUTO, delivered=1)
    known = subscriptions(one, two)
    known.forget(one)
    known.settle_auto()
    assert settled(known) == {b"T_2": ["ack 1 multiple"]}


def test_the_queue_behind_a_temporary_destination_is_known_as_long_as_it_is_there() -> None:
    one = subscription(b"T_/temp-queue/a", AckMode.AUTO)
    known = Subscriptions(SESSION, [])
    known.add(one, "amq.gen-é")
    assert known.temp_queues == {b"/temp-queue/a": "amq.gen-é".encode()}
    known.forget(one)
    assert known.temp_queues == {}


def test_a_subscription_is_current_only_as_long_as_no_other_has_its_place() -> None:
    one, other = subscription(), subscription()
    known = subscriptions(one)
    assert (known.is_current(one), known.is_current(other)) == (True, False)
    assert known.get(b"T_1") is one
