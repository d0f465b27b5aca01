"""Redeliveries, and deliveries that were not acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gateway.pipeline.report.drawing.bars import Row, draw_bars, height_of
from gateway.pipeline.report.drawing.svg import Canvas, drawing
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import figure, folded
from gateway.pipeline.report.markup import Markup, joined
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.text import name_of, shortened
from gateway.pipeline.report.units import count, exact, latency, share

_MOST: Final = 10
_LOOK: Final = 1


def deliveries(facts: Facts) -> Section:
    """Both, each with its bars."""
    return Section("deliveries", "Redeliveries and unacknowledged", joined([_redelivered(facts), _unacked(facts)]))


def _redelivered(facts: Facts) -> Markup:
    if not facts.redeliveries:
        return paragraph("Nothing was delivered again in this time.")
    rows = [_bar(one.destination, one.user, one.redelivered, one.share) for one in facts.redeliveries[:_MOST]]
    cells = [
        [name(one.destination), name(one.user), name(one.vhost), exact(one.delivered), exact(one.redelivered),
         share(one.share)]
        for one in facts.redeliveries
    ]  # fmt: skip
    head = ("Destination", "User", "Virtual host", "Delivered", "Redelivered", "Share")
    note = "Only hours in which something was delivered again."
    table = Table("Redeliveries", head, cells, names=3, notes=(note,))
    return _figure("redelivered", "Deliveries flagged as redelivered, by destination and user.", rows, table)


def _unacked(facts: Facts) -> Markup:
    if not facts.hotspots:
        return paragraph("Nobody subscribed with acknowledgements in this time.")
    cells = [
        [name(one.destination), name(one.user), name(one.vhost), exact(one.deliveries), exact(one.acked),
         exact(one.nacked), exact(one.unacked), share(one.share), latency(one.p99)]
        for one in facts.hotspots
    ]  # fmt: skip
    head = (
        "Destination", "User", "Virtual host", "Delivered", "Acknowledged", "Refused", "Unacknowledged", "Share",
        "p99 until acknowledged",
    )  # fmt: skip
    note = "Ack modes client and client-individual only; whole days. The p99 is the worst day's."
    table = Table("Deliveries to be acknowledged", head, cells, names=3, notes=(note,))
    rows = [_bar(one.destination, one.user, one.unacked, one.share) for one in facts.hotspots[:_MOST] if one.unacked]
    if not rows:
        return joined([paragraph("All deliveries that had to be acknowledged were."), folded(table)])
    return _figure("unacked", "Deliveries that were not acknowledged, by destination and user.", rows, table)


def _bar(destination: str | None, user: str | None, amount: int, part: float) -> Row:
    return Row(f"{name_of(destination)} · {name_of(user)}", ((_LOOK, amount, f"{count(amount)} ({share(part)})"),))


def _figure(key: str, caption: str, rows: Sequence[Row], table: Table) -> Markup:
    def draw(canvas: Canvas) -> Markup:
        says = f"The most: {shortened(name_of(rows[0].name), 100)}, {rows[0].bars[0][2]}. The table has all of them."
        return drawing(key, canvas, height_of(rows, canvas), caption, says, draw_bars(rows, canvas))

    return figure(caption, draw, [table])
