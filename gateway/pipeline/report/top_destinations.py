"""The section on destinations, from the tables dest_hour and latency_hour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.elements import ReportSection, Table, figure, legend_of, name_cell, paragraph
from gateway.pipeline.report.lake_tables import LakeTables, hour_overlaps, text, time, whole_number
from gateway.pipeline.report.markup import Canvas, Markup, drawing, name_of, shortened
from gateway.pipeline.report.row_charts import BarRow, bar_sample, bars_height, draw_bars
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import count, exact, size

_SUMMED: Final = (
    "sent", "sent_bytes", "confirmed", "rejected", "delivered", "delivered_bytes",
    "redelivered", "acked", "requeued", "discarded",
)  # fmt: skip
_COLUMNS: Final = ("hour", "vhost", "destination", "dest_kind", *_SUMMED)
_LATENCY_COLUMNS: Final = ("hour", "vhost", "destination", "event", "n", "p50_us", "p99_us")
LEAST_LATENCIES: Final = 20
"""How many latencies an hour of a destination must have to be called slow."""
_MOST: Final = 15
_SENT_STYLE: Final = 1
_DELIVERED_STYLE: Final = 2


@dataclass
class DestinationTotals:
    """The messages of one destination of one virtual host."""

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
        """Messages sent plus messages delivered."""
        return self.sent + self.delivered


@dataclass
class SlowHour:
    """The hour of a destination with the longest 99th percentile of a latency."""

    vhost: str | None
    name: str
    event: str
    hour: int
    n: int
    p50: int
    p99: int


def read_destinations(tables: LakeTables, span: Span) -> list[DestinationTotals]:
    """All destinations of a span, the busiest first."""
    found: dict[tuple[str | None, str | None], DestinationTotals] = {}
    for row in tables.rows("dest_hour", _COLUMNS, span):
        if not hour_overlaps(row, span):
            continue
        key = text(row, "vhost"), text(row, "destination")
        one = found.setdefault(key, DestinationTotals(*key, text(row, "dest_kind")))
        for column in _SUMMED:
            setattr(one, column, getattr(one, column) + whole_number(row, column))
    return sorted(found.values(), key=lambda one: (-one.traffic, one.vhost or "", one.name or ""))


def read_slow_hours(tables: LakeTables, span: Span) -> list[SlowHour]:
    """Each destination's worst hour, the worst first."""
    worst: dict[tuple[str | None, str, str], SlowHour] = {}
    for row in tables.rows("latency_hour", _LATENCY_COLUMNS, span):
        name, event, hour = text(row, "destination"), text(row, "event"), time(row, "hour")
        if name is None or event is None or hour is None or not hour_overlaps(row, span):
            continue
        n, p50, p99 = (whole_number(row, column) for column in ("n", "p50_us", "p99_us"))
        key = text(row, "vhost"), name, event
        if n >= LEAST_LATENCIES and (key not in worst or p99 > worst[key].p99):
            worst[key] = SlowHour(*key, hour, n, p50, p99)
    return sorted(worst.values(), key=lambda slow: (-slow.p99, slow.name, slow.event))


def destination_section(totals: Sequence[DestinationTotals]) -> ReportSection:
    """Bars of the busiest destinations, and one row for all others."""
    title = "Top destinations"
    if not totals:
        return ReportSection("destinations", title, paragraph("No destination was used in this time."))
    first, rest = totals[:_MOST], totals[_MOST:]
    rows = [_row(one.name, one.sent, one.delivered) for one in first]
    if rest:
        sums = sum(one.sent for one in rest), sum(one.delivered for one in rest)
        rows.append(_row(f"{len(rest):,} others together", *sums))

    def draw(canvas: Canvas) -> Markup:
        height = bars_height(rows, canvas)
        description = f"The busiest is {shortened(name_of(first[0].name), 60)}. The table has all of them."
        return drawing("destinations", canvas, height, title, description, draw_bars(rows, canvas))

    legend = legend_of(
        [(bar_sample(_SENT_STYLE), "sent by clients"), (bar_sample(_DELIVERED_STYLE), "delivered to clients")]
    )
    body = figure("Messages by destination, in whole hours.", draw, [_table(totals)], legend)
    return ReportSection("destinations", title, body)


def _row(title: str | None, sent: int, delivered: int) -> BarRow:
    return BarRow(title, ((_SENT_STYLE, sent, count(sent)), (_DELIVERED_STYLE, delivered, count(delivered))))


def _table(totals: Sequence[DestinationTotals]) -> Table:
    head = (
        "Destination", "Virtual host", "Kind", "Sent", "Bytes", "Confirmed", "Rejected", "Delivered", "Bytes",
        "Redelivered", "Acknowledged", "Requeued", "Discarded",
    )  # fmt: skip
    rows = [
        [name_cell(one.name), name_cell(one.vhost), name_cell(one.kind), exact(one.sent),
         size(one.sent_bytes), exact(one.confirmed), exact(one.rejected), exact(one.delivered),
         size(one.delivered_bytes), exact(one.redelivered), exact(one.acked), exact(one.requeued), exact(one.discarded)]
        for one in totals
    ]  # fmt: skip
    return Table("Destinations", head, rows, names=3)
