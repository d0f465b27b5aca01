"""Destinations: any text means something or is an error; escapes lose nothing; durable names are the plugin's."""

from urllib.parse import unquote_to_bytes

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.errors import StompError
from gateway.parity.amqp_broker import subscription_queue
from gateway.session.destinations import Destination, DestinationKind, durable_queue_name, message_destination, parse
from tests.property.amqp_frames import texts

names = st.binary(min_size=1, max_size=40)
# What survives the way through a MESSAGE and back: %2F is the only escape that is read, though more are written.
readable = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="%"), min_size=1)


@given(
    st.binary(max_size=40)
    | st.lists(
        st.sampled_from([b"/", b"queue", b"topic", b"exchange", b"amq", b"reply-queue", b"temp-queue", b"a", b"%2F"]),
        max_size=8,
    ).map(b"".join)
)
def test_any_text_is_a_destination_or_an_error_that_leaves_the_connection_open(text: bytes) -> None:
    found = _read(text)
    if isinstance(found, StompError):
        assert found.message in ("Invalid destination", "Unknown destination")
        assert found.close is None
    else:
        assert found.name
        exchange, key = found.route(b"amq.topic")
        assert (exchange, key) in {(b"", found.name), (b"amq.topic", found.name), (found.name, found.key)}


def _read(text: bytes) -> Destination | StompError:
    try:
        return parse(text)
    except StompError as error:
        return error


@given(readable)
@example("/")
@example("a/b//c")
def test_what_a_message_shows_can_be_sent_to(name: str) -> None:
    queue = name.encode()
    assert parse(message_destination(b"", queue)) == Destination(DestinationKind.QUEUE, queue)
    assert parse(message_destination(b"amq.topic", queue)) == Destination(DestinationKind.TOPIC, queue)


@given(readable.filter(lambda name: name != "amq.topic"), readable)
def test_what_a_message_shows_of_an_exchange_can_be_sent_to(exchange: str, key: str) -> None:
    found = parse(message_destination(exchange.encode(), key.encode()))
    assert found.route(b"amq.topic") == (exchange.encode(), key.encode())
    assert parse(message_destination(exchange.encode(), b"")).route(b"amq.topic") == (exchange.encode(), b"")


@given(st.binary(max_size=255), st.binary(max_size=255))
def test_showing_loses_nothing_and_leaves_no_byte_that_needs_care(exchange: bytes, key: bytes) -> None:
    shown = message_destination(exchange, key)
    assert all(32 <= byte <= 127 for byte in shown)
    kind, *parts = shown.split(b"/")[1:]
    expected = {b"queue": [key], b"topic": [key], b"exchange": [exchange, *([key] if key else [])]}[kind]
    assert [unquote_to_bytes(part) for part in parts] == expected
    assert (kind == b"queue", kind == b"topic") == (exchange == b"", exchange == b"amq.topic")


@given(names)
def test_any_name_can_be_written_as_a_destination(name: bytes) -> None:
    written = name.replace(b"/", b"%2F")
    if b"%2F" not in name:
        for prefix, kind in (
            (b"/queue/", DestinationKind.QUEUE),
            (b"/topic/", DestinationKind.TOPIC),
            (b"/amq/queue/", DestinationKind.AMQ_QUEUE),
        ):
            assert parse(prefix + written) == Destination(kind, name)
        assert parse(b"/reply-queue/" + name) == Destination(DestinationKind.REPLY_QUEUE, name)


@given(texts(300), texts(300))
@example("", "")
@example("a", "")
def test_durable_names_are_those_of_a_second_hand(routing_key: str, identifier: str) -> None:
    expected = subscription_queue(routing_key, identifier)
    assert durable_queue_name(routing_key.encode(), identifier.encode()) == expected.encode()


@given(names, names, names, names)
def test_different_subscriptions_have_different_names(a: bytes, b: bytes, c: bytes, d: bytes) -> None:
    assert (durable_queue_name(a, b) == durable_queue_name(c, d)) == ((a, b) == (c, d))
