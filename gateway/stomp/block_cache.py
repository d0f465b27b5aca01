"""A bounded cache from the bytes of a header block to its meaning.

Some producers repeat a few blocks, some cycle through hundreds, and some never send the same block twice. So the cache
stores the first few blocks at once, and any other block when it arrives for the second time. When the cache is full, it
evicts every second entry. Blocks in use soon return, and a producer that cycles through more blocks than fit still
finds some of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final, Generic, TypeVar
from zlib import crc32

_Meaning = TypeVar("_Meaning")

# The cache stores blocks on first sight until it has this many entries or this many bytes.
_FEW: Final = 64
_MOST_BYTES_OF_FEW: Final = 100_000

# The number of four-byte checksums that record the blocks seen once. A collision only caches a block too early.
_SEEN: Final = 8192


class BlockCache(dict[bytes, _Meaning], Generic[_Meaning]):
    """A bounded cache from header blocks to their meaning. A look-up is a plain dictionary look-up.

    Args:
        most_bytes: the memory that all entries together may take.
        size_of: computes the bytes of memory that the entry for a block takes.
    """

    __slots__ = ("_bytes", "_most_bytes", "_seen", "_size_of")

    def __init__(self, most_bytes: int, size_of: Callable[[bytes], int]) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._size_of = size_of
        self._bytes = 0
        # Indexed by the checksum modulo _SEEN.
        self._seen: array[int] | None = None

    def enter(self, block: bytes, meaning: _Meaning) -> bool:
        """Store a block that is not in the cache, or only note that it came. Returns whether others were evicted."""
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
