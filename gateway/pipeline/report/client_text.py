r"""Texts that clients made up, as a page may show them: visible, of bounded length, and never markup."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

_INVISIBLE: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: control characters, marks of direction, halves of characters, ends of lines."""
_JOINERS: Final = "\u200c\u200d"
"""Which scripts and emoji need."""
_LONGEST: Final = 2000
"""Columns of a name in a title or in JSON; longer names are an attack or an accident."""


@dataclass(frozen=True, slots=True)
class ClientText:
    """A name or code from outside. A template shows it in `columns` at most, in full in its title, isolated (bdi)."""

    text: str | None
    columns: int = 56

    def __str__(self) -> str:
        return shortened(name_of(self.text), _LONGEST)

    def __html__(self) -> str:
        whole = name_of(self.text)
        short = shortened(whole, self.columns)
        title = "" if short == whole else Markup(' title="{}"').format(shortened(whole, _LONGEST))
        return Markup("<bdi{}>{}</bdi>").format(title, short)


def name_of(text: str | None) -> str:
    """A name to show; never empty."""
    return "(none)" if text is None else visible(text) or "(empty)"


def visible(text: str) -> str:
    r"""A text with control characters, direction marks and the like as escapes, for example ``\x1b``."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    no_character = ord(char) & 0xFFFE == 0xFFFE  # noqa: PLR2004 - the last two of each plane
    hidden = no_character or (unicodedata.category(char) in _INVISIBLE and char not in _JOINERS)
    return char.encode("unicode_escape").decode("ascii") if hidden else char


def columns_of(text: str) -> int:
    """About how many columns a text takes; some scripts and all emoji take two per character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def shortened(text: str, columns: int) -> str:
    """A text in so many columns, if necessary without its middle: names differ most often at their ends."""
    if columns_of(text) <= columns:
        return text
    half = (columns - 1) // 2
    return _cut(text, half) + "…" + _cut(text[::-1], half)[::-1]


def _cut(text: str, columns: int) -> str:
    width = 0
    for place, char in enumerate(text):
        width += columns_of(char)
        if width > columns:
            return text[:place]
    return text
