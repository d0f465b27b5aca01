"""Texts for people: what a terminal can show, and numbers with their nouns."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""A text with Python's escapes for what would control a terminal or the reading direction, such as ``\x1b``.

    It is on one line. No-break spaces and unassigned code points are escaped, too.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def counted(count: int, what: str, one: str = "", more: str = "") -> str:
    """A number and its noun, with what follows of one or of more: `1 segment is aside`, `2,000 segments are aside`."""
    plural = "es" if what.endswith("ch") else "s"
    return f"{count:,} {what} {one}".rstrip() if count == 1 else f"{count:,} {what}{plural} {more}".rstrip()
