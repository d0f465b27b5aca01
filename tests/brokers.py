"""Parity, system, fault and cluster tests on each release of RabbitMQ that deploy.local has: ``make test-brokers``.

One release after the other. Those that are not installed are made in var (see deploy.local.releases), which needs root.
Further arguments are for pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from deploy.local import releases
from deploy.local.errors import LocalError

TESTS: Final = ("-m", "system", "tests/system", "tests/fault")

_REPOSITORY: Final = Path(__file__).parents[1]
_RESULTS: Final = _REPOSITORY / "var" / "brokers"


def run(name: str, arguments: Sequence[str]) -> tuple[str, bool]:
    """Run the tests on a release.

    Args:
        name: of the release.
        arguments: for pytest, beside the usual choice of tests.

    Returns:
        A line about it, and whether no test failed.

    Raises:
        LocalError: the release is not to be had here; the text says why.
    """
    version = releases.provide(name, lambda line: print(line, flush=True)).version
    print(f"== RabbitMQ {version}", flush=True)
    results = _RESULTS / f"{version}.xml"
    results.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", f"--junit-xml={results}", *TESTS, *arguments]
    code = subprocess.run(command, cwd=_REPOSITORY, env=os.environ | {"BROKER": name}, check=False).returncode
    return f"RabbitMQ {version}: {summary(results)}", code == 0


def summary(results: Path) -> str:
    """Sum up the results that pytest has written; not even pytest's own file is there if it could not begin."""
    if not results.exists():
        return "no test was run"
    suites = ElementTree.parse(results).getroot()  # noqa: S314 - pytest has just written it
    of = {
        name: sum(int(suite.get(name, "0")) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    }
    failed = of["failures"] + of["errors"]
    minutes = sum(float(suite.get("time", "0")) for suite in suites) / 60
    return f"{of['tests'] - failed - of['skipped']} passed, {failed} failed, {of['skipped']} skipped, {minutes:.0f} min"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests on each release.

    Returns:
        The exit code: 0 if all passed, else 1, also if a release is not to be had here.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.brokers", description=__doc__)
    parser.add_argument("--only", action="append", choices=releases.RELEASES, help="on this one alone; may be repeated")
    options, for_pytest = parser.parse_known_args(arguments)
    outcomes = []
    for name in options.only or releases.RELEASES:
        try:
            outcomes.append(run(name, for_pytest))
        except LocalError as error:
            outcomes.append((f"RabbitMQ {name}: {error}", False))
    print(*(line for line, _ in outcomes), sep="\n")
    return 0 if all(well for _, well in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
