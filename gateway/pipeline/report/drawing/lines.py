"""Lines over time, each with its name at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.drawing.axis import Scale
from gateway.pipeline.report.drawing.calendar import TimeScale
from gateway.pipeline.report.drawing.svg import Frame, dot, path, rule, width_of, words
from gateway.pipeline.report.markup import Markup

_LABEL_HEIGHT: Final = 15.0
_SAMPLE: Final = 18
_SHAPES: Final = {
    2: ((-4, 0), (0, -5), (4, 0), (0, 5)),
    3: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    4: ((-5, 4), (0, -5), (5, 4)),
}

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Values over time. ``look`` numbers colour and dashes together, so that either tells lines apart."""

    name: str
    look: int
    values: Sequence[float | None]
    filled: bool = False


def frame_of(width: float, height: float, lines: Sequence[Line], *, left: float, labelled: bool) -> Frame:
    """The frame of a plot, with room at its right for the names of lines."""
    room = _SAMPLE + 10 + max(width_of(line.name) for line in lines) if labelled else 14
    return Frame(left, 10, width - room, height - 42)


def draw_lines(
    frame: Frame, moments: Sequence[float], lines: Sequence[Line], across: TimeScale, up: Scale
) -> Iterator[Markup]:
    """Draw lines; where there is no value a line is broken.

    Args:
        frame: to draw in.
        moments: one for each value.
        lines: the one drawn last is on top.
        across: the scale of time.
        up: the scale of values.
    """
    for line in lines:
        for run in _runs(moments, line, across, up):
            if line.filled and len(run) > 1:
                yield path(
                    [(run[0][0], frame.bottom), *run, (run[-1][0], frame.bottom)], f"fill{line.look}", closed=True
                )
    for line in lines:
        for run in _runs(moments, line, across, up):
            yield _mark(*run[0], line.look) if len(run) == 1 else path(run, f"line{line.look}")


def name_lines(frame: Frame, lines: Sequence[Line], up: Scale) -> Iterator[Markup]:
    """Write the names of lines beside their last values, kept from covering each other."""
    ends = []
    for line in lines:
        last = next((value for value in reversed(line.values) if value is not None), None)
        if last is not None:
            ends.append((up.place(last), line))
    ends.sort(key=lambda end: (end[0], end[1].look))
    places = spread([place for place, _ in ends], frame.top + _LABEL_HEIGHT / 2, frame.bottom - 2)
    for y, (_, line) in zip(places, ends, strict=True):
        yield rule(frame.right + 5, y, frame.right + 5 + _SAMPLE, y, f"line{line.look}")
        yield words(frame.right + 9 + _SAMPLE, y + 4, line.name, "direct")


def spread(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """Places in order, moved apart by the height of a label, and kept inside."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + _LABEL_HEIGHT if found else top))
    limit = bottom
    for number in range(len(found) - 1, -1, -1):
        found[number] = min(found[number], limit)
        limit = found[number] - _LABEL_HEIGHT
    return found


def _mark(x: float, y: float, look: int) -> Markup:
    """A point without neighbours, of another shape for each look."""
    corners = _SHAPES.get(look)
    if corners is None:
        return dot(x, y, 4, f"mark{look}")
    return path([(x + right, y + down) for right, down in corners], f"mark{look}", closed=True)


def _runs(moments: Sequence[float], line: Line, across: TimeScale, up: Scale) -> Iterator[list[Point]]:
    run: list[Point] = []
    for moment, value in zip(moments, line.values, strict=True):
        if value is not None:
            run.append((across.place(moment), up.place(value)))
        elif run:
            yield run
            run = []
    if run:
        yield run
