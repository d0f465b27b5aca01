"""Sampling: which messages of a session are written at level message."""

from __future__ import annotations

from typing import Final
from zlib import crc32

_RANGE: Final = 1 << 32


class Sample:
    """Decides by a message's number, so that all its events are written or none.

    Args:
        share: of the messages that are written, above 0 and below 1.
        boot: of the writer.
        session: its number in the boot.
    """

    __slots__ = ("_bound", "_seed", "weight")

    def __init__(self, share: float, boot: str, session: int) -> None:
        self.weight = 1 / share
        self._bound = int(share * _RANGE)
        self._seed = crc32(f"{boot} {session}".encode())

    def takes(self, message: int) -> bool:
        """Whether this message is written.

        Args:
            message: its number in the session, or its delivery tag.
        """
        return crc32(message.to_bytes(8, "big"), self._seed) < self._bound
