"""What the workers of one supervisor share: tables of counts, and when each worker was last alive.

A row of a table belongs to a key, by its hash, and has a time, and a number in each column. In the table of what exists
now, each worker writes only its own column. So when one dies, clearing its column gives its counts back, and nothing is
left half done. Rows without counts whose time has passed are free for other keys.

The tables of recent events have one column (`SharedRecentCounts`), and no worker owns their rows.
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
import struct
from collections.abc import Callable, Hashable
from hashlib import blake2b
from types import TracebackType
from typing import Final

import structlog

from gateway.server.counts import SECRET_SIZE, Cell, Counts, Key, RecentCounts, Recently

log = structlog.get_logger("gateway.workers")

# The blocks of the table of what exists, and of each table of recent events. With random keys, a block of this many
# rows is full only if more than half of all rows are taken.
_BLOCKS: Final = 4096
_RECENT_BLOCKS: Final = 256
_BLOCK: Final = 64

_HASH_SIZE: Final = 16
_TIME_SIZE: Final = 8
_COUNT_SIZE: Final = 4

# Where the signs of life begin, after the secret, and the tables. Pages that are given back begin at a multiple of 64
# KiB, the largest size of a page.
_ALIVE_AT: Final = 64
_RECENT_AT: Final = 65536

# The part of `struct flock` that matters: type, whence, start, length, process.
_FLOCK: Final = struct.Struct("hhqqi4x")


class HashTable:
    """A table in ``memory`` from byte ``at`` on: all hashes, all times, and the numbers by column.

    The hash of a key selects a block of rows. The row of the block with that hash belongs to the key.
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
        """Give a row to another hashed key. The caller holds the lock."""
        at = self._at + row * _HASH_SIZE
        self._memory[at : at + _HASH_SIZE] = key

    def take(self, key: bytes, now: float) -> int | None:
        """The row of a hashed key, or a free one; None if its block is full. The caller holds the lock."""
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
    """One process's view of the memory. Only pages in use take memory."""

    def __init__(self, descriptor: int, workers: int) -> None:
        self.descriptor = descriptor
        self.workers = workers
        self.lock = MemoryLock(descriptor)
        self._map = mmap.mmap(descriptor, _size(workers))
        self.secret = self._map[:SECRET_SIZE]
        # When each worker was last alive.
        self.alive = memoryview(self._map)[_ALIVE_AT : _ALIVE_AT + workers * _TIME_SIZE].cast("d")
        self.table = HashTable(self._map, _table_at(), _BLOCKS, workers)

    @classmethod
    def made(cls, workers: int) -> SharedMemory:
        """Make memory for ``workers`` workers, which inherit its ``descriptor``."""
        descriptor = os.memfd_create("stomp-gateway")
        os.ftruncate(descriptor, _size(workers))
        _ = os.pwrite(descriptor, secrets.token_bytes(SECRET_SIZE), 0)
        return cls(descriptor, workers)

    def recent(self, what: Recently) -> HashTable:
        """A table of recent events."""
        return HashTable(self._map, _RECENT_AT + what * HashTable.size(_RECENT_BLOCKS, 1), _RECENT_BLOCKS, 1)

    def hash(self, key: Key) -> bytes:
        """The hash of a key. Without the secret, nobody can choose keys that fill one block."""
        return blake2b(repr(key).encode(), key=self.secret, digest_size=_HASH_SIZE).digest()

    def live(self, worker: int, now: float) -> None:
        """Note that a worker is alive."""
        self.alive[worker] = now

    def give_back(self, worker: int) -> None:
        """Clear the counts of a worker that is dead."""
        # The pages are dropped, and read as zeros afterwards.
        column = self.table.rows * _COUNT_SIZE
        self._map.madvise(mmap.MADV_REMOVE, self.table.columns_at + worker * column, column)


