"""Elements of HTML and SVG as text, the escaping of texts from clients, and the parts of all plots."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

_INVISIBLE: Final = frozenset(
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
_ONE_BYTE: Final = 0xFF
_FOUR_DIGITS: Final = 0xFFFF
_NOT_CHARACTERS: Final = 0xFFFE
ELLIPSIS: Final = "…"
ABSENT: Final = "(none)"
EMPTY: Final = "(empty)"
_EMPTY: Final = frozenset({"path", "rect", "circle", "line", "polygon", "meta", "link", "br", "col", "use"})
LONGEST_TITLE: Final = 2000
"""Columns of a name in a title; longer names are an attack or an accident."""

# The widths of letters in the widest of the usual system fonts, in units of the drawing. Text is 12 units high.
_WIDE_LETTERS: Final = frozenset("mwMW@%…—")
_WIDE_LETTER: Final = 12.2
_CAPITAL: Final = 9.6
_LETTER: Final = 7.7
_LEAST_ROOM: Final = 40


def shown(text: str) -> str:
    r"""A text with control characters, direction marks and the like as escapes, for example ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    point = ord(char)
    hidden = (
        char in _INVISIBLE or unicodedata.category(char) in ("Cc", "Cs") or point & _NOT_CHARACTERS == _NOT_CHARACTERS
    )
    if not hidden:
        return char
    if point <= _ONE_BYTE:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= _FOUR_DIGITS else f"\\U{point:08x}"


def name_of(text: str | None) -> str:
    """A name to show; never empty."""
    if text is None:
        return ABSENT
    return shown(text) or EMPTY


def columns_of(text: str) -> int:
    """About how many columns a text takes; some scripts and all emoji take two per character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def shortened(text: str, room: float, measure: Callable[[str], float] = columns_of) -> str:
    """A text that fits into ``room``, if necessary without its middle: names differ most often at their ends.

    ``room`` is in the unit that ``measure`` returns for a text, columns by default.
    """
    if measure(text) <= room:
        return text
    half = (room - measure(ELLIPSIS)) / 2
    return _cut(text, half, measure) + ELLIPSIS + _cut(text[::-1], half, measure)[::-1]


def _cut(text: str, room: float, measure: Callable[[str], float]) -> str:
    width = 0.0
    for place, char in enumerate(text):
        width += measure(char)
        if width > room:
            return text[:place]
    return text


class Markup(str):
    """Text that needs no escaping."""

    __slots__ = ()


def tag(name: str, /, *content: str | None, **attributes: str | float | None) -> Markup:
    """An element. Strings in it are escaped, markup is not. None is left out, in the content and in attributes.

    In the names of attributes, ``class_`` means class, and ``stroke_width`` means stroke-width.
    """
    opening = name + "".join(
        f' {_key(key)}="{_value(value)}"' for key, value in attributes.items() if value is not None
    )
    if name in _EMPTY:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{joined(content)}</{name}>")


def joined(content: Iterable[str | None]) -> Markup:
    """Strings, which are escaped, and markup, one after the other."""
    return Markup("".join(_escaped(part) for part in content if part is not None))


def named(text: str | None, columns: int = 60) -> Markup:
    """A name from a client, shortened to so many columns, in full in its title, and isolated (``bdi``)."""
    whole = name_of(text)
    short = shortened(whole, columns)
    return tag("bdi", short, title=None if short == whole else shortened(whole, LONGEST_TITLE))


def _escaped(text: str) -> str:
    return text if isinstance(text, Markup) else escape(shown(text))


def _key(name: str) -> str:
    return name.removesuffix("_").replace("_", "-")


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return escape(shown(value))
    return str(value) if isinstance(value, int) else f"{value:.2f}".rstrip("0").rstrip(".")


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
    """A drawing, with a title and a description for screen readers; `name` must be unique in the page, for ids."""
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
