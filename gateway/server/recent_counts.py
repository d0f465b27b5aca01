"""How often something happened lately, by its cause, in a table of bounded size.

It is that of this process, or (`SharedRecentCounts`) that of all workers together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Protocol

# Causes that a table remembers if nothing else is said. The one whose window began first is forgotten for another.
MOST_CAUSES: Final = 10_000


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
