import struct

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from pamqp import commands, frame

from gateway.amqp.codec import Publication, encode_ack, encode_nack, encode_publish, encode_reject
from gateway.amqp.properties import Properties, decode, encode_around_table, table_entries, table_name
from gateway.errors import CodecError
from tests.property.amqp_frames import (
    channels,
    content_frames,
    exchanges,
    hand_made,
    properties,
    string_tables,
    tables,
    tags,
    texts,
)


def table_with_gaps(headers: dict[str, str], gaps: set[str]) -> tuple[bytes, ...]:
    """The entries in pamqp's order, cut where a value is left out."""
    pieces = [b""]
    for name, value in sorted(headers.items()):
        if name in gaps:
            pieces[-1] += table_name(name.encode())
            pieces.append(b"")
        else:
            pieces[-1] += table_entries([(name.encode(), value.encode())])
    return tuple(pieces)


@given(
    channels,
    exchanges,
    texts(255),
    properties(string_tables),
    st.sets(st.integers(0, 4)) | st.just({0, 1, 2}),
    st.lists(st.tuples(st.binary(max_size=60) | st.integers(0, 9_000).map(bytes), texts(300)), min_size=1, max_size=5),
    st.sampled_from([0, 4096, 131_072]),
    st.booleans(),
)
def test_a_publication_is_what_pamqp_writes(
    channel: int,
    exchange: str,
    key: str,
    given_properties: commands.Basic.Properties,
    chosen: set[int],
    messages: list[tuple[bytes, str]],
    frame_max: int,
    mandatory: bool,
) -> None:
    headers: dict[str, str] = {name: str(value) for name, value in (given_properties.headers or {}).items()}
    gaps = {name for number, name in enumerate(sorted(headers)) if number in chosen}
    event(f"gaps: {len(gaps)}")
    before, behind = encode_around_table(hand_made(given_properties))
    method = encode_publish(channel, exchange.encode(), key.encode(), mandatory=mandatory)
    publication = Publication(channel, frame_max, method, before, table_with_gaps(headers, gaps), behind)
    publish = commands.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    assert method == frame.marshal(publish, channel)
    for body, value in messages:
        given_properties.headers = {**headers, **dict.fromkeys(gaps, value)}
        expected = content_frames(channel, given_properties, body, frame_max)
        values = (value.encode(),) * len(gaps)
        if frame_max and len(expected[0]) > frame_max:
            with pytest.raises(CodecError, match=f"more than {frame_max} octets"):
                publication.encode(body, values)
        else:
            assert publication.encode(body, values) == method + b"".join(expected)


@given(channels, tags, st.booleans(), st.booleans())
def test_acknowledgements_are_what_pamqp_writes(channel: int, tag: int, multiple: bool, requeue: bool) -> None:
    ack = frame.marshal(commands.Basic.Ack(tag, multiple), channel)
    nack = frame.marshal(commands.Basic.Nack(tag, multiple, requeue), channel)
    assert encode_ack(channel, tag, multiple=multiple) == ack
    assert encode_nack(channel, tag, multiple=multiple, requeue=requeue) == nack
    reject = frame.marshal(commands.Basic.Reject(tag, requeue), channel)
    assert encode_reject(channel, tag, requeue=requeue) == reject


@given(properties(tables))
def test_properties_that_pamqp_wrote_are_read_with_all_that_stomp_can_show(
    given_properties: commands.Basic.Properties,
) -> None:
    assert decode(given_properties.marshal()) == hand_made(given_properties)


@given(properties(tables), st.data())
def test_properties_that_end_early_are_an_error(
    given_properties: commands.Basic.Properties, data: st.DataObject
) -> None:
    raw = given_properties.marshal()
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(CodecError):
        decode(raw[:cut])


short_bytes = st.none() | st.binary(max_size=255)


@given(
    st.builds(
        Properties,
        content_type=short_bytes,
        content_encoding=short_bytes,
        headers=st.lists(st.tuples(st.binary(max_size=255), st.binary(max_size=500))),
        delivery_mode=st.none() | st.integers(0, 255),
        priority=st.none() | st.integers(0, 255),
        correlation_id=short_bytes,
        reply_to=short_bytes,
        expiration=short_bytes,
        message_id=short_bytes,
        timestamp=st.none() | tags,
        type=short_bytes,
        user_id=short_bytes,
        app_id=short_bytes,
    )
)
def test_decoding_encoded_properties_gives_them_back_whatever_the_bytes(original: Properties) -> None:
    before, behind = encode_around_table(original)
    table = table_entries([(name, value) for name, value in original.headers or [] if isinstance(value, bytes)])
    assert decode(before + struct.pack(">I", len(table)) + table + behind) == original


def only_headers(table: bytes) -> bytes:
    """The bytes of properties that have nothing but a headers table."""
    return b"\x20\x00" + struct.pack(">I", len(table)) + table


# A name, a letter that mostly is a type, and what might be its value.
entries = st.lists(
    st.tuples(
        st.binary(max_size=3).map(lambda name: bytes([len(name)]) + name),
        st.sampled_from([bytes([letter]) for letter in b"tbBsuIiflLdTDVSxFA?"]),
        st.binary(max_size=9) | st.binary(max_size=4).map(lambda value: struct.pack(">I", len(value)) + value),
    ).map(b"".join),
    max_size=3,
).map(b"".join)


@given(st.binary(max_size=60) | entries.map(only_headers))
@example(only_headers(b"\x01aS\x00\x00\x00\x01")[:-4] + b"\x00\x00\x00\x01x")
@example(only_headers(b"\x01aS\x00\x00\x00\x01") + b"x")
def test_any_bytes_are_properties_or_an_error(raw: bytes) -> None:
    try:
        decode(raw)
    except CodecError as error:
        event(str(error))


@given(st.binary(min_size=256, max_size=300))
def test_what_is_too_long_for_a_short_string_is_never_written(long: bytes) -> None:
    for build in (
        lambda: encode_publish(1, long, b"key"),
        lambda: encode_publish(1, b"exchange", long),
        lambda: encode_around_table(Properties(correlation_id=long)),
        lambda: table_entries([(b"short", b""), (long, b"")]),
    ):
        with pytest.raises(CodecError, match=f"has {len(long)} octets; AMQP allows 255"):
            build()
