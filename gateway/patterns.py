"""Patterns in which ``*`` stands for any text, the empty one too, and everything else for itself."""

from __future__ import annotations

from typing import Final

STAR: Final = b"*"


class Pattern:
    """A text with stars, which matches a whole text or does not match.

    Matching takes time linear in the text, however many stars there are, because clients choose the texts.
    """

    __slots__ = ("_first", "_last", "_middle", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self._first, *rest = text.split(STAR)
        # None without a star.
        self._last = rest[-1] if rest else None
        self._middle = rest[:-1]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def match(self, text: bytes) -> tuple[bytes, ...] | None:
        """What each star stands for, each as short as possible, from the left; None if the text does not match."""
        if self._last is None:
            return () if text == self._first else None
        position, end = len(self._first), len(text) - len(self._last)
        if position > end or not text.startswith(self._first) or not text.endswith(self._last):
            return None
        stood_for: list[bytes] = []
        for part in self._middle:
            found = text.find(part, position, end)
            if found < 0:
                return None
            stood_for.append(text[position:found])
            position = found + len(part)
        stood_for.append(text[position:end])
        return tuple(stood_for)

    def filled(self, values: tuple[bytes, ...]) -> bytes:
        """The text with values in place of the stars, in order. There are at least as many values as stars."""
        if self._last is None:
            return self._first
        pieces = [self._first]
        for value, part in zip(values, [*self._middle, self._last], strict=False):
            pieces += value, part
        return b"".join(pieces)
