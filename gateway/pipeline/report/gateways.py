"""The tables boots and sessions: which gateways wrote the journal, and how many sessions they had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.pipeline.report.lake_tables import LakeTables, text, time, whole_number
from gateway.pipeline.report.markup import name_of
from gateway.pipeline.report.span import Span

_BOOT_COLUMNS: Final = ("node", "impl", "boot", "gateway_version", "first_ts", "last_ts", "closed", "lines", "dropped")
_SESSION_COLUMNS: Final = ("boot", "started", "ended")


@dataclass
class GatewayRun:
    """One run of one gateway (a boot), over all its days."""

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
        """Whether it ended without closing its journal."""
        return self.followed and not self.closed


def read_boots(tables: LakeTables) -> list[GatewayRun]:
    """All runs of gateways in the lake, the earliest first."""
    found: dict[str, GatewayRun] = {}
    for row in tables.rows("boots", _BOOT_COLUMNS):
        boot, first, last = text(row, "boot"), time(row, "first_ts"), time(row, "last_ts")
        if boot is None or first is None or last is None:
            continue
        run = found.setdefault(
            boot,
            GatewayRun(
                name_of(text(row, "node")), name_of(text(row, "impl")), boot,
                text(row, "gateway_version") or "unknown", first, last,
            ),
        )  # fmt: skip
        run.first, run.last = min(run.first, first), max(run.last, last)
        run.closed = run.closed or row["closed"] is True
        run.lines += whole_number(row, "lines")
        run.dropped += whole_number(row, "dropped")
    runs = sorted(found.values(), key=lambda run: (run.first, run.node, run.boot))
    newest = {(run.impl, run.node): run.first for run in runs}
    for run in runs:
        run.followed = newest[run.impl, run.node] > run.first
    return runs


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions that were open at some time of a span: how many, and how many at most at the same time."""

    total: int = 0
    at_once: int = 0


def read_sessions(tables: LakeTables, span: Span, boots: Sequence[GatewayRun]) -> Sessions:
    """Count the sessions of a span."""
    # A gateway that was killed has not written the end of its sessions: they ended with it.
    ended_boots = {boot.boot: boot.last for boot in boots if boot.closed or boot.followed}
    total = 0
    changes: list[tuple[int, int]] = []
    for row in tables.rows("sessions", _SESSION_COLUMNS):
        started = time(row, "started")
        ended = time(row, "ended")
        if ended is None:
            ended = ended_boots.get(text(row, "boot") or "")
        if started is None or not span.touches(started, ended):
            continue
        total += 1
        changes.append((max(started, span.start), 1))
        if ended is not None:
            changes.append((ended, -1))
    # At equal times ends come first: a session that follows another one does not overlap with it.
    changes.sort()
    return Sessions(total, max(accumulate(change for _, change in changes), default=0))
