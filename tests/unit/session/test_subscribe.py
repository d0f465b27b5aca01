"""SUBSCRIBE and UNSUBSCRIBE, read: identity, order of the checks, what is consumed and bound."""

from datetime import datetime

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.session.delivery_ledger import AckMode
from gateway.session.queues import QueueRules, QueueSpec
from gateway.session.subscribe import SubscribeRequest, queue_to_delete, read_subscribe, read_unsubscribe
from gateway.session.subscription import Subscription

FRESH = b"stomp-subscription-fresh"
Headers = dict[bytes, bytes]


def headers(*lines: str) -> Headers:
    return {name.encode(): value.encode() for name, _, value in (line.partition(":") for line in lines)}


def read(*lines: str, topic_exchange: bytes = b"amq.topic") -> SubscribeRequest:
    return read_subscribe(
        headers(*lines), FRESH, VirtualHost(name="/", default_topic_exchange=topic_exchange), QueueRules()
    )


def test_a_queue_is_declared_and_consumed() -> None:
    assert read("id:1", "destination:/queue/q") == SubscribeRequest(
        tag=b"T_1", identifier=b"1", destination=b"/queue/q", mode=AckMode.AUTO, queue=QueueSpec("q", durable=True),
        queue_name="q", binding=None, prefetch=0, arguments={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("destination", "queue_name", "binding", "declared"),
    [
        ("/queue/a%2Fb", "a/b", None, True),
        ("/amq/queue/q", "q", None, False),
        ("/reply-queue/a/b", "a/b", None, False),
        ("/topic/a.*", FRESH.decode(), ("amq.topic", "a.*"), True),
        ("/exchange/e/k", FRESH.decode(), ("e", "k"), True),
        ("/exchange/e", FRESH.decode(), ("e", ""), True),
    ],
)
def test_what_is_consumed_and_bound(
    destination: str, queue_name: str, binding: tuple[str, str] | None, declared: bool
) -> None:
    found = read("id:1", f"destination:{destination}")
    assert (found.queue_name, found.binding, found.queue is not None) == (queue_name, binding, declared)


def test_the_virtual_hosts_topic_exchange_stands_in_for_amq_topic() -> None:
    assert read("id:1", "destination:/topic/k", topic_exchange=b"mine").binding == ("mine", "k")
    assert read("id:1", "destination:/exchange/amq.topic/k", topic_exchange=b"mine").binding == ("mine", "k")


@pytest.mark.parametrize(
    ("lines", "tag", "identifier"),
    [
        (["id:a b"], b"T_a b", b"a b"),
        (["id:"], b"T_", b""),
        ([], b"Q_/topic/t", None),
        (["id:" + "x" * 300], b"T_" + b"x" * 300, b"x" * 300),
        (["id:a@@b"], b"T_a@@b", b"a@@b"),
    ],
)
def test_a_subscription_is_known_by_its_id_or_else_by_its_destination(
    lines: list[str], tag: bytes, identifier: bytes | None
) -> None:
    found = read("destination:/topic/t", *lines)
    assert (found.tag, found.identifier) == (tag, identifier)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("auto", AckMode.AUTO), ("client", AckMode.CLIENT), ("client-individual", AckMode.CLIENT_INDIVIDUAL)],
)
def test_the_ack_modes(text: str, mode: AckMode) -> None:
    assert read("id:1", "destination:/queue/q", f"ack:{text}").mode is mode


@pytest.mark.parametrize(
    ("text", "prefetch"),
    [("0", 0), ("1", 1), (" 7 ", 7), ("65535", 65_535), ("65536", 65_535), ("99999999999", 65_535), ("9" * 30, 65_535)],
)
def test_prefetch_fits_into_amqp(text: str, prefetch: int) -> None:
    assert read("id:1", "destination:/queue/q", f"prefetch-count:{text}").prefetch == prefetch


