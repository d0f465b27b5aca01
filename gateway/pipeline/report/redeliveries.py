"""The section on redelivered and unacknowledged messages, from redeliveries_hour and unacked_hotspots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.elements import ReportSection, Table, figure, folded, name_cell, paragraph
from gateway.pipeline.report.lake_tables import LakeTables, hour_overlaps, number, text, whole_number
from gateway.pipeline.report.markup import Canvas, Markup, drawing, joined, name_of, shortened
from gateway.pipeline.report.row_charts import BarRow, bars_height, draw_bars
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import count, exact, latency, share

_REDELIVERY_COLUMNS: Final = ("hour", "vhost", "user", "destination", "delivered", "redelivered")
_HOTSPOT_COLUMNS: Final = ("vhost", "user", "destination", "deliveries", "acked", "nacked", "p99_ack_us")

_Key = tuple[str | None, str | None, str | None]
_MOST: Final = 10
_BAR_STYLE: Final = 1


@dataclass
class Redelivery:
    """What was delivered to a user from a destination, in hours with redeliveries."""

    vhost: str | None
    user: str | None
    destination: str | None
    delivered: int = 0
    redelivered: int = 0

    @property
    def share(self) -> float:
        """The part of all deliveries that were redeliveries, 0 to 1."""
        return self.redelivered / self.delivered if self.delivered else 0.0


@dataclass
class Hotspot:
    """What was delivered to a user from a destination and had to be acknowledged."""

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
        """Deliveries neither acknowledged nor refused yet."""
        return max(0, self.deliveries - self.acked - self.nacked)

    @property
    def share(self) -> float:
        """The part of all deliveries that were not acknowledged, 0 to 1."""
        return self.unacked / self.deliveries if self.deliveries else 0.0


def read_redeliveries(tables: LakeTables, span: Span) -> list[Redelivery]:
    """Redeliveries by user and destination, the most first."""
    found: dict[_Key, Redelivery] = {}
    for row in tables.rows("redeliveries_hour", _REDELIVERY_COLUMNS, span):
        if hour_overlaps(row, span):
            key = text(row, "vhost"), text(row, "user"), text(row, "destination")
            one = found.setdefault(key, Redelivery(*key))
            one.delivered += whole_number(row, "delivered")
            one.redelivered += whole_number(row, "redelivered")
    return sorted(found.values(), key=lambda one: (-one.redelivered, _order(one.vhost, one.user, one.destination)))


def read_hotspots(tables: LakeTables, span: Span) -> list[Hotspot]:
    """Unacknowledged deliveries by user and destination, the most first; whole days."""
    found: dict[_Key, Hotspot] = {}
    for row in tables.rows("unacked_hotspots", _HOTSPOT_COLUMNS, span):
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


def redelivery_section(redeliveries: Sequence[Redelivery], hotspots: Sequence[Hotspot]) -> ReportSection:
    """Redelivered and unacknowledged messages, each with bars and a table."""
    body = joined([_redelivered(redeliveries), _unacked(hotspots)])
    return ReportSection("deliveries", "Redeliveries and unacknowledged", body)


def _redelivered(redeliveries: Sequence[Redelivery]) -> Markup:
    if not redeliveries:
        return paragraph("Nothing was delivered again in this time.")
    rows = [_bar(one.destination, one.user, one.redelivered, one.share) for one in redeliveries[:_MOST]]
    cells = [
        [name_cell(one.destination), name_cell(one.user), name_cell(one.vhost), exact(one.delivered),
         exact(one.redelivered), share(one.share)]
        for one in redeliveries
    ]  # fmt: skip
    head = ("Destination", "User", "Virtual host", "Delivered", "Redelivered", "Share")
    note = "Only hours in which something was delivered again."
    table = Table("Redeliveries", head, cells, names=3, notes=(note,))
    return _figure("redelivered", "Deliveries flagged as redelivered, by destination and user.", rows, table)


def _unacked(hotspots: Sequence[Hotspot]) -> Markup:
    if not hotspots:
        return paragraph("Nobody subscribed with acknowledgements in this time.")
    cells = [
        [name_cell(one.destination), name_cell(one.user), name_cell(one.vhost), exact(one.deliveries), exact(one.acked),
         exact(one.nacked), exact(one.unacked), share(one.share), latency(one.p99)]
        for one in hotspots
    ]  # fmt: skip
    head = (
        "Destination", "User", "Virtual host", "Delivered", "Acknowledged", "Refused", "Unacknowledged", "Share",
        "p99 until acknowledged",
    )  # fmt: skip
    note = "Ack modes client and client-individual only; whole days. The p99 is the worst day's."
    table = Table("Deliveries to be acknowledged", head, cells, names=3, notes=(note,))
    rows = [_bar(one.destination, one.user, one.unacked, one.share) for one in hotspots[:_MOST] if one.unacked]
    if not rows:
        return joined([paragraph("All deliveries that had to be acknowledged were."), folded(table)])
    return _figure("unacked", "Deliveries that were not acknowledged, by destination and user.", rows, table)


def _bar(destination: str | None, user: str | None, amount: int, part: float) -> BarRow:
    return BarRow(
        f"{name_of(destination)} · {name_of(user)}", ((_BAR_STYLE, amount, f"{count(amount)} ({share(part)})"),)
    )


def _figure(key: str, caption: str, rows: Sequence[BarRow], table: Table) -> Markup:
    def draw(canvas: Canvas) -> Markup:
        description = (
            f"The most: {shortened(name_of(rows[0].name), 100)}, {rows[0].bars[0][2]}. The table has all of them."
        )
        return drawing(key, canvas, bars_height(rows, canvas), caption, description, draw_bars(rows, canvas))

    return figure(caption, draw, [table])
