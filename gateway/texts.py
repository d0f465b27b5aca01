"""Texts for people: what a terminal can show, tables, figures with their units, and numbers with their nouns."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import floor, isfinite, log10
from typing import Final

_WIDE_SPACE: Final = "\u3000"
_EXACT_BELOW: Final = 10_000
_UNITS_OF_TIME: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def printable(text: str) -> str:
    r"""A text with Python's escapes for what would control a terminal or the reading direction, such as ``\x1b``.

    It is on one line. What looks like a space is escaped, too, except the wide one of Chinese and Japanese.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char == _WIDE_SPACE else char.encode("unicode_escape").decode() for char in text
    )


def counted(count: int, what: str, one: str = "", more: str = "") -> str:
    """A number and its noun, with what follows of one or of more: `1 segment is aside`, `2,000 segments are aside`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{count:,} {what} {one}".rstrip() if count == 1 else f"{count:,} {what}{plural} {more}".rstrip()


def aligned(rows: Sequence[Sequence[str]], figures: Container[int] = ()) -> Iterator[str]:
    """The lines of a table; columns whose places are in ``figures`` are aligned to the right.

    Not a `rich.table.Table`, which takes a second for each thousand rows.
    """
    from rich.cells import cell_len  # noqa: PLC0415 - `--help` must not load it

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        gaps = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = (
            gap + cell if place in figures else cell + gap
            for place, (cell, gap) in enumerate(zip(row, gaps, strict=True))
        )
        yield "  ".join(cells).rstrip()


def three_digits(value: float) -> str:
    """A value to three significant digits: 0.123, 1.2, 45.6, 789."""
    if value == 0 or not isfinite(value):
        return f"{value:g}"
    text = f"{value:.{max(0, 2 - floor(log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def scaled(value: float, step: int, units: Sequence[str]) -> str:
    """A value with the unit in which it is less than ``step``, or the last one."""
    power = 0
    while abs(float(three_digits(value))) >= step and power < len(units) - 1:
        value, power = value / step, power + 1
    return three_digits(value) + units[power]


def count(number: float) -> str:
    """A count, from ten thousand on with a prefix: `9,999`, `12.3k`."""
    return f"{number:,.0f}" if number < _EXACT_BELOW else scaled(number, 1000, ("", "k", "M", "G", "T", "P", "E"))


def byte_size(number: float) -> str:
    """A number of bytes: `1.5 KiB`."""
    return scaled(number, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def duration(seconds: float) -> str:
    """A time span in its two largest units: `3 d 4 h`, `12 min`."""
    parts: list[tuple[int, str]] = []
    left = max(0, int(seconds))
    for unit, size in _UNITS_OF_TIME:
        whole, left = divmod(left, size)
        if whole or parts:
            parts.append((whole, unit))
    return " ".join(f"{whole} {unit}" for whole, unit in parts[:2] if whole) or "0 s"


def latency(seconds: float) -> str:
    """A short time span: `45 us`, `1.23 ms`; from a minute on as `duration`."""
    for unit, size, below in (("us", 1e-6, 1000), ("ms", 1e-3, 1000), ("s", 1, 60)):
        digits = three_digits(seconds / size)
        if float(digits) < below:
            return f"{digits} {unit}"
    return duration(round(seconds))
