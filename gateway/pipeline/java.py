"""The Java that Spark runs on: where it is, and whether it is new enough."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.errors import PipelineError

OLDEST: Final = 17
"""The oldest Java that Spark 4 starts on."""

_ADVICE: Final = (
    f"The pipeline runs on Spark, which needs Java {OLDEST} or later: install it, for example with "
    "`apt-get install openjdk-17-jre-headless`, or let JAVA_HOME name one that is there."
)
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_PATIENCE: Final = 20.0
"""Seconds for a Java to say its version."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java: ``home`` is what JAVA_HOME names, ``version`` its first number, ``text`` its whole first line."""

    home: Path
    version: int
    text: str


def find_java(environment: Mapping[str, str] = os.environ, installed: Path = Path("/usr/lib/jvm")) -> Java:
    """The first Java that is new enough: of JAVA_HOME, then of PATH, then of what is installed.

    Args:
        environment: has JAVA_HOME and PATH, or not.
        installed: where the system keeps its Javas.

    Raises:
        PipelineError: there is none, or only older ones.
    """
    older: list[Java] = []
    for program in _programs(environment, installed):
        java = _ask(program)
        if java is None:
            continue
        if java.version >= OLDEST:
            return java
        older.append(java)
    if older:
        found = ", ".join(f"Java {java.version} in {java.home}" for java in older)
        raise PipelineError(f"only an old Java was found ({found}). {_ADVICE}")
    raise PipelineError(f"no Java was found. {_ADVICE}")


def _programs(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    seen: set[Path] = set()
    for program in _places(environment, installed):
        real = program.resolve()
        if os.access(real, os.X_OK) and real.is_file() and real not in seen:
            seen.add(real)
            yield real


def _places(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    yield from sorted(installed.glob("*/bin/java"))


def _ask(program: Path) -> Java | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a program called java, with a constant argument
            [program, "-version"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = _VERSION.search(answer.stderr + answer.stdout)
    if said is None:
        return None
    return Java(program.parent.parent, int(said[1]), " ".join((answer.stderr + answer.stdout).split()))
