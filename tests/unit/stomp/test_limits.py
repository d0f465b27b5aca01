import tracemalloc

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame, OversizedFrame


def read(stream: bytes, limits: FrameLimits, step: int) -> list[Frame]:
    """The frames of a stream that comes in pieces of this size."""
    decoder = Decoder(limits)
    frames: list[Frame] = []
    for at in range(0, len(stream), step):
        decoder.feed(stream[at : at + step])
        while (frame := decoder.next_frame()) is not None:
            frames.append(frame)
    return frames


STEPS = [1, 7, 10_000]


@pytest.mark.parametrize(("total", "fits"), [(60, True), (61, False)])
def test_a_frame_that_says_it_will_be_too_large_is_refused_at_once(total: int, fits: bool) -> None:
    decoder = Decoder(FrameLimits(frame=60))
    decoder.feed(b"SEND\ncontent-length:%d\n\n" % (total - 25))
    if fits:
        assert decoder.next_frame() is None
    else:
        with pytest.raises(FrameError, match="larger than 60"):
            decoder.next_frame()


@pytest.mark.parametrize(("total", "fits"), [(60, True), (61, False)])
def test_the_same_when_its_headers_come_in_pieces(total: int, fits: bool) -> None:
    decoder = Decoder(FrameLimits(frame=60))
    decoder.feed(b"SEND\ncontent-")
    assert decoder.next_frame() is None
    rest = b"length:%d\n\n" % (total - 25)
    if fits:
        decoder.feed(rest)
        assert decoder.next_frame() is None
    else:
        with pytest.raises(FrameError, match="larger than 60"):
            decoder.feed(rest)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("head", [b"SEND\ndestination:/queue/a\n\n", b"SEND\ncontent-length:%d\n\n", b"ACK\nid:%d\n\n"])
def test_a_frame_may_have_as_many_bytes_as_the_limit_and_not_one_more(head: bytes, step: int) -> None:
    for size, fits in ((200, True), (201, False)):
        body = size - len(head.replace(b"%d", b"123")) - 1
        start = head % body if b"%d" in head else head
        stream = start + b"x" * (size - len(start) - 1) + b"\0"
        assert len(stream) == size
        if fits:
            assert len(read(b"\n" * 500 + stream * 3, FrameLimits(frame=200), step)) == 3
        else:
            with pytest.raises(FrameError, match=r"^the frame is larger than 200 octets$"):
                read(stream, FrameLimits(frame=200), step)


@pytest.mark.parametrize(
    "endless", [b"x", b"SEND\nx", b"SEND\nx:y", b"SEND\nx:y\n\nx", b"SEND\nx:y\n" + b"x:y\n" * 10, b"ACK\n\nx"]
)
def test_a_frame_that_never_ends_is_refused_while_it_is_arriving(endless: bytes) -> None:
    decoder = Decoder(FrameLimits(frame=200))
    decoder.feed(endless)
    assert decoder.next_frame() is None
    decoder.feed(b"x" * (200 - len(endless)))
    assert decoder.next_frame() is None
    with pytest.raises(FrameError, match="larger than 200"):
        decoder.feed(b"x")


def test_a_content_length_beyond_the_limit_is_refused_before_the_body_comes() -> None:
    for step in STEPS:
        with pytest.raises(FrameError, match=r"^the frame is larger than 200 octets$"):
            read(b"SEND\ncontent-length:200\n\n", FrameLimits(frame=200), step)


@pytest.mark.parametrize("step", STEPS)
def test_a_frame_may_have_as_many_distinct_headers_as_the_limit(step: int) -> None:
    lines = b"".join(b"h%d:1\n" % number for number in range(100))
    (frame,) = read(b"SEND\n" + lines + lines + b"h5:again\n\n\0", FrameLimits(), step)
    assert len(frame.headers) == 100
    with pytest.raises(FrameError, match=r"^more than 100 headers$"):
        read(b"SEND\n" + lines + b"one-more:1\n\n\0", FrameLimits(), step)


