"""A producer's header block is read once and shared, and what belongs to the single frame stays with it."""

import tracemalloc

import pytest

from gateway.errors import FrameError
from gateway.stomp.decoder import Decoder, FrameLimits
from gateway.stomp.frame import Frame


def read(decoder: Decoder, stream: bytes) -> Frame:
    """The one frame of a stream."""
    decoder.feed(stream)
    frame = decoder.next_frame()
    assert frame is not None
    assert decoder.next_frame() is None
    return frame


def test_frames_with_the_same_block_share_their_head_but_not_receipt_length_and_body() -> None:
    decoder = Decoder()
    frames = [
        read(
            decoder,
            b"SEND\ndestination:/queue/a\nreceipt:r%d\ncontent-length:%d\nx:y\n\n" % (size, size) + body + b"\0",
        )
        for size, body in enumerate([b"", b"1", b"22", b"333"])
    ]
    assert len({id(frame.header_block) for frame in frames}) == 1
    for size, frame in enumerate(frames):
        assert frame.headers == {
            b"destination": b"/queue/a",
            b"receipt": b"r%d" % size,
            b"content-length": b"%d" % size,
            b"x": b"y",
        }
        assert (frame.receipt, frame.length, len(frame.body)) == (b"r%d" % size, b"%d" % size, size)
    assert frames[0].header_block.volatile == (b"receipt", b"content-length")


def test_a_plan_on_a_head_is_found_again_with_the_same_block_only() -> None:
    decoder = Decoder()
    read(decoder, b"SEND\ndestination:/queue/a\nreceipt:1\n\n\0").header_block.cached_publish = "plan"
    assert read(decoder, b"SEND\ndestination:/queue/a\nreceipt:2\n\nbody\0").header_block.cached_publish == "plan"
    assert read(decoder, b"SEND\ndestination:/queue/b\nreceipt:3\n\n\0").header_block.cached_publish is None
    assert read(decoder, b"SEND\ndestination:/queue/a\n\n\0").header_block.cached_publish is None
    empty = read(decoder, b"SEND\ndestination:/queue/a\nreceipt:4\ncontent-length:0\n\n\0")
    assert empty.header_block.cached_publish is None


@pytest.mark.parametrize(
    ("spelt", "meant"),
    [
        (b"a\\cb", b"a:b"),
        (b"a:b", b"a:b"),
        (b"\\\\n", b"\\n"),
        (b"", b""),
        (b"a\0", b"a\0"),
        (b"r\r", b"r"),
        (b" r ", b" r "),
    ],
)
def test_the_receipt_of_a_known_block_is_read_by_the_same_rules(spelt: bytes, meant: bytes) -> None:
    decoder = Decoder()
    for line in (b"receipt:first", b"receipt:" + spelt):
        frame = read(decoder, b"SEND\n" + line + b"\ndestination:/queue/a\n\nbody\0")
    assert frame.receipt == meant
    assert frame.headers == {b"receipt": meant, b"destination": b"/queue/a"}


@pytest.mark.parametrize(
    "block",
    [
        b"receipt:\\t\ncontent-length:1",
        b"receipt:a\rb\ncontent-length:1",
        b"receipt:" + b"r" * 31 + b"\ncontent-length:1",
        b"receipt:r\ncontent-length:x",
        b"receipt:r\ncontent-length:-1",
        b"receipt:r\ncontent-length:1000000000",
        b"receipt:r\ncontent-length:0",
        b"receipt:r\ncontent-length:" + b"9" * 25,
        b"receipt:r\ncontent-length:\\c1",
    ],
)
def test_violations_in_what_varies_are_found_in_a_known_block_too(block: bytes) -> None:
    decoder = Decoder(FrameLimits(header=30))
    for _ in range(2):
        read(decoder, b"SEND\nreceipt:r\ncontent-length:1\n\nb\0")
    with pytest.raises(FrameError):
        read(decoder, b"SEND\n" + block + b"\n\nb\0")


def test_a_known_block_does_not_make_room_for_a_longer_frame() -> None:
    decoder = Decoder(FrameLimits(frame=30))
    for stream in (b"SEND\na:1\n\n\0", b"SEND\na:1\n\n" + b"x" * 19 + b"\0"):
        assert read(decoder, stream).headers == {b"a": b"1"}
    decoder.feed(b"SEND\na:1\n\n" + b"x" * 20 + b"\0")
    with pytest.raises(FrameError, match="larger than 30"):
        decoder.next_frame()


def test_a_body_that_looks_like_the_end_of_a_head_changes_nothing() -> None:
    decoder = Decoder()
    for stream in (b"SEND\r\na:1\r\n\r\nx\n\ny\0", b"SEND\na:1\n\r\nx\n\ny\0", b"SEND\na:1\n\nx\n\ny\0") * 2:
        frame = read(decoder, stream)
        assert (frame.headers, frame.body) == ({b"a": b"1"}, b"x\n\ny")


