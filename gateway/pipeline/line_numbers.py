"""Line numbers of boots: which are missing, and which are there more than once?

The lines of a segment are compared as sums, which the engine computes: how many, the first and the last number, and the
sums of the numbers, their squares and their cubes. Numbers that are not those from the first to the last, each once,
have other sums, unless somebody chose them so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

Range = tuple[int, int]
"""Numbers from and to, both included."""

SUMS: Final = (
    "count(*) lines, min(seq) first, max(seq) last, sum(seq) sum1, sum(seq * seq) sum2, sum(seq * seq * seq) sum3"
)
"""The SQL of the sums, modulo 2^64."""

_MODULUS: Final = 1 << 64


def sums_of_range(first: int, last: int) -> tuple[int, int, int]:
    """The last three of `SUMS` for all numbers from first to last."""
    before, all_of_them = _sums_up_to(first - 1), _sums_up_to(last)
    one, two, three = (wrapped(upper - lower) for upper, lower in zip(all_of_them, before, strict=True))
    return one, two, three


def _sums_up_to(last: int) -> tuple[int, int, int]:
    one = last * (last + 1) // 2
    return one, one * (2 * last + 1) // 3, one * one


def wrapped(value: int) -> int:
    """A sum as 64 bits with a sign hold it."""
    return (value + _MODULUS // 2) % _MODULUS - _MODULUS // 2


def count(found: Iterable[Range]) -> int:
    """How many numbers there are in ranges."""
    return sum(last - first + 1 for first, last in found)


def without_first(found: Iterable[Range], skipped: int) -> list[Range]:
    """Ranges without their first numbers."""
    result = []
    for first, last in found:
        skip = min(skipped, last - first + 1)
        skipped -= skip
        if first + skip <= last:
            result.append((first + skip, last))
    return result


def joined(found: Iterable[Range]) -> list[Range]:
    """Ranges sorted, with overlapping and adjacent ones merged."""
    result: list[Range] = []
    for first, last in sorted(found):
        if result and first <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], last))
        else:
            result.append((first, last))
    return result


def in_words(found: Sequence[Range], most: int = 8) -> str:
    """Ranges as text: 5-9, 12 and 3 more ranges."""
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in found[:most]]
    rest = f" and {len(found) - most} more ranges" if len(found) > most else ""
    return ", ".join(texts) + rest
