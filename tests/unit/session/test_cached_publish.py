"""SEND, translated once: what is wrong with it, what it needs first, and what AMQP frames it becomes."""

from typing import Any

import pytest
from pamqp import body, commands, header

from gateway.errors import StompError
from gateway.session.cached_publish import CachedPublish, PublishChannel
from gateway.session.queues import QueueSpec
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame import Frame
from tests.support.playbook import amqp_frames, stomp


def frame(*headers: str, body: bytes = b"") -> Frame:
    decoder = Decoder()
    decoder.feed(stomp("SEND", *headers, body=body))
    found = decoder.next_frame()
    assert found is not None
    return found


def cached(*headers: str, topic_exchange: bytes = b"amq.topic") -> CachedPublish:
    sent = frame(*headers)
    return CachedPublish(sent.headers, sent.header_block.volatile, topic_exchange)


def encoded(sent: Frame, reply_queue: bytes | None = None, frame_max: int = 131_072) -> list[Any]:
    """The frames of a message as pamqp reads them."""
    made = CachedPublish(sent.headers, sent.header_block.volatile, b"amq.topic")
    publication = made.build(PublishChannel(3, frame_max), reply_queue)
    frames = list(amqp_frames(publication.encode(bytes(sent.body), made.values(sent.receipt, sent.length))))
    assert {channel for channel, _ in frames} == {3}
    return [found for _, found in frames]


def test_a_message_is_a_method_a_header_and_a_body() -> None:
    method, content, data = encoded(frame("destination:/topic/a", "color:red", "priority:3", body=b"hello"))
    assert isinstance(method, commands.Basic.Publish)
    assert (method.exchange, method.routing_key, method.mandatory, method.immediate) == ("amq.topic", "a", False, False)
    assert isinstance(content, header.ContentHeader)
    assert (content.body_size, content.properties.headers, content.properties.priority) == (5, {"color": "red"}, 3)
    assert isinstance(data, body.ContentBody)
    assert data.value == b"hello"


def test_an_empty_message_has_no_body_frame() -> None:
    method, content = encoded(frame("destination:/queue/q"))
    assert (method.exchange, method.routing_key, content.body_size) == ("", "q", 0)
    assert content.properties.headers == {}


def test_a_large_message_is_cut_to_the_brokers_frames() -> None:
    _, content, *bodies = encoded(frame("destination:/queue/q", body=b"x" * 10_000), frame_max=4096)
    assert content.body_size == 10_000
    assert [len(each.value) for each in bodies] == [4088, 4088, 1824]


def test_what_belongs_to_the_single_frame_is_filled_in_for_each() -> None:
    sent = frame("receipt:r1", "a:1", "destination:/queue/q", "content-length:5", body=b"hello")
    made = CachedPublish(sent.headers, sent.header_block.volatile, b"amq.topic")
    publication = made.build(PublishChannel(3, 131_072), None)
    for receipt, text in ((b"r1", b"hello"), (b"another", b"hi"), (b"", b"")):
        _, (_, content), *_ = amqp_frames(publication.encode(text, made.values(receipt, b"%d" % len(text))))
        assert content.properties.headers == {
            "content-length": str(len(text)), "a": "1", "receipt": receipt.decode()
        }  # fmt: skip


@pytest.mark.parametrize(
    "headers",
    [("receipt:r",), ("content-length:2",), ("content-length:2", "receipt:r"), ("receipt:r", "content-length:2")],
)
def test_gaps_are_filled_in_their_order(headers: tuple[str, ...]) -> None:
    _, content, _ = encoded(frame(*headers, "destination:/queue/q", body=b"hi"))
    assert content.properties.headers == dict(line.split(":") for line in headers)


