"""The engine that looks where it gets: atheris, guided by the coverage of the sans-I/O core.

``tests.fuzz.instrumented`` is the process it runs in: libFuzzer takes over signals and output, and ends its process.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.fuzz import findings
from tests.fuzz.loop import Outcome
from tests.fuzz.mutator import LONGEST

_RUNS: Final = re.compile(r"^stat::number_of_executed_units:\s+(\d+)|^#(\d+)\s", re.MULTILINE)
_EDGES: Final = re.compile(r"\bcov: (\d+)")

# Seconds that one input may take; the longest ones take a few hundredths.
_PATIENCE: Final = 25


def is_installed() -> bool:
    """Whether atheris is there."""
    return importlib.util.find_spec("atheris") is not None


def run(target: str, pool: Sequence[bytes], *, seed: int, seconds: float) -> tuple[Outcome, int]:
    """Fuzz for a while.

    Args:
        target: name of the target.
        pool: where to start, next to what former runs have kept.
        seed: of libFuzzer.
        seconds: how long, about.

    Returns:
        The outcome, and the edges of the control flow that were reached.
    """
    corpus, crashes = findings.DIRECTORY / f"corpus-{target}", findings.DIRECTORY / f"crash-{target}-"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(pool):
        if len(data) <= LONGEST:
            (corpus / f"seed-{number:04}").write_bytes(data)
    before = set(_crashes(crashes))
    command = [
        sys.executable, "-m", "tests.fuzz.instrumented", target, str(seed), str(corpus),
        f"-max_total_time={int(seconds)}", f"-max_len={LONGEST}", f"-timeout={_PATIENCE}", f"-seed={seed}",
        f"-artifact_prefix={crashes}", "-print_final_stats=1", "-len_control=0",
    ]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stderr
    outcome = Outcome(seconds=seconds)
    outcome.runs = max((int(one or other) for one, other in _RUNS.findall(said)), default=0)
    outcome.inputs = [path.read_bytes() for path in sorted(corpus.iterdir())]
    for path in set(_crashes(crashes)) - before:
        data = path.read_bytes()
        path.unlink()
        outcome.findings.append((data, findings.broken(target, data) or TimeoutError(said[-2000:])))
    if not outcome.findings and not outcome.runs:
        raise RuntimeError(f"atheris did not run: {said[-2000:]}")
    return outcome, max(map(int, _EDGES.findall(said)), default=0)


def _crashes(prefix: Path) -> list[Path]:
    return sorted(prefix.parent.glob(f"{prefix.name}*"))
