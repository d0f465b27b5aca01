"""The section on ERROR frames: over time by code, and from the table errors_hour by user."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from gateway.pipeline.report.axes import AxisRange, LinearScale, time_axis, time_scale, value_axis
from gateway.pipeline.report.elements import (
    ReportSection,
    Table,
    figure,
    folded,
    legend_of,
    name_cell,
    paragraph,
)
from gateway.pipeline.report.lake_tables import LakeTables, hour_overlaps, text, whole_number
from gateway.pipeline.report.markup import Canvas, Markup, PlotArea, drawing, joined, name_of, shortened
from gateway.pipeline.report.span import MOST_BARS, Span
from gateway.pipeline.report.time_charts import LAYER_STYLES, Layer, draw_stacks, layer_sample
from gateway.pipeline.report.traffic_over_time import EventCounts
from gateway.pipeline.report.units import count, duration, exact, moment, si

_COLUMNS: Final = ("hour", "vhost", "user", "code", "n")
_TITLE: Final = "Errors over time"


class ErrorKey(NamedTuple):
    """An error code of a user."""

    vhost: str | None
    user: str | None
    code: str | None


Errors = Sequence[tuple[ErrorKey, int]]


def read_errors(tables: LakeTables, span: Span) -> Errors:
    """Errors by user and code, the most frequent first."""
    found: Counter[ErrorKey] = Counter()
    for row in tables.rows("errors_hour", _COLUMNS, span):
        if hour_overlaps(row, span):
            found[ErrorKey(text(row, "vhost"), text(row, "user"), text(row, "code"))] += whole_number(row, "n")
    return sorted(found.items(), key=lambda item: (-item[1], tuple(part or "" for part in item[0])))


def error_section(span: Span, counts: EventCounts, by_user: Errors) -> ReportSection:
    """Stacked bars by code, and a table by user."""
    codes = counts.by_code("err")
    if not codes:
        return ReportSection("errors", _TITLE, paragraph("No ERROR frame was sent in this time."))
    width = max(span.width(MOST_BARS), counts.width)
    begins = span.bins(width)
    layers = _layers(span, counts, width, codes)

    def draw(canvas: Canvas) -> Markup:
        area = PlotArea(46, 10, canvas.width - 14, 220 if canvas.wide else 190)
        highest = max(sum(layer.values[place] for layer in layers) for place in range(len(begins)))
        up = LinearScale(highest, AxisRange(area.bottom, area.top), si)
        across = time_scale(span, area, canvas)
        parts = [
            *value_axis(area, up), *draw_stacks(begins, width, layers, across, up), *time_axis(area, across),
        ]  # fmt: skip
        description = ", ".join(f"{layer.name} {count(sum(layer.values))}" for layer in layers)
        return drawing("errors", canvas, area.bottom + 42, _TITLE, description, parts)

    rows = [[moment(begin), *(exact(layer.values[place]) for layer in layers)] for place, begin in enumerate(begins)]
    tables = [Table("Errors over time", ("From (UTC)", *(layer.name for layer in layers)), rows)]
    samples = [(layer_sample(layer.style), f"{layer.name} ({count(sum(layer.values))})") for layer in layers]
    body = figure(f"ERROR frames by code, in steps of {duration(width)}.", draw, tables, legend_of(samples))
    return ReportSection("errors", _TITLE, joined([body, folded(_by_user(by_user)) if by_user else None]))


def _layers(span: Span, counts: EventCounts, width: int, codes: Iterable[str | None]) -> list[Layer]:
    """A layer for each of the most frequent codes, and one for all others."""
    known = list(codes)
    alone = known if len(known) <= LAYER_STYLES else known[: LAYER_STYLES - 1]
    groups = [(shortened(name_of(code), 32), [code]) for code in alone]
    if len(known) > len(alone):
        groups.append((f"{len(known) - len(alone)} other codes", known[len(alone) :]))
    return [
        Layer(title, style, _values(span, counts, width, members))
        for style, (title, members) in enumerate(groups, start=1)
    ]


def _values(span: Span, counts: EventCounts, width: int, codes: list[str | None]) -> list[float]:
    sums = dict.fromkeys(span.bins(width), 0.0)
    for (event, code, begin), amount in counts.codes.items():
        if event == "err" and code in codes:
            sums[begin // width * width] += amount
    return list(sums.values())


def _by_user(errors: Errors) -> Table:
    rows = [[name_cell(key.code), name_cell(key.user), name_cell(key.vhost), exact(n)] for key, n in errors]
    note = "A session that never logged in has no user. Whole hours."
    return Table("Errors by code and user", ("Code", "User", "Virtual host", "Errors"), rows, names=3, notes=(note,))
