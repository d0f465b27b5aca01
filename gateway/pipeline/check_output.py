"""What a check prints: one line for each thing it found, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TextIO

_MOST_NAMED: Final = 5


class CheckOutput:
    """Prints what was found; if `quiet`, only what is wrong."""

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._wrong = 0

    def ok(self, text: str) -> None:
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
        """Print the last line, and return whether the lake is complete."""
        things = "thing is" if self._wrong == 1 else "things are"
        if self._wrong:
            print(f"not complete: {self._wrong} {things} wrong", file=self._out)
        elif not self._quiet:
            print("complete", file=self._out)
        return not self._wrong


def first_few(texts: Sequence[str]) -> str:
    """The first of some texts, and how many more there are."""
    rest = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + rest
