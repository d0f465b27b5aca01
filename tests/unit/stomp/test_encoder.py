import pytest

from gateway.stomp.frame import encode, encode_headers, encode_receipt


def test_a_frame_has_its_headers_in_the_given_order_and_a_line_feed_behind_its_nul() -> None:
    connected = encode(
        b"CONNECTED", [(b"server", b"RabbitMQ/3.10.8"), (b"heart-beat", b"0,2000"), (b"version", b"1.2")]
    )
    assert connected == b"CONNECTED\nserver:RabbitMQ/3.10.8\nheart-beat:0,2000\nversion:1.2\n\n\0\n"


def test_content_length_comes_last_and_only_with_a_body() -> None:
    assert encode(b"ERROR", [(b"message", b"m")], b"a\0b") == b"ERROR\nmessage:m\ncontent-length:3\n\na\0b\0\n"
    assert encode(b"ERROR", [(b"message", b"m")]) == b"ERROR\nmessage:m\n\n\0\n"
    assert encode(b"ERROR", []) == b"ERROR\n\n\0\n"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (b"a", b"b:c", b"a:b\\cc\n"),
        (b"a:b", b"c", b"a\\cb:c\n"),
        (b"a", b"one\ntwo\r\n", b"a:one\\ntwo\\r\\n\n"),
        (b"a", b"\\n", b"a:\\\\n\n"),
        (b"", b"", b":\n"),
        (b"\xff", b"\0", b"\xff:\0\n"),
    ],
)
def test_names_and_values_are_escaped(name: bytes, value: bytes, line: bytes) -> None:
    assert encode_headers([(name, value)]) == line
    assert encode(b"CONNECTED", [(name, value)]) == b"CONNECTED\n" + line + b"\n\0\n"


def test_long_values_are_neither_folded_nor_cut() -> None:
    assert encode_headers([(b"a", b"x" * 200_000)]) == b"a:" + b"x" * 200_000 + b"\n"


def test_a_receipt_escapes_its_id() -> None:
    assert encode_receipt(b"r:1\n") == b"RECEIPT\nreceipt-id:r\\c1\\n\n\n\0\n"
