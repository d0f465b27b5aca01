"""From the pieces of a session's output to whole frames, for transports that carry each frame as a message of its own.

A stream of bytes needs no such thing, so the pieces of a batch are joined there without a look at them. Where a frame
ends cannot be told from its bytes without reading it as a client does: a body may hold anything. The pieces tell:
`Subscription.deliver` lays down a MESSAGE in several, its body as one of them behind its content-length, and every
other frame is one piece.
"""

from __future__ import annotations

from typing import Final

_IN_PIECES: Final = b"MESSAGE\n"
_END_WITHOUT_BODY: Final = b"\n\0\n"

# Pieces of a MESSAGE before its body or its end; with an ack header there are two more, and a number in this place.
_OF_HEAD: Final = 4


def split_frames(pieces: list[bytes]) -> list[bytes]:
    """Join the pieces of each frame.

    HOT: once per batch, and a few tests for each frame.

    Args:
        pieces: of whole frames, as a session puts them out.

    Returns:
        The frames, each with the LF that follows it.
    """
    frames: list[bytes] = []
    begin, count = 0, len(pieces)
    while begin < count:
        piece = pieces[begin]
        if piece.startswith(_IN_PIECES):
            end = begin + _OF_HEAD
            if pieces[end].isdigit():
                end += 2
            # Its content-length, its body and its end; or its end alone.
            end += 1 if pieces[end] == _END_WITHOUT_BODY else 3
            piece = b"".join(pieces[begin:end])
            begin = end
        else:
            begin += 1
        frames.append(piece)
    return frames
