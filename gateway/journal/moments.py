"""When outstanding deliveries were made, for the latency of their acknowledgements."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

TIMED: Final = 65_536
"""Moments of one subscription that are remembered; acknowledging any further delivery counts, without a latency."""


class Delivered(NamedTuple):
    """Deliveries of one moment: the last one's tag, how many, and when, in microseconds on the journal's clock."""

    last: int
    number: int
    at: int


class Moments:
    """For acknowledgements one by one: a moment for each tag."""

    __slots__ = ("by_tag",)

    def __init__(self) -> None:
        self.by_tag: dict[int, int] = {}

    def note(self, tag: int, at: int) -> None:
        """A delivery was made. HOT: once per message."""
        if len(self.by_tag) < TIMED:
            self.by_tag[tag] = at

    def take(self, tag: int) -> list[Delivered]:
        """Take out one delivery; empty if its moment is not known."""
        at = self.by_tag.pop(tag, None)
        return [] if at is None else [Delivered(tag, 1, at)]


@dataclass(slots=True)
class _Run:
    """Deliveries with tags in a row, made at the same moment."""

    first: int
    last: int
    at: int


class Runs:
    """For cumulative acknowledgements: what is taken out always stands in front, and a batch is one run."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()

    def note(self, tag: int, at: int) -> None:
        """A delivery was made, with a higher tag than all before. HOT: once per message."""
        runs = self._runs
        if runs:
            newest = runs[-1]
            if newest.at == at and newest.last == tag - 1:
                newest.last = tag
                return
        if len(runs) < TIMED:
            runs.append(_Run(tag, tag, at))

    def take(self, tag: int) -> list[Delivered]:
        """Take out all deliveries up to a tag, oldest first, as far as their moments are known."""
        runs, taken = self._runs, []
        while runs and runs[0].first <= tag:
            run = runs[0]
            last = min(run.last, tag)
            taken.append(Delivered(last, last - run.first + 1, run.at))
            if last < run.last:
                run.first = last + 1
                break
            runs.popleft()
        return taken


def moments_for(mode: str) -> Moments | Runs:
    """What fits an ack mode; under auto nobody acknowledges, and either does.

    Args:
        mode: value of the ack header.
    """
    return Runs() if mode == "client" else Moments()
