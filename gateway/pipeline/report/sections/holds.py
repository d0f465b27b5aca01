"""Holds: when and why the gateway stopped reading a client."""

from __future__ import annotations

from gateway.journal.histogram import highest_of, lowest_of, percentile
from gateway.pipeline.report.drawing.bars import Row, draw_bars, height_of
from gateway.pipeline.report.drawing.svg import Canvas, drawing
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import figure
from gateway.pipeline.report.markup import Markup
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.text import name_of, shortened
from gateway.pipeline.report.units import count, duration, exact, latency

_LOOK = 1


def holds(facts: Facts) -> Section:
    """Bars by reason."""
    counts = facts.traffic.plotted
    found = counts.by_code("blk")
    if not found:
        return Section("holds", "Holds", paragraph("No client was held in this time: the gateway always kept reading."))
    rows, cells = [], []
    for code, amount in found.items():
        times = counts.by_reason.get(("blk", code), {})
        total = sum((lowest_of(bucket) + highest_of(bucket)) / 2 * n for bucket, n in times.items())
        rows.append(Row(code, ((_LOOK, amount, f"{count(amount)} times, {duration(total)}"),)))
        longest = highest_of(max(times)) if times else None
        cells.append(
            [name(code), exact(amount), duration(total), latency(percentile(times, 0.5)),
             latency(percentile(times, 0.99)), latency(longest)]
        )  # fmt: skip

    def draw(canvas: Canvas) -> Markup:
        says = "; ".join(f"{shortened(name_of(row.name), 60)}: {row.bars[0][2]}" for row in rows)
        return drawing("holds", canvas, height_of(rows, canvas), "Holds by reason", says, draw_bars(rows, canvas))

    table = Table("Holds by reason", ("Reason", "Times", "Together, about", "p50", "p99", "Longest"), cells)
    caption = "How often the gateway stopped reading a client for a while, by reason, and for how long together."
    return Section("holds", "Holds", figure(caption, draw, [table]))
