"""SENDs that differ only in body and receipt are taken together."""

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame, ReceiptAndBody

MANY = 1 << 30


def send(body: bytes, receipt: bytes | None = b"r", *more: bytes, length: bool = True) -> bytes:
    lines = [b"SEND", b"destination:/queue/q"]
    if receipt is not None:
        lines.append(b"receipt:" + receipt)
    if length:
        lines.append(b"content-length:%d" % len(body))
    return b"\n".join([*lines, *more, b"", b""]) + body + b"\0"


def begun(stream: bytes, limits: FrameLimits | None = None) -> tuple[Decoder, Frame]:
    """A decoder that knows the layout of these SENDs, and has handed out the first of the stream."""
    decoder = Decoder(limits)
    decoder.feed(stream[: stream.index(b"\0") + 1] + stream)
    assert decoder.next_frame() is not None
    frame = decoder.next_frame()
    assert frame is not None
    return decoder, frame


def rest(decoder: Decoder) -> list[ReceiptAndBody]:
    """What is left."""
    left = []
    while (frame := decoder.next_frame()) is not None:
        left.append((frame.receipt, frame.body))
    return left


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("receipts", [(b"1", b"2", b"3"), (b"", b"", b""), (None, None, None)])
def test_what_is_alike_is_taken_together(receipts: tuple[bytes | None, ...], length: bool, end: bytes) -> None:
    sends = list(zip(receipts, (b"abc", b"def", b"g:\n"), strict=True))
    stream = b"".join(send(body, receipt, b"x:y", length=length) + end for receipt, body in sends)
    decoder, frame = begun(stream)
    assert (frame.receipt, frame.body) == sends[0]
    assert decoder.take_sends(frame, 100, MANY) == sends[1:]
    assert rest(decoder) == []
    assert decoder.buffered == 0


@pytest.mark.parametrize(
    "other",
    [
        send(b"abc", b"22"),
        send(b"abc", b"2", b"x:y"),
        send(b"abc", b"2", length=False),
        send(b"abcd", b"2"),
        send(b"abc", None),
        send(b"abc", b"2").replace(b"\n", b"\r\n"),
        send(b"abc", b"2").replace(b"/q", b"/Q"),
        b"\n\n" + send(b"abc", b"2"),
    ],
)
def test_nothing_else_is_taken(other: bytes) -> None:
    alone = Decoder()
    alone.feed(other + send(b"xyz", b"3"))
    decoder, frame = begun(send(b"abc", b"1") + other + send(b"xyz", b"3"))
    assert decoder.take_sends(frame, 100, MANY) == []
    assert rest(decoder) == rest(alone)


@pytest.mark.parametrize(
    ("first", "other", "receipt"), [(b"abcd", b"a\\nb", b"a\nb"), (b"abc", b"ab\r", b"ab"), (b"abcd", b"a\nb:", b"a")]
)
def test_a_receipt_that_must_be_read_is_not_taken(first: bytes, other: bytes, receipt: bytes) -> None:
    decoder, frame = begun(send(b"abc", first) + send(b"xyz", other))
    assert decoder.take_sends(frame, 100, MANY) == []
    assert rest(decoder) == [(receipt, b"xyz")]


def test_what_stands_behind_a_frame_with_a_receipt_that_had_to_be_read_is_not_taken() -> None:
    """Its receipt is not the one in its bytes, so nothing can be compared with them."""
    decoder, _ = begun(send(b"abc", b"1"))
    decoder.feed(send(b"abc", b"2"))
    assert decoder.next_frame() is not None
    decoder.feed(send(b"abc", b"\\c\\c") + send(b"def", b"ab\\c"))
    frame = decoder.next_frame()
    assert frame is not None
    assert frame.receipt == b"::"
    assert decoder.take_sends(frame, 100, MANY) == []
    assert rest(decoder) == [(b"ab:", b"def")]


@pytest.mark.parametrize(("most", "most_bytes", "taken"), [(2, MANY, 2), (0, MANY, 0), (9, 0, 0), (9, 1, 1), (9, 4, 2)])
def test_no_more_are_taken_than_are_wanted(most: int, most_bytes: int, taken: int) -> None:
    decoder, frame = begun(send(b"abc") * 5)
    assert len(decoder.take_sends(frame, most, most_bytes)) == taken
    assert len(rest(decoder)) == 4 - taken


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("cut", range(1, len(send(b"abc"))))
def test_a_frame_that_has_not_arrived_whole_is_not_taken(cut: int, length: bool) -> None:
    last = send(b"xyz", b"3", length=length)
    cut = min(cut, len(last) - 1)
    decoder, frame = begun(send(b"abc", b"1", length=length) + send(b"def", b"2", length=length) + last[:-cut])
    assert decoder.take_sends(frame, 9, MANY) == [(b"2", b"def")]
    assert rest(decoder) == []
    decoder.feed(last[-cut:])
    assert rest(decoder) == [(b"3", b"xyz")]


def test_a_body_that_is_longer_than_announced_is_an_error() -> None:
    decoder, frame = begun(send(b"abc") + send(b"abc")[:-1] + b"d\0")
    assert decoder.take_sends(frame, 9, MANY) == []
    with pytest.raises(FrameError, match="content-length is shorter than the body"):
        rest(decoder)


def test_the_limit_of_frames_holds_for_what_would_be_taken() -> None:
    decoder, frame = begun(send(b"abc", length=False) + send(b"abcd", length=False), FrameLimits(frame=41))
    assert len(send(b"abcd", length=False)) == 42
    assert decoder.take_sends(frame, 9, MANY) == []
    with pytest.raises(FrameError, match="the frame is larger than 41 octets"):
        rest(decoder)
