"""Horizontal bars, one row for each name, with the figure at the end of each bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.drawing.svg import Canvas, box, label, rule, width_of, words
from gateway.pipeline.report.markup import Markup, tag

_BAR: Final = 11
_GAP: Final = 4
_ROW_GAP: Final = 12
_NAME_LINE: Final = 18
_NAMES: Final = 300
_TOP: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """A name and its bars: for each one its look, its value and what is written at its end."""

    name: str | None
    bars: Sequence[tuple[int, float, str]]


def bar_sample(look: int) -> Markup:
    """A sample of a bar, for a legend."""
    return tag("svg", box(1, 1, 12, 12, f"bar{look}"), viewBox="0 0 14 14", class_="swatch", aria_hidden="true")


def height_of(rows: Sequence[Row], canvas: Canvas) -> float:
    """How high a drawing of these rows is."""
    return _TOP * 2 + sum(_height(row, canvas) for row in rows)


def draw_bars(rows: Sequence[Row], canvas: Canvas) -> Iterator[Markup]:
    """Draw rows of bars, all to the same scale."""
    left = _NAMES + 10 if canvas.wide else 2
    figures = max((width_of(text) for row in rows for _, _, text in row.bars), default=0.0)
    room = canvas.width - left - figures - 10
    highest = max((value for row in rows for _, value, _ in row.bars), default=0.0) or 1.0
    y = float(_TOP)
    for row in rows:
        yield from _draw_row(row, canvas, left, y, room / highest)
        y += _height(row, canvas)
    if canvas.wide:
        yield rule(left, _TOP - 4, left, y - _ROW_GAP + 4, "axis")


def _draw_row(row: Row, canvas: Canvas, left: float, top: float, scale: float) -> Iterator[Markup]:
    y = top if canvas.wide else top + _NAME_LINE
    inner = len(row.bars) * (_BAR + _GAP) - _GAP
    if canvas.wide:
        yield label(_NAMES, top + inner / 2 + 4, row.name, _NAMES, "end")
    else:
        yield label(2, top + 11, row.name, canvas.width - 4)
    for look, value, text in row.bars:
        length = max(value * scale, 1.0) if value else 0.0
        yield box(left, y, length, _BAR, f"bar{look}", text)
        yield words(left + length + 6, y + _BAR - 1.5, text, "figure")
        y += _BAR + _GAP


def _height(row: Row, canvas: Canvas) -> float:
    return len(row.bars) * (_BAR + _GAP) - _GAP + _ROW_GAP + (0 if canvas.wide else _NAME_LINE)