@pytest.mark.parametrize("step", STEPS)
def test_repeated_headers_cost_time_and_are_bounded_too(step: int) -> None:
    limits = FrameLimits(headers=2, lines=50)
    (frame,) = read(b"SEND\na:1\n" + b":\n" * 49 + b"\n\0", limits, step)
    assert frame.headers == {b"a": b"1", b"": b""}
    for end in (b"\n\0", b""):  # also while the frame is still arriving
        with pytest.raises(FrameError, match=r"^more than 50 header lines$"):
            read(b"SEND\na:1\n" + b":\n" * 50 + end, limits, step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("line", [b"n%b:value", b"name:%b", b"receipt:%b", b"destination:%b"])
def test_names_and_values_may_be_as_long_as_the_limit(line: bytes, step: int) -> None:
    limits = FrameLimits(header=1_000)
    (frame,) = read(b"SEND\n" + line % (b"x" * 999) + b"\n\n\0", limits, step)
    assert len(frame.headers) == 1
    with pytest.raises(FrameError, match=r"^header '[a-z]+(\.\.\.)?' is longer than 1000 octets$"):
        read(b"SEND\n" + line % (b"x" * 1_001) + b"\n\n\0", limits, step)


def test_escapes_count_as_the_one_byte_that_they_stand_for() -> None:
    (frame,) = read(b"SEND\nname:" + b"\\c" * 10 + b"\n\n\0", FrameLimits(header=10), 1)
    assert frame.headers == {b"name": b":" * 10}


def test_limits_may_be_raised_between_frames() -> None:
    limits = FrameLimits(frame=50)
    decoder = Decoder(limits)
    decoder.feed(b"CONNECT\nhost:/\n\n\0")
    assert decoder.next_frame() is not None
    limits.frame = 1_000
    decoder.feed(b"SEND\n\n" + b"x" * 500)
    assert decoder.next_frame() is None
    decoder.feed(b"\0")
    frame = decoder.next_frame()
    assert frame is not None
    assert len(frame.body) == 500


MEBIBYTE = 1024 * 1024
PIECE = 65_536


@pytest.mark.parametrize(
    ("start", "filling"),
    [(b"", b"x"), (b"SEND\n", b"x:y\n"), (b"SEND\n", b"x"), (b"SEND\nx:y\n\n", b"x"), (b"ACK\n\n", b"x")],
)
def test_memory_stays_near_the_limit_while_a_frame_arrives(start: bytes, filling: bytes) -> None:
    limit = 4 * PIECE
    piece = filling * (PIECE // len(filling))
    decoder = Decoder(FrameLimits(frame=limit, lines=limit))
    tracemalloc.start()
    try:
        decoder.feed(start + piece)
        with pytest.raises(FrameError, match="larger than"):  # noqa: PT012
            for _ in range(100):
                assert decoder.next_frame() is None
                decoder.feed(piece)
        assert tracemalloc.get_traced_memory()[1] < 2 * limit
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("beats", [b"\n", b"\r\n", b"\0", b"\n\0\r\n"])
def test_a_flood_of_heart_beats_costs_no_memory(beats: bytes) -> None:
    decoder = Decoder()
    flood = beats * (MEBIBYTE // len(beats))
    tracemalloc.start()
    try:
        decoder.feed(flood)
        assert decoder.next_frame() is None
        assert tracemalloc.get_traced_memory()[1] < MEBIBYTE // 4
    finally:
        tracemalloc.stop()
    assert decoder.buffered == 0


# A SEND that is too large, where the session goes on after it.


SKIPPING = FrameLimits(frame=200, skips_bodies=True)


@pytest.mark.parametrize("step", [*STEPS, 150, 199, 200, 201])
@pytest.mark.parametrize("size", [170, 200, 1000])
@pytest.mark.parametrize("is_known", [True, False], ids=["known", "new"])
def test_a_body_that_is_too_large_is_skipped(step: int, size: int, is_known: bool) -> None:
    head = b"SEND\ndestination:/queue/a\nreceipt:1\n"
    fits = b"%bcontent-length:3\n\na\0c\0\n" % head + head + b"\nabc\0"
    body = b"x" * size
    large = b"%bcontent-length:%d\n\n%b\0\n" % (head, size + 1, b"\0" + body) + head + b"\n" + body + b"\0"
    frames = read((fits if is_known else b"") + large + fits, SKIPPING, step)
    *before, sized, ended, first, second = frames
    assert len(before) == (2 if is_known else 0)
    assert [frame.body for frame in (*before, first, second)] == [b"a\0c", b"abc"] * (2 if is_known else 1)
    for frame in (sized, ended):
        assert isinstance(frame, OversizedFrame)
        assert (frame.command, frame.body, frame.receipt) == (b"SEND", b"", b"1")
        assert frame.headers[b"destination"] == b"/queue/a"
    # Nothing that is cached for those that fit is found on one that does not.
    assert sized.header_block is not first.header_block


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"ACK\nid:1\n\n" + b"x" * 300, "larger than 200"),
        (b"SEND\nx:" + b"x" * 300, "larger than 200"),
        (b"SEND\ncontent-length:300\n\n" + b"x" * 301, "no NUL"),
    ],
)
def test_other_frames_are_not_skipped(stream: bytes, reason: str, step: int) -> None:
    with pytest.raises(FrameError, match=reason):
        read(stream, SKIPPING, step)


@pytest.mark.parametrize("length", [b"content-length:100000000\n", b""], ids=["content-length", "nul"])
def test_nothing_of_a_skipped_body_is_kept(length: bytes) -> None:
    decoder = Decoder(FrameLimits(frame=200, skips_bodies=True))
    decoder.feed(b"SEND\ndestination:/queue/a\n%b\n" % length)
    piece = b"x" * (1 << 16)
    tracemalloc.start()
    try:
        for _ in range(100):
            decoder.feed(piece)
            assert decoder.next_frame() is None
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One piece joins the head in its buffer, and is copied.
    assert most < 4 * len(piece)
    assert decoder.buffered < len(piece)
