"""One subscription: its MESSAGE frames, and the account of what was delivered and settled."""

import tracemalloc
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.amqp.properties import Properties, encode_around_table, table_entries
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CodecError
from gateway.pieces import joined
from gateway.session.delivery_ledger import AckMode
from gateway.session.subscription import Subscription
from tests.support.playbook import (
    NO_PROPERTIES,
    OF_STREAM,
    TO_QUEUE,
    Playbook,
    ack_id,
    deliver,
    settlements_in_words,
)
from tests.support.unacked import Unacked

CHANNEL = 9


def subscription(
    mode: AckMode = AckMode.CLIENT_INDIVIDUAL,
    *,
    delivered: int = 0,
    tag: bytes = b"T_1",
    identifier: bytes | None = b"1",
    session: bytes = b"session-x",
    shows_ack: bool = True,
) -> Subscription:
    found = Subscription(tag, identifier, mode, session, shows_ack=shows_ack)
    found.set_channel(CHANNEL)
    for number in range(1, delivered + 1):
        found.deliver(number, False, TO_QUEUE, NO_PROPERTIES, b"")
    found.output.clear()
    return found


def settled(of: Subscription) -> list[str]:
    return settlements_in_words(of.ledger.take_frames())


def message(of: Subscription, *, body: bytes = b"hi", route: bytes = TO_QUEUE, properties: bytes = NO_PROPERTIES,
            tag: int = 1, redelivered: bool = False) -> bytes:  # fmt: skip
    of.deliver(tag, redelivered, route, properties, body)
    data = joined(of.output)
    of.output.clear()
    return data


# MESSAGE.


class _FaultyCounter:
    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        raise RuntimeError

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        pass

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        pass


def test_a_counter_that_fails_leaves_no_half_of_a_message() -> None:
    """The ERROR that follows must be a frame of its own."""
    found = subscription()
    found.set_counter(_FaultyCounter())
    with pytest.raises(RuntimeError):
        message(found)
    assert found.output == []


def test_a_message_of_1_2_that_is_acknowledged() -> None:
    assert message(subscription()) == (
        b"MESSAGE\nsubscription:1\ndestination:/queue/q\nmessage-id:T_1@@session-x@@1\nredelivered:false\n"
        b"ack:T_1@@session-x@@1\ncontent-length:2\n\nhi\0\n"
    )


@pytest.mark.parametrize(("mode", "shows_ack"), [(AckMode.AUTO, True), (AckMode.CLIENT, False)])
def test_a_message_without_an_ack_header(mode: AckMode, shows_ack: bool) -> None:
    found = message(subscription(mode, shows_ack=shows_ack))
    assert b"\nack:" not in found
    assert b"\nmessage-id:T_1@@session-x@@1\n" in found


def test_a_subscription_without_an_id_is_not_named() -> None:
    found = message(subscription(AckMode.AUTO, tag=b"Q_/queue/q", identifier=None))
    assert found.startswith(b"MESSAGE\ndestination:/queue/q\nmessage-id:Q_/queue/q@@session-x@@1\n")


def test_an_empty_message_has_no_length_and_no_body() -> None:
    assert message(subscription(AckMode.AUTO), body=b"").endswith(b"\nredelivered:false\n\n\0\n")


def test_a_redelivered_message_says_so() -> None:
    assert b"\nredelivered:true\n" in message(subscription(), redelivered=True)


def test_an_id_is_escaped_wherever_it_stands() -> None:
    found = message(subscription(tag=b"T_a:\n", identifier=b"a:\n"))
    for line in (
        b"\nsubscription:a\\c\\n\n",
        b"\nmessage-id:T_a\\c\\n@@session-x@@1\n",
        b"\nack:T_a\\c\\n@@session-x@@1\n",
    ):
        assert line in found


def test_the_destination_is_where_the_message_came_from() -> None:
    found = message(subscription(), route=b"\x09amq.topic\x03a:b")
    assert b"\ndestination:/topic/a\\cb\n" in found


