"""Selectors in a session: who may have one, and what becomes of messages that it does not select."""

import sys
from collections.abc import Iterator, Sequence

import pytest

from gateway.amqp.properties import Properties, encode_around_table, table_entries
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CodecError
from gateway.message_selectors.selector import Selector
from gateway.session import ops
from gateway.session.subscription import Subscription
from tests.support.playbook import Playbook, ack_id

TOPIC = b"\x09amq.topic\x01t"
ON_QUEUE = (
    "ERROR Invalid selector: Only a subscription to /topic or /exchange, without x-queue-name, may have a selector: "
    "a queue may have other consumers, which would lose the messages that the selector does not match."
)


@pytest.fixture
def play() -> Iterator[Playbook]:
    playbook = Playbook(VirtualHost(name="/", selectors=True))
    playbook.connect()
    yield playbook
    playbook.finish()


def properties(table: dict[str, str], **others: bytes | int) -> bytes:
    before, behind = encode_around_table(Properties(**others))  # type: ignore[arg-type]
    entries = table_entries([(name.encode(), value.encode()) for name, value in table.items()])
    return before + len(entries).to_bytes(4, "big") + entries + behind


CHEAP, DEAR = properties({"price": "5"}), properties({"price": "50"})


def deliver(subscription: Subscription, tag: int, *, price: int = 5, text: str = "", redelivered: bool = False) -> None:
    subscription.deliver(tag, redelivered, TOPIC, CHEAP if price == 5 else DEAR, text.encode())


def subscribe(play: Playbook, mode: str, selector: str = "price > 10", *more: str) -> Subscription:
    return play.subscribe("1", "/topic/t", f"ack:{mode}", f"selector:{selector}", *more)


def settled(play: Playbook) -> list[str]:
    play.session.subscriptions.settle_auto_acks()
    return play.settled()


# Who may have a selector.


@pytest.mark.parametrize("destination", ["/queue/q", "/amq/queue/q", "/reply-queue/q", "q"])
def test_a_selector_on_a_queue_is_refused_with_the_reason(play: Playbook, destination: str) -> None:
    play.client("SUBSCRIBE", "id:1", f"destination:{destination}", "selector:a = 1", "receipt:r")
    assert play.said() == [ON_QUEUE.replace("ERROR", "ERROR for r")]


@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/e/k"])
def test_a_selector_on_a_queue_that_the_client_names_is_refused(play: Playbook, destination: str) -> None:
    play.client("SUBSCRIBE", "id:1", f"destination:{destination}", "selector:a = 1", "x-queue-name:shared")
    assert play.said() == [ON_QUEUE]


def test_a_rewritten_destination_decides(play: Playbook) -> None:
    rules = ({"action": "rewrite", "destination": "/topic/work", "to": "/queue/work"},)
    other = Playbook(VirtualHost.model_validate({"name": "/", "selectors": True, "destination_rules": rules}))
    other.connect()
    other.client("SUBSCRIBE", "id:1", "destination:/topic/work", "selector:a = 1")
    assert other.said() == [ON_QUEUE]


@pytest.mark.parametrize("more", [(), ("durable:true", "auto-delete:false")])
@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/e/k", "/exchange/e"])
def test_a_topic_or_exchange_may_have_one(play: Playbook, destination: str, more: tuple[str, ...]) -> None:
    assert isinstance(play.subscribe("1", destination, "selector:a = 1", *more), Subscription)


