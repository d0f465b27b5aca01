"""Events by time and histograms of their latencies, from the table traffic_10s; and how a lake is asked in SQL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway.journal.histogram import percentile
from gateway.pipeline.report.span import Span

if TYPE_CHECKING:
    import pyarrow as pa

LATENCIES: Final = {
    "confirm": "Publish → confirm", "queue": "Publish → deliver", "ack": "Deliver → acknowledge",
}  # fmt: skip
"""The latencies of a message, by event."""

Sql = Callable[[str], "pa.Table"]
"""Answers a question to a lake, in the SQL of DataFusion. A table that the lake lacks has no rows."""
Row = Mapping[str, Any]


def rows(sql: Sql, query: str) -> list[Row]:
    """The answer as rows. Queries ask for a bounded number of them, and for times as `micros`."""
    found: list[Row] = sql(query).to_pylist()
    return found


def micros(column: str) -> str:
    """SQL for a time in microseconds since the epoch."""
    return f"cast({column} AS bigint)"


def bin_of(column: str, width: int) -> str:
    """SQL for the beginning of a time's bin, rounded down before the epoch, too."""
    at = micros(column)
    return f"{at} - (({at} % {width}) + {width}) % {width}"


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
        event, begin, code, amount = row["event"], row["bin"], row["code"], row["n"] or 0.0
        if event is None or begin is None:
            return
        self.events[event, begin] += amount
        self.codes[event, code, begin] += amount
        self.body_bytes[event] += row["bytes"] or 0.0
        if row["bucket"] is not None:
            self.latencies[event, begin][row["bucket"]] += amount
            self.by_reason[event, code][row["bucket"]] += amount

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


def count_events(sql: Sql, span: Span, width: int) -> EventCounts:
    """Count the events of a span in bins of a width."""
    found = EventCounts(width)
    query = f"""
        SELECT {bin_of("ts10", width)} AS bin, event, code, bucket, sum(n) AS n, sum(bytes) AS bytes
        FROM traffic_10s WHERE {span.in_sql("ts10")} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4"""
    for row in rows(sql, query):
        found.add(row)
    return found
