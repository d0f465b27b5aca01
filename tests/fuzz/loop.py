"""The engine that needs nothing: changed inputs, one after the other, for a number of runs or of seconds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fuzz.findings import broken
from tests.fuzz.mutator import LONGEST, mutator_of


@dataclass
class Outcome:
    """What a run of an engine came to."""

    runs: int = 0
    seconds: float = 0.0
    findings: list[tuple[bytes, Exception]] = field(default_factory=list)
    inputs: list[bytes] = field(default_factory=list)
    """A sample of what was run, to see how far it reached."""


# Of the mutation loop's inputs, one in so many is kept for the sample.
_SAMPLED = 50


def run(
    target: str, pool: Sequence[bytes], *, seed: int, runs: int | None = None, seconds: float = float("inf")
) -> Outcome:
    """Change inputs and run them until one breaks a promise.

    Args:
        target: name of the target.
        pool: where to start; run first, as it is.
        seed: of all chance: equal seeds try equal inputs.
        runs: how many inputs at the most; without, no limit.
        seconds: how long at the most.
    """
    known = [data for data in pool if len(data) <= LONGEST]
    mutator = mutator_of(target, random.Random(seed), known)  # noqa: S311 - to be repeated, not to be kept secret
    outcome = Outcome(inputs=list(known))
    started = time.monotonic()
    while (runs is None or outcome.runs < runs) and time.monotonic() - started < seconds:
        data = known[outcome.runs] if outcome.runs < len(known) else mutator.next_input()
        outcome.runs += 1
        if outcome.runs % _SAMPLED == 0:
            outcome.inputs.append(data)
        error = broken(target, data)
        if error is not None:
            outcome.findings.append((data, error))
            break
    outcome.seconds = time.monotonic() - started
    return outcome
