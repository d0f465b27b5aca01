"""What the workers of one supervisor count together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import structlog

from gateway.server.counts import Cell, Key, Recently
from gateway.server.recent_counts import RecentCounts
from gateway.server.shared_memory import SharedMemory
from gateway.server.shared_recent_counts import SharedRecentCounts

log = structlog.get_logger("gateway.workers")


@dataclass(slots=True)
class _Entry:
    """How many this worker has of a key. ``row`` is None if the memory has no room: then they count here only."""

    row: int | None
    count: int = 0


class SharedCounts:
    """One worker's part of `SharedMemory`; ``clock`` is monotonic, in seconds, and the same in all workers."""

    def __init__(self, memory: SharedMemory, worker: int, clock: Callable[[], float]) -> None:
        self.lock: AbstractContextManager[Any] = memory.lock
        self.secret = memory.secret
        self._memory = memory
        self._worker = worker
        self._clock = clock
        self._entries: dict[Key, _Entry] = {}
        self._is_full = False

    def total(self, key: Key) -> int:
        """See `Counts`."""
        entry = self._entries.get(key)
        if entry is None:
            row = self._memory.find(self._memory.hash(key))
            return 0 if row is None else self._memory.total(row)
        return entry.count if entry.row is None else self._memory.total(entry.row)

    def add(self, key: Key) -> None:
        """See `Counts`."""
        entry = self._entries.get(key)
        if entry is None:
            row = self._memory.take(self._memory.hash(key), self._clock())
            entry = self._entries[key] = _Entry(row)
            self._note_room(row)
        entry.count += 1
        self._put(entry)

    def _note_room(self, row: int | None) -> None:
        if row is None and not self._is_full:
            self._is_full = True
            log.warning("shared counts full", keys=len(self._entries))

    def _put(self, entry: _Entry) -> None:
        if entry.row is not None:
            self._memory.put(entry.row, self._worker, entry.count)

    def remove(self, key: Key) -> None:
        """See `Counts`."""
        entry = self._entries[key]
        entry.count -= 1
        if not entry.count:
            del self._entries[key]
        # Last: the row may have another key from here on.
        self._put(entry)

    def cell(self, key: Key) -> Cell:
        """See `Counts`."""
        row = self._entries[key].row
        if row is None:
            return [0.0], 0
        return self._memory.times, row

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """See `Counts`."""
        return SharedRecentCounts(self._memory, what, clock, seconds)

    def share(self, most: int) -> int:
        """See `Counts`."""
        return max(1, most // self._memory.workers)

    def __len__(self) -> int:
        return len(self._entries)