def test_headers_of_the_message_come_after_those_of_the_server() -> None:
    before, behind = encode_around_table(Properties(content_type=b"text/plain"))
    entries = table_entries([(b"color", b"red"), (b"message-id", b"forged")])
    properties = before + len(entries).to_bytes(4, "big") + entries + behind
    assert message(subscription(AckMode.AUTO), properties=properties) == (
        b"MESSAGE\nsubscription:1\ndestination:/queue/q\nmessage-id:T_1@@session-x@@1\nredelivered:false\n"
        b"color:red\ncontent-type:text/plain\ncontent-length:2\n\nhi\0\n"
    )


def test_messages_of_several_publishers_do_not_get_each_others_headers() -> None:
    """More of them than are remembered, twice over."""
    found = subscription(AckMode.AUTO)
    blocks = [
        before + behind
        for before, behind in (
            (before + (0).to_bytes(4, "big"), behind)
            for before, behind in (encode_around_table(Properties(type=b"t%d" % number)) for number in range(300))
        )
    ]
    for tag, number in enumerate([*range(300), *range(300)], start=1):
        assert b"\ntype:t%d\n" % number in message(found, properties=blocks[number], tag=tag)


@pytest.mark.parametrize(("blocks", "size"), [(4000, 1500), (100, 50_000)], ids=["many", "large"])
def test_header_blocks_that_never_come_again_take_no_memory(blocks: int, size: int) -> None:
    found = subscription(AckMode.AUTO)
    before, behind = encode_around_table(Properties())
    tracemalloc.start()
    try:
        for tag in range(1, blocks + 1):
            entries = table_entries([(b"n", b"%0*d" % (size, tag))])
            message(found, properties=before + len(entries).to_bytes(4, "big") + entries + behind, tag=tag)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20


def test_a_head_too_long_to_remember_is_encoded_every_time() -> None:
    before, behind = encode_around_table(Properties())
    found = subscription(AckMode.AUTO)
    for tag in (1, 2):
        entries = table_entries([(b"long", b"x" * 5000), (b"n", b"%d" % tag)])
        properties = before + len(entries).to_bytes(4, "big") + entries + behind
        data = message(found, properties=properties, tag=tag)
        assert b"\nlong:" + b"x" * 5000 + b"\nn:%d\n" % tag in data


@pytest.mark.parametrize(("size", "count"), [(1500, 3000), (60_000, 100)], ids=["many", "large"])
def test_heads_that_never_repeat_cost_a_bounded_memory(size: int, count: int) -> None:
    found = subscription(AckMode.AUTO)
    before, behind = encode_around_table(Properties())
    tracemalloc.start()
    for tag in range(1, count + 1):
        entries = table_entries([(b"long", b"%0*d" % (size, tag))])
        message(found, properties=before + len(entries).to_bytes(4, "big") + entries + behind, tag=tag)
        found.ledger.acknowledge(tag)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # 128 heads of at most 2 KiB, with their keys; all of them would be several megabytes.
    assert grown < 800_000


@pytest.mark.parametrize("kind", ["receipt", "stream"])
def test_heads_of_which_each_is_another_are_not_remembered(kind: str) -> None:
    """In thousands of sessions that is much memory, for nothing."""
    found = subscription(AckMode.AUTO)
    before, behind = encode_around_table(Properties())
    tracemalloc.start()
    for tag in range(1, 101):
        number = b"%d" % tag
        entries = table_entries([(b"receipt", number)])
        properties = before + len(entries).to_bytes(4, "big") + entries + behind
        if kind == "stream":
            properties = OF_STREAM[:-8] + tag.to_bytes(8, "big")
        data = message(found, properties=properties, tag=tag)
        assert b":%d\n" % tag in data.replace(b"message-id", b"")
        found.ledger.acknowledge(tag)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 20_000


# The account.


