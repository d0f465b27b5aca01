"""What the workers of one supervisor count together, over shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import structlog

from gateway.server.counts import Cell, Counts, Key, RecentCounts, Recently
from gateway.server.shared_memory import SharedMemory

log = structlog.get_logger("gateway.workers")


class SharedCounts(Counts):
    """One worker's part of `SharedMemory`; ``clock`` is monotonic, in seconds, and the same in all workers."""

    def __init__(self, memory: SharedMemory, worker: int, clock: Callable[[], float]) -> None:
        super().__init__()
        self.lock = memory.lock
        self.secret = memory.secret
        self._memory = memory
        self._table = memory.table
        # Where this worker's column begins.
        self._column = worker * memory.table.rows
        self._clock = clock
        # Of the keys of which this worker has any. None where the memory has no room: then they count here only.
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
        # Last: the row may have another key from here on.
        self._put(row, key)

    def cell(self, key: Key) -> Cell:
        """See `Counts`. It is kept until the time that it says, also while nobody counts."""
        row = self._rows[key]
        return super().cell(key) if row is None else (self._table.times, row)

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """See `Counts`."""
        return SharedRecentCounts(self._memory, what, clock, seconds)

    def share(self, most: int) -> int:
        """See `Counts`."""
        return max(1, most // self._memory.workers)


class SharedRecentCounts(RecentCounts):
    """One table of what happened lately; ``clock`` is monotonic, in seconds, and the same in all workers.

    No worker owns a window: what a dead one counted counts until its window ends.
    """

    def __init__(self, memory: SharedMemory, what: Recently, clock: Callable[[], float], seconds: float) -> None:
        super().__init__(clock, seconds)
        self._memory = memory
        self._table = memory.recent(what)
        # When each window began, and the events in it, by row.
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
        """Begin a window with one event, in place of the oldest one if the key has no row."""
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
