"""The model of a broker refuses what RabbitMQ refuses; a model that accepts everything would prove nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway.amqp.codec import Publication, encode_ack, encode_nack, encode_publish
from gateway.amqp.properties import Properties, encode_around_table
from tests.support.model_broker import ModelBroker, RefusalError
from tests.support.model_channel import Channel

NO_PROPERTIES = b"\0\0"


class Listener:
    """Takes down what a channel calls back."""

    def __init__(self, broker: ModelBroker, *, owner: object = None) -> None:
        self.heard: list[str] = []
        self.channel = Channel(
            broker,
            1,
            owner=owner,
            deliver=lambda tag, again, _route, _properties, body: self.heard.append(
                f"{tag}{' again' if again else ''} {body.decode()}"
            ),
            confirm=lambda sequence, multiple, accepted: self.heard.append(
                f"{'ack' if accepted else 'nack'} {sequence}{' multiple' if multiple else ''}"
            ),
            closed=lambda refusal: self.heard.append(refusal.text),
            cancelled=lambda: self.heard.append("cancelled"),
        )

    def since(self) -> list[str]:
        heard, self.heard = self.heard, []
        return heard


def publication(key: bytes, body: bytes, exchange: bytes = b"", **properties: bytes) -> bytes:
    before, behind = encode_around_table(Properties(**properties))  # type: ignore[arg-type]
    return Publication(1, 4096, encode_publish(1, exchange, key), before, (b"",), behind).encode(body)


@pytest.fixture
def broker() -> ModelBroker:
    broker = ModelBroker()
    broker.declare("q", durable=True)
    return broker


@pytest.fixture
def publisher(broker: ModelBroker) -> Listener:
    listener = Listener(broker)
    listener.channel.confirms = True
    return listener


def consumer(broker: ModelBroker, prefetch: int = 0, queue: str = "q") -> Listener:
    listener = Listener(broker)
    listener.channel.consume(queue, prefetch)
    return listener


def test_confirms_are_coalesced_and_a_message_for_nobody_is_confirmed(broker: ModelBroker, publisher: Listener) -> None:
    publisher.channel.write(publication(b"q", b"one") + publication(b"nowhere", b"two") + publication(b"q", b"three"))
    assert publisher.since() == ["ack 3 multiple"]
    assert broker.queues["q"].depth == 2


def test_a_full_queue_refuses(broker: ModelBroker, publisher: Listener) -> None:
    broker.declare("small", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    publisher.channel.write(b"".join(publication(b"small", b"x") for _ in range(3)) + publication(b"q", b"y"))
    assert publisher.since() == ["ack 1 multiple", "nack 2", "nack 3", "ack 4 multiple"]


def test_after_a_refusal_a_channel_is_closed_and_discards(broker: ModelBroker, publisher: Listener) -> None:
    publisher.channel.write(
        publication(b"q", b"one") + publication(b"k", b"two", b"missing") + publication(b"q", b"three")
    )
    publisher.channel.write(publication(b"q", b"four"))
    assert publisher.since() == ["ack 1 multiple", "NOT_FOUND - no exchange 'missing' in vhost '/'"]
    assert broker.queues["q"].depth == 1


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"user_id": b"other"}, "user_id property set to 'other' but authenticated user was 'guest'"),
        ({"expiration": b"soon"}, "invalid expiration 'soon': no_integer"),
    ],
)
def test_properties_are_checked(publisher: Listener, properties: dict[str, bytes], text: str) -> None:
    publisher.channel.write(publication(b"q", b"x", **properties))
    assert publisher.since() == [f"PRECONDITION_FAILED - {text}"]


def test_prefetch_and_settling(broker: ModelBroker, publisher: Listener) -> None:
    taker = consumer(broker, prefetch=2)
    publisher.channel.write(b"".join(publication(b"q", b"%d" % number) for number in range(5)))
    assert taker.since() == ["1 0", "2 1"]
    taker.channel.write(encode_ack(1, 2, multiple=False))
    assert taker.since() == ["3 2"]
    taker.channel.write(encode_nack(1, 1, multiple=False, requeue=True))
    assert taker.since() == ["4 again 0"]
    taker.channel.write(encode_ack(1, 4, multiple=True))
    assert taker.since() == ["5 3", "6 4"]


@pytest.mark.parametrize("tag", [0, 2, 3])
@pytest.mark.parametrize(
    "encode",
    [
        lambda tag, multiple: encode_ack(1, tag, multiple=multiple),
        lambda tag, multiple: encode_nack(1, tag, multiple=multiple, requeue=True),
    ],
    ids=["ack", "nack"],
)
@pytest.mark.parametrize("multiple", [False, True])
def test_an_unknown_tag_closes_the_channel(
    broker: ModelBroker, publisher: Listener, encode: Callable[[int, bool], bytes], tag: int, multiple: bool
) -> None:
    taker = consumer(broker)
    publisher.channel.write(publication(b"q", b"one") + publication(b"q", b"two"))
    taker.channel.write(encode_ack(1, 2, multiple=False))
    taker.since()
    taker.channel.write(encode(tag, multiple))
    if tag == 0 and multiple:  # means all, also where there are none
        assert taker.channel.is_open
    else:
        assert taker.since() == [f"PRECONDITION_FAILED - unknown delivery tag {tag}"]
        assert broker.queues["q"].depth == 1


def test_what_comes_back_takes_its_old_place(broker: ModelBroker, publisher: Listener) -> None:
    taker = consumer(broker, prefetch=3)
    publisher.channel.write(b"".join(publication(b"q", b"%d" % number) for number in range(5)))
    taker.channel.close()
    assert consumer(broker).since() == ["1 again 0", "2 again 1", "3 again 2", "4 3", "5 4"]


def test_consumers_take_turns_and_a_dropped_queue_is_told(broker: ModelBroker, publisher: Listener) -> None:
    takers = [consumer(broker), consumer(broker)]
    publisher.channel.write(b"".join(publication(b"q", b"%d" % number) for number in range(4)))
    assert [taker.since() for taker in takers] == [["1 0", "2 2"], ["1 1", "2 3"]]
    broker.delete("q")
    assert [taker.since() for taker in takers] == [["cancelled"], ["cancelled"]]


def test_auto_delete_and_exclusive_queues_end_with_those_who_used_them(broker: ModelBroker) -> None:
    owner = object()
    broker.declare("a", auto_delete=True)
    broker.declare("e", exclusive=True, owner=owner)
    with pytest.raises(RefusalError, match="RESOURCE_LOCKED"):
        broker.queue("e", object())
    with pytest.raises(RefusalError, match="RESOURCE_LOCKED"):
        broker.declare("e", owner=object())
    taker = consumer(broker, queue="a")
    taker.channel.close()
    broker.drop_owner(owner)
    assert broker.queues.keys() == {"q"}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "inequivalent arg 'durable' for queue 'q' in vhost '/': received 'false' but current is 'true'"),
        ({"durable": True, "auto_delete": True}, "inequivalent arg 'auto_delete'"),
        ({"durable": True, "exclusive": True, "owner": object()}, "RESOURCE_LOCKED"),
        ({"durable": True, "arguments": {"x-max-length": 1}}, "inequivalent arg"),
    ],
)
def test_a_queue_is_declared_again_only_as_it_is(broker: ModelBroker, flags: dict[str, object], text: str) -> None:
    with pytest.raises(RefusalError, match=text):
        broker.declare("q", **flags)  # type: ignore[arg-type]


def test_an_argument_that_has_no_encoding_is_refused_by_the_oracle(broker: ModelBroker) -> None:
    with pytest.raises(TypeError):
        broker.declare("x", arguments={"x-max-length": 2**63})


@pytest.mark.parametrize(
    ("pattern", "key", "matches"),
    [
        ("a.b", "a.b", True), ("a.b", "a.c", False), ("a.*", "a.b", True), ("a.*", "a", False), ("a.*", "a.b.c", False),
        ("a.#", "a", True), ("a.#", "a.b.c", True), ("#", "", True), ("#.b", "a.x.b", True), ("#.b", "a.b.c", False),
        ("*", "", False), ("a.#.#.b", "a.b", True), ("a.*.#", "a", False), ("a+b", "aab", False),
    ],
)  # fmt: skip
def test_topics(broker: ModelBroker, publisher: Listener, pattern: str, key: str, matches: bool) -> None:
    broker.bind("q", "amq.topic", pattern)
    publisher.channel.write(publication(key.encode(), b"x", b"amq.topic"))
    assert broker.queues["q"].depth == matches


def test_a_frame_for_another_channel_is_a_fault(publisher: Listener) -> None:
    with pytest.raises(AssertionError, match="channel 2"):
        publisher.channel.write(encode_ack(2, 1, multiple=False))


STREAM = {"x-queue-type": "stream"}


@pytest.mark.parametrize(
    ("offset", "heard"),
    [("first", ["1 a", "2 b"]), ("last", ["1 b"]), ("next", []), (None, []), (1, ["1 b"]), (9, [])],
)
def test_a_stream_keeps_its_messages_for_whoever_begins_where(
    broker: ModelBroker, publisher: Listener, offset: object, heard: list[str]
) -> None:
    broker.declare("s", durable=True, arguments=STREAM)
    publisher.channel.write(publication(b"s", b"a") + publication(b"s", b"b"))
    for _ in range(2):
        reader = Listener(broker)
        reader.channel.consume("s", 10, {"x-stream-offset": offset} if offset is not None else {})
        assert reader.since() == heard
        reader.channel.close()
    assert broker.queues["s"].depth == 2


def test_a_stream_takes_nothing_back(broker: ModelBroker, publisher: Listener) -> None:
    broker.declare("s", durable=True, arguments=STREAM)
    publisher.channel.write(publication(b"s", b"a"))
    reader = Listener(broker)
    reader.channel.consume("s", 10, {"x-stream-offset": "first"})
    with pytest.raises(AssertionError, match="the whole link"):
        reader.channel.write(encode_nack(1, 1, multiple=False, requeue=True))


@pytest.mark.parametrize(
    ("arguments", "prefetch", "text"),
    [(STREAM, 0, "prefetch count is not set"), ({}, 10, "invalid arg 'x-stream-offset'")],
)
def test_how_a_stream_is_consumed_and_what_is_none(
    broker: ModelBroker, arguments: dict[str, object], prefetch: int, text: str
) -> None:
    broker.declare("s", durable=True, arguments=arguments)
    with pytest.raises(RefusalError, match=text):
        Listener(broker).channel.consume("s", prefetch, {"x-stream-offset": "first"})


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"durable": True, "auto_delete": True, "arguments": STREAM}, "invalid property 'auto-delete'"),
        ({"durable": False, "arguments": STREAM}, "invalid property 'non-durable'"),
        ({"durable": True, "arguments": {"x-queue-type": "other"}}, "invalid arg 'x-queue-type'"),
        ({"durable": True, "arguments": {"x-message-ttl": -5}}, "value_negative,-5"),
    ],
)
def test_queues_that_rabbitmq_does_not_make(broker: ModelBroker, flags: dict[str, Any], text: str) -> None:
    with pytest.raises(RefusalError, match=text):
        broker.declare("n", **flags)
