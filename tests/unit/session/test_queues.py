"""Which queue a destination needs, with which flags, name and arguments."""

import pytest

from gateway.config.virtual_host import VirtualHost
from gateway.errors import StompError
from gateway.session.destinations import parse
from gateway.session.queues import (
    DeclaredQueues,
    QueueRules,
    QueueSpec,
    bound_queue_name,
    consumer_arguments,
    is_durable,
    name_for_broker,
    queue_arguments,
    sent_queue,
    subscribed_queue,
)

FALLBACK = b"stomp-subscription-by-chance"
SETTINGS = VirtualHost(name="/")
RULES = QueueRules()
Headers = dict[bytes, bytes]


def headers(*lines: str) -> Headers:
    return {name.encode(): value.encode() for name, _, value in (line.partition(":") for line in lines)}


def flags(queue: QueueSpec | None) -> str:
    """The set flags in words."""
    assert queue is not None
    shown = [name for name in ("durable", "exclusive", "auto_delete") if getattr(queue, name)]
    return " ".join(shown)


@pytest.mark.parametrize(
    ("destination", "lines", "expected"),
    [
        ("/queue/q", [], "durable"),
        ("/queue/q", ["durable:true"], "durable"),
        ("/queue/q", ["auto-delete:true"], "durable auto_delete"),
        ("/queue/q", ["exclusive:true"], "durable exclusive"),
        ("/queue/q", ["durable:false"], "exclusive auto_delete"),
        ("/queue/q", ["persistent:false"], "exclusive auto_delete"),
        ("/queue/q", ["durable:false", "exclusive:false"], "auto_delete"),
        ("/queue/q", ["durable:false", "auto-delete:false"], "exclusive"),
        ("/queue/q", ["durable:false", "auto-delete:false", "exclusive:false"], ""),
        ("/queue/q", ["durable:True", "auto-delete:True", "exclusive:True"], "durable exclusive auto_delete"),
        ("/queue/q", ["durable:False"], "exclusive auto_delete"),
        ("/queue/q", ["auto-delete:junk", "exclusive:junk"], "durable"),
        ("/queue/q", ["durable:true", "persistent:false"], "exclusive auto_delete"),
        ("/queue/q", ["persistent:false", "durable:true"], "durable"),
        ("/topic/t", [], "auto_delete"),
        ("/topic/t", ["durable:true"], "durable auto_delete"),
        ("/topic/t", ["persistent:true"], "durable auto_delete"),
        ("/topic/t", ["durable:true", "auto-delete:false"], "durable"),
        ("/topic/t", ["auto-delete:false"], ""),
        ("/topic/t", ["exclusive:true"], "exclusive auto_delete"),
        ("/topic/t", ["persistent:true", "durable:false"], "auto_delete"),
        ("/exchange/e/k", [], "auto_delete"),
        ("/exchange/e/k", ["durable:true"], "durable auto_delete"),
        ("/exchange/e", ["durable:true", "auto-delete:false"], "durable"),
    ],
)
def test_the_flags_of_a_subscribed_queue(destination: str, lines: list[str], expected: str) -> None:
    given = headers("id:1", *lines)
    assert flags(subscribed_queue(parse(destination.encode()), given, FALLBACK, SETTINGS, RULES)) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], "durable"),
        (["auto-delete:true"], "durable auto_delete"),
        (["durable:false"], "exclusive auto_delete"),
        (["exclusive:true"], "durable exclusive"),
        # A departure: on SEND, persistent speaks of the message only.
        (["persistent:false"], "durable"),
        (["persistent:true"], "durable"),
        (["persistent:junk"], "durable"),
        (["durable:false", "persistent:true"], "exclusive auto_delete"),
    ],
)
def test_the_flags_of_a_queue_that_is_sent_to(lines: list[str], expected: str) -> None:
    queue = sent_queue(parse(b"/queue/q"), headers(*lines), RULES)
    assert queue.name == "q"
    assert flags(queue) == expected


