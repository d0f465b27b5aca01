"""The tap's scanner reads what the gateway's decoder reads, for any split of the stream."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import event, example, given
from hypothesis import strategies as st

from gateway.stomp.frame_scanner import FrameScanner, ScannedFrame, UnreadableStreamError
from tests.property.cuts import cut, one_by_one, points
from tests.property.stomp_streams import consumers, producers, read, streams


def scanned(pieces: Iterable[bytes]) -> tuple[list[ScannedFrame], bool]:
    """The frames, and whether something could not be read."""
    scanner = FrameScanner(from_client=True)
    frames: list[ScannedFrame] = []
    try:
        for piece in pieces:
            frames += scanner.scan(piece)
    except UnreadableStreamError:
        return frames, True
    return frames, False


@given(streams | st.lists(producers() | consumers(), min_size=1, max_size=3).map(b"".join), points)
@example(b"SEND\ncontent-length:3\n\na\0b\0\nACK\nid:1\n\nignored\0", [1, 20, 24])
def test_any_split_gives_the_decoders_frames(stream: bytes, at: list[int]) -> None:
    whole = read([stream])
    frames, is_broken = scanned([stream])
    event(f"frames: {min(len(frames), 5)}, broken: {is_broken}")
    for pieces in (one_by_one(stream), cut(stream, at)):
        assert scanned(pieces) == (frames, is_broken)
    for ours, (command, headers, body, _) in zip(frames, whole.frames, strict=False):
        assert (ours.command, ours.headers) == (command, headers)
        if command == b"SEND":
            assert ours.size == len(body)
    # What is none of STOMP's commands, or escapes, is for each to judge.
    if whole.error is None and not is_broken:
        assert len(frames) == len(whole.frames)


def test_a_servers_content_length_counts_on_every_frame() -> None:
    scanner = FrameScanner(from_client=False)
    stream = b"MESSAGE\ncontent-length:3\n\na\0b\0\nERROR\nmessage:x\n\nwhy\0"
    assert [(each.command, each.size) for each in scanner.scan(stream)] == [(b"MESSAGE", 3), (b"ERROR", 3)]


def test_a_body_of_any_size_is_counted_and_not_kept() -> None:
    scanner, piece = FrameScanner(from_client=True), b"x" * 65536
    assert not list(scanner.scan(b"SEND\ndestination:/queue/a\n\n"))
    for _ in range(1000):
        assert not list(scanner.scan(piece))
    assert [each.size for each in scanner.scan(b"\0")] == [65_536_000]
    assert len(scanner._arriving) == 0


def test_a_header_block_without_an_end_is_not_kept_for_ever() -> None:
    scanner = FrameScanner(from_client=True)
    broken = False
    for number in range(1000):
        try:
            list(scanner.scan(b"h%d:%b\n" % (number, b"x" * 1000) if number else b"SEND\n"))
        except UnreadableStreamError:
            broken = True
            break
    assert broken
    assert len(scanner._arriving) < 300_000