@pytest.mark.parametrize("blocks", [100, 1_000])
def test_all_of_many_blocks_in_turn_are_known_when_they_come_again(blocks: int) -> None:
    decoder = Decoder()
    frames = [b"SEND\ndestination:/topic/prices.%d\ncontent-length:1\n\nx\0" % number for number in range(blocks)]
    for frame in frames * 2:
        read(decoder, frame).header_block.cached_publish = "known"
    assert all(read(decoder, frame).header_block.cached_publish == "known" for frame in frames)


def test_a_block_that_is_in_use_stays_known_beside_many_that_never_come_again() -> None:
    decoder = Decoder()
    for number in range(500):
        read(decoder, b"SEND\nx:%d\n\n\0" % number)
    same = b"SEND\nx:same\n\n\0"
    for _ in range(2):
        read(decoder, same).header_block.cached_publish = "known"
    for number in range(10_000):
        read(decoder, b"SEND\nx:unlike-%d\n\n\0" % number)
    assert read(decoder, same).header_block.cached_publish == "known"


def test_some_of_more_blocks_than_there_is_room_for_are_known() -> None:
    decoder = Decoder()
    frames = [b"SEND\nx:%s%d\n\n\0" % (b"y" * 1_900, number) for number in range(500)]
    known = 0
    for frame in frames * 8:
        block = read(decoder, frame).header_block
        known += block.cached_publish is not None
        block.cached_publish = "known"
    assert known > 500


def test_memory_for_header_blocks_is_bounded() -> None:
    """Blocks that come once take little; others as much as docs/limits.md says, with what is kept on them."""
    decoder = Decoder()

    def memory(times: int) -> int:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(6_000):
            for _ in range(times):
                read(decoder, b"SEND\nx:%d-%d\ncontent-length:1\n\nb\0" % (times, number))
        read(decoder, b"SEND\nx:" + b"long" * 1_000 + b"\n\n\0")
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        assert memory(1) < 300_000
        # 1,600 blocks, without what a session keeps on each.
        assert memory(2) < 2_000_000
    finally:
        tracemalloc.stop()


def test_what_is_cut_out_of_header_blocks_does_not_stay_with_them() -> None:
    decoder = Decoder()
    tracemalloc.start()
    try:
        for number in range(1_000):
            block = b"SEND\nx:%d\n" % number
            for _ in range(2):
                read(decoder, block + b"receipt:%01900d\n\n\0" % number)
                read(decoder, b"ACK\nx:%d\nid:%01900d\n\n\0" % (number, number))
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


def test_header_blocks_that_are_dropped_take_no_memory() -> None:
    """Nor do those whose length was known."""
    decoder = Decoder()
    tracemalloc.start()
    try:
        for number in range(4_000):
            frame = b"SEND\n%b\ncontent-length:1\n\nb\0" % b"\n".join(b"%d-%d:" % (number, line) for line in range(40))
            for _ in range(5):
                read(decoder, frame)
        # 300 of them are kept, and each takes 4 kB.
        assert tracemalloc.get_traced_memory()[0] < 2_000_000
    finally:
        tracemalloc.stop()


class Counted(bytes):
    """Bytes that count how many of them are looked at, or copied."""

    work = 0

    def find(self, sub: bytes | int, start: int | None = 0, end: int | None = None, /) -> int:  # type: ignore[override]
        found = super().find(sub, start, end)
        stop = found if found >= 0 else min(len(self), len(self) if end is None else end)
        self.work += stop - (start or 0)
        return found

    def __getitem__(self, index: slice | int) -> bytes | int:  # type: ignore[override]
        if isinstance(index, slice):
            self.work += len(range(*index.indices(len(self))))
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "frame",
    [b"SEND\r\na:1\r\n\r\nbody\0\n", b"SEND\na:1\n\r\nbody\0\n", b"ACK\r\nid:1\r\n\r\n\0", b"SEND\na:1\n\nbody\0\n"],
)
def test_work_for_a_chunk_of_many_frames_grows_with_its_length_only(frame: bytes) -> None:
    def work(count: int) -> int:
        chunk = Counted(frame * count + b"SEND\na:1\n\nlast\0")
        decoder = Decoder()
        decoder.feed(chunk)
        found = 0
        while decoder.next_frame() is not None:
            found += 1
        assert found == count + 1
        return chunk.work

    assert work(4_000) < 5 * work(1_000)


def test_a_length_is_the_same_mistake_in_a_block_that_is_known() -> None:
    """More digits than any number may have; here they are zeros, so that the number itself would be in order."""
    decoder = Decoder()
    read(decoder, b"SEND\ndestination:/queue/a\ncontent-length:1\n\nx\0")
    decoder.feed(b"SEND\ndestination:/queue/a\ncontent-length:" + b"0" * 1500 + b"1\n\nx\0")
    with pytest.raises(FrameError, match="content-length"):
        decoder.next_frame()
