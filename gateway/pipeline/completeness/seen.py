"""What was read of a lake: counts and fingerprints, no rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from gateway.pipeline import numbering
from gateway.pipeline.lake import BATCH_TABLES
from gateway.pipeline.numbering import Range


@dataclass
class Boot:
    """What was seen of a boot."""

    rows: int = 0
    largest: int = -1
    fingerprint: int = 0
    closed: bool = False
    dropped: int = 0
    retired: list[Range] = field(default_factory=list)
    bad_numbers: list[int] = field(default_factory=list)
    """Numbers that could be read of bad lines."""
    unnumbered: Counter[str] = field(default_factory=Counter)
    """Bad lines whose number cannot be read, by segment."""

    def add(self, rows: int, largest: int, fingerprint: int) -> None:
        """Count some of its lines: how many, the largest number and the fingerprint of all."""
        self.rows += rows
        self.largest = max(self.largest, largest)
        self.fingerprint = (self.fingerprint + fingerprint) % (1 << 64)

    def closes(self) -> bool:
        """Whether all numbers from 0 to the largest are there once."""
        return self.rows == self.largest + 1 and self.fingerprint == numbering.fingerprint_of_range(0, self.largest)


@dataclass
class Sums:
    """Amounts by event."""

    n: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    octets: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class Seen:
    """What was read of the lake."""

    boots: dict[str, Boot] = field(default_factory=lambda: defaultdict(Boot))
    days: dict[str, Sums] = field(default_factory=lambda: defaultdict(Sums))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BATCH_TABLES, 0))
    bad: Counter[str] = field(default_factory=Counter)
    """Bad lines by segment."""
    files: list[Path] = field(default_factory=list)
    """Of events, those that can be read."""
    unreadable: bool = False


def file_of(path: str) -> str:
    """A segment's file name, out of its path in a journal."""
    return path.rsplit("/", 1)[-1]
