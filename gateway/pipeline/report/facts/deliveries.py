"""The tables redeliveries_hour and unacked_hotspots: deliveries that came again, and those that nobody acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.facts.reading import Tables, hours_of, number, text, whole_number
from gateway.pipeline.report.span import Span

_REDELIVERIES: Final = "redeliveries_hour"
_REDELIVERY_COLUMNS: Final = ("hour", "vhost", "user", "destination", "delivered", "redelivered")
_HOTSPOTS: Final = "unacked_hotspots"
_HOTSPOT_COLUMNS: Final = ("vhost", "user", "destination", "deliveries", "acked", "nacked", "p99_ack_us")

Key = tuple[str | None, str | None, str | None]


@dataclass
class Redelivery:
    """What a user got again from a destination, in the hours in which that happened."""

    vhost: str | None
    user: str | None
    destination: str | None
    delivered: int = 0
    redelivered: int = 0

    @property
    def share(self) -> float:
        """Redelivered ones among all, as a part of 1."""
        return self.redelivered / self.delivered if self.delivered else 0.0


@dataclass
class Hotspot:
    """What a user was delivered from a destination and had to acknowledge."""

    vhost: str | None
    user: str | None
    destination: str | None
    deliveries: int = 0
    acked: int = 0
    nacked: int = 0
    p99: int | None = None
    """The worst day's, in microseconds."""

    @property
    def unacked(self) -> int:
        """Deliveries that were neither acknowledged nor refused. Some may be answered later."""
        return max(0, self.deliveries - self.acked - self.nacked)

    @property
    def share(self) -> float:
        """Unacknowledged ones among all, as a part of 1."""
        return self.unacked / self.deliveries if self.deliveries else 0.0


def read_redeliveries(tables: Tables, span: Span) -> list[Redelivery]:
    """Redeliveries by user and destination, the most first."""
    found: dict[Key, Redelivery] = {}
    for row in tables.rows(_REDELIVERIES, _REDELIVERY_COLUMNS, span):
        if hours_of(span, row):
            key = text(row, "vhost"), text(row, "user"), text(row, "destination")
            one = found.setdefault(key, Redelivery(*key))
            one.delivered += whole_number(row, "delivered")
            one.redelivered += whole_number(row, "redelivered")
    return sorted(found.values(), key=lambda one: (-one.redelivered, _order(one.vhost, one.user, one.destination)))


def read_hotspots(tables: Tables, span: Span) -> list[Hotspot]:
    """Unacknowledged deliveries by user and destination, the most first; whole days."""
    found: dict[Key, Hotspot] = {}
    for row in tables.rows(_HOTSPOTS, _HOTSPOT_COLUMNS, span):
        key = text(row, "vhost"), text(row, "user"), text(row, "destination")
        one = found.setdefault(key, Hotspot(*key))
        one.deliveries += whole_number(row, "deliveries")
        one.acked += whole_number(row, "acked")
        one.nacked += whole_number(row, "nacked")
        p99 = number(row, "p99_ack_us")
        if p99 is not None:
            one.p99 = max(one.p99 or 0, round(p99))
    return sorted(found.values(), key=lambda one: (-one.unacked, _order(one.vhost, one.user, one.destination)))


def _order(*names: str | None) -> tuple[str, ...]:
    return tuple(name or "" for name in names)
