import struct

import pytest

from gateway.amqp.properties import Properties, decode, encode_around_table, short_string, table_entries
from gateway.errors import CodecError


def with_table(entries: bytes) -> bytes:
    """The bytes of properties that have nothing but a headers table."""
    return b"\x20\x00" + struct.pack(">I", len(entries)) + entries


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (b"S\x00\x00\x00\x02\xff\n", b"\xff\n"),
        (b"S\x00\x00\x00\x00", b""),
        (b"I\xff\xff\xff\xff", -1),
        (b"I\x7f\xff\xff\xff", 2**31 - 1),
        (b"l\x80" + bytes(7), -(2**63)),
        (b"l" + bytes(7) + b"\x05", 5),
        (b"L" + b"\xff" * 8, -1),
    ],
)
def test_texts_and_integers_of_32_and_64_bits_can_be_shown(field: bytes, value: bytes | int) -> None:
    table = b"\x01a" + field + b"\x04lastS\x00\x00\x00\x01z"
    assert decode(with_table(table)).headers == [
        (b"a", value),
        (b"last", b"z"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        b"t\x01",
        b"b\xff",
        b"B\xff",
        b"s\xff\xff",
        b"u\xff\xff",
        b"i\xff\xff\xff\xff",
        b"f\x3f\x80\x00\x00",
        b"d\x3f\xf0" + bytes(6),
        b"T" + bytes(7) + b"\x01",
        b"D\x02\x00\x00\x00\x01",
        b"V",
        b"x\x00\x00\x00\x03abc",
        b"F\x00\x00\x00\x08\x01bS\x00\x00\x00\x01c",
        b"A\x00\x00\x00\x06S\x00\x00\x00\x01c",
        b"A\x00\x00\x00\x00",
        b"F\x00\x00\x00\x00",
    ],
)
def test_all_other_types_are_passed_over(field: bytes) -> None:
    table = b"\x01a" + field + b"\x04lastS\x00\x00\x00\x01z\x01b" + field
    assert decode(with_table(table)).headers == [(b"last", b"z")]


def test_a_table_keeps_its_order_and_repeated_names() -> None:
    table = table_entries([(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"", b"")])
    assert decode(with_table(table)).headers == [(b"b", b"1"), (b"a", b"2"), (b"b", b"3"), (b"", b"")]


def test_absent_properties_are_none_and_an_empty_table_is_a_table() -> None:
    assert decode(b"\x00\x00") == Properties()
    assert decode(with_table(b"")) == Properties(headers=[])


def test_every_property_has_its_flag_and_its_place() -> None:
    everything = (
        b"\xff\xfc\x01a\x01b" + bytes(4) + b"\x02\x09\x01c\x01d\x01e\x01f" + bytes(7) + b"\x07\x01g\x01h\x01i\x01j"
    )
    found = Properties(
        content_type=b"a", content_encoding=b"b", headers=[], delivery_mode=2, priority=9, correlation_id=b"c",
        reply_to=b"d", expiration=b"e", message_id=b"f", timestamp=7, type=b"g", user_id=b"h", app_id=b"i",
    )  # fmt: skip
    assert decode(everything) == found  # cluster-id, the last, is skipped
    before, behind = encode_around_table(found)
    assert before + bytes(4) + behind == b"\xff\xf8" + everything[2:-2]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (Properties(content_type=b"x" * 256), "the content-type has 256 octets; AMQP allows 255"),
        (Properties(correlation_id=b"x" * 300), "the correlation-id has 300 octets; AMQP allows 255"),
        (Properties(app_id=b"x" * 256), "the app-id has 256 octets; AMQP allows 255"),
        (Properties(priority=256), "the priority 256 is not a number of 8 bits without a sign"),
        (Properties(delivery_mode=-1), "the delivery-mode -1 is not a number of 8 bits without a sign"),
        (Properties(timestamp=2**64), f"the timestamp {2**64} is not a number of 64 bits without a sign"),
    ],
)
def test_what_does_not_fit_is_named(properties: Properties, text: str) -> None:
    with pytest.raises(CodecError, match=f"^{text}$"):
        encode_around_table(properties)


def test_a_header_name_longer_than_a_short_string_is_refused() -> None:
    with pytest.raises(CodecError, match=r"^the name of a header has 256 octets; AMQP allows 255$"):
        table_entries([(b"x" * 256, b"")])
    assert decode(with_table(table_entries([(b"x" * 255, b"y" * 100_000)]))).headers == [(b"x" * 255, b"y" * 100_000)]
    assert short_string(b"x" * 255) == b"\xff" + b"x" * 255


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "the properties of a message end too early"),
        (b"\x80", "the properties of a message end too early"),
        (b"\x80\x00", "the properties of a message end too early"),
        (b"\x80\x00\x02a", "the properties of a message end too early"),
        (b"\x00\x40" + bytes(7), "the properties of a message end too early"),
        (b"\x00\x04\x02a", "the properties of a message end too early"),
        (b"\x20\x00\x00\x00\x00\x01", "the properties of a message end too early"),
        (with_table(b"\x01aS\x00\x00\x00\x05abcd"), "the properties of a message end too early"),
        (with_table(b"\x01a?"), r"unknown type '\?' in a headers table"),
        (with_table(b"\x01a\x00"), r"unknown type '\\x00' in a headers table"),
        (with_table(b"\x01aS\x00\x00\x00\x01") + b"b", "the last entry of a headers table is longer than the table"),
        (b"\x80\x01\x00\x00\x01a", "a second word of property flags"),
    ],
)
def test_broken_properties_are_an_error(data: bytes, text: str) -> None:
    with pytest.raises(CodecError, match=f"^{text}$"):
        decode(data)