def test_acknowledgements_in_order_are_one_frame() -> None:
    found = subscription(delivered=5)
    for tag in (1, 2, 3):
        found.ledger.acknowledge(tag)
    assert found.ledger.outstanding == 2
    assert settled(found) == ["ack 3 multiple"]
    assert settled(found) == []


def test_acknowledgements_ahead_are_single_and_the_multiple_does_not_reach_over_what_is_outstanding() -> None:
    found = subscription(delivered=5)
    found.ledger.acknowledge(4)
    found.ledger.acknowledge(1)
    assert settled(found) == ["ack 4", "ack 1 multiple"]
    assert [tag for tag in range(1, 6) if found.ledger.is_outstanding(tag)] == [2, 3, 5]
    found.ledger.acknowledge(3)
    found.ledger.acknowledge(2)
    assert settled(found) == ["ack 3", "ack 2 multiple"]
    assert found.ledger.outstanding == 1
    found.ledger.acknowledge(5)
    assert settled(found) == ["ack 5 multiple"]
    assert found.ledger.outstanding == 0


def test_a_multiple_names_a_tag_that_the_broker_still_knows() -> None:
    """The floor has moved over tags settled one by one; naming those would close the channel."""
    found = subscription(delivered=3)
    found.ledger.acknowledge(2)
    found.ledger.acknowledge(3)
    assert settled(found) == ["ack 2", "ack 3"]
    found.ledger.acknowledge(1)
    assert settled(found) == ["ack 1 multiple"]
    assert found.ledger.outstanding == 0


def test_one_message_kept_for_long_costs_no_memory_for_all_that_follow() -> None:
    found = subscription(delivered=1)
    broker = Unacked({1})
    tracemalloc.start()
    for tag in range(2, 50_000):
        message(found, tag=tag)
        broker.waiting.add(tag)
        found.ledger.acknowledge(tag)
        broker.apply(found.ledger.take_frames())
        broker.acked.clear()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.ledger.outstanding, found.ledger.is_outstanding(1), broker.waiting) == (1, True, {1})
    assert grown < 200_000
    found.ledger.acknowledge(1)
    broker.apply(found.ledger.take_frames())
    assert (found.ledger.outstanding, broker.waiting) == (0, set())


def test_cumulative_acknowledgement() -> None:
    found = subscription(AckMode.CLIENT, delivered=5)
    found.ledger.acknowledge(2)
    found.ledger.acknowledge(4)
    assert settled(found) == ["ack 4 multiple"]
    assert [tag for tag in range(1, 6) if found.ledger.is_outstanding(tag)] == [5]


def test_number_0_acknowledges_everything_so_far_in_mode_client_and_nothing_in_others() -> None:
    found = subscription(AckMode.CLIENT, delivered=3)
    assert found.ledger.is_outstanding(0)
    found.ledger.acknowledge(0)
    assert settled(found) == ["ack 3 multiple"]
    assert not subscription(AckMode.CLIENT_INDIVIDUAL, delivered=3).ledger.is_outstanding(0)


@pytest.mark.parametrize("delivered", [0, 3])
def test_number_0_tells_the_broker_nothing_when_nothing_is_outstanding(delivered: int) -> None:
    found = subscription(AckMode.CLIENT, delivered=delivered)
    found.ledger.acknowledge(0)
    found.ledger.take_frames()
    found.ledger.acknowledge(0)
    assert settled(found) == []
    found.ledger.refuse(0, requeue=True)
    assert settled(found) == []


def test_nack_ends_the_run_before_it() -> None:
    found = subscription(delivered=4)
    found.ledger.acknowledge(1)
    found.ledger.refuse(2, requeue=True)
    found.ledger.acknowledge(3)
    found.ledger.refuse(4, requeue=False)
    assert settled(found) == ["ack 1 multiple", "nack 2 requeue", "ack 3 multiple", "nack 4"]
    assert found.ledger.outstanding == 0


