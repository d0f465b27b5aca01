"""Which row of a table in memory belongs to which key: one whose block the key's hash names, and that has the hash."""

from __future__ import annotations

import mmap
from typing import Final

# Blocks of this size are full, with random keys, only when more than half of all rows are taken.
BLOCK: Final = 64

HASH_SIZE: Final = 16


class HashedRows:
    """The hashes of one table, which begin at a byte of ``memory``."""

    def __init__(self, memory: mmap.mmap, at: int, blocks: int) -> None:
        self._memory = memory
        self._at = at
        self._blocks = blocks

    def block(self, key: bytes) -> range:
        """The rows that may belong to a hashed key."""
        first = int.from_bytes(key[:2]) % self._blocks * BLOCK
        return range(first, first + BLOCK)

    def find(self, key: bytes) -> int | None:
        """The row that belongs to a hashed key."""
        start = self._at + self.block(key).start * HASH_SIZE
        end = start + BLOCK * HASH_SIZE
        at = self._memory.find(key, start, end)
        while at >= 0 and (at - start) % HASH_SIZE:
            at = self._memory.find(key, at + 1, end)
        return None if at < 0 else (at - self._at) // HASH_SIZE

    def give(self, row: int, key: bytes) -> None:
        """A row belongs to another hashed key from now on."""
        at = self._at + row * HASH_SIZE
        self._memory[at : at + HASH_SIZE] = key
