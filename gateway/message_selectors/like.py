"""LIKE: whether a text matches a pattern, in bounded time, whatever the selector and the message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Like = Callable[[str], bool | None]

_LONGEST_TEXT: Final = 4096
# What is between two ``%`` is looked for. With ``_`` in it that takes as long as both together, multiplied.
_LONGEST_SEARCHED: Final = 512

_ANY: Final = None
# Characters, and _ANY for any one.
_Part = list[str | None]


def like(pattern: str, escape: str) -> Like:
    """What LIKE says of a text; ``escape`` is one character, or empty. Of a text that is too long it says None."""
    parts = _split(pattern, escape)
    has_any = any(_ANY in part for part in parts)
    if len(parts) > 1 and not has_any:
        return _literal(["".join(filter(None, part)) for part in parts])
    longest = _LONGEST_SEARCHED if len(parts) > 2 else _LONGEST_TEXT  # noqa: PLR2004 - that is more than one %
    matches = _expression(parts).fullmatch
    return lambda text: matches(text) is not None if len(text) <= longest else None


def _split(pattern: str, escape: str) -> list[_Part]:
    """What stands around the ``%``."""
    parts: list[_Part] = [[]]
    position = 0
    while position < len(pattern):
        character, behind = pattern[position], pattern[position + 1 : position + 2]
        position += 1
        if character == escape and behind and behind in ("%", "_", escape):
            parts[-1].append(behind)
            position += 1
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(_ANY if character == "_" else character)
    return parts


def _literal(parts: list[str]) -> Like:
    """Each part is looked for behind the one before, and once found it is not looked for again: that is enough."""
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
    """The same as a regular expression. Nothing in it is tried a second time, which for many ``%`` would take years."""
    first, *others = ["".join("." if each is _ANY else re.escape(each) for each in part) for part in parts]
    if not others:
        return re.compile(first, re.DOTALL)
    *middle, last = others
    found_once = "".join([f"(?>.*?{part})" for part in middle if part])
    # The last part is compared only at the end, if there is room for it.
    return re.compile(f"{first}{found_once}(?=.{{{len(parts[-1])}}}).*+(?<={last})", re.DOTALL)
