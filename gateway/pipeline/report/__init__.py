"""``stomp-gateway pipeline report``: what a lake says, as one HTML page that needs no web server, or for programs.

The page loads nothing from elsewhere and runs no script. What it has is in page.html.jinja.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from markupsafe import Markup

from gateway.errors import PipelineError, UsageError
from gateway.journal.schema import FEATURES
from gateway.pipeline.report import charts
from gateway.pipeline.report.findings import LAG, Found, as_json, as_prometheus, find, unit_of
from gateway.pipeline.report.formats import LATENCIES, SECOND, TEMPLATES, moment, shown
from gateway.pipeline.report.queries import TEN_SECONDS, LakeQueries, Row, Span, Sql, known_span, newest_line
from gateway.times import micros_of
from gateway.whole_files import written_beside

FORMATS: Final = ("html", "json", "prometheus")
STANDARD_OUTPUT: Final = Path("-")

_STYLE: Final = Path(__file__).with_name("style.css")


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is reported, and how.

    ``start`` and ``end``, which is exclusive, need a time zone; None means the first and the last event. ``lag``, in
    seconds, is the age of the newest line that needs attention, and ``peak`` the messages in a second that do.
    """

    output: Path
    start: datetime | None = None
    end: datetime | None = None
    form: str = "html"
    lag: float = LAG / SECOND
    peak: float | None = None


def write_report(sql: Sql, options: ReportOptions, now: datetime | None = None) -> list[str]:
    """Write the report on a lake, or on a part of its time, into a file in one step, or to standard output.

    Returns the rules that found what needs attention. Raises UsageError if start is not before end, or if one has no
    time zone, and PipelineError if a table cannot be read or the file cannot be written.
    """
    _check(options)
    generated = micros_of(now or datetime.now(UTC))
    start = micros_of(options.start) if options.start else None
    end = micros_of(options.end) if options.end else None
    known = known_span(sql)
    span, form = _requested(known, start, end), _FORMATTED[options.form]
    if span is None:  # the answer is about the time that was asked for
        if options.form == "html":
            form = partial(_rendered, title="STOMP traffic: nothing to report", span=None, known=known)
        start = generated if start is None else start
        span = Span(start, max(start + TEN_SECONDS, end or 0))
    queries = LakeQueries(
        sql, span, now=generated, newest=newest_line(sql, known, generated) if known else None, peak=options.peak,
        # A report on a time that has passed says nothing about whether the lake is up to date.
        lag=None if end is not None and end < generated else round(options.lag * SECOND),
    )  # fmt: skip
    found = find(queries)
    _write(options.output, form(queries, found))
    return [rule for rule, each in found.items() if each.attention and each.rows]


def _check(options: ReportOptions) -> None:
    start, end = options.start, options.end
    for option, limit in (("--from", start), ("--to", end)):
        if limit and limit.utcoffset() is None:
            raise UsageError(f"{option} {limit.isoformat()} has no time zone. Append Z for UTC.")
    if start and end and start >= end:
        raise UsageError(f"--from {start.isoformat()} is not before --to {end.isoformat()}. Exchange them.")
    if options.output != STANDARD_OUTPUT and options.output.is_dir():
        raise PipelineError(f"-o {options.output} is a directory. Give the name of a file in it.")


def _requested(known: Span | None, start: int | None, end: int | None) -> Span | None:
    """The requested part of the known span; None if that is empty."""
    if known is None:
        return None
    first = known.start if start is None else max(known.start, start)
    last = known.end if end is None else min(known.end, end)
    return Span(first, last) if first < last else None


def _write(output: Path, text: str) -> None:
    """Write to standard output, or a temporary file in the same directory, which is then renamed."""
    if output == STANDARD_OUTPUT:
        sys.stdout.write(text)
        return
    try:
        with written_beside(output, text.encode(), 0o666) as new:
            new.replace(output)
    except OSError as error:
        reason = error.strerror or error
        raise PipelineError(
            f"cannot write {output}: {reason}. Give -o a file in a directory that exists and that you may write to."
        ) from None


# The page.


def _full_page(queries: LakeQueries, found: Mapping[str, Found]) -> str:
    """The report on a span."""
    queries.count()
    span = queries.span
    return _rendered(
        queries, found, title=f"STOMP traffic {moment(span.start)} to {moment(span.end)} UTC", span=span,
        as_of=span.end if queries.newest is None else queries.newest, ask=queries.rows,
        slowest={row["event"]: row for row in queries.rows("slowest_vhosts")},
        measured={row["event"]: row for row in queries.rows("latencies")}, width=queries.width,
        wide=queries.wide, shown=shown, charts=charts, latencies=LATENCIES, known_features=FEATURES,
    )  # fmt: skip


def _rendered(queries: LakeQueries, found: Mapping[str, Found], **context: object) -> str:
    """The page; with a ``span`` of None, what to do if there is no traffic, and what needs attention nevertheless."""
    unit = unit_of(queries)

    def sentence(each: Found, row: Row) -> Markup:
        escaped = TEMPLATES.from_string(f"{{% autoescape true %}}{each.rule.sentence}{{% endautoescape %}}")
        return Markup(escaped.render(row, unit=unit))  # noqa: S704 - it is escaped

    page = TEMPLATES.get_template("page.html.jinja").render(
        style=Markup(_STYLE.read_text(encoding="utf-8")),  # noqa: S704 - our own file
        generated=queries.now, found=list(found.values()), sentence=sentence, **context,
    )  # fmt: skip
    return page + "\n"


_FORMATTED: Final[dict[str, Callable[[LakeQueries, Mapping[str, Found]], str]]] = {
    "html": _full_page, "json": as_json, "prometheus": as_prometheus,
}  # fmt: skip
