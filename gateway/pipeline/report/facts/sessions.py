"""The table sessions: how many there were, and how many at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.pipeline.report.facts.boots import Boot
from gateway.pipeline.report.facts.reading import Tables, text, time
from gateway.pipeline.report.span import Span

_TABLE: Final = "sessions"
_COLUMNS: Final = ("boot", "started", "ended")


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions that were open at some time of a span."""

    total: int = 0
    at_once: int = 0
    """The most at the same time."""


def read_sessions(tables: Tables, span: Span, boots: Sequence[Boot]) -> Sessions:
    """Count the sessions of a span."""
    # A gateway that was killed has not written the end of its sessions: they ended with it.
    killed = {boot.boot: boot.last for boot in boots if boot.closed or boot.followed}
    total = 0
    changes: list[tuple[int, int]] = []
    for row in tables.rows(_TABLE, _COLUMNS):
        started = time(row, "started")
        ended = time(row, "ended")
        if ended is None:
            ended = killed.get(text(row, "boot") or "")
        if started is None or not span.touches(started, ended):
            continue
        total += 1
        changes.append((max(started, span.start), 1))
        if ended is not None:
            changes.append((ended, -1))
    # Of equal times ends come first: a session that takes another's place is not a second one.
    changes.sort()
    return Sessions(total, max(accumulate(change for _, change in changes), default=0))
