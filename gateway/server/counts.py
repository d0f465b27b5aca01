"""Counts of what exists now, by key, and of recent events, by cause. `shared_counts` has those of all workers."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, Final

SECRET_SIZE: Final = 32

Key = tuple[object, ...]
"""What is counted. Workers compare keys by their `repr`."""

Cell = tuple["list[float] | memoryview[float]", int]
"""A place for a number that other workers may write, too."""


# The most causes that a table remembers by default.
MOST_CAUSES: Final = 10_000


class Recently(IntEnum):
    """The kinds of recent events that are counted."""

    REFUSED_OF_LOGIN = 0
    REFUSED_OF_ADDRESS = 1
    ACCEPTED = 2
    FAILED_OF_ADDRESS = 3
    LOCKED_OUT = 4


class Counts:
    """Counts that several limits check, of this process, or (`SharedCounts`) of all workers together.

    Hold ``lock`` to check a count and then add to it. It excludes all others for some microseconds, and cannot be
    entered twice. ``secret``: a key for hashes of what is counted, known only to those that count together.
    """

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.secret = secrets.token_bytes(SECRET_SIZE)
        self._counts: dict[Key, int] = {}

    def total(self, key: Key) -> int:
        """The count of a key."""
        return self._counts.get(key, 0)

    def add(self, key: Key) -> None:
        """Count one more. The caller holds ``lock``."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: Key) -> None:
        """Count one less, of those that this process has added."""
        left = self._counts.pop(key) - 1
        if left:
            self._counts[key] = left

    def cell(self, key: Key) -> Cell:
        """A number for a key, while this process counts it: a time on the monotonic clock, at first in the past.

        In one process, only the caller has it.
        """
        del key
        return [0.0], 0

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """A table of recent events, with windows of ``seconds``. ``clock``: monotonic."""
        del what
        return RecentCounts(clock, seconds)

    def share(self, most: int) -> int:
        """This process's share of a limit, at least 1, if each process keeps to its own."""
        return most


class RecentCounts:
    """Counts events by cause. The window of a cause begins with its first event. ``seconds`` may change.

    ``clock``: monotonic. Beyond ``most`` causes, the one whose window began first is forgotten.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = MOST_CAUSES) -> None:
        self.seconds = seconds
        self._clock = clock
        self._most = most
        # When each window began, and the number of its events; in the order of their beginnings.
        self._windows: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, cause: Hashable) -> int:
        """Count an event. Returns the number of events in its window."""
        now = self._clock()
        since, events = self._windows.get(cause, (now, 0))
        if events and now - since > self.seconds:
            del self._windows[cause]
            since, events = now, 0
        self._windows[cause] = since, events + 1
        if len(self._windows) > self._most:
            del self._windows[next(iter(self._windows))]
        return events + 1

    def renew(self, cause: Hashable) -> None:
        """Begin the window of a cause again, with one event."""
        self.forget(cause)
        self.add(cause)

    def forget(self, cause: Hashable) -> None:
        """End the window of a cause."""
        self._windows.pop(cause, None)

    def count(self, cause: Hashable) -> int:
        """The number of events in the window of a cause."""
        return self._windows[cause][1] if self.seconds_left(cause) else 0

    def seconds_left(self, cause: Hashable) -> float:
        """The seconds until the window of a cause ends; 0 without one."""
        window = self._windows.get(cause)
        return 0.0 if window is None else max(0.0, window[0] + self.seconds - self._clock())
