from hypothesis import given
from hypothesis import strategies as st

from gateway.stomp.frame import encode, encode_headers, encode_receipt
from gateway.stomp.headers import escape, split_line, unescape
from tests.property.cuts import cut, points
from tests.property.stomp_streams import data, header_lists, names, read


@given(data)
def test_unescape_reverses_escape(value: bytes) -> None:
    escaped = escape(value)
    assert unescape(escaped) == value
    assert not set(escaped) & set(b":\n\r")


@given(names, data)
def test_a_header_line_gives_back_what_was_encoded(name: bytes, value: bytes) -> None:
    line = encode_headers([(name, value)])
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert split_line(line[:-1]) == (name, value)


@given(st.lists(st.tuples(header_lists, data | st.binary(max_size=100)), max_size=4), points)
def test_decoding_an_encoded_frame_gives_back_headers_and_body(
    messages: list[tuple[list[tuple[bytes, bytes]], bytes]], at: list[int]
) -> None:
    expected: list[tuple[bytes, dict[bytes, bytes], bytes, bytes | None]] = []
    stream = b""
    for pairs, body in messages:
        headers = {name: value for name, value in pairs if name != b"content-length"}
        stream += encode(b"SEND", headers.items(), body)
        if body:
            headers[b"content-length"] = b"%d" % len(body)
        expected.append((b"SEND", headers, body, headers.get(b"receipt")))
    reading = read(cut(stream, at))
    assert reading.error is None
    assert reading.frames == expected
    assert [list(headers) for _, headers, _, _ in reading.frames] == [list(headers) for _, headers, _, _ in expected]


@given(data)
def test_a_receipt_is_the_encoding_of_its_frame(receipt: bytes) -> None:
    assert encode_receipt(receipt) == encode(b"RECEIPT", [(b"receipt-id", receipt)])
