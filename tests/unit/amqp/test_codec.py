import pytest

from gateway.amqp.codec import Publication, encode_ack, encode_nack, encode_publish
from gateway.amqp.properties import table_entries, table_name
from gateway.errors import CodecError

METHOD = encode_publish(1, b"e", b"k")
NO_PROPERTIES = b"\x20\x00"  # flags: nothing but a headers table


def header_frame(size: int, table: bytes) -> bytes:
    """The content header of a message without properties, on channel 1."""
    payload = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + NO_PROPERTIES + len(table).to_bytes(4, "big") + table
    return b"\x02\x00\x01" + len(payload).to_bytes(4, "big") + payload + b"\xce"


def body_frame(data: bytes) -> bytes:
    return b"\x03\x00\x01" + len(data).to_bytes(4, "big") + data + b"\xce"


def test_publish_is_neither_mandatory_nor_immediate() -> None:
    assert METHOD == b"\x01\x00\x01\x00\x00\x00\x0b\x00\x3c\x00\x28\x00\x00\x01e\x01k\x00\xce"
    assert encode_publish(0xABCD, b"", b"") == b"\x01\xab\xcd\x00\x00\x00\x09\x00\x3c\x00\x28\x00\x00\x00\x00\x00\xce"


def test_names_pass_as_the_bytes_they_are() -> None:
    assert b"\x02\xff\x00\x01\x80\x00\xce" in encode_publish(1, b"\xff\x00", b"\x80")


@pytest.mark.parametrize(
    ("exchange", "key", "text"),
    [
        (b"x" * 256, b"", "the exchange name has 256 octets; AMQP allows 255"),
        (b"", b"x" * 1_000, "the routing key has 1000 octets; AMQP allows 255"),
    ],
)
def test_names_longer_than_a_short_string_are_refused(exchange: bytes, key: bytes, text: str) -> None:
    with pytest.raises(CodecError, match=f"^{text}$"):
        encode_publish(1, exchange, key)
    assert encode_publish(1, exchange[:255], key[:255])


@pytest.mark.parametrize(
    ("frame", "data"),
    [
        (
            encode_ack(1, 2, multiple=False),
            b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + b"\0" * 7 + b"\x02\x00\xce",
        ),
        (
            encode_ack(1, 2, multiple=True),
            b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50" + b"\0" * 7 + b"\x02\x01\xce",
        ),
        (
            encode_nack(0x102, 2**64 - 1, multiple=False, requeue=True),
            b"\x01\x01\x02\x00\x00\x00\x0d\x00\x3c\x00\x78" + b"\xff" * 8 + b"\x02\xce",
        ),
        (
            encode_nack(1, 1, multiple=True, requeue=False),
            b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x78" + b"\0" * 7 + b"\x01\x01\xce",
        ),
    ],
)
def test_acknowledgements(frame: bytes, data: bytes) -> None:
    assert frame == data


def test_a_message_is_method_content_header_and_body() -> None:
    publication = Publication(1, 131_072, METHOD, NO_PROPERTIES, (table_entries([(b"a", b"b")]),), b"")
    table = b"\x01aS\x00\x00\x00\x01b"
    for body in (b"hello", b"world", b"longer", b"", b"hello", b""):
        expected = METHOD + header_frame(len(body), table) + (body_frame(body) if body else b"")
        assert publication.encode(body) == expected


def test_values_fill_the_gaps_of_the_table() -> None:
    table = (table_name(b"receipt"), table_entries([(b"a", b"b")]) + table_name(b"content-length"), b"")
    publication = Publication(1, 131_072, METHOD, NO_PROPERTIES, table, b"")
    for body, receipt in ((b"12345", b"r-1"), (b"12345", b"r-22"), (b"", b""), (b"\0" * 3, b"\xff\n")):
        length = b"%d" % len(body)
        filled = table_entries([(b"receipt", receipt), (b"a", b"b"), (b"content-length", length)])
        expected = METHOD + header_frame(len(body), filled) + (body_frame(body) if body else b"")
        assert publication.encode(body, (receipt, length)) == expected


@pytest.mark.parametrize("values", [(), (b"1", b"2")])
def test_a_gap_is_never_left_open(values: tuple[bytes, ...]) -> None:
    publication = Publication(1, 0, METHOD, NO_PROPERTIES, (table_name(b"receipt"), b""), b"")
    with pytest.raises(ValueError, match="values for 1 gaps"):
        publication.encode(b"body", values)


@pytest.mark.parametrize(("size", "pieces"), [(92, [92]), (93, [92, 1]), (184, [92, 92]), (185, [92, 92, 1])])
def test_a_body_is_cut_into_frames_of_the_agreed_size(size: int, pieces: list[int]) -> None:
    body = bytes(at % 251 for at in range(size))
    publication = Publication(1, 100, METHOD, NO_PROPERTIES, (b"",), b"")
    expected, at = METHOD + header_frame(size, b""), 0
    for piece in pieces:
        expected += body_frame(body[at : at + piece])
        at += piece
    for _ in range(2):
        assert publication.encode(body) == expected


def test_without_an_agreed_size_a_body_is_one_frame() -> None:
    body = bytes(1_000_000)
    publication = Publication(1, 0, METHOD, NO_PROPERTIES, (b"",), b"")
    assert publication.encode(body) == METHOD + header_frame(len(body), b"") + body_frame(body)


def test_headers_that_no_frame_can_hold_are_refused() -> None:
    # AMQP cannot split a content header; RabbitMQ answers a longer one by closing the connection with all its sessions.
    room = 4096 - len(header_frame(0, table_entries([(b"a", b"")])))
    fits = Publication(1, 4096, METHOD, NO_PROPERTIES, (table_entries([(b"a", b"x" * room)]),), b"")
    assert len(fits.encode(b"")) == len(METHOD) + 4096
    too_large = Publication(1, 4096, METHOD, NO_PROPERTIES, (table_entries([(b"a", b"x" * (room + 1))]),), b"")
    gap = Publication(1, 4096, METHOD, NO_PROPERTIES, (table_name(b"a"), b""), b"")
    assert gap.encode(b"", (b"x" * room,)) == fits.encode(b"")
    text = "^the headers of the message make an AMQP frame of more than 4096 octets$"
    for _ in range(2):
        with pytest.raises(CodecError, match=text):
            too_large.encode(b"")
        with pytest.raises(CodecError, match=text):
            gap.encode(b"", (b"x" * (room + 1),))
