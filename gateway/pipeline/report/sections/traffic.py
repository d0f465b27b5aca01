"""Traffic and latencies over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.journal.histogram import percentile
from gateway.pipeline.report.drawing.axis import LatencyScale, LinearScale, Reach
from gateway.pipeline.report.drawing.frames import time_axis, time_scale, value_axis
from gateway.pipeline.report.drawing.lines import Line, draw_lines, frame_of, name_lines
from gateway.pipeline.report.drawing.svg import Canvas, drawing
from gateway.pipeline.report.facts.facts import LEAST_LATENCIES, Facts
from gateway.pipeline.report.figure import figure, folded, legend_of, line_sample
from gateway.pipeline.report.markup import Markup, joined
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.table import Table, name
from gateway.pipeline.report.units import duration, exact, latency, moment, rate

_FLOWS: Final = (("send", "sent", 1), ("dlv", "delivered", 2), ("ack", "acknowledged", 3))
_PARTS: Final = ((0.5, "p50", 1), (0.95, "p95", 2), (0.99, "p99", 4))
_LATENCIES: Final = (("conf", "Publish → confirm"), ("ack", "Deliver → acknowledge"))
_MOST_SLOW: Final = 20


def traffic(facts: Facts) -> Section:
    """Messages per second."""
    counts = facts.traffic.plotted
    begins = facts.span.bins(counts.width)
    seconds = [facts.span.seconds_of(begin, counts.width) for begin in begins]
    lines = [
        Line(title, look, _rates([counts.events.get((event, begin), 0.0) for begin in begins], seconds), look == 1)
        for event, title, look in _FLOWS
    ]
    rows = [
        [moment(begin), *_cells([counts.events.get((event, begin), 0.0) for event, _, _ in _FLOWS], seconds[place])]
        for place, begin in enumerate(begins)
    ]
    head = ("From (UTC)", "Sent", "per second", "Delivered", "per second", "Acknowledged", "per second")

    def draw(canvas: Canvas) -> Markup:
        frame = frame_of(canvas.width, 300 if canvas.wide else 240, lines, left=54, labelled=canvas.wide)
        highest = max((value or 0.0 for line in lines for value in line.values), default=0.0)
        up = LinearScale(highest, Reach(frame.bottom, frame.top), rate)
        across = time_scale(facts.span, frame, canvas)
        parts = [
            *value_axis(frame, up),
            *time_axis(frame, across),
            *draw_lines(frame, _middles(facts), lines, across, up),
        ]
        parts += name_lines(frame, lines, up) if canvas.wide else []
        return drawing("traffic", canvas, frame.bottom + 42, "Traffic over time", _peaks(lines), parts)

    body = figure(
        f"Messages per second, each point the mean of {duration(counts.width)}.",
        draw,
        [Table("Messages over time", head, rows)],
        legend_of([(line_sample(look), title) for _, title, look in _FLOWS], "for-narrow"),
    )
    return Section("traffic", "Traffic over time", body)


def latencies(facts: Facts) -> Section:
    """Percentiles of both latencies over time, and the slowest destinations."""
    known = [(event, title) for event, title in _LATENCIES if facts.traffic.plotted.all_latencies(event)]
    if not known:
        return Section("latency", "Latencies", paragraph("No latency was measured in this time."))
    figures = [_latency(facts, event, title) for event, title in known]
    slow = folded(_slowest(facts)) if facts.slow_hours else None
    return Section("latency", "Latencies", joined([*figures, slow]))


def _latency(facts: Facts, event: str, title: str) -> Markup:
    counts = facts.traffic.plotted
    begins = facts.span.bins(counts.width)
    lines = [
        Line(part_name, look, [counts.percentile(event, begin, part) for begin in begins])
        for part, part_name, look in _PARTS
    ]
    rows = [
        [moment(begin), exact(sum(counts.latencies.get((event, begin), {}).values())),
         *(latency(line.values[place]) for line in lines)]
        for place, begin in enumerate(begins)
    ]  # fmt: skip
    values = [value for line in lines for value in line.values if value is not None]

    def draw(canvas: Canvas) -> Markup:
        frame = frame_of(canvas.width, 260 if canvas.wide else 230, lines, left=62, labelled=True)
        up = LatencyScale(values, Reach(frame.bottom, frame.top))
        across = time_scale(facts.span, frame, canvas)
        parts = [
            *value_axis(frame, up),
            *time_axis(frame, across),
            *draw_lines(frame, _middles(facts), lines, across, up),
            *name_lines(frame, lines, up),
        ]
        return drawing(f"latency-{event}", canvas, frame.bottom + 42, f"{title} over time", whole, parts)

    of_all = counts.all_latencies(event)
    whole = "Of the whole time: " + ", ".join(f"{key} {latency(percentile(of_all, part))}" for part, key, _ in _PARTS)
    table = Table(f"{title} over time", ("From (UTC)", "Measured", "p50", "p95", "p99"), rows)
    return figure(f"{title}, logarithmic, by {duration(counts.width)}. {whole}.", draw, [table])


def _slowest(facts: Facts) -> Table:
    titles = dict(_LATENCIES)
    rows = [
        [name(slow.name), name(slow.vhost), titles.get(slow.event, slow.event), moment(slow.hour), exact(slow.n),
         latency(slow.p50), latency(slow.p99)]
        for slow in facts.slow_hours[:_MOST_SLOW]
    ]  # fmt: skip
    head = ("Destination", "Virtual host", "Latency", "Worst hour (UTC)", "Measured", "p50", "p99")
    note = f"Hours with fewer than {LEAST_LATENCIES} measurements are left out."
    return Table("Slowest destinations, by the p99 of their worst hour", head, rows, names=3, notes=(note,))


def _cells(amounts: Sequence[float], seconds: float) -> Iterator[str]:
    for amount in amounts:
        yield exact(amount)
        yield rate(amount / seconds)


def _middles(facts: Facts) -> list[float]:
    """Where points go: into the middle of what a bin covers of the span."""
    width = facts.traffic.plotted.width
    span = facts.span
    return [(max(begin, span.start) + min(begin + width, span.end)) / 2 for begin in span.bins(width)]


def _rates(values: Sequence[float], seconds: Sequence[float]) -> list[float]:
    return [value / length for value, length in zip(values, seconds, strict=True)]


def _peaks(lines: Sequence[Line]) -> str:
    highest = (f"{line.name} {rate(max((value or 0.0 for value in line.values), default=0.0))}" for line in lines)
    return "Highest means: " + ", ".join(highest) + ". The table has all values."
