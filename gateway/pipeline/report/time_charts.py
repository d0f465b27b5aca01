"""Charts over time: lines, and stacked bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.axes import Scale, TimeScale
from gateway.pipeline.report.markup import Markup, PlotArea, box, dot, joined, path, rule, tag, width_of, words

LAYER_STYLES: Final = 7
"""How many layers of stacked bars can be told apart: each style has a colour and a hatch of its own."""

_LABEL_HEIGHT: Final = 15.0
_SAMPLE: Final = 18
_SHAPES: Final = {
    2: ((-4, 0), (0, -5), (4, 0), (0, 5)),
    3: ((-4, -4), (4, -4), (4, 4), (-4, 4)),
    4: ((-5, 4), (0, -5), (5, 4)),
}
_WIDEST_BAR: Final = 44.0
_GAP: Final = 0.22
_HATCHES: Final = {
    2: ((0, 8), (8, 0)),
    3: ((0, 0), (8, 8)),
    4: ((0, 4), (8, 4)),
    5: ((4, 0), (4, 8)),
}
_DOTTED: Final = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time. ``style`` is the number of a colour and a dash pattern; either tells two lines apart."""

    name: str
    style: int
    values: Sequence[float | None]
    filled: bool = False


def plot_area(width: float, height: float, series: Sequence[Series], *, left: float, labelled: bool) -> PlotArea:
    """The area of a line chart, with room at its right for the names of the lines if they are labelled."""
    room = _SAMPLE + 10 + max(width_of(each.name) for each in series) if labelled else 14
    return PlotArea(left, 10, width - room, height - 42)


def draw_lines(
    area: PlotArea, moments: Sequence[float], series: Sequence[Series], across: TimeScale, up: Scale
) -> Iterator[Markup]:
    """Draw lines, the last one on top; a line has a gap where a value is missing. Each value has its own moment."""
    for each in series:
        for run in _runs(moments, each, across, up):
            if each.filled and len(run) > 1:
                yield path(
                    [(run[0][0], area.bottom), *run, (run[-1][0], area.bottom)], f"fill{each.style}", closed=True
                )
    for each in series:
        for run in _runs(moments, each, across, up):
            yield _point(*run[0], each.style) if len(run) == 1 else path(run, f"line{each.style}")


def name_lines(area: PlotArea, series: Sequence[Series], up: Scale) -> Iterator[Markup]:
    """Write the names of lines beside their last values, without overlap."""
    ends = []
    for each in series:
        last = next((value for value in reversed(each.values) if value is not None), None)
        if last is not None:
            ends.append((up.place(last), each))
    ends.sort(key=lambda end: (end[0], end[1].style))
    places = spread([place for place, _ in ends], area.top + _LABEL_HEIGHT / 2, area.bottom - 2)
    for y, (_, each) in zip(places, ends, strict=True):
        yield rule(area.right + 5, y, area.right + 5 + _SAMPLE, y, f"line{each.style}")
        yield words(area.right + 9 + _SAMPLE, y + 4, each.name, "direct")


def spread(places: Sequence[float], top: float, bottom: float) -> list[float]:
    """Sorted places, moved apart by the height of a label and kept between top and bottom."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + _LABEL_HEIGHT if found else top))
    limit = bottom
    for number in range(len(found) - 1, -1, -1):
        found[number] = min(found[number], limit)
        limit = found[number] - _LABEL_HEIGHT
    return found


def line_sample(style: int) -> Markup:
    """A sample of a line, for a legend."""
    line = tag("line", x1=0, y1=7, x2=24, y2=7, class_=f"line{style}")
    return tag("svg", line, viewBox="0 0 24 14", class_="sample", aria_hidden="true")


def _point(x: float, y: float, style: int) -> Markup:
    """A value without neighbours, with another shape for each style."""
    corners = _SHAPES.get(style)
    if corners is None:
        return dot(x, y, 4, f"mark{style}")
    return path([(x + right, y + down) for right, down in corners], f"mark{style}", closed=True)


def _runs(moments: Sequence[float], series: Series, across: TimeScale, up: Scale) -> Iterator[list[Point]]:
    run: list[Point] = []
    for moment, value in zip(moments, series.values, strict=True):
        if value is not None:
            run.append((across.place(moment), up.place(value)))
        elif run:
            yield run
            run = []
    if run:
        yield run


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all stacked bars."""

    name: str
    style: int
    values: Sequence[float]


def draw_stacks(
    begins: Sequence[int], width: int, layers: Sequence[Layer], across: TimeScale, up: Scale
) -> Iterator[Markup]:
    """Draw stacked bars, layers from the bottom up. ``begins`` and ``width`` of the bins are in microseconds."""
    for number, begin in enumerate(begins):
        left, right = across.place(begin), across.place(begin + width)
        room = min((right - left) * (1 - _GAP), _WIDEST_BAR)
        left = (left + right - room) / 2
        base = 0.0
        for layer in layers:
            value = layer.values[number]
            if value:
                y, foot = up.place(base + value), up.place(base)
                yield from _block(left, y, room, max(foot - y, 0.5), layer.style)
                base += value


def layer_sample(style: int) -> Markup:
    """A sample of a layer, for a legend."""
    return tag("svg", *_block(0, 0, 14, 14, style), viewBox="0 0 14 14", class_="swatch", aria_hidden="true")


def hatches() -> Markup:
    """The hatches of all layers, defined once per page."""
    found = []
    for style, points in _HATCHES.items():
        found.append(_pattern(style, path(list(points), "hatch")))
    found.append(_pattern(_DOTTED, tag("circle", cx=4, cy=4, r=1.6, class_="hatchdot")))
    return tag("svg", tag("defs", joined(found)), class_="defs", aria_hidden="true", width=0, height=0)


def _pattern(style: int, mark: Markup) -> Markup:
    return tag("pattern", mark, id=f"hatch{style}", width=8, height=8, patternUnits="userSpaceOnUse")


def _block(x: float, y: float, width: float, height: float, style: int) -> Iterator[Markup]:
    yield box(x, y, width, height, f"area{style}")
    if style in _HATCHES or style == _DOTTED:
        yield tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), fill=f"url(#hatch{style})")
