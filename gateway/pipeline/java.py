"""Finds the Java that Spark runs on, and checks that it is new enough."""

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
_VERSION_TIMEOUT: Final = 20.0
"""Seconds for `java -version`."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java: ``home`` as in JAVA_HOME, ``version`` its first number, ``text`` all that `java -version` prints."""

    home: Path
    version: int
    text: str


def find_java(environment: Mapping[str, str] = os.environ, installed: Path = Path("/usr/lib/jvm")) -> Java:
    """The first Java that is new enough: that of JAVA_HOME, then that in PATH, then those in ``installed``.

    Raises PipelineError if there is none, or only older ones.
    """
    older: list[Java] = []
    for program in _programs(environment, installed):
        java = _version_of(program)
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
    for program in _candidates(environment, installed):
        real = program.resolve()
        if os.access(real, os.X_OK) and real.is_file() and real not in seen:
            seen.add(real)
            yield real


def _candidates(environment: Mapping[str, str], installed: Path) -> Iterator[Path]:
    if home := environment.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(found)
    yield from sorted(installed.glob("*/bin/java"))


def _version_of(program: Path) -> Java | None:
    try:
        answer = subprocess.run(  # noqa: S603 - a program called java, with a constant argument
            [program, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(answer.stderr + answer.stdout)
    if version is None:
        return None
    return Java(program.parent.parent, int(version[1]), " ".join((answer.stderr + answer.stdout).split()))
