"""Elements of HTML and SVG as text, and the escaping that keeps clients' texts from becoming markup."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable
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
    """A text that fits into ``room``, if necessary without its middle: the ends of a name tell it from others.

    Args:
        text: to shorten.
        room: the largest width.
        measure: returns the width of a text; columns by default.
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
    """An element.

    Args:
        name: of the element.
        content: strings, which are escaped, and markup, which is not; None is left out.
        attributes: ``class_`` means class, ``stroke_width`` means stroke-width; None is left out.
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
