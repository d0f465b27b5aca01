"""The table durable_subs: durable subscriptions and who still comes for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.facts.reading import Tables, number, text, time, whole_number
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import DAY

_TABLE: Final = "durable_subs"
_COLUMNS: Final = (
    "vhost", "user", "sub_name", "destination", "first_seen", "last_connected", "last_delivery", "last_ack",
    "deliveries", "acks", "connected", "days_idle", "verdict",
)  # fmt: skip
VERDICTS: Final = ("abandoned", "idle", "active", "deleted")
"""Verdicts, that which needs attention first."""


@dataclass(frozen=True, slots=True)
class Durable:
    """One durable subscription."""

    vhost: str | None
    user: str | None
    name: str | None
    destination: str | None
    first: int
    last: int
    last_delivery: int | None
    last_ack: int | None
    deliveries: int
    acks: int
    connected: bool
    days_idle: float
    verdict: str

    @property
    def idle(self) -> float:
        """For how long nobody has been connected, in microseconds."""
        return self.days_idle * DAY


def read_durables(tables: Tables, span: Span) -> list[Durable]:
    """All durable subscriptions that were known by the end of a span: abandoned ones first, the longest idle first."""
    found = []
    for row in tables.whole(_TABLE, _COLUMNS):
        last = time(row, "last_connected")
        first = time(row, "first_seen")
        first = last if first is None else first
        if first is None or first >= span.end:
            continue
        found.append(
            Durable(
                text(row, "vhost"), text(row, "user"), text(row, "sub_name"), text(row, "destination"),
                first, first if last is None else last, time(row, "last_delivery"), time(row, "last_ack"),
                whole_number(row, "deliveries"), whole_number(row, "acks"), row["connected"] is True,
                number(row, "days_idle") or 0.0, text(row, "verdict") or "unknown",
            )
        )  # fmt: skip
    return sorted(found, key=_order)


def _order(durable: Durable) -> tuple[int, float, str, str]:
    rank = VERDICTS.index(durable.verdict) if durable.verdict in VERDICTS else len(VERDICTS)
    return rank, -durable.days_idle, durable.name or "", durable.destination or ""
