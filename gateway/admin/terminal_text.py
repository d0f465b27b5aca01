"""Texts for terminals: clients' texts made harmless, and numbers with their units."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

NOTHING: Final = "-"
"""Shown where there is no value."""

_EXACT_BELOW: Final = 10_000
_ONE_DECIMAL_FROM, _NO_DECIMAL_FROM = 10, 100
_TWO_UNITS_BELOW: Final = 10
_UNITS_OF_TIME: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def clean(text: str) -> str:
    """Text that a client may have chosen, without characters that control a terminal or the reading direction.

    Control and format characters, surrogates, unassigned code points and line separators become Python's escapes, and
    so does the backslash, so that different texts never look the same.
    """
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_clean_character(character) for character in text)


def _clean_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    category = unicodedata.category(character)
    is_harmless = category[0] != "C" and category not in ("Zl", "Zp")
    return character if is_harmless else character.encode("unicode_escape").decode()


def count(number: float) -> str:
    """A count, from ten thousand on with a prefix: `9,999`, `12.3k`."""
    if number < _EXACT_BELOW:
        return f"{number:,.0f}"
    return _scaled(number, 1000, ("", "k", "M", "G", "T"))


def rate(per_second: float | None) -> str:
    """A number per second; None if it is not known yet."""
    if per_second is None:
        return NOTHING
    return f"{count(per_second) if per_second >= 1000 else _three_digits(per_second)}/s"  # noqa: PLR2004


def byte_size(number: float) -> str:
    """A number of bytes: `1.5 KiB`."""
    return _scaled(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def duration(seconds: float) -> str:
    """A time span in its largest unit; few hours or days with the next smaller unit, too: `3 d 4 h`."""
    for (unit, size), (smaller_unit, smaller_size) in pairwise(_UNITS_OF_TIME):
        if seconds >= size:
            whole, rest = divmod(int(seconds), size)
            smaller = rest // smaller_size if whole < _TWO_UNITS_BELOW and unit != "min" else 0
            return f"{whole} {unit}" + (f" {smaller} {smaller_unit}" if smaller else "")
    return f"{int(seconds)} s"


def latency(seconds: float) -> str:
    """A short time span: `45 us`, `1.23 ms`."""
    for unit, size, below in (("us", 1e-6, 1e-3), ("ms", 1e-3, 1.0)):
        if seconds < below:
            return f"{_three_digits(seconds / size)} {unit}"
    return f"{_three_digits(seconds)} s"


def since(moment: str, now: float) -> str:
    """The time from a moment (ISO 8601 with its offset from UTC) until ``now`` (seconds since the epoch)."""
    try:
        start = datetime.fromisoformat(moment).astimezone(UTC).timestamp()
    except ValueError:
        return clean(moment)
    return duration(max(0.0, now - start))


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while float(_three_digits(number)) >= step and power < len(units) - 1:
        number, power = number / step, power + 1
    return _three_digits(number) + units[power]


def _three_digits(number: float) -> str:
    """About three digits: 0.12, 4.5, 45.6, 789."""
    if number >= _NO_DECIMAL_FROM:
        return f"{number:.0f}"
    return (
        f"{number:.1f}".removesuffix(".0") if number >= _ONE_DECIMAL_FROM else f"{number:.2f}".rstrip("0").rstrip(".")
    )
