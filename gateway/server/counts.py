"""How often something is there at this moment, by key: in this process, or (`SharedCounts`) in all workers together."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

Key = tuple[object, ...]
"""What is counted. Workers compare keys by their `repr`."""

Cell = tuple["list[float] | memoryview[float]", int]
"""A place for a number, which others may write, too."""


class Counts(Protocol):
    """Counts that several limits check. What checks one and then adds to it does both under ``lock``."""

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

    def __len__(self) -> int:
        """Number of keys of which this process has any."""


class LocalCounts:
    """Those of one process."""

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self.lock: AbstractContextManager[Any] = nullcontext()

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

    def __len__(self) -> int:
        return len(self._counts)
