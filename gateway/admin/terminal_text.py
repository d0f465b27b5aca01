"""Text for terminals: what strangers chose made harmless, numbers with their units, and tables."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

NOTHING: Final = "-"
"""Where there is no value."""

_THOUSAND: Final = 1000
_EXACT_BELOW: Final = 10_000
_KIBI: Final = 1024
_DURATIONS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_MINUTE: Final = 60
_HUNDRED: Final = 100
_TEN: Final = 10
_SHORT: Final = (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0))
_GAP: Final = "  "


def clean(text: str) -> str:
    """A text that strangers chose, without anything that a terminal obeys or that turns the reading direction.

    Controls, formats, surrogates, unassigned code points and the separators of lines become escapes as Python has them,
    and so does the backslash, so that different texts never look the same.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_harmless(letter) for letter in text)


def _harmless(letter: str) -> str:
    category = unicodedata.category(letter)
    if letter != "\\" and category[0] != "C" and category not in ("Zl", "Zp"):
        return letter
    return letter.encode("unicode_escape").decode() if letter != "\\" else "\\\\"


def width(text: str) -> int:
    """How many places a clean text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_places(letter) for letter in text)


def _places(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in ("W", "F") else 1


def cut(text: str, places: int) -> str:
    """A clean text in at most so many places; what was longer ends with `~`."""
    if width(text) <= places:
        return text
    kept, used = [], 0
    for letter in text:
        used += _places(letter)
        if used > places - 1:
            break
        kept.append(letter)
    return "".join(kept) + "~" if places > 0 else ""


def count(number: float) -> str:
    """A count: in full below ten thousand, with a prefix from there on."""
    if number < _EXACT_BELOW:
        return f"{number:,.0f}"
    return _scaled(number, _THOUSAND, ("", "k", "M", "G", "T"))


def rate(per_second: float | None) -> str:
    """So many a second; None where that is not known yet."""
    if per_second is None:
        return NOTHING
    return f"{count(per_second) if per_second >= _THOUSAND else _three(per_second)}/s"


def octets(number: float) -> str:
    """A size."""
    return _scaled(number, _KIBI, (" B", " KiB", " MiB", " GiB", " TiB"))


def duration(seconds: float) -> str:
    """A time span in its largest unit, or in two where one would be coarse."""
    for (unit, size), (smaller, part) in pairwise(_DURATIONS):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            second = rest // part if whole < _TEN and size > _MINUTE else 0
            return f"{whole} {unit}" + (f" {second} {smaller}" if second else "")
    return f"{int(seconds)} s"


def latency(seconds: float) -> str:
    """A short time span."""
    for unit, size, below in _SHORT:
        if seconds < below:
            return f"{_three(seconds / size)} {unit}"
    return f"{_three(seconds)} s"


def since(moment: str, now: float) -> str:
    """How long ago a moment was, from its ISO 8601 text.

    Args:
        moment: with its offset from UTC.
        now: seconds since the epoch.
    """
    try:
        began = datetime.fromisoformat(moment).astimezone(UTC).timestamp()
    except ValueError:
        return clean(moment)
    return duration(max(0.0, now - began))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> list[str]:
    """Lines of a table, its titles first; columns of numbers are set flush right.

    Args:
        titles: of the columns.
        rows: clean texts.
        numbers: whether a column is one of numbers.
    """
    widths = [max(width(text) for text in column) for column in zip(titles, *rows, strict=True)]
    return [_line(row, widths, numbers) for row in (titles, *rows)]


def _line(row: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]) -> str:
    cells = []
    for text, places, is_number in zip(row, widths, numbers, strict=True):
        space = " " * (places - width(text))
        cells.append(space + text if is_number else text + space)
    return _GAP.join(cells).rstrip()


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while float(_three(number)) >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    return _three(number) + units[power]


def _three(number: float) -> str:
    """About three digits: 0.12, 4.5, 45.6, 789."""
    if number >= _HUNDRED:
        return f"{number:.0f}"
    return f"{number:.1f}".removesuffix(".0") if number >= _TEN else f"{number:.2f}".rstrip("0").rstrip(".")
