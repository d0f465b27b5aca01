"""The building blocks of sections: headings, paragraphs, tables, and figures with their legends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.pipeline.report.markup import NARROW, WIDE, Canvas, Markup, joined, named, tag

MOST_ROWS: Final = 500
"""Rows of a table, at most; the number of rows left out is printed below it."""

Cell = str | Markup
Draw = Callable[[Canvas], Markup]


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A section with a heading that can be linked to."""

    key: str
    title: str
    body: Markup

    def markup(self) -> Markup:
        """The section as an element."""
        heading = tag("h2", self.title, id=f"{self.key}-heading")
        return tag("section", heading, self.body, id=self.key, aria_labelledby=f"{self.key}-heading")


def paragraph(text: str, class_: str | None = None) -> Markup:
    """A paragraph."""
    return tag("p", text, class_=class_)


@dataclass(frozen=True)
class Table:
    """A table. The first ``names`` columns contain names, all others figures."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: int = 1
    notes: Sequence[str] = field(default_factory=tuple)

    def markup(self) -> Markup:
        """The table as an element that scrolls sideways if it is too wide."""
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


def name_cell(text: str | None) -> Markup:
    """A cell with a name that comes from a client."""
    return named(text, 56)


def figure(caption: str, draw: Draw, tables: Sequence[Table], legend: Markup | None = None) -> Markup:
    """A plot for wide and one for narrow screens, with tables of its numbers, folded on a screen and open on paper."""
    return tag(
        "figure",
        tag("figcaption", caption),
        legend,
        draw(WIDE),
        draw(NARROW),
        joined(folded(table) for table in tables),
    )


def folded(table: Table) -> Markup:
    """A table that the reader can unfold."""
    return tag("details", tag("summary", f"Table: {table.caption}"), table.markup())


def legend_of(samples: Sequence[tuple[Markup, str]], class_: str = "") -> Markup:
    """A legend: samples with their names."""
    items = (tag("li", sample, tag("span", name)) for sample, name in samples)
    return tag("ul", joined(items), class_=f"legend {class_}".strip())