@pytest.mark.parametrize(
    ("text", "time"),
    [("1600000000", 1_600_000_000), ("+7", 7), ("-5", 0), ("99999999999999", 253_402_214_400)],
)
def test_a_time_before_or_after_all_times_of_amqp_is_the_next_that_it_has(text: str, time: int) -> None:
    offset = read("id:1", "destination:/queue/q", f"x-stream-offset:timestamp={text}").arguments["x-stream-offset"]
    assert isinstance(offset, datetime)
    assert offset.timestamp() == time


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["destination:/topic/t", "durable:true"], "Missing Header"),
        (["destination:/queue/q", "persistent:true"], "Missing Header"),
        (["durable:true"], "Missing Header"),
        # Spelt with a capital letter, the first check overlooks it.
        (["destination:/topic/t", "durable:True"], "Processing error"),
        (["destination:/exchange/e/k", "persistent:True"], "Processing error"),
        (["id:1"], "Missing destination"),
        (["id:1", "destination:/nowhere/"], "Unknown destination"),
        (["id:1", "destination:/temp-queue/a"], "Invalid destination"),
        # The adapter looks at these before it asks whether one can subscribe there.
        (["id:1", "destination:/temp-queue/a", "ack:sometimes"], "Processing error"),
        (["id:1", "destination:/temp-queue/a", "prefetch-count:many"], "Processing error"),
        (["id:1", "destination:/temp-queue/a", "x-expires:soon"], "Processing error"),
        (["id:1", "destination:/temp-queue/a", "durable:perhaps"], "Invalid destination"),
        (["id:1", "destination:/queue/q", "x-stream-offset:offset= 3"], "Processing error"),
        (["id:1", "destination:/queue/q", "x-stream-offset:timestamp=7 "], "Processing error"),
        (["id:1", "destination:/queue/q", "ack:sometimes"], "Processing error"),
        (["id:1", "destination:/queue/q", "ack:"], "Processing error"),
        (["id:1", "destination:/queue/q", "prefetch-count:many"], "Processing error"),
        (["id:1", "destination:/queue/q", "prefetch-count:"], "Processing error"),
        (["id:/temp-queue/x", "destination:/queue/q"], "Processing error"),
        (["id:1", "destination:/topic/" + "x" * 256], "Invalid header"),
        (["id:1", "destination:/exchange/" + "x" * 256], "Invalid header"),
        (["id:1", "destination:/amq/queue/" + "x" * 256], "Invalid header"),
        (["id:1", "destination:/topic/t", "x-queue-name:" + "x" * 256], "Invalid header"),
    ],
)
def test_what_is_wrong_with_a_subscribe(lines: list[str], message: str) -> None:
    with pytest.raises(StompError) as found:
        read(*lines)
    assert found.value.message == message
    assert found.value.close is None


@pytest.mark.parametrize("destination", ["/topic/t", "/queue/q", "/exchange/e", "/amq/queue/q", "/reply-queue/q"])
def test_numbers_that_are_none_are_errors_for_every_kind_of_destination(destination: str) -> None:
    with pytest.raises(StompError, match="Processing error"):
        read("id:1", f"destination:{destination}", "x-max-length:many")


def test_names_that_are_no_text_are_errors() -> None:
    for destination in (b"/amq/queue/\xff", b"/topic/\xff", b"/exchange/\xff/key"):
        with pytest.raises(StompError, match="Invalid header") as caught:
            read_subscribe({b"id": b"1", b"destination": destination}, FRESH, VirtualHost(name="/"), QueueRules())
        assert caught.value.message == "Invalid header"
        assert caught.value.body == b"The value of 'destination' must be UTF-8 to name something on the broker.\n"


# UNSUBSCRIBE.


@pytest.mark.parametrize(
    ("lines", "tag", "description"),
    [
        (["id:x"], b"T_x", b"id='x'"),
        (["id:x", "destination:/queue/q"], b"T_x", b"id='x'"),
        (["id:"], b"T_", b"id=''"),
        (["destination:/queue/q"], b"Q_/queue/q", b"destination='/queue/q'"),
    ],
)
def test_what_an_unsubscribe_names(lines: list[str], tag: bytes, description: bytes) -> None:
    assert read_unsubscribe(headers(*lines)) == (tag, description)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "Missing destination or id"),
        (["durable:true"], "Missing Header"),
        (["destination:/topic/t", "persistent:true"], "Missing Header"),
        (["id:/temp-queue/x"], "Invalid id"),
    ],
)
def test_what_is_wrong_with_an_unsubscribe(lines: list[str], message: str) -> None:
    with pytest.raises(StompError) as found:
        read_unsubscribe(headers(*lines))
    assert found.value.message == message


@pytest.mark.parametrize(
    ("subscribed", "lines", "queue"),
    [
        (b"/topic/durable", ["id:test.subscription", "durable:true"], "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        (b"/topic/durable", ["id:test.subscription", "persistent:True"], "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        (b"/topic/durable", ["id:1", "durable:true", "x-queue-name:mine"], "mine"),
        (b"/topic/durable", ["id:1"], None),
        (b"/topic/durable", ["id:1", "x-queue-name:mine"], None),
        (b"/topic/durable", ["id:1", "durable:false"], None),
        (b"/exchange/e/durable", ["id:1", "durable:true"], None),
        (b"/queue/q", ["id:1", "durable:true"], None),
        (b"q", ["id:1", "durable:true"], None),
    ],
)
def test_which_queue_an_unsubscribe_deletes(subscribed: bytes, lines: list[str], queue: str | None) -> None:
    subscription = Subscription(b"T_1", b"1", AckMode.AUTO, b"s", destination=subscribed)
    subscription.queue = "consumed"
    assert queue_to_delete(subscription, headers(*lines), VirtualHost(name="/")) == queue
    own = VirtualHost(name="/", unsubscribe_deletes="own")
    assert queue_to_delete(subscription, headers(*lines), own) == (None if queue is None else "consumed")
