"""The layout of a transcript file: lines in the first column, and what is indented under them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Block:
    """A line that starts in the first column, and the indented lines under it, their indentation removed."""

    line: int
    opening: str
    under: tuple[str, ...]


class BadLineError(Exception):
    """What is wrong in which line of a transcript file."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


def blocks_of(text: str) -> Iterator[Block]:
    """Yield what the lines of a file make up; comments are left out."""
    opening: tuple[int, str] | None = None
    under: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("#"):
            continue
        if not line or line.startswith(" "):
            under.append(line)
            continue
        if opening:
            yield Block(*opening, _dedented(under))
        opening, under = (number, line), []
    if opening:
        yield Block(*opening, _dedented(under))


def _dedented(lines: Sequence[str]) -> tuple[str, ...]:
    """Remove the first line's indentation from all, and empty lines from the end."""
    first = next((line for line in lines if line), "")
    indentation = " " * (len(first) - len(first.lstrip(" ")))
    kept = [line.removeprefix(indentation) for line in lines]
    while kept and not kept[-1].strip():
        kept.pop()
    return tuple(kept)