@pytest.mark.parametrize(("mode", "rejected"), [(AckMode.CLIENT_INDIVIDUAL, [3]), (AckMode.CLIENT, [2, 3])])
def test_what_is_to_count_is_rejected_one_by_one(mode: AckMode, rejected: list[int]) -> None:
    found = subscription(mode, delivered=4)
    found.ledger.acknowledge(1)
    found.ledger.refuse(3, requeue=True, counts=True)
    assert settled(found) == ["ack 1 multiple", *(f"reject {tag} requeue" for tag in rejected)]
    found.ledger.refuse(4, requeue=False, counts=True)
    multiple = " multiple" if mode is AckMode.CLIENT else ""
    assert settled(found) == [f"nack 4{multiple}"]


@pytest.mark.parametrize(("counts", "word"), [(True, "reject"), (False, "nack")])
def test_the_virtual_host_says_whether_a_nack_is_to_count(counts: bool, word: str) -> None:
    play = Playbook(VirtualHost(name="/", nack_counts=counts))
    play.connect()
    found = play.subscribe("1", "/queue/q", "ack:client-individual")
    for tag in (1, 2):
        deliver(found, tag)
    play.client("NACK", f"id:{ack_id(found, 1)}")
    play.client("NACK", f"id:{ack_id(found, 2)}", "requeue:false")
    assert play.settled() == [f"{word} 1 requeue", "nack 2"]


def test_so_many_messages_that_no_quorum_queue_delivers_them_together_do_not_all_count() -> None:
    found = subscription(AckMode.CLIENT, delivered=10_002)
    found.ledger.refuse(10_001, requeue=True, counts=True)
    words = settled(found)
    assert len(words) == 10_001
    assert words[-2:] == ["reject 10000 requeue", "nack 10001 multiple requeue"]
    assert found.ledger.outstanding == 1


def test_nack_ahead_keeps_what_is_before_it() -> None:
    found = subscription(delivered=3)
    found.ledger.refuse(2, requeue=True)
    assert settled(found) == ["nack 2 requeue"]
    assert [tag for tag in range(1, 4) if found.ledger.is_outstanding(tag)] == [1, 3]


def test_cumulative_nack() -> None:
    found = subscription(AckMode.CLIENT, delivered=4)
    found.ledger.acknowledge(1)
    found.ledger.refuse(3, requeue=False)
    assert settled(found) == ["ack 1 multiple", "nack 3 multiple"]
    assert [tag for tag in range(1, 5) if found.ledger.is_outstanding(tag)] == [4]


def test_nothing_is_held_that_was_never_delivered_or_is_settled() -> None:
    found = subscription(delivered=2)
    found.ledger.acknowledge(1)
    assert [tag for tag in (1, 2, 3, 2**64) if found.ledger.is_outstanding(tag)] == [2]


@pytest.mark.parametrize("is_observed", [True, False])
@pytest.mark.parametrize("redelivered", [True, False])
@pytest.mark.parametrize("body", [b"", b"hello"])
@pytest.mark.parametrize("mode", AckMode)
def test_messages_that_are_alike_are_delivered_together_as_one_by_one(
    mode: AckMode, body: bytes, redelivered: bool, is_observed: bool
) -> None:
    def after(*runs: int) -> object:
        found = Subscription(b"T_1", b"1", mode, b"session-1", shows_ack=True, window=12, base=7)
        calls: list[tuple[object, ...]] = []
        if is_observed:
            found.set_counter(cast(Any, SimpleNamespace(delivered=lambda *call: calls.append(call))))
        tag = 1
        for run in runs:
            found.deliver(tag, redelivered, b"\0\1q", b"\0\0", body)
            if run > 1:
                found.deliver_alike(tag + 1, [body] * (run - 1))
            tag += run
        pending = [each.tag for each in found._auto_acks.subscriptions], found._auto_acks.is_urgent
        found.settle_delivered()
        found.deliver(tag, not redelivered, b"\0\1q", b"\0\0", body)
        return joined(found.output), found.stats, calls, pending

    for count in (2, 3, 4, 5, 9):
        assert after(count) == after(*[1] * count)


