"""Output in pieces: small ones are joined, since each costs a system call's work, and large ones are never copied."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.amqp.codec import Piece

LARGE: Final = 16 << 10
"""Bytes from which on it costs less to write a body by itself than to copy it."""


def gathered(pieces: Iterable[Piece]) -> list[Piece]:
    """The same bytes in as few pieces as it takes to leave the large ones alone. HOT: once per large batch."""
    found: list[Piece] = []
    small: list[Piece] = []
    for piece in pieces:
        if len(piece) < LARGE:
            small.append(piece)
        else:
            found += (b"".join(small), piece)
            small.clear()
    found.append(b"".join(small))
    return [piece for piece in found if piece]
