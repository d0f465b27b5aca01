"""Texts that clients made up, made fit to be shown: nothing invisible, nothing that turns the page around."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Final

_INVISIBLE: Final = frozenset(
    "\u00ad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
_ONE_OCTET: Final = 0xFF
_FOUR_DIGITS: Final = 0xFFFF
_NOT_CHARACTERS: Final = 0xFFFE
ELLIPSIS: Final = "…"
ABSENT: Final = "(none)"
EMPTY: Final = "(empty)"


def shown(text: str) -> str:
    r"""A text with control characters, direction marks and the like written as escapes, for example ``\x1b``."""
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
    if point <= _ONE_OCTET:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= _FOUR_DIGITS else f"\\U{point:08x}"


def name_of(text: str | None) -> str:
    """A name as shown: never empty."""
    if text is None:
        return ABSENT
    return shown(text) or EMPTY


def columns_of(text: str) -> int:
    """How many columns of ordinary letters a text is wide, about: some scripts and all emoji take two."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def shortened(text: str, room: float, measure: Callable[[str], float] = columns_of) -> str:
    """A text no wider than its room: its middle is left out, since both ends of a name tell it apart.

    Args:
        text: that may be too wide.
        room: how wide it may be.
        measure: how wide a text is; without it, columns of ordinary letters are counted.
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
