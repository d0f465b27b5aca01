"""The grammar of what clients send, rule by rule, as RabbitMQ's adapter reads it; each stream whole and in bytes."""

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder
from gateway.stomp.frame import CLIENT_COMMANDS, Frame


def frames_of(*pieces: bytes) -> list[Frame]:
    """All frames in the pieces, taken out after each piece."""
    decoder = Decoder()
    frames: list[Frame] = []
    for piece in pieces:
        decoder.feed(piece)
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    return frames


def bytes_of(stream: bytes) -> list[bytes]:
    return [stream[at : at + 1] for at in range(len(stream))]


def only_frame(stream: bytes) -> Frame:
    """The one frame of a stream, read whole and byte by byte."""
    (whole,) = frames_of(stream)
    (split,) = frames_of(*bytes_of(stream))
    assert (whole.command, whole.headers, whole.body, whole.receipt, whole.length) == (
        (split.command, split.headers, split.body, split.receipt, split.length)
    )
    return whole


def violation(stream: bytes) -> str:
    """What is said against a stream, read whole and byte by byte."""
    with pytest.raises(FrameError) as whole:
        frames_of(stream)
    with pytest.raises(FrameError) as split:
        frames_of(*bytes_of(stream))
    assert str(whole.value) == str(split.value)
    return str(whole.value)


@pytest.mark.parametrize("command", CLIENT_COMMANDS)
def test_a_frame_has_a_command_headers_and_a_receipt(command: bytes) -> None:
    frame = only_frame(command + b"\nid:1\nreceipt:r-7\n\n\0")
    assert frame.command == command
    assert frame.headers == {b"id": b"1", b"receipt": b"r-7"}
    assert frame.receipt == b"r-7"
    assert frame.body == b""


@pytest.mark.parametrize("between", [b"\n", b"\r\n", b"\0", b"\n\0\r\n\0\0\n", b"\r\n" * 1_000, b"\n" * 100_000])
def test_any_number_of_nul_lf_and_cr_lf_may_stand_between_frames(between: bytes) -> None:
    stream = between + b"BEGIN\ntransaction:1\n\n\0" + between + b"COMMIT\ntransaction:1\n\n\0" + between
    for pieces in ([stream], bytes_of(stream)):
        assert [frame.command for frame in frames_of(*pieces)] == [b"BEGIN", b"COMMIT"]


@pytest.mark.parametrize(
    "stream",
    [b"\rSEND\n\n\0", b"\r\0SEND\n\n\0", b"\n\r\r\nSEND\n\n\0", b"SE\rND\n\n\0", b"SEND\r\r\n\n\0"],
)
def test_a_carriage_return_without_line_feed_in_a_command_is_fatal(stream: bytes) -> None:
    assert violation(stream) == "a carriage return that is not followed by a line feed in a command"


@pytest.mark.parametrize("line", [b"a\rb:c", b"a:b\rc", b"a:b\r\r", b"\r\r"])
def test_a_carriage_return_without_line_feed_in_a_header_is_fatal(line: bytes) -> None:
    text = "a carriage return that is not followed by a line feed in a header"
    assert violation(b"SEND\n" + line + b"\n\n\0") == text


@pytest.mark.parametrize(
    "head",
    [
        b"SEND\na:1\nb:2\n\n",
        b"SEND\r\na:1\r\nb:2\r\n\r\n",
        b"SEND\r\na:1\nb:2\r\n\n",
        b"SEND\na:1\r\nb:2\n\r\n",
    ],
)
def test_lines_end_in_lf_or_cr_lf_mixed_freely(head: bytes) -> None:
    frame = only_frame(head + b"body\0")
    assert frame.headers == {b"a": b"1", b"b": b"2"}
    assert frame.body == b"body"


def test_a_carriage_return_at_the_end_of_a_piece_waits_for_its_line_feed() -> None:
    (frame,) = frames_of(b"SEND\r", b"\na:1\r", b"\n\r", b"\nbody\0")
    assert (frame.headers, frame.body) == ({b"a": b"1"}, b"body")


def test_a_heart_beat_of_cr_lf_that_comes_in_pieces_is_no_frame() -> None:
    (frame,) = frames_of(b"\r", b"\n", b"\0\n", b"\r", b"\n\r", b"\nACK\nid:1\n\n\0")
    assert frame.command == b"ACK"


@pytest.mark.parametrize(
    "command", [b"begin", b"BEGIN ", b" BEGIN", "Bégin".encode(), b"\\n\\t", b"BE\0GIN", b"\xff", b":"]
)
def test_a_command_is_taken_as_it_is(command: bytes) -> None:
    assert only_frame(command + b"\n\n\0").command == command


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (b"a:b", b"a", b"b"),
        (b"a:b:c:", b"a", b"b:c:"),
        (b"a:", b"a", b""),
        (b":b", b"", b"b"),
        (b":", b"", b""),
        (b" a : b ", b" a ", b" b "),
        (b"a\0:\0b", b"a\0", b"\0b"),
        (b"\xff:\xfe\x80", b"\xff", b"\xfe\x80"),
        (b"\\c\\n:\\r\\\\", b":\n", b"\r\\"),
        (b"a:\\\\r", b"a", b"\\r"),
        (b"a:\\\\\\n\\\\n", b"a", b"\\\n\\n"),
        (b"a:\\c", b"a", b":"),
        (b"a\\c:b", b"a:", b"b"),
        (b"Login:guest", b"Login", b"guest"),
    ],
)
@pytest.mark.parametrize("command", [b"CONNECT", b"SEND", b"ACK"])
def test_a_header_line_is_split_at_its_first_colon_unescaped_and_not_trimmed(
    command: bytes, line: bytes, name: bytes, value: bytes
) -> None:
    assert only_frame(command + b"\n" + line + b"\n\n\0").headers == {name: value}


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"no colon", "a header line without a colon, 8 octets long"),
        (b"no\\ccolon", "a header line without a colon, 9 octets long"),
        (b"\0", "a header line without a colon, 1 octets long"),
        (b"a:\\t", "undefined escape sequence in header 'a'"),
        (b"a:b\\", "undefined escape sequence in header 'a'"),
        (b"a\\\0:b", r"undefined escape sequence in header 'a\\x00'"),
        (b"a:\\:", "undefined escape sequence in header 'a'"),
        (b"a:\\N", "undefined escape sequence in header 'a'"),
    ],
)
@pytest.mark.parametrize("command", [b"CONNECT", b"SEND", b"ACK"])
def test_a_bad_header_line_is_fatal_and_the_text_names_what_is_wrong(command: bytes, line: bytes, text: str) -> None:
    assert violation(command + b"\na:b\n" + line + b"\n\n\0") == text


