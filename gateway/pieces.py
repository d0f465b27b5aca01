"""Bytes in pieces: small ones are joined, since each costs a system call's work, and large ones are never copied."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

Piece = bytes | memoryview
"""Bytes to be written, which may be part of others."""

LARGE: Final = 16 << 10
"""Bytes from which on it costs less to write a body by itself than to copy it."""

# A piece of what was read keeps all of it in memory. A smaller part than this is copied instead.
_LEAST_PART: Final = 4


class LargeBody:
    """The body of a message in the pieces in which it came. ``len`` is its size, ``bytes`` a copy in one piece."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


Body = bytes | LargeBody
"""The body of a message. It is in pieces only if it is large and did not come in one read."""


def body_of(pieces: Sequence[Piece]) -> Body:
    """The body that came in these pieces."""
    body = LargeBody(pieces)
    return body if len(body) >= LARGE else bytes(body)


def part_of(data: bytes, start: int, stop: int) -> Piece:
    """A part of what was read, not copied if it is much of it."""
    if _LEAST_PART * (stop - start) >= len(data) and stop - start >= LARGE:
        return memoryview(data)[start:stop]
    return data[start:stop]


def joined(pieces: Sequence[Body]) -> bytes:
    """The same in one piece. HOT: once per MESSAGE on WebSocket."""
    try:
        return b"".join(pieces)  # type: ignore[arg-type]
    except TypeError:
        return b"".join(gathered(pieces))


def parts(body: Body, most: int) -> Iterator[list[Piece]]:
    """Cut a body into parts of so many bytes, of which the last may be smaller; each in pieces."""
    part: list[Piece] = []
    room = most
    for piece in body.pieces if isinstance(body, LargeBody) else (body,):
        view = memoryview(piece)
        while len(view) >= room:
            yield [*part, view[:room]]
            view = view[room:]
            part, room = [], most
        if view:
            part.append(view)
            room -= len(view)
    if part:
        yield part


def gathered(pieces: Iterable[Piece | LargeBody]) -> list[Piece]:
    """The same bytes in as few pieces as it takes to leave the large ones alone. HOT: once per large batch."""
    found: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < LARGE:
            small.append(piece)  # type: ignore[arg-type]  # no body in pieces is small
        else:
            found.append(b"".join(small))
            found += gathered(piece.pieces) if isinstance(piece, LargeBody) else (piece,)
            small.clear()
    found.append(b"".join(small))
    return [piece for piece in found if piece]
