"""A bounded table of what header blocks mean, by their bytes.

A producer repeats a few blocks, or hundreds in turn; and some producers never send the same block twice. So the first
few blocks are entered at once, and a further one when it comes for the second time. When the table is full, every
second entry goes: what is in use comes back, and of a round of more blocks than there is room for, some stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from zlib import crc32

_Meaning = TypeVar("_Meaning")

# So many are entered without having come before, if they take no more bytes than this.
_FEW: Final = 64
_MOST_BYTES_OF_FEW: Final = 100_000

# The number of checksums, of four bytes each, that record blocks seen once. A checksum is enough: if two blocks have
# the same one, the second is only cached too early.
_SEEN: Final = 8192


class BlockCache(dict[bytes, _Meaning], Generic[_Meaning]):
    """A bounded cache from header blocks to their meaning. A look-up is a plain dictionary look-up.

    Args:
        most_bytes: what all entries may take.
        size_of: the bytes that the entry of a block takes.
    """

    __slots__ = ("_bytes", "_most_bytes", "_seen", "_size_of")

    def __init__(self, most_bytes: int, size_of: Callable[[bytes], int]) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._bytes = 0
        # Checksums, each in the place that its lower bits say.
        self._seen: array[int] | None = None

    def enter(self, block: bytes, meaning: _Meaning) -> bool:
        """Enter a block that is not in the table, if it is worth it. Returns whether others were evicted."""
        if (len(self) >= _FEW or self._bytes >= _MOST_BYTES_OF_FEW) and not self._has_seen(crc32(block)):
            return False
        size = self._size_of(block)
        is_full = self._bytes + size > self._most_bytes
        if is_full:
            for each in list(self)[::2]:
                del self[each]
            self._bytes = sum(map(self._size_of, self))
        self._bytes += size
        self[block] = meaning
        return is_full

    def clear(self) -> None:
        """Drop all entries."""
        super().clear()
        self._bytes = 0

    def _has_seen(self, checksum: int) -> bool:
        seen = self._seen
        if seen is None:
            seen = self._seen = array("I", bytes(4 * _SEEN))
        at = checksum % _SEEN
        if seen[at] == checksum:
            return True
        seen[at] = checksum
        return False
