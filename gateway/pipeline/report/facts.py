"""Everything that the report contains, read from the tables."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.pipeline.report.durable_subscriptions import DurableSubscription, read_durables
from gateway.pipeline.report.error_counts import Errors, read_errors
from gateway.pipeline.report.feature_usage import FeatureUsage, read_usage
from gateway.pipeline.report.gateways import GatewayRun, Sessions, read_boots, read_sessions
from gateway.pipeline.report.lake_tables import LakeTables
from gateway.pipeline.report.redeliveries import Hotspot, Redelivery, read_hotspots, read_redeliveries
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.top_destinations import DestinationTotals, SlowHour, read_destinations, read_slow_hours
from gateway.pipeline.report.traffic_counts import TrafficCounts, extent, read_traffic


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
