"""The table boots: which gateways wrote the journal, and whether they wrote all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.facts.reading import Tables, text, time, whole_number
from gateway.pipeline.report.text import name_of

_TABLE: Final = "boots"
_COLUMNS: Final = ("node", "impl", "boot", "gateway_version", "first_ts", "last_ts", "closed", "lines", "dropped")


@dataclass
class Boot:
    """One run of one gateway, of all its days."""

    node: str
    impl: str
    boot: str
    version: str
    first: int
    last: int
    closed: bool = False
    lines: int = 0
    dropped: int = 0
    followed: bool = False
    """Whether the same gateway has started again since."""

    @property
    def lost(self) -> bool:
        """It is over, and did not close its journal."""
        return self.followed and not self.closed


def read_boots(tables: Tables) -> list[Boot]:
    """All boots in the lake, the earliest first."""
    found: dict[str, Boot] = {}
    for row in tables.rows(_TABLE, _COLUMNS):
        boot, first, last = text(row, "boot"), time(row, "first_ts"), time(row, "last_ts")
        if boot is None or first is None or last is None:
            continue
        one = found.setdefault(
            boot,
            Boot(
                name_of(text(row, "node")), name_of(text(row, "impl")), boot,
                text(row, "gateway_version") or "unknown", first, last,
            ),
        )  # fmt: skip
        one.first, one.last = min(one.first, first), max(one.last, last)
        one.closed = one.closed or row["closed"] is True
        one.lines += whole_number(row, "lines")
        one.dropped += whole_number(row, "dropped")
    boots = sorted(found.values(), key=lambda boot: (boot.first, boot.node, boot.boot))
    _mark_followed(boots)
    return boots


def _mark_followed(boots: Sequence[Boot]) -> None:
    newest: dict[tuple[str, str], int] = {}
    for boot in boots:
        newest[boot.impl, boot.node] = boot.first
    for boot in boots:
        boot.followed = newest[boot.impl, boot.node] > boot.first
