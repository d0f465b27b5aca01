"""What happened lately in any of the workers of one supervisor."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

from gateway.server.counts import Recently
from gateway.server.shared_memory import SharedMemory


class SharedRecentCounts:
    """One table of `SharedMemory`. ``clock`` is monotonic, in seconds, and the same in all workers.

    No worker owns a window: what a dead one counted counts until its window ends.
    """

    def __init__(self, memory: SharedMemory, what: Recently, clock: Callable[[], float], seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._memory = memory
        # When each window began, and the events in it, by row.
        self._rows, self._since, self._events = memory.recent(what)

    def add(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
        key, now = self._key(cause), self._clock()
        with self._memory.lock:
            row = self._rows.find(key)
            if row is None or now - self._since[row] > self.seconds:
                self._begin(key, row, now)
                return 1
            self._events[row] += 1
            return self._events[row]

    def renew(self, cause: Hashable) -> None:
        """See `RecentCounts`."""
        key, now = self._key(cause), self._clock()
        with self._memory.lock:
            self._begin(key, self._rows.find(key), now)

    def forget(self, cause: Hashable) -> None:
        """See `RecentCounts`."""
        key = self._key(cause)
        with self._memory.lock:
            row = self._rows.find(key)
            if row is not None:
                self._since[row] = -math.inf

    def _begin(self, key: bytes, row: int | None, now: float) -> None:
        """Begin a window with one event, in place of the oldest one if the key has no row."""
        if row is None:
            row = min(self._rows.block(key), key=self._since.__getitem__)
        # A worker that dies between two of these lines leaves a window that has ended.
        self._since[row] = -math.inf
        self._rows.give(row, key)
        self._events[row] = 1
        self._since[row] = now

    def count(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
        row = self._rows.find(self._key(cause))
        return 0 if row is None or not self._left(row) else self._events[row]

    def seconds_left(self, cause: Hashable) -> float:
        """See `RecentCounts`."""
        row = self._rows.find(self._key(cause))
        return 0.0 if row is None else self._left(row)

    def _left(self, row: int) -> float:
        return max(0.0, self._since[row] + self.seconds - self._clock())

    def _key(self, cause: Hashable) -> bytes:
        return self._memory.hash((cause,))
