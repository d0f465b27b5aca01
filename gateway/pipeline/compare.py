"""``stomp-gateway pipeline compare``: two lakes side by side, with a verdict per row.

Lakes may cover different times and loads, so volumes are rates, and everything else is a share or a percentile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from gateway.pipeline.report.formats import LATENCIES, NOTHING, ClientText, shown
from gateway.pipeline.report.queries import LakeQueries, Sql, known_span
from gateway.texts import aligned

TOLERANCE: Final = 0.1
"""The change of a figure, as a part of it, that counts as none, if not said otherwise."""

JSON_VERSION: Final = 1
_MOST_CODES: Final = 100
_LEAST_MEASURED: Final = 100
"""Fewer latencies have no percentiles that could be compared."""

SAME, BETTER, WORSE, DIFFERENT = "same", "better", "worse", "different"
ONLY_BEFORE, ONLY_AFTER, NOT_MEASURED = "only before", "only after", "not measured"
FAILING: Final = (WORSE, DIFFERENT)
"""Verdicts that make the comparison fail."""

_MEASURES: Final = {
    "send.rate": ("Messages sent", "rate"),
    "deliver.rate": ("Messages delivered", "rate"),
    "ack.rate": ("Messages acknowledged", "rate"),
    "sessions.rate": ("Sessions", "rate"),
    "send.bytes": ("Body of a message sent", "bytes"),
    "deliver.bytes": ("Body of a message delivered", "bytes"),
    "deliver.per_send": ("Deliveries for each message sent", "number"),
    "deliver.redelivered": ("Redelivered, of all deliveries", "share"),
    "confirm.rejected": ("Rejected by the broker, of all sent", "share"),
    "nack.discard": ("Refused and discarded, of all deliveries", "share"),
    "nack.requeue": ("Refused and requeued, of all deliveries", "share"),
    "error.all": ("ERRORs, for each session", "share"),
}
_TIMES: Final = {"connect": "Connect → CONNECTED", **LATENCIES, "blocked": "Not read (held)"}

_FILTERS: Final = {"rate": "rate", "bytes": "size", "number": "si", "share": "share", "us": "latency"}
_NO_DIFFERENCE: Final = {"share": 0.001, "us": 1000}
"""For units where more is worse: a difference up to this one counts as none."""

_Figures = Mapping[str, float | None]
"""Those of one lake, by measure."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A row: a measure with a stable name, its unit (see `_FILTERS`), both figures and the verdict."""

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


def compare(before: Sql, after: Sql, tolerance: float = TOLERANCE) -> list[Compared]:
    """Compare two lakes, each over all of its time."""
    one, other = _figures(before), _figures(after)
    found = []
    for measure, title, unit in _measures(one, other):
        figures = _figure(one, measure), _figure(other, measure)
        found.append(Compared(measure, title, unit, *figures, _verdict(*figures, tolerance, unit)))
    return found


def _figures(sql: Sql) -> _Figures:
    span = known_span(sql)
    if span is None:
        return {}
    queries = LakeQueries(sql, span)
    queries.count()
    return {
        **queries.rows("figures")[0],
        **{f"error.{ClientText(row['code'])}": row["share"] for row in queries.rows("error_shares")},
        **{f"{row['event']}.{name}_us": row[name] if row["n"] >= _LEAST_MEASURED else None
           for row in queries.rows("latencies") for name in ("p50", "p99")},
    }  # fmt: skip


def _figure(figures: _Figures, measure: str) -> float | None:
    # An error that others have was not seen here, if there were sessions.
    unseen = 0.0 if measure.startswith("error.") and figures.get("error.all") is not None else None
    return figures.get(measure, unseen)


def _measures(one: _Figures, other: _Figures) -> Iterator[tuple[str, str, str]]:
    """The name, title and unit of each measure."""
    for measure, (title, unit) in _MEASURES.items():
        yield measure, title, unit
    either = sorted({*one, *other} - {*_MEASURES})
    for measure in [name for name in either if name.startswith("error.")][:_MOST_CODES]:
        yield measure, f"ERRORs {measure.removeprefix('error.')}, for each session", "share"
    for event, title in _TIMES.items():
        for name in ("p50", "p99"):
            if (measure := f"{event}.{name}_us") in either:
                yield measure, f"{title}, {name}", "us"


def _verdict(before: float | None, after: float | None, tolerance: float, unit: str) -> str:
    if before is None or after is None:
        return NOT_MEASURED if before is after else ONLY_AFTER if before is None else ONLY_BEFORE
    # Two figures within the width of one bucket may be the same.
    if abs(after - before) <= max(tolerance * before, _NO_DIFFERENCE.get(unit, 0)):
        return SAME
    return DIFFERENT if unit not in _NO_DIFFERENCE else WORSE if after > before else BETTER


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
    lines = [("", "before", "after", "change", "verdict"), *map(_cells, compared)]
    bad = sum(row.verdict in FAILING for row in compared)
    table = "\n".join(aligned(lines, figures=(1, 2, 3)))
    return f"{table}\n\n{bad} of {len(compared)} rows are worse or different.\n"


def _cells(row: Compared) -> tuple[str, ...]:
    before, after = (shown({"": figure}, f"|{_FILTERS[row.unit]}") for figure in (row.before, row.after))
    change = NOTHING if row.change is None else f"{row.change:+.0%}"
    return row.title, before.replace("\u00a0", " "), after.replace("\u00a0", " "), change, row.verdict
