"""The parts of all plots: canvas, plot area, text and shapes. Colours are CSS classes that the page's style defines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.pipeline.report.markup import LONGEST_TITLE, Markup, columns_of, name_of, shortened, tag

# The widths of letters in the widest of the usual system fonts, in units of the drawing. Text is 12 units high.
_WIDE_LETTERS: Final = frozenset("mwMW@%…—")
_WIDE_LETTER: Final = 12.2
_CAPITAL: Final = 9.6
_LETTER: Final = 7.7
_LEAST_ROOM: Final = 40


@dataclass(frozen=True, slots=True)
class Canvas:
    """The width of a drawing. Each plot is drawn for wide and for narrow screens, so that text keeps its size."""

    width: int
    wide: bool


WIDE: Final = Canvas(960, wide=True)
NARROW: Final = Canvas(360, wide=False)


@dataclass(frozen=True, slots=True)
class PlotArea:
    """The part of a drawing inside its axes."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def width(self) -> float:
        """In the units of the drawing."""
        return self.right - self.left


def drawing(name: str, canvas: Canvas, height: float, title: str, description: str, parts: Iterable[Markup]) -> Markup:
    """A drawing, with a title and a description for screen readers.

    Args:
        name: unique in the page, for ids.
        canvas: its width.
        height: in the same units.
        title: what it is.
        description: what it shows.
        parts: its content.
    """
    key = f"{name}-{'wide' if canvas.wide else 'narrow'}"
    return tag(
        "svg",
        tag("title", title, id=f"{key}-title"),
        tag("desc", description, id=f"{key}-desc"),
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {canvas.width} {height:.0f}",
        class_="plot wide" if canvas.wide else "plot narrow",
        role="img",
        aria_labelledby=f"{key}-title {key}-desc",
    )


def words(x: float, y: float, text: str, class_: str = "", title: str | None = None) -> Markup:
    """A line of text; ``class_`` may have ``end`` or ``middle`` for its anchor."""
    whole = tag("title", title) if title else None
    return tag("text", whole, text, x=float(x), y=float(y), class_=class_ or None)


def label(x: float, y: float, name: str | None, room: float, class_: str = "") -> Markup:
    """A name from a client, shortened to fit into ``room``, in full in its title."""
    whole = name_of(name)
    short = shortened(whole, max(_LEAST_ROOM, room), width_of)
    return words(x, y, short, f"name {class_}".strip(), shortened(whole, LONGEST_TITLE) if short != whole else None)


def width_of(text: str) -> float:
    """The largest width that a text may have when drawn."""
    return sum(_width_of(char) for char in text)


def _width_of(char: str) -> float:
    if char in _WIDE_LETTERS or columns_of(char) > 1:
        return _WIDE_LETTER
    return _CAPITAL if char.isupper() or not char.isascii() else _LETTER


def rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str, title: str | None = None) -> Markup:
    """A rectangle, with a title that shows when the pointer is on it."""
    shape = tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), class_=class_)
    return tag("g", tag("title", title), shape) if title else shape


def dot(x: float, y: float, radius: float, class_: str) -> Markup:
    """A filled or hollow circle."""
    return tag("circle", cx=float(x), cy=float(y), r=float(radius), class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str, *, closed: bool = False) -> Markup:
    """A line from point to point."""
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if closed else ''}", class_=class_)
