"""Stacked bars over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.drawing.axis import Scale
from gateway.pipeline.report.drawing.calendar import TimeScale
from gateway.pipeline.report.drawing.svg import Frame, box, path
from gateway.pipeline.report.markup import Markup, joined, tag

LOOKS: Final = 7
"""How many layers can be told apart: each has a colour and a hatch of its own."""

_WIDEST: Final = 44.0
_GAP: Final = 0.22
_HATCHES: Final = {
    2: ((0, 8), (8, 0)),
    3: ((0, 0), (8, 8)),
    4: ((0, 4), (8, 4)),
    5: ((4, 0), (4, 8)),
}
_DOTTED: Final = 6


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all bars."""

    name: str
    look: int
    values: Sequence[float]


def draw_stacks(
    frame: Frame, begins: Sequence[int], width: int, layers: Sequence[Layer], scales: tuple[TimeScale, Scale]
) -> Iterator[Markup]:
    """Draw bars.

    Args:
        frame: to draw in.
        begins: of the bins, microseconds.
        width: of a bin, microseconds.
        layers: from the bottom up.
        scales: of time, and of values.
    """
    across, up = scales
    for number, begin in enumerate(begins):
        left, right = across.place(begin), across.place(begin + width)
        room = min((right - left) * (1 - _GAP), _WIDEST)
        left = (left + right - room) / 2
        base = 0.0
        for layer in layers:
            value = layer.values[number]
            if value:
                y, foot = up.place(base + value), up.place(base)
                yield from _block(left, y, room, max(foot - y, 0.5), layer.look)
                base += value


def swatch(look: int) -> Markup:
    """A sample of a layer, for a legend."""
    return tag("svg", *_block(0, 0, 14, 14, look), viewBox="0 0 14 14", class_="swatch", aria_hidden="true")


def hatches() -> Markup:
    """The hatches of all layers, once for the page."""
    found = []
    for look, points in _HATCHES.items():
        found.append(_pattern(look, path(list(points), "hatch")))
    found.append(_pattern(_DOTTED, tag("circle", cx=4, cy=4, r=1.6, class_="hatchdot")))
    return tag("svg", tag("defs", joined(found)), class_="defs", aria_hidden="true", width=0, height=0)


def _pattern(look: int, mark: Markup) -> Markup:
    return tag("pattern", mark, id=f"hatch{look}", width=8, height=8, patternUnits="userSpaceOnUse")


def _block(x: float, y: float, width: float, height: float, look: int) -> Iterator[Markup]:
    yield box(x, y, width, height, f"area{look}")
    if look in _HATCHES or look == _DOTTED:
        yield tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), fill=f"url(#hatch{look})")
