"""The section on durable subscriptions, from the table durable_subs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.elements import ReportSection, Table, figure, name_cell, paragraph
from gateway.pipeline.report.lake_tables import LakeTables, number, text, time, whole_number
from gateway.pipeline.report.markup import Canvas, Markup, drawing, tag
from gateway.pipeline.report.row_charts import Lifeline, draw_lifelines, lifelines_height
from gateway.pipeline.report.span import TEN_SECONDS, Span
from gateway.pipeline.report.units import DAY, NOTHING, duration, exact, moment

_COLUMNS: Final = (
    "vhost", "user", "sub_name", "destination", "first_seen", "last_connected", "last_delivery", "last_ack",
    "deliveries", "acks", "connected", "days_idle", "verdict",
)  # fmt: skip
VERDICTS: Final = ("abandoned", "idle", "active", "deleted")
"""What a subscription may be, those that need attention first."""
_TITLE: Final = "Durable subscriptions"
_MOST: Final = 30


@dataclass(frozen=True, slots=True)
class DurableSubscription:
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
        """Microseconds since the last connection."""
        return self.days_idle * DAY


def read_durables(tables: LakeTables, span: Span) -> list[DurableSubscription]:
    """The durable subscriptions that existed by the end of a span, in order of `VERDICTS`, the longest idle first."""
    found = []
    for row in tables.whole("durable_subs", _COLUMNS):
        last = time(row, "last_connected")
        first = time(row, "first_seen")
        first = last if first is None else first
        if first is None or first >= span.end:
            continue
        found.append(
            DurableSubscription(
                text(row, "vhost"), text(row, "user"), text(row, "sub_name"), text(row, "destination"),
                first, first if last is None else last, time(row, "last_delivery"), time(row, "last_ack"),
                whole_number(row, "deliveries"), whole_number(row, "acks"), row["connected"] is True,
                number(row, "days_idle") or 0.0, text(row, "verdict") or "unknown",
            )
        )  # fmt: skip
    return sorted(found, key=_order)


def _order(durable: DurableSubscription) -> tuple[int, float, str, str]:
    rank = VERDICTS.index(durable.verdict) if durable.verdict in VERDICTS else len(VERDICTS)
    return rank, -durable.days_idle, durable.name or "", durable.destination or ""


def durable_section(subscriptions: Sequence[DurableSubscription], as_of: int) -> ReportSection:
    """A lifeline for each subscription; ``as_of`` is the last moment that the lake knows of, in microseconds."""
    if not subscriptions:
        return ReportSection("durables", _TITLE, paragraph("There are no durable subscriptions."))
    lives = [_lifeline(one, as_of) for one in subscriptions[:_MOST]]
    verdicts = Counter(one.verdict for one in subscriptions)
    summary = ", ".join(f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts[verdict])
    span = Span(min(life.first for life in lives), max(as_of, *(life.last for life in lives)) + TEN_SECONDS)

    def draw(canvas: Canvas) -> Markup:
        return drawing(
            "durables", canvas, lifelines_height(lives, canvas), _TITLE, summary, draw_lifelines(lives, span, canvas)
        )

    more = f" The first {_MOST} are drawn." if len(subscriptions) > _MOST else ""
    caption = (
        f"{len(subscriptions):,} in all: {summary}. Lines go from first seen to last connected, and are dashed "
        "from then on. "
        f"As of {moment(as_of)} UTC, regardless of the time of this report.{more}"
    )
    return ReportSection("durables", _TITLE, figure(caption, draw, [_table(subscriptions)]))


def _lifeline(one: DurableSubscription, as_of: int) -> Lifeline:
    last = max(one.last, as_of) if one.connected else one.last
    idle = "" if one.connected or one.verdict == "deleted" else f" {duration(one.idle)}"
    known = one.verdict if one.verdict in VERDICTS else "idle"
    return Lifeline(one.name, one.first, last, known, f"{one.verdict}{idle}")


def _table(subscriptions: Sequence[DurableSubscription]) -> Table:
    rows = [
        [name_cell(one.name), name_cell(one.destination), name_cell(one.user), name_cell(one.vhost),
         tag("strong", one.verdict) if one.verdict == "abandoned" else one.verdict,
         moment(one.first), "now" if one.connected else moment(one.last),
         NOTHING if one.connected else duration(one.idle), moment(one.last_delivery), moment(one.last_ack),
         exact(one.deliveries), exact(one.acks)]
        for one in subscriptions
    ]  # fmt: skip
    head = (
        "Subscription", "Destination", "User", "Virtual host", "Verdict", "First seen", "Last connected", "Idle for",
        "Last delivery", "Last ACK", "Deliveries", "ACKs",
    )  # fmt: skip
    return Table("Durable subscriptions", head, rows, names=5)
