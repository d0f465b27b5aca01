"""The table errors_hour: who got which ERROR how often."""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

from gateway.pipeline.report.facts.reading import Tables, hours_of, text, whole_number
from gateway.pipeline.report.span import Span

_TABLE: Final = "errors_hour"
_COLUMNS: Final = ("hour", "vhost", "user", "code", "n")


class Complaint(NamedTuple):
    """An error code of a user."""

    vhost: str | None
    user: str | None
    code: str | None


def read_errors(tables: Tables, span: Span) -> list[tuple[Complaint, int]]:
    """Errors by user and code, the most frequent first."""
    found: Counter[Complaint] = Counter()
    for row in tables.rows(_TABLE, _COLUMNS, span):
        if hours_of(span, row):
            found[Complaint(text(row, "vhost"), text(row, "user"), text(row, "code"))] += whole_number(row, "n")
    return sorted(found.items(), key=lambda item: (-item[1], tuple(part or "" for part in item[0])))
