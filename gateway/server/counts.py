"""How often something is there at this moment, by key, and how often something happened lately, by its cause.

In this process, or (`shared_counts`) in all workers together.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, Final, Protocol

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


class Counts(Protocol):
    """Counts that several limits check. What checks one and then adds to it does both under ``lock``."""

    @property
    def secret(self) -> bytes:
        """A key for hashes of what is counted, known to those only that count together."""

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """Keeps all others out for some microseconds. Not to be entered twice."""

    def total(self, key: Key) -> int:
        """How many there are."""

    def add(self, key: Key) -> None:
        """One more. To be called under ``lock``."""

    def remove(self, key: Key) -> None:
        """One less, of those that this process has added."""

    def cell(self, key: Key) -> Cell:
        """The number that belongs to a key, while this process has added to its count: a time on the monotonic clock.

        It starts at some time that is past, and is kept until the time that it says, also while nobody counts.
        """

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """The table of what happened lately, in windows of so many seconds; ``clock`` is monotonic."""

    def share(self, most: int) -> int:
        """How many of at most so many this process may have, where each keeps to its own share; at least one."""

    def __len__(self) -> int:
        """Number of keys of which this process has any."""


class LocalCounts:
    """Those of one process."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self.lock: AbstractContextManager[Any] = nullcontext()
        self.secret = secrets.token_bytes(SECRET_SIZE)

    def total(self, key: Key) -> int:
        """See `Counts`."""
        return self._counts.get(key, 0)

    def add(self, key: Key) -> None:
        """See `Counts`."""
        self._counts[key] = self._counts.get(key, 0) + 1

    def remove(self, key: Key) -> None:
        """See `Counts`."""
        left = self._counts.pop(key) - 1
        if left:
            self._counts[key] = left

    def cell(self, key: Key) -> Cell:
        """See `Counts`. Who asks keeps it: nobody else does."""
        del key
        return [0.0], 0

    def recent(self, what: Recently, clock: Callable[[], float], seconds: float) -> RecentCounts:
        """See `Counts`. Who asks keeps it, too."""
        del what
        return LocalRecentCounts(clock, seconds)

    def share(self, most: int) -> int:
        """See `Counts`."""
        return most

    def __len__(self) -> int:
        return len(self._counts)


class RecentCounts(Protocol):
    """Counts events by cause. A cause's window of ``seconds``, which may change, begins with its first event."""

    seconds: float

    def add(self, cause: Hashable) -> int:
        """Count an event; the number of events in its window, with this one."""

    def renew(self, cause: Hashable) -> None:
        """Begin the window of a cause anew, with one event."""

    def forget(self, cause: Hashable) -> None:
        """End the window of a cause."""

    def count(self, cause: Hashable) -> int:
        """The number of events in the window of a cause."""

    def seconds_left(self, cause: Hashable) -> float:
        """Until the window of a cause ends; 0 if it has none."""


class LocalRecentCounts:
    """Those of one process; ``clock`` is monotonic."""

    def __init__(self, clock: Callable[[], float], seconds: float, most: int = MOST_CAUSES) -> None:
        self.seconds = seconds
        self._most = most
        self._clock = clock
        # When each window began, and the events in it; in the order of the beginnings.
        self._windows: dict[Hashable, tuple[float, int]] = {}

    def __len__(self) -> int:
        return len(self._windows)

    def add(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
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
        """See `RecentCounts`."""
        self.forget(cause)
        self.add(cause)

    def forget(self, cause: Hashable) -> None:
        """See `RecentCounts`."""
        self._windows.pop(cause, None)

    def count(self, cause: Hashable) -> int:
        """See `RecentCounts`."""
        return self._windows[cause][1] if self.seconds_left(cause) else 0

    def seconds_left(self, cause: Hashable) -> float:
        """See `RecentCounts`."""
        window = self._windows.get(cause)
        return 0.0 if window is None else max(0.0, window[0] + self.seconds - self._clock())
