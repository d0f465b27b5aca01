"""Memory that the workers of one supervisor share: what they count together, and when each was last alive.

A row belongs to a key, by its hash: how many each worker has, and a time. Each worker writes its own numbers only. So
what a dead one had is given back by clearing them, and nothing that it was doing when it died can be half done.
Rows that count nothing, and whose time is past, are free for other keys.

What happened lately has tables of its own (`SharedRecentCounts`), whose rows no worker owns.
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
from gateway.server.hashed_rows import BLOCK, HASH_SIZE, HashedRows

_BLOCKS: Final = 4096
_ROWS: Final = BLOCK * _BLOCKS

# The same of each table of what happened lately.
_RECENT_BLOCKS: Final = 256
_RECENT_ROWS: Final = BLOCK * _RECENT_BLOCKS

_COUNT_SIZE: Final = 4
_TIME_SIZE: Final = 8

# Where things are: the secret and the signs of life, then all hashes, all times, the tables of what happened lately,
# and the counts worker by worker.
_ALIVE_AT: Final = 64
# Pages that are given back begin at a multiple of 64 KiB, the largest size of a page.
_HASHES_AT: Final = 65536
_TIMES_AT: Final = _HASHES_AT + _ROWS * HASH_SIZE
_RECENT_AT: Final = _TIMES_AT + _ROWS * _TIME_SIZE
_RECENT_TABLE: Final = _RECENT_ROWS * (HASH_SIZE + _TIME_SIZE + _COUNT_SIZE)
_COUNTS_AT: Final = _RECENT_AT + len(Recently) * _RECENT_TABLE

# The part of `struct flock` that matters: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("hhqqi4x")


class SharedMemory:
    """One process's view. Only pages that are used take memory."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self.lock = MemoryLock(descriptor)
        self._map = mmap.mmap(descriptor, _size(workers))
        view = memoryview(self._map)
        self.secret = self._map[:SECRET_SIZE]
        self._alive = view[_ALIVE_AT : _ALIVE_AT + workers * _TIME_SIZE].cast("d")
        self._rows = HashedRows(self._map, _HASHES_AT, _BLOCKS)
        self.times = view[_TIMES_AT:_RECENT_AT].cast("d")
        self._counts = view[_COUNTS_AT:].cast("I")

    @classmethod
    def made(cls, workers: int) -> SharedMemory:
        """New memory for so many workers, which inherit its ``descriptor``."""
        descriptor = os.memfd_create("stomp-gateway")
        os.ftruncate(descriptor, _size(workers))
        _ = os.pwrite(descriptor, secrets.token_bytes(SECRET_SIZE), 0)
        return cls(descriptor, workers)

    # Signs of life.

    def live(self, worker: int, now: float) -> None:
        """A worker says that it is alive."""
        self._alive[worker] = now

    def alive_at(self, worker: int) -> float:
        """When it last said so."""
        return self._alive[worker]

    # What happened lately.

    def recent(self, what: Recently) -> tuple[HashedRows, memoryview[float], memoryview[int]]:
        """A table: the rows of hashed keys, and of each row a time and a count. To be changed under the lock."""
        at = _RECENT_AT + what * _RECENT_TABLE
        times_at = at + _RECENT_ROWS * HASH_SIZE
        counts_at = times_at + _RECENT_ROWS * _TIME_SIZE
        view = memoryview(self._map)
        times, counts = view[times_at:counts_at], view[counts_at : at + _RECENT_TABLE]
        return HashedRows(self._map, at, _RECENT_BLOCKS), times.cast("d"), counts.cast("I")

    # Rows.

    def hash(self, key: Key) -> bytes:
        """The hash of a key. Who knows keys, but not the secret, cannot fill one block."""
        return blake2b(repr(key).encode(), key=self.secret, digest_size=HASH_SIZE).digest()

    def find(self, key: bytes) -> int | None:
        """The row of a hashed key."""
        return self._rows.find(key)

    def take(self, key: bytes, now: float) -> int | None:
        """The row of a hashed key, a free one if it has none, or None if all of its block are taken. Under the lock."""
        row = self.find(key)
        if row is not None:
            return row
        for each in self._rows.block(key):
            if self.times[each] <= now and not self.total(each):
                self._rows.give(each, key)
                return each
        return None

    def total(self, row: int) -> int:
        """What all workers have of a row."""
        return sum(self._counts[row::_ROWS])

    def put(self, row: int, worker: int, count: int) -> None:
        """A worker says what it has."""
        self._counts[worker * _ROWS + row] = count

    def give_back(self, worker: int) -> None:
        """A worker is dead: it has nothing any more."""
        # The pages go, and come back as zeros.
        self._map.madvise(mmap.MADV_REMOVE, _COUNTS_AT + worker * _ROWS * _COUNT_SIZE, _ROWS * _COUNT_SIZE)


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


def _size(workers: int) -> int:
    return _COUNTS_AT + workers * _ROWS * _COUNT_SIZE
