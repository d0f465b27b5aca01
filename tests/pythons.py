"""The tests of the gateway on every Python from 3.11 on that this machine has: ``make test-pythons``.

Each Python gets a virtual environment in var/pythons. The tests are those of units and properties, and some with a
broker; what only reads files of the repository, and what needs Spark or Chromium, runs with `make test` alone.
With ``--debian``, as root on Debian, the Pythons of Debian's unstable run them, too. Those run where /usr is that of
unstable (see deploy.local.debian_tree), so they have its RabbitMQ, the newest, as well.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.local import debian_tree, releases
from deploy.local.errors import LocalError

OLDEST: Final = (3, 11)
PLACES: Final = ("/usr/bin", "/usr/local/bin", "/opt/*/bin", "~/.pyenv/versions/*/bin", "~/.local/bin")
TESTS: Final = (
    "tests/unit",
    "--ignore=tests/unit/deploy",
    "tests/property",
    *(f"tests/system/test_{name}.py" for name in ("conversation", "login", "tls_listener", "websocket", "workers")),
    *(f"tests/system/test_{name}.py" for name in ("journal", "reload", "shutdown", "transcripts")),
)

_REPOSITORY: Final = Path(__file__).parents[1]
_ENVIRONMENTS: Final = _REPOSITORY / "var" / "pythons"
_DEBIANS: Final = ("git", "?name(^python3[.][0-9]+-venv$)")
_ASK: Final = "import json, platform, sys; print(json.dumps([sys.version_info[:2], platform.python_version()]))"


@dataclass(frozen=True)
class Interpreter:
    """A Python, and how to run it."""

    path: Path
    through: tuple[str, ...]
    """A command that runs another where the path is valid; empty for here."""
    minor: tuple[int, int]
    version: str

    @classmethod
    def ask(cls, path: Path, through: tuple[str, ...] = ()) -> Interpreter | None:
        """Ask a program which Python it is; None if it does not run, is too old or cannot make environments."""
        done = subprocess.run([*through, path, "-c", _ASK], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None
        minor, version = json.loads(done.stdout)
        found = cls(path, through, (minor[0], minor[1]), version)
        return found if found.minor >= OLDEST and found.runs("-c", "import ensurepip, venv") else None

    def runs(self, *arguments: str) -> bool:
        """Run it with these arguments, and say whether it ended well; what it says is lost."""
        return subprocess.run([*self.through, self.path, *arguments], capture_output=True, check=False).returncode == 0

    def environment(self) -> Interpreter:
        """Make its virtual environment, if it is not there or is older than what it is made from.

        Raises:
            LocalError: that failed; pip's own words are on standard error.
        """
        directory = _ENVIRONMENTS / self.version
        inside = Interpreter(directory / "bin" / "python", self.through, self.minor, self.version)
        ready = directory / "ready"
        sources = [_REPOSITORY / name for name in ("pyproject.toml", "constraints.txt")]
        if ready.exists() and all(source.stat().st_mtime <= ready.stat().st_mtime for source in sources):
            return inside
        print(f"Setting up {directory.relative_to(_REPOSITORY)}, which takes a minute", flush=True)
        pip = ("-m", "pip", "install", "--quiet", "--editable", ".[dev,ship]")
        env = os.environ | {"PIP_CONSTRAINT": "constraints.txt", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        for command in ((self.path, "-m", "venv", "--clear", directory), (inside.path, *pip)):
            if (
                subprocess.run([*self.through, *map(str, command)], cwd=_REPOSITORY, env=env, check=False).returncode
                != 0
            ):
                raise LocalError(f"Python {self.version} gets no environment: see the message above.")
        ready.touch()
        return inside

    def test(self, tests: Sequence[str]) -> bool:
        """Run the tests, and say whether all passed."""
        command = [*self.through, str(self.path), "-m", "pytest", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, cwd=_REPOSITORY, check=False).returncode == 0


def here(path: str | None = None) -> Iterator[Interpreter]:
    """Find this machine's Pythons, one for each minor version, the first in PATH.

    Args:
        path: directories to search; by default those of PATH and the usual ones.
    """
    places = [Path(place) for place in (path or os.environ.get("PATH", os.defpath)).split(os.pathsep)]
    if path is None:
        places += [found for place in PLACES for found in sorted(Path("/").glob(str(Path(place).expanduser())[1:]))]
    seen = set[tuple[int, int]]()
    for program in (found for place in places for found in sorted(place.glob("python3*"))):
        if not re.fullmatch(r"python3(\.\d+)?", program.name) or not os.access(program, os.X_OK):
            continue
        if (found := Interpreter.ask(program)) and found.minor not in seen:
            seen.add(found.minor)
            yield found


def debians() -> Iterator[Interpreter]:
    """Find the Pythons of Debian's unstable, and install them in its folder if none is there.

    Raises:
        LocalError: that is impossible here; the text says why.
    """
    releases.provide(releases.NEWEST, lambda line: print(line, flush=True))
    directory = releases.directory(releases.NEWEST)
    if not debian_tree.programs(directory, "python3.*"):
        print("Adding the Pythons of Debian's unstable, which takes a minute or two", flush=True)
        debian_tree.add(directory, _DEBIANS)
    for program in debian_tree.programs(directory, "python3.[0-9]*"):
        if found := Interpreter.ask(program, debian_tree.within(directory)):
            yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests on each Python.

    Returns:
        The exit code: 0 if all passed, else 1.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__)
    parser.add_argument("--debian", action="store_true", help="also on those of Debian's unstable; needs root, 300 MB")
    parser.add_argument("--only", action="append", metavar="3.N", help="on this release alone; may be repeated")
    parser.add_argument("--list", action="store_true", help="only name the Pythons")
    parser.add_argument("tests", nargs="*", default=TESTS, help="for pytest, in place of the usual choice")
    options = parser.parse_args(arguments)
    try:
        found = {python.minor: python for python in debians()} if options.debian else {}
        found |= {python.minor: python for python in here()}
        if options.only:
            found = {minor: python for minor, python in found.items() if "{}.{}".format(*minor) in options.only}
        for _, python in sorted(found.items()):
            print(f"Python {python.version}, {python.path}", flush=True)
        if options.list:
            return 0
        passed = {python.version: python.environment().test(options.tests) for _, python in sorted(found.items())}
    except LocalError as error:
        print(f"pythons: {error}", file=sys.stderr)
        return 1
    for version, well in passed.items():
        print(f"Python {version}: {'passed' if well else 'FAILED'}")
    return 0 if passed and all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
