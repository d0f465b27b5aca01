"""The table traffic_10s: events by time and histograms of latencies, and the sections made from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

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
from gateway.pipeline.report.lake_tables import LakeTables, Row, between, number, text, time
from gateway.pipeline.report.markup import Canvas, Markup, drawing, joined, name_of, shortened
from gateway.pipeline.report.row_charts import BarRow, bars_height, draw_bars
from gateway.pipeline.report.span import MOST_POINTS, TEN_SECONDS, Span
from gateway.pipeline.report.time_charts import Series, draw_lines, line_sample, name_lines, plot_area
from gateway.pipeline.report.top_destinations import LEAST_LATENCIES, SlowHour
from gateway.pipeline.report.units import count, duration, exact, latency, moment, rate

_TRAFFIC: Final = "traffic_10s"
_COLUMNS: Final = ("ts10", "event", "code", "bucket", "n", "bytes")
_MOVED: Final = ("send", "dlv")
_FLOWS: Final = (("send", "sent", 1), ("dlv", "delivered", 2), ("ack", "acknowledged", 3))
_PERCENTILES: Final = ((0.5, "p50", 1), (0.95, "p95", 2), (0.99, "p99", 4))
_LATENCIES: Final = (("conf", "Publish → confirm"), ("ack", "Deliver → acknowledge"))
_MOST_SLOW: Final = 20
_HOLD_STYLE: Final = 1


@dataclass
class EventCounts:
    """Events counted in bins of one width, in microseconds."""

    width: int
    events: dict[tuple[str, int], float] = field(default_factory=lambda: defaultdict(float))
    """By event and bin."""
    codes: dict[tuple[str, str | None, int], float] = field(default_factory=lambda: defaultdict(float))
    """By event, code and bin."""
    latencies: dict[tuple[str, int], dict[int, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    """By event and bin: counts by bucket."""
    body_bytes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By event."""
    by_reason: dict[tuple[str, str | None], dict[int, float]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(float))
    )
    """By event and code: counts by bucket."""

    def add(self, row: Row) -> None:
        """Count one row of grouped events."""
        event, begin, code = text(row, "event"), time(row, "bin"), text(row, "code")
        amount = number(row, "n_sum") or 0.0
        if event is None or begin is None:
            return
        self.events[event, begin] += amount
        self.codes[event, code, begin] += amount
        self.body_bytes[event] += number(row, "bytes_sum") or 0.0
        bucket = row["bucket"]
        if isinstance(bucket, int):
            self.latencies[event, begin][bucket] += amount
            self.by_reason[event, code][bucket] += amount

    def total(self, event: str) -> float:
        """How many events of a kind there were."""
        return sum(amount for (name, _), amount in self.events.items() if name == event)

    def by_code(self, event: str) -> dict[str | None, float]:
        """How many events of a kind there were by code, the most frequent first."""
        found: dict[str | None, float] = defaultdict(float)
        for (name, code, _), amount in self.codes.items():
            if name == event:
                found[code] += amount
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0] or "")))

    def all_latencies(self, event: str) -> dict[int, float]:
        """Counts by bucket of an event, over all bins."""
        found: dict[int, float] = defaultdict(float)
        for (name, _), counts in self.latencies.items():
            if name == event:
                for bucket, amount in counts.items():
                    found[bucket] += amount
        return found

    def percentile(self, event: str, begin: int, part: float) -> int | None:
        """A percentile of the latencies of an event in a bin, in microseconds; ``part`` is 0 to 1."""
        return percentile(self.latencies.get((event, begin), {}), part)


@dataclass(frozen=True, slots=True)
class Peak:
    """The ten seconds in which most messages moved."""

    at: int
    sent: float
    delivered: float

    @property
    def moved(self) -> float:
        """Sent and delivered together."""
        return self.sent + self.delivered


@dataclass
class TrafficCounts:
    """Traffic of a span: by the bins of plots, and by the periods that highlights compare."""

    plotted: EventCounts
    periods: EventCounts
    peak: Peak | None = None

    def note_peak(self, peak: Peak | None) -> None:
        """Keep the larger peak; of equal ones the earlier."""
        if peak and (self.peak is None or peak.moved > self.peak.moved):
            self.peak = peak


def extent(tables: LakeTables) -> Span | None:
    """The time that the table covers; None if it is empty."""
    days = tables.days(_TRAFFIC)
    first = next((low for low in (_bound(tables, day, "min") for day in days) if low is not None), None)
    last = next((high for high in (_bound(tables, day, "max") for day in reversed(days)) if high is not None), None)
    return None if first is None or last is None else Span(first, last + TEN_SECONDS)


def read_traffic(tables: LakeTables, span: Span) -> TrafficCounts:
    """Add up the traffic of a span."""
    found = TrafficCounts(EventCounts(span.width(MOST_POINTS)), EventCounts(span.period))
    for part in tables.parts(_TRAFFIC, _COLUMNS, span):
        kept = between(part, "ts10", span.start // TEN_SECONDS * TEN_SECONDS, span.end)
        for counts in (found.plotted, found.periods):
            for row in _grouped(kept, counts.width):
                counts.add(row)
        found.note_peak(_peak(kept))
    return found


def _bound(tables: LakeTables, day: str, which: str) -> int | None:
    bounds = pc.min_max(tables.day(_TRAFFIC, day, ("ts10",))["ts10"]).as_py()
    found: int | None = bounds[which]
    return found


def _grouped(part: pa.Table, width: int) -> list[Row]:
    begins = pc.multiply(pc.divide(part["ts10"], width), width)
    # One thread, so that floating-point sums are the same every time.
    grouped = part.append_column("bin", begins).group_by(["bin", "event", "code", "bucket"], use_threads=False)
    rows: list[Row] = grouped.aggregate([("n", "sum"), ("bytes", "sum")]).to_pylist()
    return rows


def _peak(part: pa.Table) -> Peak | None:
    moved = part.filter(pc.is_in(part["event"], pa.array(_MOVED)))
    if not moved.num_rows:
        return None
    by_time = moved.group_by("ts10", use_threads=False).aggregate([("n", "sum")])
    at: int = pc.min(by_time.filter(pc.equal(by_time["n_sum"], pc.max(by_time["n_sum"])))["ts10"]).as_py()
    then = moved.filter(pc.equal(moved["ts10"], at))
    sent, delivered = (pc.sum(then.filter(pc.equal(then["event"], event))["n"]).as_py() or 0.0 for event in _MOVED)
    return Peak(at, sent, delivered)


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
