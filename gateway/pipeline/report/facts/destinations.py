"""The tables dest_hour and latency_hour: what happened at each destination, and how fast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.facts.reading import Tables, hours_of, text, time, whole_number
from gateway.pipeline.report.span import Span

_TABLE: Final = "dest_hour"
_FIGURES: Final = (
    "sent", "sent_bytes", "confirmed", "rejected", "delivered", "delivered_bytes",
    "redelivered", "acked", "requeued", "discarded",
)  # fmt: skip
_COLUMNS: Final = ("hour", "vhost", "destination", "dest_kind", *_FIGURES)
_LATENCY: Final = "latency_hour"
_LATENCY_COLUMNS: Final = ("hour", "vhost", "destination", "event", "n", "p50_us", "p99_us")


@dataclass
class Destination:
    """One destination of one virtual host."""

    vhost: str | None
    name: str | None
    kind: str | None
    sent: int = 0
    sent_bytes: int = 0
    confirmed: int = 0
    rejected: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    redelivered: int = 0
    acked: int = 0
    requeued: int = 0
    discarded: int = 0

    @property
    def traffic(self) -> int:
        """Messages that were sent and that were delivered."""
        return self.sent + self.delivered


@dataclass
class SlowHour:
    """The hour of a destination whose 99th percentile was the worst."""

    vhost: str | None
    name: str
    event: str
    hour: int
    n: int
    p50: int
    p99: int


def read_destinations(tables: Tables, span: Span) -> list[Destination]:
    """All destinations of a span, the busiest first."""
    found: dict[tuple[str | None, str | None], Destination] = {}
    for row in tables.rows(_TABLE, _COLUMNS, span):
        if not hours_of(span, row):
            continue
        key = text(row, "vhost"), text(row, "destination")
        one = found.setdefault(key, Destination(*key, text(row, "dest_kind")))
        for figure in _FIGURES:
            setattr(one, figure, getattr(one, figure) + whole_number(row, figure))
    return sorted(found.values(), key=lambda one: (-one.traffic, one.vhost or "", one.name or ""))


def read_slow_hours(tables: Tables, span: Span, least: int) -> list[SlowHour]:
    """Each destination's worst hour, the worst first.

    Args:
        tables: of the lake.
        span: which hours.
        least: how many latencies an hour must have.
    """
    worst: dict[tuple[str | None, str, str], SlowHour] = {}
    for row in tables.rows(_LATENCY, _LATENCY_COLUMNS, span):
        name, event, hour = text(row, "destination"), text(row, "event"), time(row, "hour")
        if name is None or event is None or hour is None or not hours_of(span, row):
            continue
        n, p50, p99 = (whole_number(row, column) for column in ("n", "p50_us", "p99_us"))
        key = text(row, "vhost"), name, event
        if n >= least and (key not in worst or p99 > worst[key].p99):
            worst[key] = SlowHour(*key, hour, n, p50, p99)
    return sorted(worst.values(), key=lambda slow: (-slow.p99, slow.name, slow.event))
