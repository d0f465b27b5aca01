"""Axes and grids around a plot over time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gateway.pipeline.report.drawing.axis import Reach, Scale
from gateway.pipeline.report.drawing.calendar import TimeScale
from gateway.pipeline.report.drawing.svg import Canvas, Frame, rule, width_of, words
from gateway.pipeline.report.markup import Markup
from gateway.pipeline.report.span import Span

_TICK_ROOM: Final = 92
_NARROW_TICK_ROOM: Final = 76
_LINE: Final = 15
_MARGIN: Final = 10


def time_scale(span: Span, frame: Frame, canvas: Canvas) -> TimeScale:
    """The scale of time along the bottom of a frame."""
    room = _TICK_ROOM if canvas.wide else _NARROW_TICK_ROOM
    return TimeScale(span, Reach(frame.left, frame.right), int(frame.width // room))


def value_axis(frame: Frame, scale: Scale) -> Iterator[Markup]:
    """Lines across a frame, with their names at its left."""
    for number, (value, name) in enumerate(scale.ticks):
        y = scale.place(value)
        yield rule(frame.left, y, frame.right, y, "grid" if number else "axis")
        yield words(frame.left - 8, y + 4, name, "tick end")


def time_axis(frame: Frame, scale: TimeScale) -> Iterator[Markup]:
    """Ticks under a frame, with the clock or the date, and under it what has changed."""
    for tick in scale.ticks:
        x = scale.place(tick.at)
        yield rule(x, frame.bottom, x, frame.bottom + 5, "axis")
        yield _named(frame, x, frame.bottom + 5 + _LINE, tick.name, "tick")
        if tick.under:
            yield _named(frame, x, frame.bottom + 5 + 2 * _LINE, tick.under, "tick strong")


def _named(frame: Frame, x: float, y: float, text: str, class_: str) -> Markup:
    """A tick's name, in the middle under it unless that would leave the drawing."""
    edge = frame.right + _MARGIN
    if x + width_of(text) / 2 > edge:
        return words(edge, y, text, f"{class_} end")
    return words(x, y, text, f"{class_} middle")
