"""Charts of one row to a name: horizontal bars, and lifelines from a first to a last moment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.axes import AxisRange, TimeScale, time_axis
from gateway.pipeline.report.markup import Canvas, Markup, PlotArea, box, dot, label, path, rule, tag, width_of, words
from gateway.pipeline.report.span import Span

_BAR: Final = 11
_GAP: Final = 4
_ROW_GAP: Final = 12
_NAME_LINE: Final = 18
_BAR_NAME_WIDTH: Final = 300
_BARS_TOP: Final = 6
_ROW: Final = 26
_NARROW_ROW: Final = 42
_LIFELINE_NAME_WIDTH: Final = 270
_REMARK_WIDTH: Final = 160
_NARROW_REMARK_WIDTH: Final = 150
_LIFELINES_TOP: Final = 8
_AXIS: Final = 42
_TICK_ROOM: Final = 84


@dataclass(frozen=True, slots=True)
class BarRow:
    """A name and its bars: for each one its style, its value and the text at its end."""

    name: str | None
    bars: Sequence[tuple[int, float, str]]


def bar_sample(style: int) -> Markup:
    """A sample of a bar, for a legend."""
    return tag("svg", box(1, 1, 12, 12, f"bar{style}"), viewBox="0 0 14 14", class_="swatch", aria_hidden="true")


def bars_height(rows: Sequence[BarRow], canvas: Canvas) -> float:
    """The height of a drawing of these rows."""
    return _BARS_TOP * 2 + sum(_bar_row_height(row, canvas) for row in rows)


def draw_bars(rows: Sequence[BarRow], canvas: Canvas) -> Iterator[Markup]:
    """Draw rows of horizontal bars to one scale."""
    left = _BAR_NAME_WIDTH + 10 if canvas.wide else 2
    figures = max((width_of(text) for row in rows for _, _, text in row.bars), default=0.0)
    room = canvas.width - left - figures - 10
    highest = max((value for row in rows for _, value, _ in row.bars), default=0.0) or 1.0
    y = float(_BARS_TOP)
    for row in rows:
        yield from _draw_bar_row(row, canvas, left, y, room / highest)
        y += _bar_row_height(row, canvas)
    if canvas.wide:
        yield rule(left, _BARS_TOP - 4, left, y - _ROW_GAP + 4, "axis")


def _draw_bar_row(row: BarRow, canvas: Canvas, left: float, top: float, scale: float) -> Iterator[Markup]:
    y = top if canvas.wide else top + _NAME_LINE
    inner = len(row.bars) * (_BAR + _GAP) - _GAP
    if canvas.wide:
        yield label(_BAR_NAME_WIDTH, top + inner / 2 + 4, row.name, _BAR_NAME_WIDTH, "end")
    else:
        yield label(2, top + 11, row.name, canvas.width - 4)
    for style, value, text in row.bars:
        length = max(value * scale, 1.0) if value else 0.0
        yield box(left, y, length, _BAR, f"bar{style}", text)
        yield words(left + length + 6, y + _BAR - 1.5, text, "figure")
        y += _BAR + _GAP


def _bar_row_height(row: BarRow, canvas: Canvas) -> float:
    return len(row.bars) * (_BAR + _GAP) - _GAP + _ROW_GAP + (0 if canvas.wide else _NAME_LINE)


@dataclass(frozen=True, slots=True)
class Lifeline:
    """From a first to a last moment, with a verdict: abandoned, idle, active, deleted or another one."""

    name: str | None
    first: int
    last: int
    verdict: str
    remark: str


def lifelines_height(lives: Sequence[Lifeline], canvas: Canvas) -> float:
    """The height of a drawing of these lifelines."""
    return _LIFELINES_TOP + len(lives) * (_ROW if canvas.wide else _NARROW_ROW) + _AXIS


def draw_lifelines(lives: Sequence[Lifeline], span: Span, canvas: Canvas) -> Iterator[Markup]:
    """Draw lifelines over a span, which ends at the time of the verdicts."""
    height = lifelines_height(lives, canvas)
    area = (
        PlotArea(_LIFELINE_NAME_WIDTH + 12, _LIFELINES_TOP, canvas.width - _REMARK_WIDTH, height - _AXIS)
        if canvas.wide
        else PlotArea(12, _LIFELINES_TOP, canvas.width - 12, height - _AXIS)
    )
    across = TimeScale(span, AxisRange(area.left, area.right), int(area.width // _TICK_ROOM))
    yield rule(area.left, area.bottom, area.right, area.bottom, "axis")
    yield from time_axis(area, across)
    if canvas.wide:
        yield rule(area.right, area.top, area.right, area.bottom, "now")
    for number, life in enumerate(lives):
        yield from _draw_lifeline(life, area, across, canvas, number)


def _draw_lifeline(life: Lifeline, area: PlotArea, across: TimeScale, canvas: Canvas, number: int) -> Iterator[Markup]:
    if canvas.wide:
        y = area.top + number * _ROW + _ROW / 2
        yield label(_LIFELINE_NAME_WIDTH, y + 4, life.name, _LIFELINE_NAME_WIDTH, "end")
        yield words(area.right + 10, y + 4, life.remark, "figure")
    else:
        y = area.top + number * _NARROW_ROW + _NARROW_ROW - 12
        yield label(2, y - 12, life.name, canvas.width - _NARROW_REMARK_WIDTH)
        yield words(canvas.width - 2, y - 12, life.remark, "figure end")
    first, last = across.place(life.first), across.place(life.last)
    yield rule(first, y, max(last, first + 1), y, f"life {life.verdict}")
    if life.verdict != "deleted" and last < area.right - 1:
        yield rule(last, y, area.right, y, "gone")
    yield from _mark(life.verdict, last, y)


def _mark(verdict: str, x: float, y: float) -> Iterator[Markup]:
    """A mark at the last moment, with another shape for each verdict."""
    if verdict == "abandoned":
        yield path([(x - 5, y - 5), (x + 5, y + 5)], "cross")
        yield path([(x - 5, y + 5), (x + 5, y - 5)], "cross")
    elif verdict == "deleted":
        yield rule(x, y - 6, x, y + 6, "life deleted")
    else:
        yield dot(x, y, 4.5, f"mark {verdict}")
