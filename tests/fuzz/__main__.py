"""``python -m tests.fuzz``: fuzz for a while, or replay files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz import coverage, findings, guided, loop
from tests.fuzz.targets import TARGETS, starts

# How many inputs are run once more to count lines, the longest way to run them.
_COUNTED = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return 1 when something was found."""
    given = _parser().parse_args(arguments)
    if given.files:
        told = [findings.replay(path, given.target) for path in given.files]
        for path, words in zip(given.files, told, strict=True):
            print(words or f"{path}: no promise is broken")
        return int(any(told))
    names = [given.target] if given.target else list(TARGETS)
    return max(_fuzz(name, given.engine, given.seed, given.seconds / len(names)) for name in names)


def _fuzz(target: str, engine: str, seed: int, seconds: float) -> int:
    pool = starts(target)
    edges = ""
    if engine == "atheris" or (engine == "auto" and guided.is_installed()):
        print(f"== {target}: atheris, {len(pool)} seeds, about {seconds:.0f} seconds", flush=True)
        outcome, reached = guided.run(target, pool, seed=seed, seconds=seconds)
        edges = f", {reached} edges"
    else:
        print(f"== {target}: mutation loop, {len(pool)} seeds, about {seconds:.0f} seconds", flush=True)
        outcome = loop.run(target, pool, seed=seed, seconds=seconds)
    lines = coverage.reached(target, outcome.inputs[:_COUNTED])
    packages = ", ".join(f"{hit} of {there} lines of gateway/{package}" for package, (hit, there) in lines.items())
    print(f"{outcome.runs} executions, {outcome.runs / max(outcome.seconds, 0.001):.0f} per second{edges}")
    print(f"reached {packages}; {len(outcome.findings)} findings", flush=True)
    for found, error in outcome.findings:
        small = findings.reduced(target, found, error)
        print(findings.tell(findings.save(target, small), target, findings.broken(target, small) or error))
    return int(bool(outcome.findings))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="replay these instead of fuzzing")
    parser.add_argument("--target", choices=sorted(TARGETS), help="only this one")
    parser.add_argument("--engine", choices=("auto", "atheris", "mutation"), default="auto")
    parser.add_argument("--seconds", type=float, default=300.0, help="in all; 300 without")
    parser.add_argument("--seed", type=int, default=1, help="of all chance; 1 without")
    return parser


if __name__ == "__main__":
    sys.exit(main())
