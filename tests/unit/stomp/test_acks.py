"""A consumer's ACKs share their header block, and those in the order of delivery are skipped together."""

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import AckFrame


def ack(number: int, *more: bytes) -> bytes:
    return b"\n".join([b"ACK", b"id:T_1@@session-x@@%d" % number, *more, b"", b"\0"])


def acks(*numbers: int) -> bytes:
    return b"".join(map(ack, numbers))


def begun(stream: bytes, limits: FrameLimits | None = None) -> tuple[Decoder, AckFrame]:
    """A decoder that knows the layout of these ACKs, and has handed out the first of the stream."""
    decoder = Decoder(limits)
    layout = stream[: stream.index(b"\0") + 1]
    decoder.feed(layout + stream)
    assert decoder.next_frame() is not None
    frame = decoder.next_frame()
    assert isinstance(frame, AckFrame)
    return decoder, frame


def rest(decoder: Decoder) -> list[bytes]:
    """The ids of the ACKs that are left."""
    ids = []
    while (frame := decoder.next_frame()) is not None:
        ids.append(frame.headers[b"id"])
    return ids


def test_acks_share_their_head_but_not_id_and_receipt() -> None:
    decoder, first = begun(ack(1, b"subscription:1", b"receipt:a") + ack(2, b"subscription:1", b"receipt:b"))
    second = decoder.next_frame()
    assert second is not None
    assert second.header_block is first.header_block
    assert first.headers == {b"id": b"T_1@@session-x@@1", b"subscription": b"1", b"receipt": b"a"}
    assert second.headers == {b"id": b"T_1@@session-x@@2", b"subscription": b"1", b"receipt": b"b"}
    assert (first.receipt, second.receipt) == (b"a", b"b")


@pytest.mark.parametrize("end", [b"", b"\n"])
@pytest.mark.parametrize("more", [[], [b"subscription:1@@2"], [b"x:%d", b"id:T_1@@session-x@@8"]])
def test_acks_that_count_on_are_skipped_together(more: list[bytes], end: bytes) -> None:
    stream = b"".join(ack(number, *more) + end for number in (8, 9, 10, 12))
    decoder, frame = begun(stream)
    assert decoder.skip_acks(frame, 8, 100) == 2
    assert rest(decoder) == [b"T_1@@session-x@@12"]
    assert decoder.buffered == 0


@pytest.mark.parametrize(("numbers", "most", "skipped"), [((1, 2, 3, 4), 2, 2), ((1, 1, 2), 9, 0), ((1, 3, 4), 9, 0)])
def test_no_other_acks_are_skipped(numbers: tuple[int, ...], most: int, skipped: int) -> None:
    decoder, frame = begun(acks(*numbers))
    assert decoder.skip_acks(frame, 1, most) == skipped
    assert rest(decoder) == [b"T_1@@session-x@@%d" % number for number in numbers[1 + skipped :]]


@pytest.mark.parametrize("cut", range(1, len(ack(3))))
def test_an_ack_that_has_not_arrived_whole_is_not_skipped(cut: int) -> None:
    decoder, frame = begun(acks(1, 2, 3)[:-cut])
    assert decoder.skip_acks(frame, 1, 9) == 1
    assert rest(decoder) == []
    decoder.feed(acks(3)[-cut:])
    assert rest(decoder) == [b"T_1@@session-x@@3"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (FrameLimits(frame=len(ack(9))), "the frame is larger than 27 octets"),
        (FrameLimits(header=len(b"T_1@@session-x@@9")), "header 'id' is longer than 17 octets"),
    ],
)
def test_limits_hold_for_an_ack_that_would_be_skipped(limits: FrameLimits, text: str) -> None:
    decoder, frame = begun(acks(8, 9, 10), limits)
    assert decoder.skip_acks(frame, 8, 9) <= 1
    with pytest.raises(FrameError, match=text):
        rest(decoder)