@pytest.mark.parametrize("name", ["durable", "persistent"])
@pytest.mark.parametrize("destination", [b"/queue/q", b"/topic/t", b"/exchange/e/k"])
def test_durability_that_is_neither_true_nor_false_is_an_error(destination: bytes, name: str) -> None:
    with pytest.raises(StompError, match="Processing error"):
        subscribed_queue(parse(destination), headers("id:1", f"{name}:perhaps"), FALLBACK, SETTINGS, RULES)


def test_a_send_to_a_queue_wants_to_know_about_durable() -> None:
    with pytest.raises(StompError, match="Processing error"):
        sent_queue(parse(b"/queue/q"), headers("durable:perhaps"), RULES)


@pytest.mark.parametrize("destination", [b"/amq/queue/q", b"/reply-queue/q"])
def test_queues_of_others_are_not_declared(destination: bytes) -> None:
    assert subscribed_queue(parse(destination), headers("id:1", "durable:perhaps"), FALLBACK, SETTINGS, RULES) is None


@pytest.mark.parametrize(
    ("destination", "lines", "name"),
    [
        ("/topic/durable", ["id:test.subscription", "durable:true"], "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        ("/topic/durable", ["id:test.subscription", "persistent:true"], "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        ("/exchange/any/durable", ["id:test.subscription", "durable:True"],
         "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        ("/exchange/e", ["id:x", "durable:true"], "stomp-subscription-h-fwebydKM-y5XzgjiGmqA"),
        ("/topic/é%2Fü", ["id:id 1", "durable:true"], "stomp-subscription-PiifqndME6ID85Il3mI-Dw"),
        # It is an OR, whatever the flag of the queue will be.
        ("/topic/durable", ["id:test.subscription", "persistent:true", "durable:false"],
         "stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        ("/topic/t", ["id:1"], FALLBACK.decode()),
        ("/topic/t", ["id:1", "durable:false"], FALLBACK.decode()),
        ("/topic/t", ["id:1", "x-queue-name:mine"], "mine"),
        ("/topic/t", ["id:1", "x-queue-name:mine", "durable:true"], "mine"),
        ("/exchange/e/k", ["id:1", "x-queue-name:mine"], "mine"),
        ("/topic/t", ["id:1", "x-queue-name:"], ""),
        ("/queue/q", ["id:1", "x-queue-name:mine"], "q"),
    ],
)  # fmt: skip
def test_the_name_of_a_subscribed_queue(destination: str, lines: list[str], name: str) -> None:
    queue = subscribed_queue(parse(destination.encode()), headers(*lines), FALLBACK, SETTINGS, RULES)
    assert queue is not None
    assert queue.name == name


def test_unsubscribe_finds_the_same_name() -> None:
    given = headers("id:test.subscription", "durable:true")
    assert (
        bound_queue_name(parse(b"/topic/durable"), given, b"", SETTINGS) == b"stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"
    )


@pytest.mark.parametrize(
    ("lines", "durable"),
    [
        ([], False), (["durable:true"], True), (["durable:True"], True), (["persistent:true"], True),
        (["durable:false", "persistent:true"], True), (["durable:false"], False), (["durable:junk"], False),
    ],
)  # fmt: skip
def test_what_is_durable(lines: list[str], durable: bool) -> None:
    assert is_durable(headers(*lines)) is durable


def test_arguments_have_the_types_of_amqp() -> None:
    given = headers(
        "x-dead-letter-exchange: amq.fanout ",
        "x-dead-letter-routing-key:dead",
        "x-queue-type:quorum",
        "x-max-age:1D",
        "x-expires:600000",
        "x-max-length: 10 ",
        "x-max-length-bytes:+20",
        "x-max-priority:3",
        "x-message-ttl:-1",
        "x-stream-max-segment-size-bytes:9223372036854775807",
        "x-stream-filter-size-bytes:16",
        "x-overflow:reject-publish",
        "x-single-active-consumer:true",
        "durable:true",
    )
    assert queue_arguments(given) == {
        "x-dead-letter-exchange": "amq.fanout",
        "x-dead-letter-routing-key": "dead",
        "x-queue-type": "quorum",
        "x-max-age": "1D",
        "x-expires": 600_000,
        "x-max-length": 10,
        "x-max-length-bytes": 20,
        "x-max-priority": 3,
        "x-message-ttl": -1,
        "x-stream-max-segment-size-bytes": 2**63 - 1,
        "x-stream-filter-size-bytes": 16,
    }


NUMBERS = [
    "x-expires", "x-max-length", "x-max-length-bytes", "x-max-priority", "x-message-ttl",
    "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes",
]  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["many", "", "1.5", "0x10", "\t1", str(2**63), str(-(2**63) - 1), "9" * 5000])
def test_a_number_that_amqp_cannot_carry_is_an_error(name: str, value: str) -> None:
    with pytest.raises(StompError):
        queue_arguments(headers(f"{name}:{value}"))


def test_an_argument_that_is_no_text_is_an_error() -> None:
    with pytest.raises(StompError):
        queue_arguments({b"x-dead-letter-exchange": b"\xff"})


def test_arguments_reach_the_queue() -> None:
    queue = sent_queue(parse(b"/queue/q"), headers("x-max-length:10"), RULES)
    assert queue.arguments == {"x-max-length": 10}
    subscribed = subscribed_queue(
        parse(b"/topic/t"), headers("id:1", "x-queue-type:classic"), FALLBACK, SETTINGS, RULES
    )
    assert subscribed is not None
    assert subscribed.arguments == {"x-queue-type": "classic"}


def test_names_for_the_broker_have_255_bytes_at_most() -> None:
    assert name_for_broker(b"destination", b"x" * 255) == "x" * 255
    with pytest.raises(StompError, match="Invalid header") as found:
        name_for_broker(b"destination", "é".encode() * 128)
    assert found.value.body == b"The value of 'destination' has 256 octets; AMQP carries at most 255 there.\n"


def test_names_for_the_broker_are_text() -> None:
    assert name_for_broker(b"destination", "é↑".encode()) == "é↑"
    with pytest.raises(StompError, match="Invalid header") as found:
        name_for_broker(b"x-queue-name", b"\xe9")
    assert b"x-queue-name" in found.value.body


@pytest.mark.parametrize("destination", [b"/queue/" + b"x" * 256, b"/topic/t"])
def test_a_name_that_is_too_long_is_found_before_the_broker_is_asked(destination: bytes) -> None:
    given = headers("id:1") | {b"x-queue-name": b"y" * 256}
    with pytest.raises(StompError, match="Invalid header"):
        subscribed_queue(parse(destination), given, FALLBACK, SETTINGS, RULES)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x-stream-filter:a,b", {"x-stream-filter": ["a", "b"]}),
        ("x-stream-match-unfiltered:true", {"x-stream-match-unfiltered": True}),
        ("x-stream-match-unfiltered:false", {"x-stream-match-unfiltered": False}),
        ("x-stream-offset:last", {"x-stream-offset": "last"}),
        ("x-stream-offset:offset=7", {"x-stream-offset": 7}),
        ("x-priority:-5", {"x-priority": -5}),
        ("color:red", {}),
    ],
)
def test_a_consumer_gets_its_arguments_in_their_types(line: str, expected: dict[str, object]) -> None:
    assert consumer_arguments(headers(line)) == expected


def test_a_filter_that_is_no_text_is_named() -> None:
    with pytest.raises(StompError) as caught:
        consumer_arguments({b"x-stream-filter": b"\xff"})
    assert b"x-stream-filter" in caught.value.body


def test_a_destination_that_amqp_cannot_carry_is_named() -> None:
    for name in (b"\xff", b"x" * 256):
        with pytest.raises(StompError) as caught:
            sent_queue(parse(b"/queue/" + name), {}, RULES)
        assert b"destination" in caught.value.body


def test_a_session_remembers_a_bounded_number_of_queues() -> None:
    queues = DeclaredQueues()
    for number in range(10_001):
        queues.add(f"q{number}", QueueSpec(f"q{number}"))
    assert "q0" not in queues
    assert "q1" in queues
    assert "q10000" in queues