@pytest.mark.parametrize(
    ("headers", "queue"),
    [
        (["destination:/queue/q"], QueueSpec("q", durable=True)),
        (["destination:q"], QueueSpec("q", durable=True)),
        (["destination:/queue/a%2Fb", "x-max-length:3"], QueueSpec("a/b", durable=True, arguments={"x-max-length": 3})),
        (["destination:/queue/q", "durable:false"], QueueSpec("q", exclusive=True, auto_delete=True)),
        (["destination:/topic/t", "durable:perhaps"], None),
        (["destination:/exchange/e/k"], None),
        (["destination:/amq/queue/q"], None),
        (["destination:/reply-queue/a/b"], None),
    ],
)
def test_only_queues_are_declared(headers: list[str], queue: QueueSpec | None) -> None:
    assert cached(*headers).request.queue == queue


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ([], "Missing destination"),
        (["message-id:mine"], "Invalid header"),
        (["message-id:mine", "destination:/bad"], "Invalid header"),
        (["destination:"], "Invalid destination"),
        (["destination:/queue/"], "Invalid destination"),
        (["destination:/nowhere/at/all"], "Unknown destination"),
        (["destination:/temp-queue/a"], "Invalid destination"),
        (["destination:/queue/q", "priority:high"], "Processing error"),
        (["destination:/queue/q", "timestamp:now"], "Processing error"),
        (["destination:/queue/q", "durable:perhaps"], "Processing error"),
        (["destination:/topic/t", "x-max-length:many"], "Processing error"),
        (["destination:/queue/q", "x-max-length:many"], "Processing error"),
        (["destination:/queue/q", "reply-to:/bad/destination"], "Processing error"),
        (["destination:/queue/q", "reply-to:/temp-queue/"], "Processing error"),
        (["destination:/queue/q", "reply-to:/temp-queue/a/b"], "Processing error"),
        (["destination:/queue/q", "x-queue-type:stream", "x-max-age:long"], "Processing error"),
        (["destination:/queue/q", "x-queue-type:stream", "x-max-age:"], "Processing error"),
        (["destination:/topic/t", "x-max-age:1h2m"], "Processing error"),
        (["destination:/temp-queue/a", "x-max-length:many"], "Processing error"),
        (["destination:/queue/" + "x" * 256], "Invalid header"),
        (["destination:/topic/" + "x" * 256], "Invalid header"),
        (["destination:/exchange/" + "x" * 256 + "/k"], "Invalid header"),
        (["destination:/exchange/e/" + "x" * 256], "Invalid header"),
        (["destination:/queue/q", "correlation-id:" + "x" * 256], "Invalid header"),
        (["destination:/queue/q", "reply-to:/queue/" + "x" * 256], "Invalid header"),
        (["destination:/queue/q", "x" * 256 + ":y"], "Invalid header"),
    ],
)
def test_what_is_wrong_with_a_send_is_found_before_anything_is_asked_of_the_broker(
    headers: list[str], message: str
) -> None:
    with pytest.raises(StompError) as found:
        cached(*headers)
    assert found.value.message == message
    assert found.value.close is None


@pytest.mark.parametrize("text", ["/queue/" + "x" * 255, "/topic/" + "x" * 255, "/exchange/e/" + "x" * 255])
def test_255_bytes_are_not_too_many(text: str) -> None:
    assert len(cached(f"destination:{text}").request.routing_key) == 255


def test_a_queue_that_is_no_text_cannot_be_declared_but_a_key_can_be_anything() -> None:
    with pytest.raises(StompError, match="Invalid header"):
        CachedPublish({b"destination": b"/queue/\xff"}, (), b"amq.topic")
    assert CachedPublish({b"destination": b"/topic/\xff"}, (), b"amq.topic").request.routing_key == b"\xff"


def test_the_virtual_hosts_topic_exchange_stands_in_for_amq_topic() -> None:
    assert cached("destination:/topic/a", topic_exchange=b"mine").request.exchange == b"mine"
    assert cached("destination:/exchange/amq.topic/a", topic_exchange=b"mine").request.exchange == b"mine"


def test_a_temporary_queue_takes_the_place_of_its_name() -> None:
    sent = frame("destination:/queue/q", "reply-to:/temp-queue/a")
    made = CachedPublish(sent.headers, sent.header_block.volatile, b"amq.topic")
    assert made.request.temp_queue == b"/temp-queue/a"
    _, content = encoded(sent, b"amq.gen-1")
    assert content.properties.reply_to == "amq.gen-1"
    assert "reply-to" not in content.properties.headers


@pytest.mark.parametrize("text", ["/queue/answers", "answers", "/reply-queue/a/b", "/exchange/e/k", "/topic/t", ""])
def test_every_other_destination_to_reply_to_passes_as_it_is(text: str) -> None:
    sent = frame("destination:/queue/q", f"reply-to:{text}")
    assert CachedPublish(sent.headers, sent.header_block.volatile, b"amq.topic").request.temp_queue is None
    _, content = encoded(sent)
    assert content.properties.reply_to == text


def test_a_transaction_is_taken_note_of() -> None:
    assert cached("destination:/queue/q").request.transaction is None
    assert cached("destination:/queue/q", "transaction:").request.transaction == b""
