"""Destinations: every row of the plugin's table, escapes in both directions, and names that must never change."""

from hashlib import md5

import pytest

from gateway.errors import StompError
from gateway.session.destinations import (
    Destination,
    DestinationKind,
    durable_queue_name,
    message_destination,
    message_reply_to,
    not_for,
    parse,
    subscription_queue_name,
)

TOPIC = b"amq.topic"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"name", Destination(DestinationKind.QUEUE, b"name")),
        (b"a b.c:d", Destination(DestinationKind.QUEUE, b"a b.c:d")),
        (b"a%2Fb", Destination(DestinationKind.QUEUE, b"a/b")),
        (b"/queue/name", Destination(DestinationKind.QUEUE, b"name")),
        (b"/queue/a%2Fb", Destination(DestinationKind.QUEUE, b"a/b")),
        (b"/queue/%2F", Destination(DestinationKind.QUEUE, b"/")),
        (b"/queue/a%2fb%25%20", Destination(DestinationKind.QUEUE, b"a%2fb%25%20")),
        (b"/queue/%252F", Destination(DestinationKind.QUEUE, b"%252F")),
        (b"/queue/ ", Destination(DestinationKind.QUEUE, b" ")),
        (b"/queue/\xff", Destination(DestinationKind.QUEUE, b"\xff")),
        (b"/topic/a.*.#", Destination(DestinationKind.TOPIC, b"a.*.#")),
        (b"/topic/a%2Fb", Destination(DestinationKind.TOPIC, b"a/b")),
        (b"/exchange/e", Destination(DestinationKind.EXCHANGE, b"e")),
        (b"/exchange/e/", Destination(DestinationKind.EXCHANGE, b"e", b"")),
        (b"/exchange/e/k", Destination(DestinationKind.EXCHANGE, b"e", b"k")),
        (b"/exchange/e%2Ff/k%2Fl", Destination(DestinationKind.EXCHANGE, b"e/f", b"k/l")),
        (b"/amq/queue/name", Destination(DestinationKind.AMQ_QUEUE, b"name")),
        (b"/amq/queue/a%2Fb", Destination(DestinationKind.AMQ_QUEUE, b"a/b")),
        (b"/reply-queue/name", Destination(DestinationKind.REPLY_QUEUE, b"name")),
        (b"/reply-queue/a/b%2Fc/", Destination(DestinationKind.REPLY_QUEUE, b"a/b/c/")),
        (b"/reply-queue//a", Destination(DestinationKind.REPLY_QUEUE, b"/a")),
        (b"/temp-queue/id", Destination(DestinationKind.TEMP_QUEUE, b"id")),
    ],
)
def test_what_a_destination_means(text: bytes, expected: Destination) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "rest", "kind"),
    [
        (b"/queue", b"", b"queue"),
        (b"/queue/", b"/", b"queue"),
        (b"/queue//", b"//", b"queue"),
        (b"/queue/a/", b"/a/", b"queue"),
        (b"/queue/a/b", b"/a/b", b"queue"),
        (b"/queue//a", b"//a", b"queue"),
        (b"/topic", b"", b"topic"),
        (b"/topic/", b"/", b"topic"),
        (b"/topic/a/b/c", b"/a/b/c", b"topic"),
        (b"/exchange", b"", b"exchange"),
        (b"/exchange/", b"/", b"exchange"),
        (b"/exchange//foo", b"//foo", b"exchange"),
        (b"/exchange/e/k/l", b"/e/k/l", b"exchange"),
        (b"/exchange/e//", b"/e//", b"exchange"),
        (b"/amq/queue", b"", b"amqqueue"),
        (b"/amq/queue/", b"/", b"amqqueue"),
        (b"/amq/queue/a/b", b"/a/b", b"amqqueue"),
        (b"/reply-queue/", b"/", b"reply_queue"),
        (b"/temp-queue", b"", b"temp_queue"),
        (b"/temp-queue/", b"/", b"temp_queue"),
        (b"/temp-queue/a/b", b"/a/b", b"temp_queue"),
    ],
)
def test_a_destination_that_does_not_have_the_form_of_its_kind(text: bytes, rest: bytes, kind: bytes) -> None:
    with pytest.raises(StompError, match="Invalid destination") as found:
        parse(text)
    assert found.value.body == b"'%b' is not a valid %b destination\n" % (rest, kind)
    assert found.value.close is None


@pytest.mark.parametrize(
    "text",
    [b"/", b"//", b"/foo/bar", b"/amq/foo", b"/amq", b"/reply-queue", b"/queuefoo", b"/queues/a", b"/Queue/a", b"a/b",
     b" /queue/a", b"/topic.a"],
)  # fmt: skip
def test_a_destination_of_no_kind(text: bytes) -> None:
    with pytest.raises(StompError, match="Unknown destination") as found:
        parse(text)
    assert found.value.body == (
        b"'%b' is not a valid destination.\n"
        b"Valid destination types are: /temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue/.\n" % text
    )


def test_a_blank_destination() -> None:
    with pytest.raises(StompError, match="Invalid destination") as found:
        parse(b"")
    assert found.value.body == b"Destination cannot be blank"


