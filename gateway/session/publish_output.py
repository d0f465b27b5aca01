"""The AMQP frames for the publishing channel that the server has not taken yet."""

from __future__ import annotations

from collections import deque

from gateway.amqp.codec import Publication
from gateway.pieces import LARGE, Body, Piece, gathered
from gateway.session.context import Hold


class PublishOutput:
    """Frames, and after them the messages of a COMMIT or a recovery, which are encoded only when they are taken.

    ``holds`` are the session's. Its `Publisher` itself adds to ``frames``, because a call for each message would cost
    too much, and sets ``has_large`` if one of them is large.
    """

    __slots__ = ("_holds", "_unencoded", "frames", "has_large")

    def __init__(self, holds: set[Hold]) -> None:
        self._holds = holds
        self._unencoded: deque[tuple[Publication, Body, tuple[bytes, ...]]] = deque()
        self.frames: list[Piece] = []
        self.has_large = False

    def __bool__(self) -> bool:
        return bool(self.frames or self._unencoded)

    def take(self, at_most: int | None = None) -> list[Piece]:
        """Return what was added since the last call, encoded. HOT: once per batch.

        ``at_most``: leave the messages that begin after this many bytes for the next call, because other sessions wait.
        """
        frames, unencoded = self.frames, self._unencoded
        if unencoded:
            size = 0
            while unencoded and (at_most is None or size < at_most):
                size += self.encode(*unencoded.popleft())
            if not unencoded:
                self._holds.discard(Hold.REPLAY)
        if not frames:
            return []
        taken: list[Piece] = gathered(frames) if self.has_large else [b"".join(frames)]
        self.has_large = False
        frames.clear()
        return taken

    def encode(self, publication: Publication, body: Body, values: tuple[bytes, ...]) -> int:
        """Add a message. Returns its size in bytes, with headers."""
        is_large = len(body) >= LARGE
        pieces = publication.pieces(body, values) if is_large else [publication.encode(bytes(body), values)]
        self.frames += pieces
        self.has_large |= is_large
        return sum(map(len, pieces))

    def add_later(self, publication: Publication, body: Body, values: tuple[bytes, ...]) -> None:
        """Add a message that is encoded when it is taken. The client is held until then."""
        self._unencoded.append((publication, body, values))

    def clear(self) -> None:
        """Drop everything."""
        self.frames.clear()
        self._unencoded.clear()
        self._holds.discard(Hold.REPLAY)
