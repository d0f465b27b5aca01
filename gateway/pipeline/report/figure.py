"""A figure: a plot for wide screens, the same for narrow ones, and a table with its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.pipeline.report.drawing.svg import NARROW, WIDE, Canvas
from gateway.pipeline.report.markup import Markup, joined, tag
from gateway.pipeline.report.table import Table

Draw = Callable[[Canvas], Markup]


def figure(caption: str, draw: Draw, tables: Sequence[Table], legend: Markup | None = None) -> Markup:
    """A figure with its tables, which are closed on a screen and open on paper.

    Args:
        caption: what is to be seen.
        draw: draws the plot for a canvas.
        tables: its numbers.
        legend: what is drawn how.
    """
    return tag(
        "figure",
        tag("figcaption", caption),
        legend,
        draw(WIDE),
        draw(NARROW),
        joined(folded(table) for table in tables),
    )


def folded(table: Table) -> Markup:
    """A table that opens when asked to."""
    return tag("details", tag("summary", f"Table: {table.caption}"), table.markup())


def legend_of(samples: Sequence[tuple[Markup, str]], class_: str = "") -> Markup:
    """A legend: samples with their names."""
    items = (tag("li", sample, tag("span", name)) for sample, name in samples)
    return tag("ul", joined(items), class_=f"legend {class_}".strip())


def line_sample(look: int) -> Markup:
    """A sample of a line."""
    line = tag("line", x1=0, y1=7, x2=24, y2=7, class_=f"line{look}")
    return tag("svg", line, viewBox="0 0 24 14", class_="sample", aria_hidden="true")
