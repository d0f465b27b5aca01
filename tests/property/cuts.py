"""A byte stream, cut the way a network might."""

from collections.abc import Sequence

from hypothesis import strategies as st

points = st.lists(st.integers(0, 10_000), max_size=12)
"""Where to cut; taken modulo the stream's length, so that they fit any stream."""


def cut(stream: bytes, at: Sequence[int]) -> list[bytes]:
    """The stream in pieces, cut at the points; some may be empty."""
    places = sorted(point % (len(stream) + 1) for point in at)
    return [stream[start:stop] for start, stop in zip([0, *places], [*places, len(stream)], strict=True)]


def one_by_one(stream: bytes) -> list[bytes]:
    """The stream byte by byte."""
    return [stream[at : at + 1] for at in range(len(stream))]
