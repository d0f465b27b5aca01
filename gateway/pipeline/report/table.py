"""Tables of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.pipeline.report.markup import Markup, joined, named, tag

MOST_ROWS: Final = 500
"""Rows of a table, at most; how many are left out is said under it."""

Cell = str | Markup


@dataclass(frozen=True)
class Table:
    """A table. ``names`` says how many columns at its left hold names; all others hold figures."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    notes: Sequence[str] = field(default_factory=tuple)

    def markup(self) -> Markup:
        """The table, scrolling sideways by itself where it must."""
        left_out = len(self.rows) - MOST_ROWS
        notes = [*self.notes, *([f"{left_out:,} more rows are left out."] if left_out > 0 else [])]
        whole = tag(
            "table",
            tag("caption", self.caption),
            tag("thead", tag("tr", joined(self._heads()))),
            tag("tbody", joined(self._row(row) for row in self.rows[:MOST_ROWS])),
        )
        under = [tag("p", note, class_="note") for note in notes]
        return joined([tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=self.caption), *under])

    def _heads(self) -> Iterable[Markup]:
        for number, name in enumerate(self.head):
            yield tag("th", name, scope="col", class_=None if number < self.names else "figure")

    def _row(self, cells: Sequence[Cell]) -> Markup:
        first = tag("th", cells[0], scope="row")
        rest = (
            tag("td", cell, class_=None if number < self.names else "figure")
            for number, cell in enumerate(cells[1:], start=1)
        )
        return tag("tr", first, *rest)


def name(text: str | None) -> Markup:
    """A cell with a name from a client."""
    return named(text, 56)