def test_what_is_no_selector_is_refused_with_the_reason(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/topic/t", "selector:a =")
    assert play.said() == ["ERROR Invalid selector: The selector cannot be read: it ends too early."]
    assert play.asked() is None


@pytest.mark.parametrize("destination", ["/queue/q", "/topic/t"])
def test_an_empty_selector_is_none(play: Playbook, destination: str) -> None:
    subscription = play.subscribe("1", destination, "selector: ")
    deliver(subscription, 1)
    assert play.said() == ["MESSAGE 1 #1 "]


def test_without_the_setting_the_header_is_ignored_as_with_the_plugin() -> None:
    playbook = Playbook()
    playbook.connect()
    subscription = playbook.subscribe("1", "/queue/q", "selector:price >")
    deliver(subscription, 1)
    assert playbook.said() == ["MESSAGE 1 #1 "]


# What becomes of messages.


def test_only_what_is_selected_goes_to_the_client_in_its_order(play: Playbook) -> None:
    subscription = subscribe(play, "auto")
    for tag, price in enumerate([50, 5, 5, 50, 5, 50], start=1):
        deliver(subscription, tag, price=price, text=f"m{tag}")
    assert play.said() == ["MESSAGE 1 #1 m1", "MESSAGE 1 #4 m4", "MESSAGE 1 #6 m6"]
    assert settled(play) == ["ack 6 multiple"]


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_what_is_not_selected_is_acknowledged_without_the_client(play: Playbook, mode: str) -> None:
    subscription = subscribe(play, mode)
    deliver(subscription, 1)
    deliver(subscription, 2)
    assert play.said() == []
    assert settled(play) == ["ack 2 multiple"]
    deliver(subscription, 3)
    assert settled(play) == ["ack 3 multiple"]


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_what_the_client_holds_is_not_acknowledged_with_it(play: Playbook, mode: str) -> None:
    subscription = subscribe(play, mode)
    deliver(subscription, 1, price=50)
    deliver(subscription, 2)
    deliver(subscription, 3, price=50)
    assert play.said() == ["MESSAGE 1 #1 ", "MESSAGE 1 #3 "]
    assert settled(play) == ["ack 2"]
    play.client("ACK", f"id:{ack_id(subscription, 1)}")
    assert play.settled() == ["ack 1 multiple"]
    play.client("ACK", f"id:{ack_id(subscription, 3)}")
    assert play.settled() == ["ack 3 multiple"]


def test_it_asks_to_be_settled_at_once_so_that_a_small_prefetch_flows(play: Playbook) -> None:
    subscription = subscribe(play, "client-individual", "price > 10", "prefetch-count:1")
    deliver(subscription, 1)
    assert play.session.subscriptions.auto_acks.is_urgent
    assert settled(play) == ["ack 1 multiple"]


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_the_client_cannot_acknowledge_what_it_did_not_get(play: Playbook, mode: str) -> None:
    subscription = subscribe(play, mode)
    deliver(subscription, 1, price=50)
    deliver(subscription, 2)
    assert play.said() == ["MESSAGE 1 #1 "]
    assert settled(play) == ["ack 2"]
    play.client("ACK", f"id:{ack_id(subscription, 2)}")
    assert play.said() == ["ERROR precondition_failed: PRECONDITION_FAILED - unknown delivery tag 2"]


def test_a_run_of_messages_that_are_alike_is_judged_together(play: Playbook) -> None:
    subscription = subscribe(play, "client")
    deliver(subscription, 1)
    subscription.deliver_alike(2, [b"a", b"b"])
    deliver(subscription, 4, price=50)
    subscription.deliver_alike(5, [b"c", b"d"])
    assert play.said() == ["MESSAGE 1 #4 ", "MESSAGE 1 #5 c", "MESSAGE 1 #6 d"]
    assert settled(play) == ["ack 3 multiple"]


def test_messages_that_alternate_are_each_judged_by_their_own_headers(play: Playbook) -> None:
    subscription = subscribe(play, "auto", "n % 2 = 0")
    blocks = [properties({"n": str(number)}) for number in range(100)]
    for tag in range(1, 301):
        subscription.deliver(tag, False, TOPIC, blocks[tag % 100], b"%d" % tag)
    assert play.said() == [f"MESSAGE 1 #{tag} {tag}" for tag in range(2, 301, 2)]
    assert settled(play) == ["ack 300 multiple"]


def test_large_headers_are_judged_like_others(play: Playbook) -> None:
    subscription = subscribe(play, "auto", "big LIKE 'a%' AND n = 1")
    for tag, number in enumerate("1221", start=1):
        subscription.deliver(tag, False, TOPIC, properties({"big": "a" * 3000, "n": number}), b"")
    assert play.said() == ["MESSAGE 1 #1 ", "MESSAGE 1 #4 "]
    assert settled(play) == ["ack 4 multiple"]


def test_large_headers_are_not_kept(play: Playbook) -> None:
    """One message may reach thousands of subscriptions, and each would keep another one."""
    subscription = subscribe(play, "auto")
    large = properties({"big": "a" * 3000})
    before = sys.getrefcount(large)
    subscription.deliver(1, False, TOPIC, large, b"")
    assert sys.getrefcount(large) == before
    assert settled(play) == ["ack 1 multiple"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The value of ``n`` for each time that a selector is asked."""
    values: list[bytes] = []
    matches = Selector.matches

    def noted(selector: Selector, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        values.append(dict(headers)[b"n"])
        return matches(selector, headers)

    monkeypatch.setattr(Selector, "matches", noted)
    return values


def test_subscriptions_with_the_same_selector_judge_a_message_once(play: Playbook, asked: list[bytes]) -> None:
    several = [play.subscribe(f"{each}", "/topic/t", "selector:n > 1") for each in range(3)]
    other = play.subscribe("other", "/topic/t", "selector:n < 2")
    for number in "12":
        block = properties({"n": number})
        for subscription in (*several, other):
            subscription.deliver(int(number), False, TOPIC, block, b"")
    assert asked == [b"1", b"1", b"2", b"2"]
    assert play.said() == ["MESSAGE other #1 ", *(f"MESSAGE {each} #2 " for each in range(3))]
    assert settled(play) == ["ack 2 multiple"] * 4


def test_messages_that_never_repeat_take_no_room_from_those_that_do(play: Playbook, asked: list[bytes]) -> None:
    subscription = subscribe(play, "auto", "n > 1000")
    blocks = [properties({"n": str(number), "receipt": str(number)}) for number in range(200)]
    blocks += [properties({"n": number}) for number in ("900", "901", "900", "901")]
    for tag, block in enumerate(blocks, start=1):
        subscription.deliver(tag, False, TOPIC, block, b"")
    assert asked[200:] == [b"900", b"901"]
    assert settled(play) == ["ack 204 multiple"]


@pytest.mark.parametrize("tag", [1, 3])
def test_tags_that_do_not_come_one_after_the_other_are_a_fault(play: Playbook, tag: int) -> None:
    subscription = subscribe(play, "client")
    deliver(subscription, 1)
    with pytest.raises(CodecError):
        deliver(subscription, tag)
    assert settled(play) == ["ack 1 multiple"]


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ("destination = '/topic/t'", True),
        ("price = 5 AND type = 'x' AND persistent AND priority = 3", True),
        ("\"correlation-id\" = 'c'", True),
        ('redelivered IS NULL AND "message-id" IS NULL AND subscription IS NULL AND ack IS NULL', True),
        ("price = 6", False),
    ],
)
def test_a_selector_sees_what_the_message_brings(play: Playbook, selector: str, is_selected: bool) -> None:
    table = {"price": "5", "redelivered": "forged", "destination": "/queue/forged"}
    brought = properties(table, type=b"x", delivery_mode=2, priority=3, correlation_id=b"c")
    subscription = subscribe(play, "auto", selector.replace(":", "\\c"))
    subscription.deliver(1, False, TOPIC, brought, b"")
    assert play.said() == ["MESSAGE 1 #1 "] * is_selected
    assert settled(play) == ["ack 1 multiple"]


def test_several_subscriptions_have_selectors_of_their_own(play: Playbook) -> None:
    cheap = play.subscribe("cheap", "/topic/t", "selector:price < 10")
    dear = play.subscribe("dear", "/topic/t", "selector:price > 10")
    for subscription in (cheap, dear):
        deliver(subscription, 1)
        deliver(subscription, 2, price=50)
    assert play.said() == ["MESSAGE cheap #1 ", "MESSAGE dear #2 "]
    assert settled(play) == ["ack 2 multiple", "ack 2 multiple"]


def test_what_arrives_before_the_receipt_is_judged_too(play: Playbook) -> None:
    play.client("SUBSCRIBE", "id:1", "destination:/topic/t", "ack:client", "selector:price > 10", "receipt:r")
    operation = play.asked()
    assert isinstance(operation, ops.Subscribe)
    operation.subscription.set_channel(7)
    deliver(operation.subscription, 1)
    deliver(operation.subscription, 2, price=50)
    play.broker(ops.Subscribed(operation.subscription, "amq.gen-1"), operation)
    assert play.said() == ["RECEIPT r", "MESSAGE 1 #2 "]
    assert settled(play) == ["ack 1 multiple"]


def test_unsubscribe_settles_what_was_not_selected(play: Playbook) -> None:
    subscription = subscribe(play, "client")
    deliver(subscription, 1)
    play.client("UNSUBSCRIBE", "id:1")
    assert isinstance(play.asked(), ops.Unsubscribe)
    assert play.settled() == ["ack 1 multiple"]
    assert settled(play) == []


def test_a_slow_client_gets_everything_in_order_once_it_has_caught_up(play: Playbook) -> None:
    """What was dropped returns to its queue before anything else makes room in the prefetch."""
    subscription = subscribe(play, "client", "price > 10", "prefetch-count:3")
    deliver(subscription, 1)
    subscription.drop_for_requeue(2, False, TOPIC, DEAR, b"")
    subscription.drop_for_requeue(3, False, TOPIC, CHEAP, b"")
    subscription.ledger.requeue_dropped()
    assert settled(play) == ["nack 2 requeue", "nack 3 requeue", "ack 1 multiple"]
    assert subscription.stats.filtered == 1


def test_with_auto_a_slow_client_does_not_stop_the_settling(play: Playbook) -> None:
    subscription = subscribe(play, "auto")
    deliver(subscription, 1)
    subscription.drop_for_requeue(2, False, TOPIC, DEAR, b"")
    subscription.ledger.requeue_dropped()
    assert subscription.stats.outstanding == 0
    assert settled(play) == ["nack 2 requeue", "ack 1 multiple"]
    assert (subscription.stats.outstanding, subscription.stats.acknowledged) == (0, 0)


# After the loss of a link.


@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_the_selector_comes_back_with_its_subscription(play: Playbook, mode: str) -> None:
    subscription = subscribe(play, mode)
    deliver(subscription, 1)
    deliver(subscription, 2, price=50)
    play.said()
    play.recover(play.lose(subscription))
    deliver(subscription, 1, redelivered=True)
    deliver(subscription, 2, price=50, redelivered=True)
    assert play.said() == ["MESSAGE 1 #4 again "]
    settled(play)
    stats = subscription.stats
    assert (stats.delivered, stats.filtered) == (2, 2)


def test_a_stream_goes_on_behind_a_message_that_was_not_selected(play: Playbook) -> None:
    subscription = subscribe(play, "client", "price > 10", "durable:true", "auto-delete:false", "x-queue-type:stream",
                             "x-stream-offset:next")  # fmt: skip
    for tag, offset in ((1, 7), (2, 8)):
        entries = b"\x0fx-stream-offsetl" + offset.to_bytes(8, "big")
        subscription.deliver(tag, False, TOPIC, b"\x20\0" + len(entries).to_bytes(4, "big") + entries, b"")
    assert subscription.next_offset == 9
    operation = play.lose(subscription)
    assert operation.subscriptions[0].arguments["x-stream-offset"] == 9
    play.recover(operation)


# Counting.


@pytest.mark.parametrize("mode", ["auto", "client", "client-individual"])
def test_only_what_went_to_the_client_counts_as_delivered(play: Playbook, mode: str) -> None:
    subscription = subscribe(play, mode)
    for tag, price in enumerate([5, 50, 5, 50], start=1):
        deliver(subscription, tag, price=price, text="xy")
    play.said()
    stats = subscription.stats
    assert (stats.delivered, stats.delivered_bytes, stats.filtered) == (2, 4, 2)
    assert (stats.outstanding, stats.acknowledged) == (2, 0)
    settled(play)
    if mode != "auto":
        play.client("ACK", f"id:{ack_id(subscription, 2)}")
        play.client("ACK", f"id:{ack_id(subscription, 4)}")
        play.settled()
    play.client("UNSUBSCRIBE", "id:1")
    assert isinstance(play.asked(), ops.Unsubscribe)
    past = play.session.subscriptions.past.counter(b"/topic/t", subscription.kind)
    assert (past.delivered, past.acknowledged, past.outstanding, past.filtered) == (2, 2, 0, 2)


class _Counter:
    """An observer's counter."""

    def __init__(self) -> None:
        self.calls: list[object] = []

    def delivered(self, tag: int, redelivered: bool, size: int, /) -> None:
        self.calls.append((tag, redelivered, size))

    def settled(self, tag: int, count: int, requeue: bool | None, /) -> None:
        self.calls.append((tag, count))

    def lost(self, last_tag: int, outstanding: int, /) -> None:
        self.calls.append(("lost", last_tag, outstanding))


def test_an_observer_is_told_of_nothing_that_the_client_did_not_get(play: Playbook) -> None:
    subscription = subscribe(play, "client")
    counter = _Counter()
    subscription.set_counter(counter)
    deliver(subscription, 1)
    deliver(subscription, 2, price=50)
    deliver(subscription, 3)
    play.client("ACK", f"id:{ack_id(subscription, 2)}")
    subscription.lost()
    play.said()
    play.settled()
    assert counter.calls == [(2, False, 0), (2, 1), ("lost", 3, 0)]
