"""MESSAGE frames of the hot path are what the plain encoder writes, and nobody can forge the server's headers."""

from collections.abc import Sequence

from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from pamqp import commands

from gateway.parity.stomp_peer import FrameReader, ServerFrame
from gateway.pieces import joined
from gateway.session.delivery_ledger import AckMode
from gateway.session.destinations import message_destination, message_reply_to
from gateway.session.subscription import Subscription
from gateway.stomp.frame import encode
from gateway.stomp.headers import unescape
from tests.property.amqp_frames import hand_made, properties, string_tables, tables, texts

OWN = (b"subscription", b"destination", b"message-id", b"redelivered", b"ack", b"content-length")
SESSION = b"session-x"

names = st.binary(max_size=40) | texts(255).map(str.encode)
modes = st.sampled_from(AckMode)
messages = st.tuples(
    st.integers(0, 3),
    st.integers(1, 2**63 - 1),
    st.booleans(),
    st.binary(max_size=30) | st.integers(0, 9000).map(bytes),
)


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def property_lines(given: commands.Basic.Properties) -> list[tuple[bytes, bytes]]:
    """The headers that come from properties, in the order of RabbitMQ's adapter."""
    own = hand_made(given)
    mode = own.delivery_mode
    lines = [
        (b"app-id", own.app_id), (b"user-id", own.user_id), (b"type", own.type),
        (b"timestamp", None if own.timestamp is None else str(own.timestamp).encode()),
        (b"amqp-message-id", own.message_id), (b"expiration", own.expiration),
        (b"reply-to", None if own.reply_to is None else message_reply_to(own.reply_to)),
        (b"correlation-id", own.correlation_id),
        (b"priority", None if own.priority is None else str(own.priority).encode()),
        (b"persistent", None if mode is None else b"true" if mode == 2 else str(mode).encode()),
        (b"content-encoding", own.content_encoding), (b"content-type", own.content_type),
    ]  # fmt: skip
    return [(name, value) for name, value in lines if value is not None]


def slowly(
    subscription: Subscription, given: commands.Basic.Properties, route: tuple[bytes, bytes], tag: int,
    redelivered: bool, body: bytes, shows_ack: bool,
) -> bytes:  # fmt: skip
    """The slow twin: every header written down, and encoded by the encoder of all other frames."""
    message_id = b"%b@@%b@@%d" % (subscription.tag, SESSION, tag)
    headers = [] if subscription.identifier is None else [(b"subscription", subscription.identifier)]
    headers += [
        (b"destination", message_destination(*route)), (b"message-id", message_id),
        (b"redelivered", b"true" if redelivered else b"false"),
    ]  # fmt: skip
    if shows_ack:
        headers.append((b"ack", message_id))
    lines = property_lines(given)
    taken = {*OWN, *(name for name, _ in lines)}
    shown = hand_made(given).headers or []
    headers += [
        (name, value if isinstance(value, bytes) else b"%d" % value) for name, value in shown if name not in taken
    ]
    return encode(b"MESSAGE", headers + lines, body)


@given(
    st.lists(st.tuples(names, names, properties(tables)), min_size=1, max_size=4),
    st.lists(messages, min_size=1, max_size=8),
    modes,
    st.none() | st.binary(max_size=20),
    st.booleans(),
)
def test_a_message_is_what_the_plain_encoder_writes(
    kinds: Sequence[tuple[bytes, bytes, commands.Basic.Properties]],
    deliveries: Sequence[tuple[int, int, bool, bytes]],
    mode: AckMode,
    identifier: bytes | None,
    is_1_2: bool,
) -> None:
    """Several kinds of messages, in any order and again and again, as a cache meets them."""
    tag = b"Q_/queue/q" if identifier is None else b"T_" + identifier
    subscription = Subscription(tag, identifier, mode, SESSION, shows_ack=is_1_2)
    shows_ack = is_1_2 and mode is not AckMode.AUTO
    event(f"kinds: {len({choice % len(kinds) for choice, *_ in deliveries})}")
    for choice, number, redelivered, body in deliveries:
        exchange, key, given_properties = kinds[choice % len(kinds)]
        route = (exchange, key)
        subscription.ledger.last_tag = number - 1
        subscription.deliver(number, redelivered, short(exchange) + short(key), given_properties.marshal(), body)
        data = joined(subscription.output)
        subscription.output.clear()
        assert data == slowly(subscription, given_properties, route, number, redelivered, body, shows_ack)


PROPERTIES = ("type", "app-id", "user-id", "persistent", "priority", "content-type", "reply-to", "amqp-message-id")

forged_names = st.sampled_from([name.decode() for name in OWN]) | st.sampled_from(PROPERTIES) | texts(20)
forgeries = st.dictionaries(forged_names, texts(60) | st.integers(2**31, 2**40), min_size=1, max_size=8)


def read(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """The headers of one frame as a client reads them: its own words for the wire, not the gateway's."""
    reader = FrameReader()
    reader.feed(data)
    found = reader.take()
    assert isinstance(found, ServerFrame)
    assert found.command == b"MESSAGE"
    assert (reader.take(), reader.rest) == (None, b"")
    lines = (line.partition(b":") for line in found.headers)
    return [(unescape(name), unescape(value)) for name, _, value in lines], found.body


@given(properties(forgeries), names, names, st.binary(max_size=50), st.sampled_from([AckMode.CLIENT, AckMode.AUTO]))
@example(
    commands.Basic.Properties(headers={"ack": "forged", "message-id\nack": "x", "x": "y\nack:forged\n\n\0MESSAGE\n"}),
    b"", b"q\nack:forged", b"body", AckMode.AUTO,
)  # fmt: skip
def test_what_the_server_says_cannot_be_forged(
    given_properties: commands.Basic.Properties, exchange: bytes, key: bytes, body: bytes, mode: AckMode
) -> None:
    subscription = Subscription(b"T_1", b"1", mode, SESSION, shows_ack=True, base=6)
    subscription.deliver(1, False, short(exchange) + short(key), given_properties.marshal(), body)
    headers, received = read(joined(subscription.output))
    assert received == body
    message_id = b"T_1@@%b@@7" % SESSION
    said = {
        b"subscription": [b"1"],
        b"destination": [message_destination(exchange, key)],
        b"message-id": [message_id],
        b"redelivered": [b"false"],
        b"ack": [] if mode is AckMode.AUTO else [message_id],
        b"content-length": [b"%d" % len(body)] if body else [],
    }
    assert {name: [value for each, value in headers if each == name] for name in OWN} == said


@given(properties(string_tables) | properties(forgeries))
def test_no_name_comes_twice(given_properties: commands.Basic.Properties) -> None:
    subscription = Subscription(b"T_1", b"1", AckMode.AUTO, SESSION)
    subscription.deliver(1, False, b"\0\1q", given_properties.marshal(), b"")
    headers, _ = read(joined(subscription.output))
    assert len({name for name, _ in headers}) == len(headers)


@given(properties(string_tables))
def test_every_text_of_the_table_arrives(given_properties: commands.Basic.Properties) -> None:
    sent = {name.encode(): str(value).encode() for name, value in (given_properties.headers or {}).items()}
    lines = {name for name, _ in property_lines(given_properties)}
    assume(not sent.keys() & {*OWN, *lines})
    subscription = Subscription(b"T_1", b"1", AckMode.AUTO, SESSION)
    subscription.deliver(1, False, b"\0\1q", given_properties.marshal(), b"")
    headers, _ = read(joined(subscription.output))
    assert sent.items() <= dict(headers).items()
