"""Everything that the report contains, read from the tables; the tables boots and sessions are read here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from gateway.pipeline.report.durable_subscriptions import DurableSubscription, read_durables
from gateway.pipeline.report.error_counts import Errors, read_errors
from gateway.pipeline.report.feature_usage import FeatureUsage, read_usage
from gateway.pipeline.report.lake_tables import LakeTables, text, time, whole_number
from gateway.pipeline.report.markup import name_of
from gateway.pipeline.report.redeliveries import Hotspot, Redelivery, read_hotspots, read_redeliveries
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.top_destinations import DestinationTotals, SlowHour, read_destinations, read_slow_hours
from gateway.pipeline.report.traffic_over_time import TrafficCounts, extent, read_traffic

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


@dataclass(frozen=True)
class Facts:
    """What the tables say about a span."""

    span: Span
    as_of: int
    """The last moment that the lake knows of."""
    boots: list[GatewayRun]
    """Those of the span."""
    sessions: Sessions
    traffic: TrafficCounts
    destinations: list[DestinationTotals]
    slow_hours: list[SlowHour]
    errors: Errors
    redeliveries: list[Redelivery]
    hotspots: list[Hotspot]
    durables: list[DurableSubscription]
    usage: FeatureUsage


def known_span(tables: LakeTables) -> Span | None:
    """The time that a lake covers; None if it is empty."""
    return extent(tables) or _extent_of_boots(read_boots(tables))


def read_facts(tables: LakeTables, span: Span) -> Facts:
    """Read all tables of a span."""
    boots = read_boots(tables)
    return Facts(
        span=span,
        as_of=max((boot.last for boot in boots), default=span.end),
        boots=[boot for boot in boots if span.touches(boot.first, boot.last)],
        sessions=read_sessions(tables, span, boots),
        traffic=read_traffic(tables, span),
        destinations=read_destinations(tables, span),
        slow_hours=read_slow_hours(tables, span),
        errors=read_errors(tables, span),
        redeliveries=read_redeliveries(tables, span),
        hotspots=read_hotspots(tables, span),
        durables=read_durables(tables, span),
        usage=read_usage(tables, span),
    )


def _extent_of_boots(boots: list[GatewayRun]) -> Span | None:
    if not boots:
        return None
    first, last = min(boot.first for boot in boots), max(boot.last for boot in boots)
    return Span(first // TEN_SECONDS * TEN_SECONDS, (last // TEN_SECONDS + 1) * TEN_SECONDS)
