"""Everything that a report says, before it is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.facts.boots import Boot, read_boots
from gateway.pipeline.report.facts.deliveries import Hotspot, Redelivery, read_hotspots, read_redeliveries
from gateway.pipeline.report.facts.destinations import Destination, SlowHour, read_destinations, read_slow_hours
from gateway.pipeline.report.facts.durables import Durable, read_durables
from gateway.pipeline.report.facts.errors import Complaint, read_errors
from gateway.pipeline.report.facts.features import Usage, read_usage
from gateway.pipeline.report.facts.reading import Tables
from gateway.pipeline.report.facts.sessions import Sessions, read_sessions
from gateway.pipeline.report.facts.traffic import Traffic, extent, read_traffic
from gateway.pipeline.report.span import TEN_SECONDS, Span

LEAST_LATENCIES: Final = 20
"""How many latencies an hour of a destination must have to be called slow."""


@dataclass(frozen=True)
class Facts:
    """What the tables say about a span."""

    span: Span
    as_of: int
    """The last moment that the lake knows of."""
    boots: list[Boot]
    """Those of the span."""
    sessions: Sessions
    traffic: Traffic
    destinations: list[Destination]
    slow_hours: list[SlowHour]
    errors: list[tuple[Complaint, int]]
    redeliveries: list[Redelivery]
    hotspots: list[Hotspot]
    durables: list[Durable]
    usage: Usage


def known_span(tables: Tables) -> Span | None:
    """From the first to the last moment that a lake knows of; None for an empty one."""
    return extent(tables) or _extent_of_boots(read_boots(tables))


def gather(tables: Tables, span: Span) -> Facts:
    """Read all tables."""
    boots = read_boots(tables)
    return Facts(
        span=span,
        as_of=max((boot.last for boot in boots), default=span.end),
        boots=[boot for boot in boots if span.touches(boot.first, boot.last)],
        sessions=read_sessions(tables, span, boots),
        traffic=read_traffic(tables, span),
        destinations=read_destinations(tables, span),
        slow_hours=read_slow_hours(tables, span, LEAST_LATENCIES),
        errors=read_errors(tables, span),
        redeliveries=read_redeliveries(tables, span),
        hotspots=read_hotspots(tables, span),
        durables=read_durables(tables, span),
        usage=read_usage(tables, span),
    )


def _extent_of_boots(boots: list[Boot]) -> Span | None:
    if not boots:
        return None
    first, last = min(boot.first for boot in boots), max(boot.last for boot in boots)
    return Span(first // TEN_SECONDS * TEN_SECONDS, (last // TEN_SECONDS + 1) * TEN_SECONDS)
