"""Errors over time, and who got them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gateway.pipeline.report.drawing.axis import LinearScale, Reach
from gateway.pipeline.report.drawing.frames import time_axis, time_scale, value_axis
from gateway.pipeline.report.drawing.stacks import LOOKS, Layer, draw_stacks, swatch
from gateway.pipeline.report.drawing.svg import Canvas, Frame, drawing
from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.figure import figure, folded, legend_of
from gateway.pipeline.report.markup import Markup, joined
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.span import MOST_BARS
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.text import name_of, shortened
from gateway.pipeline.report.units import count, duration, exact, moment, si

_TITLE: Final = "Errors over time"


def errors(facts: Facts) -> Section:
    """Stacked bars by code."""
    counts = facts.traffic.plotted
    codes = counts.by_code("err")
    if not codes:
        return Section("errors", _TITLE, paragraph("No ERROR frame was sent in this time."))
    width = max(facts.span.width(MOST_BARS), counts.width)
    begins = facts.span.bins(width)
    layers = _layers(facts, width, codes)

    def draw(canvas: Canvas) -> Markup:
        frame = Frame(46, 10, canvas.width - 14, 220 if canvas.wide else 190)
        highest = max(sum(layer.values[place] for layer in layers) for place in range(len(begins)))
        up = LinearScale(highest, Reach(frame.bottom, frame.top), si)
        across = time_scale(facts.span, frame, canvas)
        parts = [
            *value_axis(frame, up), *draw_stacks(frame, begins, width, layers, (across, up)), *time_axis(frame, across),
        ]  # fmt: skip
        says = ", ".join(f"{layer.name} {count(sum(layer.values))}" for layer in layers)
        return drawing("errors", canvas, frame.bottom + 42, _TITLE, says, parts)

    rows = [[moment(begin), *(exact(layer.values[place]) for layer in layers)] for place, begin in enumerate(begins)]
    tables = [Table("Errors over time", ("From (UTC)", *(layer.name for layer in layers)), rows)]
    samples = [(swatch(layer.look), f"{layer.name} ({count(sum(layer.values))})") for layer in layers]
    body = figure(f"ERROR frames by code, in steps of {duration(width)}.", draw, tables, legend_of(samples))
    return Section("errors", _TITLE, joined([body, folded(_by_user(facts)) if facts.errors else None]))


def _layers(facts: Facts, width: int, codes: Iterable[str | None]) -> list[Layer]:
    """A layer for each of the most frequent codes, and one for all others."""
    known = list(codes)
    alone = known if len(known) <= LOOKS else known[: LOOKS - 1]
    groups = [(shortened(name_of(code), 32), [code]) for code in alone]
    if len(known) > len(alone):
        groups.append((f"{len(known) - len(alone)} other codes", known[len(alone) :]))
    return [Layer(title, look, _values(facts, width, members)) for look, (title, members) in enumerate(groups, start=1)]


def _values(facts: Facts, width: int, codes: list[str | None]) -> list[float]:
    sums = dict.fromkeys(facts.span.bins(width), 0.0)
    for (event, code, begin), amount in facts.traffic.plotted.codes.items():
        if event == "err" and code in codes:
            sums[begin // width * width] += amount
    return list(sums.values())


def _by_user(facts: Facts) -> Table:
    rows = [
        [name(complaint.code), name(complaint.user), name(complaint.vhost), exact(n)] for complaint, n in facts.errors
    ]
    note = "A session that never logged in has no user. Whole hours."
    return Table("Errors by code and user", ("Code", "User", "Virtual host", "Errors"), rows, names=3, notes=(note,))
