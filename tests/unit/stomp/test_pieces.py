"""Frames that arrive in pieces: errors come early, and no byte is searched twice."""

import tracemalloc
from typing import SupportsIndex

import pytest

from gateway.errors import FrameError
from gateway.stomp import decoder as decoder_module
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.headers import split_line


@pytest.mark.parametrize(
    ("first", "bad"),
    [
        (b"SEND", b"\r.\n"),
        (b"SEND\ndestination:/queue/a\n", b"no colon\n"),
        (b"SEND\ndestination:/queue/a\nx:", b"\\t\n"),
        (b"SEND\ndestination:/queue/a\nx:\r", b".\n"),
        (b"SEND\ncontent-length:abc\n", b"\n"),
        (b"SEND\ncontent-length:4\n\nbod", b"yyy"),
        (b"SEND\n" + b"".join(b"%d:1\n" % number for number in range(100)), b"one-more:1\n"),
    ],
)
def test_a_violation_is_an_error_before_the_frame_ends(first: bytes, bad: bytes) -> None:
    decoder = Decoder()
    decoder.feed(first)
    assert decoder.next_frame() is None
    with pytest.raises(FrameError):  # noqa: PT012 - either may raise: the head is read by feed, the body by next_frame
        decoder.feed(bad)
        decoder.next_frame()


def test_a_violation_in_a_whole_line_is_an_error_though_the_frame_has_not_ended() -> None:
    decoder = Decoder()
    decoder.feed(b"SEND\nno colon\nand more")
    with pytest.raises(FrameError, match="without a colon"):
        decoder.next_frame()


class CountingBuffer(bytearray):
    """A buffer that counts the bytes that are searched or copied."""

    work = 0

    def find(self, sub: bytes | SupportsIndex, start: int | None = 0, end: int | None = None, /) -> int:  # type: ignore[override]
        found = super().find(sub, start, end)
        self.work += (found if found >= 0 else len(self)) - (start or 0) + 1
        return found

    def __getitem__(self, index: slice | SupportsIndex) -> bytearray | int:  # type: ignore[override]
        found = super().__getitem__(index)
        if isinstance(found, bytearray):
            self.work += len(found)
        return found


BODY = b"x" * (4 * 1024 * 1024 - 100)
HEADERS = b"".join(b"header-%d:%s\n" % (number, b"y" * 40_000) for number in range(100))


@pytest.mark.parametrize(
    ("start", "rest", "most"),
    [
        (b"SEND\ndestination:/queue/a\n", b"\n" + BODY + b"\0", len(BODY) + 10_000),
        (b"ACK\nid:1\n", b"\n" + BODY + b"\0", len(BODY) + 10_000),
        (b"SEND\n", HEADERS + b"\n\0", 2 * len(HEADERS) + 10_000),
        (b"SEND\n", b"a:b\n" * 10_000 + b"\n\0", 3 * 40_000),
    ],
    ids=["body up to NUL", "other command", "long headers", "many headers"],
)
def test_no_byte_is_searched_twice_however_small_the_pieces(start: bytes, rest: bytes, most: int) -> None:
    decoder = Decoder(FrameLimits(lines=10_000))
    decoder.feed(start)
    assert decoder.next_frame() is None
    partial = decoder._partial
    assert isinstance(partial, decoder_module._PartialFrame)
    buffer = partial.buffer = CountingBuffer(partial.buffer)
    step = 1_460
    for at in range(0, len(rest), step):
        assert decoder.next_frame() is None
        decoder.feed(rest[at : at + step])
    assert partial.buffer is buffer
    frame = decoder.next_frame()
    assert frame is not None
    assert len(frame.body) == (len(BODY) if start.startswith(b"SEND\n") and BODY in rest else 0)
    assert len(buffer) == len(start + rest)
    assert 0 < buffer.work <= most


@pytest.mark.parametrize(("size", "step"), [(20_000, 1), (len(BODY), 1_460), (len(BODY), 256_000)])
def test_a_body_of_a_known_length_takes_little_more_than_itself_however_small_the_pieces(size: int, step: int) -> None:
    decoder = Decoder()
    decoder.feed(b"SEND\ncontent-length:%d\n\n" % size)
    body = BODY[:size]
    tracemalloc.start()
    try:
        for at in range(0, size, step):
            assert decoder.next_frame() is None
            decoder.feed(body[at : at + step])
        assert tracemalloc.get_traced_memory()[1] < size + size // 4 + 20_000
    finally:
        tracemalloc.stop()
    decoder.feed(b"\0")
    frame = decoder.next_frame()
    assert frame is not None
    assert bytes(frame.body) == body


def test_what_follows_a_large_body_waits_with_it() -> None:
    """As while the session is held: nobody takes the frame meanwhile."""
    decoder = Decoder()
    decoder.feed(b"SEND\na:1\ncontent-length:5\n\n12")
    assert decoder.next_frame() is None
    for piece in (b"345\0\nSEND\na:2\n", b"content-length:1\n", b"\nx\0"):
        decoder.feed(piece)
    assert decoder.buffered == len(b"SEND\na:1\ncontent-length:5\n\n12345\0\nSEND\na:2\ncontent-length:1\n\nx\0")
    frames = [decoder.next_frame() for _ in range(3)]
    assert [frame and (frame.headers[b"a"], frame.body) for frame in frames] == [(b"1", b"12345"), (b"2", b"x"), None]


@pytest.mark.parametrize("cuts", [[], [30], [30, 60], [112], [5, 112, 120]])
def test_no_header_line_is_read_twice(cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def counting(line: bytes) -> tuple[bytes, bytes]:
        read.append(line)
        return split_line(line)

    monkeypatch.setattr(decoder_module, "split_line", counting)
    lines = [b"header-%d:\\c%d" % (number, number) for number in range(8)]
    stream = b"\n".join([b"ABORT", *lines, b"", b"a body that is thrown away\0"])
    decoder = Decoder()
    found = None
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        assert found is None
        decoder.feed(stream[start:end])
        found = decoder.next_frame()
    assert found is not None
    assert len(found.headers) == 8
    assert read == lines