def test_a_temporary_queue_is_for_reply_to_alone() -> None:
    assert not_for(b"SEND", b"/temp-queue/foo").body == b"'/temp-queue/foo' is not a valid destination for 'SEND'\n"


@pytest.mark.parametrize(
    ("text", "topic_exchange", "route", "binding_key"),
    [
        (b"/queue/a", TOPIC, (b"", b"a"), b""),
        (b"/amq/queue/a", TOPIC, (b"", b"a"), b""),
        (b"/reply-queue/a", TOPIC, (b"", b"a"), b""),
        (b"/topic/k", TOPIC, (b"amq.topic", b"k"), b"k"),
        (b"/exchange/e/k", TOPIC, (b"e", b"k"), b"k"),
        (b"/exchange/e", TOPIC, (b"e", b""), b""),
        (b"/exchange/amq.topic/k", TOPIC, (b"amq.topic", b"k"), b"k"),
        (b"/topic/k", b"mine", (b"mine", b"k"), b"k"),
        (b"/exchange/amq.topic/k", b"mine", (b"mine", b"k"), b"k"),
        (b"/exchange/other/k", b"mine", (b"other", b"k"), b"k"),
        (b"/queue/amq.topic", b"mine", (b"", b"amq.topic"), b""),
    ],
)
def test_where_a_destination_leads(
    text: bytes, topic_exchange: bytes, route: tuple[bytes, bytes], binding_key: bytes
) -> None:
    destination = parse(text)
    assert destination.route(topic_exchange) == route
    assert destination.binding_key == binding_key


@pytest.mark.parametrize(
    ("exchange", "key", "shown"),
    [
        (b"", b"q", b"/queue/q"),
        (b"", b"", b"/queue/"),
        (b"amq.topic", b"a.b", b"/topic/a.b"),
        (b"amq.topic", b"", b"/topic/"),
        (b"e", b"k", b"/exchange/e/k"),
        (b"e", b"", b"/exchange/e"),
        (b"e/f", b"k/l", b"/exchange/e%2Ff/k%2Fl"),
        (b"", "k/%é ~".encode(), b"/queue/k%2F%25%C3%A9 ~"),
        (b"", b"\x00\x1f \x7e\x7f\x80\xff", b"/queue/%00%1F \x7e\x7f%80%FF"),
    ],
)
def test_the_destination_that_a_message_shows(exchange: bytes, key: bytes, shown: bytes) -> None:
    assert message_destination(exchange, key) == shown


@pytest.mark.parametrize(
    ("reply_to", "shown"),
    [
        (b"answers", b"/reply-queue/answers"),
        (b"", b"/reply-queue/"),
        (b"/temp-queue/z", b"/reply-queue//temp-queue/z"),
        (b"/foo", b"/reply-queue//foo"),
        (b"/reply-queue", b"/reply-queue//reply-queue"),
        (b"/reply-queue/a", b"/reply-queue/a"),
        (b"/queue/a", b"/queue/a"),
        (b"/queuefoo", b"/queuefoo"),
        (b"/topic/a", b"/topic/a"),
        (b"/exchange/e", b"/exchange/e"),
        (b"/amq/queue/a", b"/amq/queue/a"),
        (b"/amq/other", b"/reply-queue//amq/other"),
    ],
)
def test_the_reply_to_that_a_message_shows(reply_to: bytes, shown: bytes) -> None:
    assert message_reply_to(reply_to) == shown


@pytest.mark.parametrize(
    ("routing_key", "identifier", "name"),
    [
        (b"durable", b"test.subscription", b"stomp-subscription-tMbeqL30tjlgaXMmaFM6Ew"),
        (b"parity-47b627-t", b"s1", b"stomp-subscription-uUQaJOdzV4DrjEGlJPa5ZQ"),
        (b"", b"x", b"stomp-subscription-h-fwebydKM-y5XzgjiGmqA"),
        ("é/ü".encode(), b"id 1", b"stomp-subscription-PiifqndME6ID85Il3mI-Dw"),
        (b"a" * 70_000, b"z", b"stomp-subscription-Npwm-C18mSL9f8UZHoPbBg"),
    ],
)
def test_durable_queue_names_are_those_of_every_released_plugin(
    routing_key: bytes, identifier: bytes, name: bytes
) -> None:
    assert durable_queue_name(routing_key, identifier) == name


def test_erlang_writes_a_long_text_otherwise_from_65536_bytes_on() -> None:
    names = {durable_queue_name(b"a" * size, b"z") for size in (65_534, 65_535, 65_536, 65_537)}
    assert len(names) == 4
    # Computed from the external term format by hand: STRING_EXT up to 65535 bytes, LIST_EXT from there on.
    longest = b"\x83h\x02k\xff\xff" + b"a" * 65_535 + b"k\0\x01z"
    longer = b"\x83h\x02l\0\x01\0\0" + b"aa" * 65_536 + b"jk\0\x01z"
    for size, term in ((65_535, longest), (65_536, longer)):
        digest = md5(term, usedforsecurity=False).digest()
        assert durable_queue_name(b"a" * size, b"z") == subscription_queue_name(digest)


def test_a_subscription_queue_name_is_22_characters_behind_its_prefix() -> None:
    assert subscription_queue_name(b"\xff" * 16) == b"stomp-subscription-" + b"_" * 21 + b"w"
