"""What was found, line by line, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

_MOST_NAMED: Final = 5


class Findings:
    """Writes what was found.

    Args:
        out: where to.
        quiet: only what is wrong, and nothing at all where nothing is.
    """

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._wrong = 0

    def fine(self, text: str) -> None:
        """Something is as it should be."""
        if not self._quiet:
            print(f"ok       {text}", file=self._out)

    def note(self, text: str, advice: str) -> None:
        """Something is worth knowing, and does not make the lake incomplete."""
        if not self._quiet:
            print(f"note     {text}\n         {advice}", file=self._out)

    def wrong(self, text: str, advice: str) -> None:
        """Something makes the lake incomplete."""
        self._wrong += 1
        print(f"WRONG    {text}\n         {advice}", file=self._out)

    def verdict(self) -> bool:
        """Write the last line."""
        things = "thing is" if self._wrong == 1 else "things are"
        if self._wrong:
            print(f"not complete: {self._wrong} {things} wrong", file=self._out)
        elif not self._quiet:
            print("complete", file=self._out)
        return not self._wrong


def named(paths: Sequence[Path], root: Path) -> str:
    """The first of some paths, relative to a directory, and how many more there are."""
    return shortened([path.relative_to(root).as_posix() for path in paths])


def shortened(texts: Sequence[str]) -> str:
    """The first of some texts, and how many more there are."""
    rest = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + rest
