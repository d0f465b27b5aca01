"""``python -m tests.mutants``: run a sample of the mutants for a while, and name those that survive without reason."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ARGUED: Final = Path(__file__).parent / "argued.toml"

# To have all mutants made, mutmut has to be asked for some. These are few.
_FEW: Final = "gateway.stomp.heartbeat.*"
_RESULT: Final = re.compile(r"^\s+(gateway\.\S+__mutmut_[0-9]+): (.+)$", re.MULTILINE)
# A mutant of lines that no test runs survives, too.
_SURVIVED: Final = ("survived", "no tests")
_UNTRIED: Final = ("not checked", "check was interrupted by user")
# Fewer tried mutants prove nothing, unless there are no more.
_LEAST: Final = 100
# Where mutmut keeps its copies of the code; mutants in a batch for each process; seconds that it may take to stop.
_MADE: Final = Path("mutants")
_BATCH: Final = 100
_TO_STOP: Final = 60.0


class MutmutError(Exception):
    """mutmut has failed; its output is the text."""


@dataclass(frozen=True)
class Change:
    """What a mutant changes, without line numbers, so that it is known again."""

    file: str
    function: str
    was: tuple[str, ...]
    becomes: tuple[str, ...]

    def __str__(self) -> str:
        lines = [
            f"{self.file}, {self.function}",
            *(f"  - {line}" for line in self.was),
            *(f"  + {line}" for line in self.becomes),
        ]
        return "\n".join(lines)


def change_of(name: str, diff: str) -> Change:
    """The change that the unified diff of a mutant shows."""
    lines = diff.splitlines()
    file = next((line[4:].split("\t")[0] for line in lines if line.startswith("--- ")), "")
    body = [line for line in lines if not line.startswith(("---", "+++"))]
    was, becomes = (tuple(line[1:].strip() for line in body if line.startswith(sign)) for sign in "-+")
    return Change(file, function_of(name), was, becomes)


def function_of(name: str) -> str:
    """The function that a mutant changes, such as ``Class.method``; mutmut writes xǁClassǁmethod, or x_function."""
    mangled = name.rpartition(".")[2].rpartition("__mutmut_")[0]
    return mangled.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in mangled else mangled.removeprefix("x_")


def argued(text: str) -> dict[Change, str]:
    """The survivors that may be, with the reasons."""
    entries = tomllib.loads(text).get("mutant", [])
    return {
        Change(
            each["file"], each["function"], tuple(each["was"].splitlines()), tuple(each["becomes"].splitlines())
        ): each["because"]
        for each in entries
    }


def mutmut(*arguments: str, seconds: float | None = None, shown: bool = False) -> str:
    """Run mutmut; its output, unless that is ``shown`` as it comes.

    After so many seconds it is asked to stop, and keeps what it has found.
    """
    with subprocess.Popen(
        [sys.executable, "-m", "mutmut", *arguments],
        stdout=None if shown else subprocess.PIPE, stderr=None if shown else subprocess.STDOUT,
        text=True, errors="replace", env=os.environ | {"HYPOTHESIS_PROFILE": "few"}, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            try:
                said = process.communicate(timeout=seconds)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                said = process.communicate(timeout=_TO_STOP)[0]
            if process.returncode and seconds is None:
                raise MutmutError(said or "")
        finally:
            # Whatever it has started: a mutant may be an endless loop.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return said or ""


def results() -> dict[str, str]:
    """What became of each mutant, by its name."""
    return dict(_RESULT.findall(mutmut("results", "--all", "true")))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return 1 if a mutant survived without a reason."""
    given = _parser().parse_args(arguments)
    print("Making mutants, and looking which test runs which lines; this takes minutes", flush=True)
    # What an earlier run has found may be true no longer.
    shutil.rmtree(_MADE, ignore_errors=True)
    try:
        mutmut("run", "--max-children", str(given.processes), _FEW, shown=sys.stdout.isatty())
        names = [name for name in results() if given.only in name]
        if not names:
            print(f"mutants: no name has {given.only!r} in it", file=sys.stderr)
            return 1
        random.Random(given.seed).shuffle(names)  # noqa: S311 - to be repeated, not to be kept secret
        print(f"{len(names)} mutants, seed {given.seed}, for {given.seconds:.0f} seconds", flush=True)
        return report(_tried(names, given.seconds, given.processes), min(_LEAST, len(names)))
    except MutmutError as error:
        print(str(error)[-3000:], file=sys.stderr)
        print("mutants: mutmut failed; do the tests pass without mutants?", file=sys.stderr)
        return 1


def _tried(names: Sequence[str], seconds: float, processes: int) -> dict[str, str]:
    """Try mutants for so long; what became of those that were tried.

    In batches: mutmut begins with those whose tests are quick, and a sample shall not be of these alone.
    """
    deadline, found = time.monotonic() + seconds, dict[str, str]()
    size = _BATCH * processes
    for first in range(0, len(names), size):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        batch = names[first : first + size]
        said = mutmut("run", "--max-children", str(processes), *batch, seconds=left)
        after = results()
        tried = {name: after[name] for name in batch if after.get(name, _UNTRIED[0]) not in _UNTRIED}
        if not tried and time.monotonic() < deadline:
            raise MutmutError(said)
        found |= tried
        survived = sum(status in _SURVIVED for status in found.values())
        left = max(0.0, deadline - time.monotonic())
        print(f"{len(found)} tried, {survived} survived, {left:.0f} seconds left", flush=True)
    return found


def report(found: dict[str, str], least: int) -> int:
    """Print what became of the mutants; 1 if one survived without a reason, or if fewer than ``least`` were tried."""
    reasons = argued(ARGUED.read_text("utf-8"))
    survivors = {name: change_of(name, mutmut("show", name)) for name, status in found.items() if status in _SURVIVED}
    open_ones = {name: change for name, change in survivors.items() if change not in reasons}
    for name, change in open_ones.items():
        print(f"{name}\n{change}\n")
    print(", ".join(f"{count} {status}" for status, count in sorted(Counter(found.values()).items())))
    print(f"of {len(found)} mutants {len(survivors)} survived, {len(survivors) - len(open_ones)} of them argued")
    has_enough = len(found) >= least
    if not has_enough:
        print(f"mutants: only {len(found)} were tried, and {least} are the least", file=sys.stderr)
    return int(bool(open_ones) or not has_enough)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="for the mutants, without the preparation; 600")
    parser.add_argument("--seed", type=int, default=1, help="of the sample; 1")
    parser.add_argument("--only", default="", metavar="TEXT", help="mutants with this in their name: session.confirms")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="at a time; as many as processors")
    return parser


if __name__ == "__main__":
    sys.exit(main())
