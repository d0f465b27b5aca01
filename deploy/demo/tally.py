"""What the clients counted. Journal and lake must have the same counts."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

COMPARED: Final = (
    "sessions",
    "sends",
    "confirms",
    "rejections",
    "deliveries",
    "redeliveries",
    "acks",
    "nacks",
    "errors",
)
"""What is counted, in the order of the journal's events."""


@dataclass
class Tally:
    """Counts of one virtual host."""

    counts: Counter[str] = field(default_factory=Counter)
    """By the names in `COMPARED`."""
    errors: Counter[str] = field(default_factory=Counter)
    """ERROR frames by their `message` header."""
    frames: int = 0
    """Frames in both directions."""

    def add(self, what: str, n: int = 1) -> None:
        """Count ``n`` more of a name in `COMPARED`."""
        self.counts[what] += n

    def error(self, message: str) -> None:
        """Count an ERROR frame."""
        self.errors[message] += 1
        self.add("errors")