def test_of_a_repeated_header_the_first_counts_and_names_are_case_sensitive() -> None:
    frame = only_frame(b"SEND\na:1\na:2\nA:3\nreceipt:x\nreceipt:y\ncontent-length:2\ncontent-length:1\n\n\0b\0")
    assert frame.headers == {b"a": b"1", b"A": b"3", b"receipt": b"x", b"content-length": b"2"}
    assert (frame.receipt, frame.length, frame.body) == (b"x", b"2", b"\0b")


def test_headers_keep_the_order_in_which_they_came() -> None:
    for _ in range(2):
        frame = only_frame(b"SEND\nz:1\nreceipt:r\na:2\ncontent-length:0\nm:3\n\n\0")
        assert list(frame.headers) == [b"z", b"receipt", b"a", b"content-length", b"m"]


def test_the_body_of_send_without_content_length_ends_at_the_first_nul() -> None:
    frames = frames_of(b"SEND\n\none\ntwo\n\n\0SEND\n\n\0SEND\n\n\r\n\0")
    assert [frame.body for frame in frames] == [b"one\ntwo\n\n", b"", b"\r\n"]


@pytest.mark.parametrize("length", [b"5", b" 5 ", b"+5", b"05", b"  +0005", b"5\r", b"0" * 30 + b"5"])
def test_the_body_of_send_has_as_many_bytes_as_its_content_length_says(length: bytes) -> None:
    frame = only_frame(b"SEND\ncontent-length:" + length + b"\n\n\0a\n\0\0\0")
    assert frame.body == b"\0a\n\0\0"
    assert frame.length == length.rstrip(b"\r")


@pytest.mark.parametrize(
    "length", [b"\t5", b"abc", b"", b"5.0", b"0x5", b"-1", b"- 1", b"+ 5", b"5 5", b"1" * 1001, b"\\c5"]
)
def test_a_content_length_that_is_no_number_of_bytes_is_fatal(length: bytes) -> None:
    assert violation(b"SEND\ncontent-length:" + length + b"\n\nhello\0").endswith("is not a number of octets")


@pytest.mark.parametrize("length", [b"0", b"4"])
def test_a_content_length_shorter_than_the_body_is_fatal(length: bytes) -> None:
    text = "content-length is shorter than the body: no NUL where the body should end"
    assert violation(b"SEND\ncontent-length:" + length + b"\n\nhello\0") == text


def test_a_content_length_longer_than_the_body_swallows_what_follows() -> None:
    stream = b"SEND\ncontent-length:18\n\nhello\0BEGIN\n\n\0 end"
    assert frames_of(stream) == []
    assert only_frame(stream + b"\0").body == b"hello\0BEGIN\n\n\0 end"


@pytest.mark.parametrize("command", [b"CONNECT", b"BEGIN", b"SUBSCRIBE", b"send", b"ANYTHING"])
@pytest.mark.parametrize("length", [b"7", b"0", b"abc", b"-1"])
def test_other_commands_ignore_content_length_and_their_body(command: bytes, length: bytes) -> None:
    frames = frames_of(command + b"\ncontent-length:" + length + b"\n\nx\0ABORT\n\n\0")
    assert [(frame.command, frame.body) for frame in frames] == [(command, b""), (b"ABORT", b"")]
    assert frames[0].headers == {b"content-length": length}


def test_frames_before_a_violation_are_handed_out() -> None:
    decoder = Decoder()
    decoder.feed(b"BEGIN\ntransaction:1\n\n\0COMMIT\ntransaction\n\n\0")
    first = decoder.next_frame()
    assert first is not None
    assert first.command == b"BEGIN"
    with pytest.raises(FrameError):
        decoder.next_frame()


def test_pieces_may_be_fed_while_whole_frames_still_wait() -> None:
    decoder = Decoder()
    for piece in (b"BEGIN\n\n\0COM", b"MIT\n\n\0ABO", b"RT\n\n\0"):
        decoder.feed(piece)
    assert decoder.buffered == 25
    commands = [frame.command for _ in range(3) if (frame := decoder.next_frame()) is not None]
    assert commands == [b"BEGIN", b"COMMIT", b"ABORT"]
    decoder.feed(b"SEND\n\nhel")
    assert decoder.next_frame() is None
    decoder.feed(b"lo")
    assert decoder.buffered == 11
    decoder.feed(b"\0")
    assert decoder.next_frame() is not None
    assert decoder.next_frame() is None
    assert decoder.buffered == 0
