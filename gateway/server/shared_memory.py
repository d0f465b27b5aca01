"""Memory that the workers of one supervisor share: tables of what they count together, and when each was last alive.

A row of a table belongs to a key, by its hash, and has a time and a number in each column. In the table of what is
there, each worker has a column, and writes no other. So what a dead one had is given back by clearing its column, and
nothing that it was doing when it died can be half done. Rows that count nothing, and whose time is past, are free for
other keys.

The tables of what happened lately have one column (`SharedRecentCounts`), and no worker owns their rows.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from hashlib import blake2b
from types import TracebackType
from typing import Final

from gateway.server.counts import SECRET_SIZE, Key, Recently

# The blocks of the table of what is there, and of each table of what happened lately. With random keys, a block of this
# many rows is full only when more than half of all rows are taken.
_BLOCKS: Final = 4096
_RECENT_BLOCKS: Final = 256
_BLOCK: Final = 64

_HASH_SIZE: Final = 16
_TIME_SIZE: Final = 8
_COUNT_SIZE: Final = 4

# Where the signs of life are, behind the secret, and the tables. Pages that are given back begin at a multiple of 64
# KiB, the largest size of a page.
_ALIVE_AT: Final = 64
_RECENT_AT: Final = 65536

# The part of `struct flock` that matters: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("hhqqi4x")


class HashTable:
    """A table that begins at a byte of ``memory``: all hashes, all times, and the numbers column by column.

    The hash of a key names a block of rows; one of these is the key's, if it has that hash.
    """

    def __init__(self, memory: mmap.mmap, at: int, blocks: int, columns: int) -> None:
        self._memory = memory
        self._at = at
        self._blocks = blocks
        self.rows = blocks * _BLOCK
        times_at = at + self.rows * _HASH_SIZE
        self.columns_at = times_at + self.rows * _TIME_SIZE
        view = memoryview(memory)
        self.times = view[times_at : self.columns_at].cast("d")
        self.counts = view[self.columns_at : at + self.size(blocks, columns)].cast("I")

    @staticmethod
    def size(blocks: int, columns: int) -> int:
        """The bytes of such a table."""
        return blocks * _BLOCK * (_HASH_SIZE + _TIME_SIZE + columns * _COUNT_SIZE)

    def block(self, key: bytes) -> range:
        """The rows that may belong to a hashed key."""
        first = int.from_bytes(key[:2]) % self._blocks * _BLOCK
        return range(first, first + _BLOCK)

    def find(self, key: bytes) -> int | None:
        """The row that belongs to a hashed key."""
        start = self._at + self.block(key).start * _HASH_SIZE
        end = start + _BLOCK * _HASH_SIZE
        at = self._memory.find(key, start, end)
        while at >= 0 and (at - start) % _HASH_SIZE:
            at = self._memory.find(key, at + 1, end)
        return None if at < 0 else (at - self._at) // _HASH_SIZE

    def give(self, row: int, key: bytes) -> None:
        """A row belongs to another hashed key from now on. Under the lock."""
        at = self._at + row * _HASH_SIZE
        self._memory[at : at + _HASH_SIZE] = key

    def take(self, key: bytes, now: float) -> int | None:
        """The row of a hashed key, a free one if it has none, or None if all of its block are taken. Under the lock."""
        row = self.find(key)
        if row is None:
            row = next((each for each in self.block(key) if self.times[each] <= now and not self.total(each)), None)
            if row is not None:
                self.give(row, key)
        return row

    def total(self, row: int) -> int:
        """The sum of a row's numbers."""
        return sum(self.counts[row :: self.rows])


class SharedMemory:
    """One process's view. Only pages that are used take memory."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self.lock = MemoryLock(descriptor)
        self._map = mmap.mmap(descriptor, _size(workers))
        self.secret = self._map[:SECRET_SIZE]
        # When each worker last said that it is alive.
        self.alive = memoryview(self._map)[_ALIVE_AT : _ALIVE_AT + workers * _TIME_SIZE].cast("d")
        self.table = HashTable(self._map, _table_at(), _BLOCKS, workers)

    @classmethod
    def made(cls, workers: int) -> SharedMemory:
        """New memory for so many workers, which inherit its ``descriptor``."""
        descriptor = os.memfd_create("stomp-gateway")
        os.ftruncate(descriptor, _size(workers))
        _ = os.pwrite(descriptor, secrets.token_bytes(SECRET_SIZE), 0)
        return cls(descriptor, workers)

    def recent(self, what: Recently) -> HashTable:
        """A table of what happened lately."""
        return HashTable(self._map, _RECENT_AT + what * HashTable.size(_RECENT_BLOCKS, 1), _RECENT_BLOCKS, 1)

    def hash(self, key: Key) -> bytes:
        """The hash of a key. Who knows keys, but not the secret, cannot fill one block."""
        return blake2b(repr(key).encode(), key=self.secret, digest_size=_HASH_SIZE).digest()

    def live(self, worker: int, now: float) -> None:
        """A worker says that it is alive."""
        self.alive[worker] = now

    def give_back(self, worker: int) -> None:
        """A worker is dead: it has nothing any more."""
        # The pages go, and come back as zeros.
        column = self.table.rows * _COUNT_SIZE
        self._map.madvise(mmap.MADV_REMOVE, self.table.columns_at + worker * column, column)


class MemoryLock:
    """A lock that the system takes from a process that dies. It is never held for longer than some microseconds."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1)

    @property
    def holder(self) -> int | None:
        """The process that has it, if another one has."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process


def _table_at() -> int:
    return _RECENT_AT + len(Recently) * HashTable.size(_RECENT_BLOCKS, 1)


def _size(workers: int) -> int:
    return _table_at() + HashTable.size(_BLOCKS, workers)
