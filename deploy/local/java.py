"""A Java for Spark: one that is there, or Debian's package.

`python -m deploy.local.java` does so; `make` calls it before it installs Spark.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.errors import LocalError

PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""Debian's packages to choose from; each release has one of them at least."""

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

    Raises LocalError if there is none, or only older ones.
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
        raise LocalError(f"Only an old Java was found ({found}). {_ADVICE}")
    raise LocalError(f"No Java was found. {_ADVICE}")


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
        answer = subprocess.run(
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


def provide(say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Java:
    """Find a Java that Spark starts on, or install Debian's if we are root.

    Args:
        say: takes a line about the progress.
        environ: where JAVA_HOME and PATH are looked up.

    Raises:
        LocalError: there is none, and none can be installed.
    """
    try:
        return find_java(environ)
    except LocalError:
        if not debian.can_install():
            raise
    say(f"Spark needs a Java: installing Debian's {PACKAGES[0]} or a later one with apt-get (45 MB to fetch)")
    debian.install_first(PACKAGES)
    return find_java(environ)


def main() -> int:
    """Provide a Java; the exit code is 1 when there is none."""
    try:
        provide(lambda line: print(line, flush=True))
    except LocalError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
