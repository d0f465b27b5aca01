"""The table traffic_10s: events by time, and the histograms from which percentiles are computed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from gateway.journal.histogram import percentile
from gateway.pipeline.report.lake_tables import LakeTables, Row, between, number, text, time
from gateway.pipeline.report.span import MOST_POINTS, TEN_SECONDS, Span

_TRAFFIC: Final = "traffic_10s"
_COLUMNS: Final = ("ts10", "event", "code", "bucket", "n", "bytes")
_MOVED: Final = ("send", "dlv")


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
