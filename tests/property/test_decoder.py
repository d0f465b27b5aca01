from unittest.mock import patch

from hypothesis import event, example, given
from hypothesis import strategies as st

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from tests.property.cuts import cut, one_by_one, points
from tests.property.stomp_streams import (
    ForgetfulDecoder,
    Reader,
    between_frames,
    consumers,
    data,
    header_lists,
    lay_out,
    nonsense,
    producers,
    read,
    streams,
)

SMALL = FrameLimits(frame=60, headers=3, header=12)


@given(streams, points)
@example(b"\r\n\0\nACK\nid:1\n\n\0", [1, 2])
def test_any_split_of_the_stream_gives_the_same_frames_and_the_same_error(stream: bytes, at: list[int]) -> None:
    whole = read([stream])
    event(f"frames: {min(len(whole.frames), 5)}, error: {whole.error is not None}")
    assert read(one_by_one(stream)) == whole
    assert read(cut(stream, at)) == whole


@given(streams, points, st.integers(1, 9))
def test_a_body_in_pieces_is_the_same(stream: bytes, at: list[int], least: int) -> None:
    whole = read([stream])
    with patch("gateway.stomp.decoder._LEAST_PIECE", least), patch("gateway.pieces.LARGE", 2):
        for cuts in (one_by_one(stream), cut(stream, at)):
            assert read(cuts) == whole


@given(streams, points)
def test_limits_hold_alike_for_any_split_of_the_stream(stream: bytes, at: list[int]) -> None:
    whole = read([stream], SMALL)
    event(f"frames: {min(len(whole.frames), 5)}, error: {whole.error is not None}")
    for pieces in (one_by_one(stream), cut(stream, at)):
        split = read(pieces, SMALL)
        assert split.frames == whole.frames
        assert (split.error is None) == (whole.error is None)


@given(
    st.lists(producers() | consumers(), min_size=1, max_size=3).map(b"".join),
    st.sampled_from([FrameLimits(), FrameLimits(header=15), FrameLimits(frame=45), SMALL]),
)
@example(b"SEND\nreceipt:1\n\n\0SEND\nreceipt:1234567890\n\n\0", FrameLimits(header=9))
@example(b"SEND\nreceipt:1\n\n\0SEND\nreceipt:2\n\n1234567890\0", FrameLimits(frame=26))
@example(b"SEND\ncontent-length:1\n\nb\0SEND\ncontent-length:x1\n\nb\0", FrameLimits())
@example(b"SEND\ncontent-length:1\n\nb\0SEND\ncontent-length:00000000000000000000001\n\nb\0", FrameLimits())
@example(b"SEND\ncontent-length:1\n\nb\0SEND\ncontent-length:0\n\nb\0", FrameLimits())
@example(b"ACK\nid:1\n\n\0ACK\nid:1234567890\n\n\0", FrameLimits(header=9))
@example(b"ACK\nid:1\n\n\0ACK\nid:1234567890\n\n\0", FrameLimits(frame=18))
@example(b"ACK\nid:1\n\n\0ACK\nid:a\\cb\n\n\0ACK\nid:2\r\n\n\0ACK\nid:a\rb\n\n\0", FrameLimits())
@example(b"ACK\nid:1\n\n\0ACK\nid:2\n\nbody\0SEND\n\n\0", FrameLimits())
@example(b"ACK\nid:1\nid:2\n\n\0ACK\nid:3\nid:2\n\n\0", FrameLimits())
@example(b"ACK\nreceipt:1\nid:1\n\n\0ACK\nreceipt:1234567890\nid:1\n\n\0", FrameLimits(header=9))
def test_remembered_header_blocks_mean_what_the_slow_path_reads(stream: bytes, limits: FrameLimits) -> None:
    slow = Reader(ForgetfulDecoder(limits)).read([stream])
    event(f"frames: {min(len(slow.frames), 5)}, error: {slow.error is not None}")
    assert read([stream], limits) == slow


@given(producers(faultless=True) | consumers(faultless=True), producers() | consumers(), nonsense)
def test_a_decoder_with_memories_reads_any_stream_like_a_new_one(first: bytes, again: bytes, last: bytes) -> None:
    experienced = Reader()
    memories = experienced.read([first])
    assert memories.error is None
    assert memories.left == 0
    assert experienced.read([again + last]) == read([again + last])


@given(st.binary(max_size=300) | nonsense, st.sampled_from([FrameLimits(), SMALL]), points)
def test_any_bytes_give_frames_or_a_frame_error(stream: bytes, limits: FrameLimits, at: list[int]) -> None:
    assert read(cut(stream, at), limits).error != ""


@given(streams | st.binary(max_size=400), st.integers(1, 50), st.integers(20, 200))
def test_bytes_of_an_unfinished_frame_stay_within_the_limit(stream: bytes, step: int, limit: int) -> None:
    decoder = Decoder(FrameLimits(frame=limit))
    try:
        for at in range(0, len(stream), step):
            decoder.feed(stream[at : at + step])
            assert decoder.buffered <= limit + step
            while decoder.next_frame() is not None:
                pass
            assert decoder.buffered <= limit
    except FrameError:
        assert decoder.buffered <= limit + step


@given(data, points)
def test_a_body_that_never_ends_is_refused_at_the_limit(filling: bytes, at: list[int]) -> None:
    endless = (filling.replace(b"\0", b"") or b".") * 200
    reading = read([b"SEND\n\n", *cut(endless, at)], FrameLimits(frame=200))
    assert reading.frames == []
    assert reading.error == "the frame is larger than 200 octets"


@given(header_lists, st.lists(st.integers(0, 100), min_size=1, max_size=60), st.booleans())
def test_repeated_names_never_exhaust_the_limit_of_headers(
    headers: list[tuple[bytes, bytes]], repeats: list[int], byte_by_byte: bool
) -> None:
    lines = [b"h%d:%d" % (number, number) for number in range(max(1, len(headers)))]
    repeated = [lines[number % len(lines)] + b"-again" for number in repeats]
    stream = lay_out(b"SEND", lines + repeated, b"\n", b"")
    reading = read(one_by_one(stream) if byte_by_byte else [stream], FrameLimits(headers=len(lines)))
    assert reading.error is None
    ((_, found, _, _),) = reading.frames
    assert found == {b"h%d" % number: b"%d" % number for number in range(len(lines))}
    one_more = lay_out(b"SEND", [*lines, b"one-more:1"], b"\n", b"")
    assert read([one_more], FrameLimits(headers=len(lines))).error == f"more than {len(lines)} headers"


@given(between_frames.flatmap(lambda start: st.lists(between_frames, max_size=30).map(lambda rest: [start, *rest])))
def test_heart_beats_are_no_frames_and_leave_nothing_behind(beats: list[bytes]) -> None:
    decoder = Decoder(FrameLimits(frame=5))
    for beat in beats:
        for byte in one_by_one(beat):
            decoder.feed(byte)
            assert decoder.next_frame() is None
    assert decoder.buffered == 0
