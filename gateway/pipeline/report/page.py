"""The page: one HTML file that loads nothing from elsewhere and runs no script. What it has is in page.html.jinja."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from markupsafe import Markup

from gateway.journal.schema import FEATURES
from gateway.pipeline.report import charts
from gateway.pipeline.report.filters import LATENCIES, TEMPLATES, shown
from gateway.pipeline.report.findings import Found, unit_of
from gateway.pipeline.report.queries import LakeQueries, Row, Span
from gateway.pipeline.report.units import moment

_STYLE: Final = Path(__file__).with_name("style.css")


def full_page(queries: LakeQueries, found: Mapping[str, Found]) -> str:
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


def empty_page(known: Span | None, queries: LakeQueries, found: Mapping[str, Found]) -> str:
    """The page for a span without traffic: says so, what to do, and what needs attention nevertheless."""
    return _rendered(queries, found, title="STOMP traffic: nothing to report", span=None, known=known)


def _rendered(queries: LakeQueries, found: Mapping[str, Found], **context: object) -> str:
    unit = unit_of(queries)

    def sentence(each: Found, row: Row) -> Markup:
        escaped = TEMPLATES.from_string(f"{{% autoescape true %}}{each.rule.sentence}{{% endautoescape %}}")
        return Markup(escaped.render(row, unit=unit))  # noqa: S704 - it is escaped

    page = TEMPLATES.get_template("page.html.jinja").render(
        style=Markup(_STYLE.read_text(encoding="utf-8")),  # noqa: S704 - our own file
        generated=queries.now, found=list(found.values()), sentence=sentence, **context,
    )  # fmt: skip
    return page + "\n"