def test_tags_of_messages_that_are_alike_count_on() -> None:
    found = Subscription(b"T_1", b"1", AckMode.AUTO, b"session-1")
    found.deliver(1, False, b"\0\1q", b"\0\0", b"")
    with pytest.raises(CodecError):
        found.deliver_alike(3, [b""])


def test_auto_settles_what_was_delivered_at_once() -> None:
    found = subscription(AckMode.AUTO, delivered=3)
    assert found.settle_delivered()
    assert found.ledger.outstanding == 0
    assert settled(found) == ["ack 3 multiple"]
    assert found.settle_delivered()
    assert settled(found) == []


def test_auto_notes_that_it_has_something_to_settle_and_when_it_has_much() -> None:
    found = Subscription(b"T_1", b"1", AckMode.AUTO, b"s", window=40)
    found.deliver(1, False, TO_QUEUE, NO_PROPERTIES, b"")
    assert found._auto_acks.subscriptions == [found]
    urgent = []
    for tag in range(2, 13):
        found.deliver(tag, False, TO_QUEUE, NO_PROPERTIES, b"")
        urgent.append(found._auto_acks.is_urgent)
    # A quarter of the window after the first one.
    assert urgent == [False] * 10 + [True]
    assert found._auto_acks.subscriptions == [found]


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.CLIENT_INDIVIDUAL])
def test_who_acknowledges_is_never_settled_by_itself(mode: AckMode) -> None:
    found = subscription(mode, delivered=100)
    assert found._auto_acks.subscriptions == []
    assert not found._auto_acks.is_urgent


# Messages that a slow client cannot take.


def drop_for_requeue(of: Subscription, *tags: int) -> None:
    for tag in tags:
        of.drop_for_requeue(tag, False, TO_QUEUE, NO_PROPERTIES, b"x")


def broker_after(of: Subscription, delivered: int) -> Unacked:
    """What the broker makes of the settlements, after so many deliveries."""
    unacked = Unacked(set(range(1, delivered + 1)))
    unacked.apply(of.ledger.take_frames())
    return unacked


def test_what_comes_from_a_stream_is_never_shed_since_a_stream_takes_nothing_back() -> None:
    found = subscription(AckMode.AUTO)
    found.drop_for_requeue(1, False, TO_QUEUE, OF_STREAM, b"x")
    assert joined(found.output).endswith(b"\nx-stream-offset:7\ncontent-length:1\n\nx\0\n")
    assert found.settle_delivered()
    found.ledger.requeue_dropped()
    assert settled(found) == ["ack 1 multiple"]


def test_a_header_of_a_sender_makes_no_stream() -> None:
    found = subscription()
    before, behind = encode_around_table(Properties())
    entries = table_entries([(b"x-stream-offset", b"7")])
    message(found, properties=before + len(entries).to_bytes(4, "big") + entries + behind)
    message(found, properties=OF_STREAM, tag=2)
    assert not found.is_stream, "the first message decides: this one came out of a stream once"


def test_the_bytes_of_a_streams_header_elsewhere_make_no_stream() -> None:
    found = subscription()
    before, behind = encode_around_table(Properties())
    entries = table_entries([(b"foo", b"\x0fx-stream-offsetl" + bytes(8))])
    message(found, properties=before + len(entries).to_bytes(4, "big") + entries + behind)
    assert not found.is_stream


def test_what_was_shed_under_auto_goes_back_and_what_was_delivered_does_not() -> None:
    found = subscription(AckMode.AUTO, delivered=2)
    drop_for_requeue(found, 3, 4)
    assert found.output == []
    assert not found.settle_delivered()
    assert settled(found) == []
    found.ledger.requeue_dropped()
    assert broker_after(found, 4) == Unacked(acked={1, 2}, requeued={3, 4})
    assert found.ledger.outstanding == 0
    found.deliver(5, True, TO_QUEUE, NO_PROPERTIES, b"")
    assert found.settle_delivered()
    assert settled(found) == ["ack 5 multiple"]


