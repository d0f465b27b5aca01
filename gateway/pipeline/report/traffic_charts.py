"""The sections on traffic, latencies and holds, from the table traffic_10s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.journal.histogram import highest_of, lowest_of, percentile
from gateway.pipeline.report.axes import AxisRange, LatencyScale, LinearScale, time_axis, time_scale, value_axis
from gateway.pipeline.report.elements import (
    ReportSection,
    Table,
    figure,
    folded,
    legend_of,
    name_cell,
    paragraph,
)
from gateway.pipeline.report.markup import Markup, joined, name_of, shortened
from gateway.pipeline.report.row_charts import BarRow, bars_height, draw_bars
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.svg import Canvas, drawing
from gateway.pipeline.report.time_charts import Series, draw_lines, line_sample, name_lines, plot_area
from gateway.pipeline.report.top_destinations import LEAST_LATENCIES, SlowHour
from gateway.pipeline.report.traffic_counts import EventCounts
from gateway.pipeline.report.units import count, duration, exact, latency, moment, rate

_FLOWS: Final = (("send", "sent", 1), ("dlv", "delivered", 2), ("ack", "acknowledged", 3))
_PERCENTILES: Final = ((0.5, "p50", 1), (0.95, "p95", 2), (0.99, "p99", 4))
_LATENCIES: Final = (("conf", "Publish → confirm"), ("ack", "Deliver → acknowledge"))
_MOST_SLOW: Final = 20
_HOLD_STYLE: Final = 1


def traffic_section(span: Span, counts: EventCounts) -> ReportSection:
    """Messages per second."""
    begins = span.bins(counts.width)
    seconds = [span.seconds_of(begin, counts.width) for begin in begins]
    series = [
        Series(title, style, _rates([counts.events.get((event, begin), 0.0) for begin in begins], seconds), style == 1)
        for event, title, style in _FLOWS
    ]
    rows = [
        [moment(begin), *_cells([counts.events.get((event, begin), 0.0) for event, _, _ in _FLOWS], seconds[place])]
        for place, begin in enumerate(begins)
    ]
    head = ("From (UTC)", "Sent", "per second", "Delivered", "per second", "Acknowledged", "per second")

    def draw(canvas: Canvas) -> Markup:
        area = plot_area(canvas.width, 300 if canvas.wide else 240, series, left=54, labelled=canvas.wide)
        highest = max((value or 0.0 for each in series for value in each.values), default=0.0)
        up = LinearScale(highest, AxisRange(area.bottom, area.top), rate)
        across = time_scale(span, area, canvas)
        parts = [
            *value_axis(area, up),
            *time_axis(area, across),
            *draw_lines(area, _middles(span, counts.width), series, across, up),
        ]
        parts += name_lines(area, series, up) if canvas.wide else []
        return drawing("traffic", canvas, area.bottom + 42, "Traffic over time", _peaks(series), parts)

    body = figure(
        f"Messages per second, each point the mean of {duration(counts.width)}.",
        draw,
        [Table("Messages over time", head, rows)],
        legend_of([(line_sample(style), title) for _, title, style in _FLOWS], "for-narrow"),
    )
    return ReportSection("traffic", "Traffic over time", body)


def latency_section(span: Span, counts: EventCounts, slow_hours: Sequence[SlowHour]) -> ReportSection:
    """Percentiles of both latencies over time, and the slowest destinations."""
    known = [(event, title) for event, title in _LATENCIES if counts.all_latencies(event)]
    if not known:
        return ReportSection("latency", "Latencies", paragraph("No latency was measured in this time."))
    figures = [_latency(span, counts, event, title) for event, title in known]
    slow = folded(_slowest(slow_hours)) if slow_hours else None
    return ReportSection("latency", "Latencies", joined([*figures, slow]))


def _latency(span: Span, counts: EventCounts, event: str, title: str) -> Markup:
    begins = span.bins(counts.width)
    series = [
        Series(name, style, [counts.percentile(event, begin, part) for begin in begins])
        for part, name, style in _PERCENTILES
    ]
    rows = [
        [moment(begin), exact(sum(counts.latencies.get((event, begin), {}).values())),
         *(latency(each.values[place]) for each in series)]
        for place, begin in enumerate(begins)
    ]  # fmt: skip
    values = [value for each in series for value in each.values if value is not None]

    def draw(canvas: Canvas) -> Markup:
        area = plot_area(canvas.width, 260 if canvas.wide else 230, series, left=62, labelled=True)
        up = LatencyScale(values, AxisRange(area.bottom, area.top))
        across = time_scale(span, area, canvas)
        parts = [
            *value_axis(area, up),
            *time_axis(area, across),
            *draw_lines(area, _middles(span, counts.width), series, across, up),
            *name_lines(area, series, up),
        ]
        return drawing(f"latency-{event}", canvas, area.bottom + 42, f"{title} over time", whole, parts)

    of_all = counts.all_latencies(event)
    whole = "Of the whole time: " + ", ".join(
        f"{name} {latency(percentile(of_all, part))}" for part, name, _ in _PERCENTILES
    )
    table = Table(f"{title} over time", ("From (UTC)", "Measured", "p50", "p95", "p99"), rows)
    return figure(f"{title}, logarithmic, by {duration(counts.width)}. {whole}.", draw, [table])


def _slowest(slow_hours: Sequence[SlowHour]) -> Table:
    titles = dict(_LATENCIES)
    rows = [
        [name_cell(slow.name), name_cell(slow.vhost), titles.get(slow.event, slow.event), moment(slow.hour),
         exact(slow.n), latency(slow.p50), latency(slow.p99)]
        for slow in slow_hours[:_MOST_SLOW]
    ]  # fmt: skip
    head = ("Destination", "Virtual host", "Latency", "Worst hour (UTC)", "Measured", "p50", "p99")
    note = f"Hours with fewer than {LEAST_LATENCIES} measurements are left out."
    return Table("Slowest destinations, by the p99 of their worst hour", head, rows, names=3, notes=(note,))


def _cells(amounts: Sequence[float], seconds: float) -> Iterator[str]:
    for amount in amounts:
        yield exact(amount)
        yield rate(amount / seconds)


def _middles(span: Span, width: int) -> list[float]:
    """Where points go: into the middle of the part of a bin that lies in the span."""
    return [(max(begin, span.start) + min(begin + width, span.end)) / 2 for begin in span.bins(width)]


def _rates(values: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [value / length for value, length in zip(values, seconds, strict=True)]


def _peaks(series: Sequence[Series]) -> str:
    highest = (f"{each.name} {rate(max((value or 0.0 for value in each.values), default=0.0))}" for each in series)
    return "Highest means: " + ", ".join(highest) + ". The table has all values."


def hold_section(counts: EventCounts) -> ReportSection:
    """How often and how long the gateway stopped reading clients, by reason."""
    found = counts.by_code("blk")
    if not found:
        return ReportSection(
            "holds", "Holds", paragraph("No client was held in this time: the gateway always kept reading.")
        )
    rows, cells = [], []
    for code, amount in found.items():
        times = counts.by_reason.get(("blk", code), {})
        total = sum((lowest_of(bucket) + highest_of(bucket)) / 2 * n for bucket, n in times.items())
        rows.append(BarRow(code, ((_HOLD_STYLE, amount, f"{count(amount)} times, {duration(total)}"),)))
        longest = highest_of(max(times)) if times else None
        cells.append(
            [name_cell(code), exact(amount), duration(total), latency(percentile(times, 0.5)),
             latency(percentile(times, 0.99)), latency(longest)]
        )  # fmt: skip

    def draw(canvas: Canvas) -> Markup:
        description = "; ".join(f"{shortened(name_of(row.name), 60)}: {row.bars[0][2]}" for row in rows)
        return drawing(
            "holds", canvas, bars_height(rows, canvas), "Holds by reason", description, draw_bars(rows, canvas)
        )

    table = Table("Holds by reason", ("Reason", "Times", "Together, about", "p50", "p99", "Longest"), cells)
    caption = "How often the gateway stopped reading a client for a while, by reason, and for how long together."
    return ReportSection("holds", "Holds", figure(caption, draw, [table]))
