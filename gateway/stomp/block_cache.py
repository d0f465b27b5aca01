"""A bounded table of what header blocks mean, by their bytes.

A producer repeats a few blocks, or hundreds in turn; and some producers never send the same block twice. So the first
few blocks are entered at once, and a further one when it comes for the second time. When the table is full, every
second entry goes: what is in use comes back, and of a round of more blocks than there is room for, some stay.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

_Meaning = TypeVar("_Meaning")

# So many are entered without having come before.
_FEW: Final = 64

# Of so many further blocks it is known that they have come. That takes some 150 kB at the most.
_MOST_SEEN: Final = 2048


class BlockCache(dict[bytes, _Meaning], Generic[_Meaning]):
    """What blocks mean. To look one up is to look into a dictionary.

    Args:
        most_bytes: what all entries may take.
        of_entry: what an entry takes, in bytes,
        of_byte: and for each byte of its block.
    """

    __slots__ = ("_bytes", "_most_bytes", "_of_byte", "_of_entry", "_seen")

    def __init__(self, most_bytes: int, of_entry: int, of_byte: int = 1) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._of_entry = of_entry
        self._of_byte = of_byte
        self._bytes = 0
        # Their hashes.
        self._seen: set[int] | None = None

    def enter(self, block: bytes, meaning: _Meaning) -> None:
        """Enter a block that is not in the table, if it is worth it."""
        if len(self) >= _FEW and not self._has_seen(hash(block)):
            return
        size = self._of_entry + self._of_byte * len(block)
        if self._bytes + size > self._most_bytes:
            for each in list(self)[::2]:
                del self[each]
            self._bytes = self._of_entry * len(self) + self._of_byte * sum(map(len, self))
        self._bytes += size
        self[block] = meaning

    def _has_seen(self, digest: int) -> bool:
        seen = self._seen
        if seen is None or len(seen) >= _MOST_SEEN:
            seen = self._seen = set()
        if digest in seen:
            return True
        seen.add(digest)
        return False