def test_what_was_shed_under_auto_when_all_before_it_is_settled() -> None:
    found = subscription(AckMode.AUTO, delivered=2)
    assert found.settle_delivered()
    drop_for_requeue(found, 3)
    found.ledger.requeue_dropped()
    assert broker_after(found, 3) == Unacked(acked={1, 2}, requeued={3})


def test_what_was_shed_goes_back_before_anything_makes_room_for_what_stands_behind_it() -> None:
    found = subscription(AckMode.AUTO, delivered=2)
    drop_for_requeue(found, 3, 4)
    found.ledger.requeue_dropped()
    assert [word.split()[0] for word in settled(found)] == ["nack", "nack", "ack"]


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.CLIENT_INDIVIDUAL])
def test_what_was_shed_goes_back_where_the_client_acknowledges(mode: AckMode) -> None:
    found = subscription(mode, delivered=2)
    drop_for_requeue(found, 3, 4)
    found.ledger.requeue_dropped()
    assert [tag for tag in range(1, 6) if found.ledger.is_outstanding(tag)] == [1, 2]
    found.deliver(5, False, TO_QUEUE, NO_PROPERTIES, b"")
    found.ledger.acknowledge(1)
    found.ledger.acknowledge(5)
    left = set() if mode is AckMode.CLIENT else {2}
    assert broker_after(found, 5) == Unacked(waiting=left, acked={1, 2, 5} - left, requeued={3, 4})


def test_nothing_to_give_back() -> None:
    found = subscription(AckMode.CLIENT, delivered=2)
    found.ledger.requeue_dropped()
    assert settled(found) == []


def test_number_0_does_not_acknowledge_what_the_client_never_got() -> None:
    found = subscription(AckMode.CLIENT, delivered=2)
    drop_for_requeue(found, 3)
    found.ledger.acknowledge(0)
    found.ledger.requeue_dropped()
    assert broker_after(found, 3) == Unacked(acked={1, 2}, requeued={3})


@pytest.mark.parametrize("requeue", [None, True, False])
def test_number_0_means_what_the_client_got_also_when_what_was_shed_has_gone_back(requeue: bool | None) -> None:
    found = subscription(AckMode.CLIENT, delivered=2)
    drop_for_requeue(found, 3)
    found.ledger.requeue_dropped()
    unacked = broker_after(found, 3)
    if requeue is None:
        found.ledger.acknowledge(0)
    else:
        found.ledger.refuse(0, requeue=requeue)
    unacked.apply(found.ledger.take_frames())
    assert (found.ledger.outstanding, unacked.waiting) == (0, set())
    settled_as = {None: unacked.acked, True: unacked.requeued, False: unacked.discarded}[requeue]
    assert settled_as >= {1, 2}


@pytest.mark.parametrize("mode", [AckMode.CLIENT, AckMode.CLIENT_INDIVIDUAL])
def test_a_client_cannot_acknowledge_by_guessing_what_it_never_got(mode: AckMode) -> None:
    found = subscription(mode, delivered=2)
    drop_for_requeue(found, 3)
    assert not found.ledger.is_outstanding(3)


# A broker that makes up its delivery tags: nothing here would have a bound.


@pytest.mark.parametrize("tag", [0, 2, 4, 1 << 63])
@pytest.mark.parametrize("drops", [False, True])
def test_delivery_tags_that_do_not_count_on_are_refused(tag: int, drops: bool) -> None:
    found = subscription(delivered=2)
    take = found.drop_for_requeue if drops else found.deliver
    with pytest.raises(CodecError, match="delivery tags"):
        take(tag, False, TO_QUEUE, NO_PROPERTIES, b"x")
    assert (found.ledger.last_tag, found.output) == (2, [])
