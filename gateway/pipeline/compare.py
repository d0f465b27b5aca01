"""``stomp-gateway pipeline compare``: two lakes side by side, with a verdict per row.

Lakes may cover different times and loads, so volumes are rates, and everything else is a share or a percentile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from gateway.journal.histogram import percentile
from gateway.pipeline.report.client_text import ClientText, columns_of
from gateway.pipeline.report.event_counts import LATENCIES, EventCounts, Sql, count_events
from gateway.pipeline.report.facts import count_sessions, known_span
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import MILLISECOND, NOTHING, SECOND, latency, share, si, size

TOLERANCE: Final = 0.1
"""The change of a figure, as a part of it, that counts as none, if not said otherwise."""

JSON_VERSION: Final = 1
_MOST_CODES: Final = 100
_LEAST_LATENCY: Final = MILLISECOND
"""Latencies whose difference is shorter count as the same: it disturbs nobody."""
_LEAST_MEASURED: Final = 100
"""Fewer latencies have no percentiles that could be compared."""
_LEAST_SHARE: Final = 0.001
"""Shares whose difference is smaller count as the same: one error in a thousand messages is no verdict on a server."""

SAME, BETTER, WORSE, DIFFERENT = "same", "better", "worse", "different"
ONLY_BEFORE, ONLY_AFTER, NOT_MEASURED = "only before", "only after", "not measured"
FAILING: Final = (WORSE, DIFFERENT)
"""Verdicts that make the comparison fail."""

_TIMES: Final = {"connect": "Connect → CONNECTED", **LATENCIES, "blocked": "Not read (held)"}


@dataclass(frozen=True, slots=True)
class Compared:
    """A row: a measure with a stable name, its unit (rate, bytes, share or us), both figures and the verdict."""

    measure: str
    title: str
    unit: str
    before: float | None
    after: float | None
    verdict: str

    @property
    def change(self) -> float | None:
        """The change as a part of the figure before; None without one."""
        return None if not self.before or self.after is None else self.after / self.before - 1


@dataclass(frozen=True, slots=True)
class _ComparedSide:
    """The figures of one lake."""

    span: Span | None
    counts: EventCounts
    sessions: int

    def per_second(self, n: float) -> float | None:
        return None if self.span is None else n / (self.span.length / SECOND)

    def n(self, event: str, code: str | None = None) -> float:
        return self.counts.by_code(event).get(code, 0.0) if code else self.counts.total(event)

    def part(self, event: str, code: str | None, of: str) -> float | None:
        whole = self.n(of)
        return self.n(event, code) / whole if whole else None

    def body(self, event: str) -> float | None:
        return self.counts.body_bytes[event] / self.n(event) if self.n(event) else None

    def percentile(self, event: str, part: float) -> float | None:
        counts = self.counts.all_latencies(event)
        return percentile(counts, part) if sum(counts.values()) >= _LEAST_MEASURED else None


def compare(before: Sql, after: Sql, tolerance: float = TOLERANCE) -> list[Compared]:
    """Compare two lakes, each over all of its time."""
    one, other = _read(before), _read(after)
    return [*_volumes(one, other, tolerance), *_shares(one, other, tolerance), *_latencies(one, other, tolerance)]


def _read(sql: Sql) -> _ComparedSide:
    span = known_span(sql)
    if span is None:
        return _ComparedSide(None, EventCounts(1), 0)
    # One bin holds everything: no figure here is over time.
    return _ComparedSide(span, count_events(sql, span, 2 * span.end), count_sessions(sql, span).total)


def _volumes(one: _ComparedSide, other: _ComparedSide, tolerance: float) -> Iterator[Compared]:
    for event, title in (
        ("send", "Messages sent"),
        ("deliver", "Messages delivered"),
        ("ack", "Messages acknowledged"),
    ):
        yield _row(f"{event}.rate", title, "rate", one.per_second(one.n(event)), other.per_second(other.n(event)),
                   tolerance)  # fmt: skip
    yield _row("sessions.rate", "Sessions", "rate", one.per_second(one.sessions), other.per_second(other.sessions),
               tolerance)  # fmt: skip
    for event, title in (("send", "Body of a message sent"), ("deliver", "Body of a message delivered")):
        yield _row(f"{event}.bytes", title, "bytes", one.body(event), other.body(event), tolerance)
    yield _row("deliver.per_send", "Deliveries for each message sent", "number", one.part("deliver", None, "send"),
               other.part("deliver", None, "send"), tolerance)  # fmt: skip


def _shares(one: _ComparedSide, other: _ComparedSide, tolerance: float) -> Iterator[Compared]:
    """What is worse when it is more."""
    for measure, title, event, code, of in (
        ("deliver.redelivered", "Redelivered, of all deliveries", "deliver", "redelivered", "deliver"),
        ("confirm.rejected", "Rejected by the broker, of all sent", "confirm", "rejected", "send"),
        ("nack.discard", "Refused and discarded, of all deliveries", "nack", "discard", "deliver"),
        ("nack.requeue", "Refused and requeued, of all deliveries", "nack", "requeue", "deliver"),
        ("error.all", "ERRORs, for each session", "error", None, "connect"),
    ):
        figures = one.part(event, code, of), other.part(event, code, of)
        yield _row(measure, title, "share", *figures, tolerance, _LEAST_SHARE, more_is_worse=True)
    codes = {**one.counts.by_code("error"), **other.counts.by_code("error")}
    for code in sorted(filter(None, codes))[:_MOST_CODES]:
        shown = str(ClientText(code))
        figures = one.part("error", code, "connect"), other.part("error", code, "connect")
        yield _row(f"error.{shown}", f"ERRORs {shown}, for each session", "share", *figures, tolerance, _LEAST_SHARE,
                   more_is_worse=True)  # fmt: skip


def _latencies(one: _ComparedSide, other: _ComparedSide, tolerance: float) -> Iterator[Compared]:
    for event, title in _TIMES.items():
        if not any(side.counts.all_latencies(event) for side in (one, other)):
            continue
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            figures = one.percentile(event, part), other.percentile(event, part)
            yield _row(f"{event}.{name}_us", f"{title}, {name}", "us", *figures, tolerance, _LEAST_LATENCY,
                       more_is_worse=True)  # fmt: skip


def _row(
    measure: str, title: str, unit: str, before: float | None, after: float | None, tolerance: float,
    least: float = 0.0, *, more_is_worse: bool = False,
) -> Compared:  # fmt: skip
    verdict = _verdict(before, after, tolerance, least)
    if verdict == DIFFERENT and more_is_worse and before is not None and after is not None:
        verdict = WORSE if after > before else BETTER
    return Compared(measure, title, unit, before, after, verdict)


def _verdict(before: float | None, after: float | None, tolerance: float, least: float) -> str:
    if before is None or after is None:
        return NOT_MEASURED if before is after else ONLY_AFTER if before is None else ONLY_BEFORE
    # A bucket's width is no difference: figures in it may be the same.
    return SAME if abs(after - before) <= max(tolerance * before, least) else DIFFERENT


def failed(compared: Sequence[Compared]) -> bool:
    """Whether any row is worse or different."""
    return any(row.verdict in FAILING for row in compared)


def comparison_as_json(compared: Sequence[Compared]) -> str:
    """The rows as JSON."""
    document = {
        "version": JSON_VERSION,
        "failed": failed(compared),
        "rows": [{**asdict(row), "change": row.change} for row in compared],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def comparison_as_text(compared: Sequence[Compared]) -> str:
    """The rows as a table for people, and the verdict below it."""
    head = ("", "before", "after", "change", "verdict")
    lines = [head] + [
        (row.title, _shown(row.unit, row.before), _shown(row.unit, row.after),
         NOTHING if row.change is None else f"{row.change:+.0%}", row.verdict)
        for row in compared
    ]  # fmt: skip
    widths = [max(columns_of(line[place]) for line in lines) for place in range(len(head))]
    text = "".join(_line(line, widths) for line in lines)
    bad = [row for row in compared if row.verdict in FAILING]
    return f"{text}\n{len(bad)} of {len(compared)} rows are worse or different.\n"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *figures, last = (
        f"{' ' * (width - columns_of(cell))}{cell}" if 0 < place < len(cells) - 1
        else f"{cell}{' ' * (width - columns_of(cell))}"
        for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )  # fmt: skip
    return "  ".join((first, *figures, last)).rstrip() + "\n"


def _shown(unit: str, figure: float | None) -> str:
    if figure is None:
        return NOTHING
    text = {
        "rate": lambda: f"{si(figure)}/s", "bytes": lambda: size(figure), "share": lambda: share(figure),
        "us": lambda: latency(figure), "number": lambda: si(figure),
    }[unit]()  # fmt: skip
    return text.replace("\u00a0", " ")
