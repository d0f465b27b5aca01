"""The busiest destinations."""

from __future__ import annotations

from typing import Final

from gateway.pipeline.report.drawing.bars import Row, bar_sample, draw_bars, height_of
from gateway.pipeline.report.drawing.svg import Canvas, drawing
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import figure, legend_of
from gateway.pipeline.report.markup import Markup
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.text import name_of, shortened
from gateway.pipeline.report.units import count, exact, octets

MOST: Final = 15
_SENT: Final = 1
_DELIVERED: Final = 2


def destinations(facts: Facts) -> Section:
    """Bars of the first ones, and the rest as one."""
    title = "Top destinations"
    if not facts.destinations:
        return Section("destinations", title, paragraph("No destination was used in this time."))
    first, rest = facts.destinations[:MOST], facts.destinations[MOST:]
    rows = [_row(one.name, one.sent, one.delivered) for one in first]
    if rest:
        sums = sum(one.sent for one in rest), sum(one.delivered for one in rest)
        rows.append(_row(f"{len(rest):,} others together", *sums))

    def draw(canvas: Canvas) -> Markup:
        height = height_of(rows, canvas)
        says = f"The busiest is {shortened(name_of(first[0].name), 60)}. The table has all of them."
        return drawing("destinations", canvas, height, title, says, draw_bars(rows, canvas))

    legend = legend_of([(bar_sample(_SENT), "sent by clients"), (bar_sample(_DELIVERED), "delivered to clients")])
    body = figure("Messages by destination, in whole hours.", draw, [_table(facts)], legend)
    return Section("destinations", title, body)


def _row(title: str | None, sent: int, delivered: int) -> Row:
    return Row(title, ((_SENT, sent, count(sent)), (_DELIVERED, delivered, count(delivered))))


def _table(facts: Facts) -> Table:
    head = (
        "Destination", "Virtual host", "Kind", "Sent", "Octets", "Confirmed", "Rejected", "Delivered", "Octets",
        "Redelivered", "Acknowledged", "Requeued", "Discarded",
    )  # fmt: skip
    rows = [
        [name(one.name), name(one.vhost), name(one.kind), exact(one.sent), octets(one.sent_bytes), exact(one.confirmed),
         exact(one.rejected), exact(one.delivered), octets(one.delivered_bytes), exact(one.redelivered),
         exact(one.acked), exact(one.requeued), exact(one.discarded)]
        for one in facts.destinations
    ]  # fmt: skip
    return Table("Destinations", head, rows, names=3)
