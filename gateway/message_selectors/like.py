"""LIKE: matches a text with a pattern in bounded time, whatever the selector and the message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Like = Callable[[str], bool | None]
"""Whether a text matches; None for a text that is too long."""

# The longest texts, in characters. With ``_`` between two ``%``, the time grows with the product of text and part.
_LONGEST_TEXT: Final = 4096
_LONGEST_SEARCHED: Final = 512

_ANY: Final = None
# A part of a pattern: characters, and _ANY for any single one.
_Part = list[str | None]


def like(pattern: str, escape: str) -> Like:
    """Compile a pattern. ``escape``: one character, or empty."""
    parts = _split(pattern, escape)
    has_any = any(_ANY in part for part in parts)
    if len(parts) > 1 and not has_any:
        return _literal(["".join(filter(None, part)) for part in parts])
    longest = _LONGEST_SEARCHED if len(parts) > 2 else _LONGEST_TEXT  # noqa: PLR2004 - more than one %
    matches = _expression(parts).fullmatch
    return lambda text: matches(text) is not None if len(text) <= longest else None


def _split(pattern: str, escape: str) -> list[_Part]:
    """Split a pattern at each ``%``."""
    parts: list[_Part] = [[]]
    position = 0
    while position < len(pattern):
        character, following = pattern[position], pattern[position + 1 : position + 2]
        position += 1
        if character == escape and following and following in ("%", "_", escape):
            parts[-1].append(following)
            position += 1
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(_ANY if character == "_" else character)
    return parts


def _literal(parts: list[str]) -> Like:
    """Match parts without ``_``: find each after the one before it. The first place of each is the best."""
    first, *middle, last = parts

    def is_like(text: str) -> bool | None:
        if len(text) > _LONGEST_TEXT:
            return None
        if not (text.startswith(first) and text.endswith(last)):
            return False
        position, end = len(first), len(text) - len(last)
        for part in middle:
            found = text.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return position <= end

    return is_like


def _expression(parts: list[_Part]) -> re.Pattern[str]:
    """The pattern as a regular expression without backtracking, which for many ``%`` would take years."""
    first, *others = ["".join("." if each is _ANY else re.escape(each) for each in part) for part in parts]
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    found_once = "".join([f"(?>.*?{part})" for part in middle if part])
    # The last part is matched only at the end, if there is room for it.
    return re.compile(f"{first}{found_once}(?=.{{{len(parts[-1])}}}).*+(?<={last})", re.DOTALL)