class MemoryLock:
    """A lock that the system takes from a process that dies. It is held for some microseconds only."""

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
        """The other process that holds it, if any."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(self._descriptor, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else process


def _table_at() -> int:
    return _RECENT_AT + len(Recently) * HashTable.size(_RECENT_BLOCKS, 1)


def _size(workers: int) -> int:
    return _table_at() + HashTable.size(_BLOCKS, workers)


class SharedCounts(Counts):
    """One worker's part of `SharedMemory`. ``clock``: monotonic, in seconds, the same in all workers."""

    def __init__(self, memory: SharedMemory, worker: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self.lock = memory.lock
        self.secret = memory.secret
        self._memory = memory
        self._table = memory.table
        # Where this worker's column begins.
        self._column = worker * memory.table.rows
        self._clock = clock
        # The rows of the keys that this worker counts. None if the memory has no room: then it counts them alone.
        self._rows: dict[Key, int | None] = {}
        self._is_full = False

    def total(self, key: Key) -> int:
        """See `Counts`."""
        row = self._rows[key] if key in self._rows else self._table.find(self._memory.hash(key))
        return super().total(key) if row is None else self._table.total(row)

    def add(self, key: Key) -> None:
        """See `Counts`."""
        if key not in self._rows:
            row = self._rows[key] = self._table.take(self._memory.hash(key), self._clock())
            if row is None and not self._is_full:
                self._is_full = True
                log.warning("shared counts full", keys=len(self._rows))
        super().add(key)
        self._put(self._rows[key], key)

    def _put(self, row: int | None, key: Key) -> None:
        if row is not None:
            self._table.counts[self._column + row] = super().total(key)

    def remove(self, key: Key) -> None:
        """See `Counts`."""
        super().remove(key)
        row = self._rows[key] if super().total(key) else self._rows.pop(key)
        # Last, because the row may have another key afterwards.
        self._put(row, key)

    def cell(self, key: Key) -> Cell:
        """See `Counts`. Its value stays until that time, even if nobody counts."""
        row = self._rows[key]
        return super().cell(key) if row is None else (self._table.times, row)

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """See `Counts`."""
        return SharedRecentCounts(self._memory, what, clock, seconds)

    def share(self, most: int) -> int:
        """See `Counts`."""
        return max(1, most // self._memory.workers)


class SharedRecentCounts(RecentCounts):
    """A table of recent events. ``clock``: monotonic, in seconds, the same in all workers.

    No worker owns a window: the counts of a dead one stay until their windows end.
    """

    def __init__(self, memory: SharedMemory, what: Recently, clock: Callable[[], float], seconds: float) -> None:
        super().__init__(clock, seconds)
        self._memory = memory
        self._table = memory.recent(what)
        # When each window began, and the number of its events, by row.
        self._since, self._events = self._table.times, self._table.counts

    def add(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
        key, now = self._key(cause), self._clock()
        with self._memory.lock:
            row = self._table.find(key)
            if row is None or now - self._since[row] > self.seconds:
                self._begin(key, row, now)
                return 1
            self._events[row] += 1
            return self._events[row]

    def renew(self, cause: Hashable) -> None:
        """See `RecentCounts`."""
        key, now = self._key(cause), self._clock()
        with self._memory.lock:
            self._begin(key, self._table.find(key), now)

    def forget(self, cause: Hashable) -> None:
        """See `RecentCounts`."""
        key = self._key(cause)
        with self._memory.lock:
            row = self._table.find(key)
            if row is not None:
                self._since[row] = -math.inf

    def _begin(self, key: bytes, row: int | None, now: float) -> None:
        """Begin a window with one event. Without a row, it replaces the oldest one."""
        if row is None:
            row = min(self._table.block(key), key=self._since.__getitem__)
        # A worker that dies between two of these lines leaves a window that has ended.
        self._since[row] = -math.inf
        self._table.give(row, key)
        self._events[row] = 1
        self._since[row] = now

    def count(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
        row = self._table.find(self._key(cause))
        return 0 if row is None or not self._left(row) else self._events[row]

    def seconds_left(self, cause: Hashable) -> float:
        """See `RecentCounts`."""
        row = self._table.find(self._key(cause))
        return 0.0 if row is None else self._left(row)

    def _left(self, row: int) -> float:
        return max(0.0, self._since[row] + self.seconds - self._clock())

    def _key(self, cause: Hashable) -> bytes:
        return self._memory.hash((cause,))
