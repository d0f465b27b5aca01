"""Life lines: for each name from when to when, and what has become of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.drawing.axis import Reach
from gateway.pipeline.report.drawing.calendar import TimeScale
from gateway.pipeline.report.drawing.frames import time_axis
from gateway.pipeline.report.drawing.svg import Canvas, Frame, dot, label, path, rule, words
from gateway.pipeline.report.markup import Markup
from gateway.pipeline.report.span import Span

_ROW: Final = 26
_NARROW_ROW: Final = 42
_NAMES: Final = 270
_VERDICTS: Final = 160
_NARROW_VERDICTS: Final = 150
_TOP: Final = 8
_AXIS: Final = 42
_TICK_ROOM: Final = 84


@dataclass(frozen=True, slots=True)
class Life:
    """From its first to its last moment, and a verdict: abandoned, idle, active, deleted or another."""

    name: str | None
    first: int
    last: int
    verdict: str
    remark: str


def height_of(lives: Sequence[Life], canvas: Canvas) -> float:
    """How high a drawing of these is."""
    return _TOP + len(lives) * (_ROW if canvas.wide else _NARROW_ROW) + _AXIS


def draw_lives(lives: Sequence[Life], span: Span, canvas: Canvas) -> Iterator[Markup]:
    """Draw life lines over a span, its end being the moment at which the verdicts were made."""
    height = height_of(lives, canvas)
    frame = (
        Frame(_NAMES + 12, _TOP, canvas.width - _VERDICTS, height - _AXIS)
        if canvas.wide
        else Frame(12, _TOP, canvas.width - 12, height - _AXIS)
    )
    across = TimeScale(span, Reach(frame.left, frame.right), int(frame.width // _TICK_ROOM))
    yield rule(frame.left, frame.bottom, frame.right, frame.bottom, "axis")
    yield from time_axis(frame, across)
    if canvas.wide:
        yield rule(frame.right, frame.top, frame.right, frame.bottom, "now")
    for number, life in enumerate(lives):
        yield from _draw(life, frame, across, canvas, number)


def _draw(life: Life, frame: Frame, across: TimeScale, canvas: Canvas, number: int) -> Iterator[Markup]:
    if canvas.wide:
        y = frame.top + number * _ROW + _ROW / 2
        yield label(_NAMES, y + 4, life.name, _NAMES, "end")
        yield words(frame.right + 10, y + 4, life.remark, "figure")
    else:
        y = frame.top + number * _NARROW_ROW + _NARROW_ROW - 12
        yield label(2, y - 12, life.name, canvas.width - _NARROW_VERDICTS)
        yield words(canvas.width - 2, y - 12, life.remark, "figure end")
    first, last = across.place(life.first), across.place(life.last)
    yield rule(first, y, max(last, first + 1), y, f"life {life.verdict}")
    if life.verdict != "deleted" and last < frame.right - 1:
        yield rule(last, y, frame.right, y, "gone")
    yield from _mark(life.verdict, last, y)


def _mark(verdict: str, x: float, y: float) -> Iterator[Markup]:
    """A mark at the last moment, of another shape for each verdict."""
    if verdict == "abandoned":
        yield path([(x - 5, y - 5), (x + 5, y + 5)], "cross")
        yield path([(x - 5, y + 5), (x + 5, y - 5)], "cross")
    elif verdict == "deleted":
        yield rule(x, y - 6, x, y + 6, "life deleted")
    else:
        yield dot(x, y, 4.5, f"mark {verdict}")
