"""How often something is there at this moment, by key, and how often something happened lately, by its cause.

In this process, or (`shared_counts`) in all workers together.
"""

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
"""A place for a number, which others may write, too."""


# Causes that a table remembers if nothing else is said. The one whose window began first is forgotten for another.
MOST_CAUSES: Final = 10_000


class Recently(IntEnum):
    """What is counted for some time after it happened."""

    REFUSED_OF_LOGIN = 0
    REFUSED_OF_ADDRESS = 1
    ACCEPTED = 2
    FAILED_OF_ADDRESS = 3
    LOCKED_OUT = 4


class Counts:
    """Counts that several limits check: those of this process, or (`SharedCounts`) of all workers together.

    What checks one and then adds to it does both under ``lock``, which keeps all others out for some microseconds, and
    is not to be entered twice. ``secret`` is a key for hashes of what is counted, known to those only that count
    together.
    """

    def __init__(self) -> None:
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.secret = secrets.token_bytes(SECRET_SIZE)
        # Those of this process.
        self._counts: dict[Key, int] = {}

    def total(self, key: Key) -> int:
        """How many there are."""
        return self._counts.get(key, 0)

    def add(self, key: Key) -> None:
        """One more. To be called under ``lock``."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: Key) -> None:
        """One less, of those that this process has added."""
        left = self._counts.pop(key) - 1
        if left:
            self._counts[key] = left

    def cell(self, key: Key) -> Cell:
        """The number that belongs to a key, while this process has added to its count: a time on the monotonic clock.

        It starts at some time that is past. Who asks keeps it: of one process, nobody else does.
        """
        del key
        return [0.0], 0

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """The table of what happened lately, in windows of so many seconds; ``clock`` is monotonic."""
        del what
        return RecentCounts(clock, seconds)

    def share(self, most: int) -> int:
        """How many of at most so many this process may have, where each keeps to its own share; at least one."""
        return most

    def __len__(self) -> int:
        """Number of keys of which this process has any."""
        return len(self._counts)


class RecentCounts:
    """Counts events by cause. A cause's window of ``seconds``, which may change, begins with its first event.

    ``clock`` is monotonic. The cause whose window began first is forgotten when there are more than ``most``.
    """

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = MOST_CAUSES) -> None:
        self.seconds = seconds
        self._clock = clock
        self._most = most
        # When each window began, and the events in it; in the order of the beginnings.
        self._windows: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, cause: Hashable) -> int:
        """Count an event; the number of events in its window, with this one."""
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
        """Begin the window of a cause anew, with one event."""
        self.forget(cause)
        self.add(cause)

    def forget(self, cause: Hashable) -> None:
        """End the window of a cause."""
        self._windows.pop(cause, None)

    def count(self, cause: Hashable) -> int:
        """The number of events in the window of a cause."""
        return self._windows[cause][1] if self.seconds_left(cause) else 0

    def seconds_left(self, cause: Hashable) -> float:
        """Until the window of a cause ends; 0 if it has none."""
        window = self._windows.get(cause)
        return 0.0 if window is None else max(0.0, window[0] + self.seconds - self._clock())
