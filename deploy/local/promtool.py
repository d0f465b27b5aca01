"""promtool for the tests of alerts and dashboard: an installed one, or the one in Debian's package of Prometheus.

`python -m deploy.local.promtool` fetches it; `make tests` calls it first. The package is unpacked and not installed, so
no Prometheus starts. Only those tests need it, and they are skipped without it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.errors import LocalError
from deploy.local.optional import OptionalTool

FETCHED: Final = Path("var/tools/promtool")
"""The path of a fetched one."""

_PACKAGE: Final = "prometheus"


def find(fetched: Path = FETCHED) -> str | None:
    """The program's path; None where there is none.

    Args:
        fetched: where a fetched one is kept.
    """
    return shutil.which("promtool") or (str(fetched.resolve()) if fetched.is_file() else None)


def _fetch(fetched: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="promtool-") as name:
        package = debian.download(_PACKAGE, Path(name))
        unpacked = Path(name, "unpacked")
        done = subprocess.run(["dpkg", "-x", package, unpacked], capture_output=True, text=True, check=False)
        program = unpacked / "usr/bin/promtool"
        if done.returncode != 0 or not program.is_file():
            raise LocalError(f"Debian's package {package.name} holds no promtool: {done.stderr.strip()}".rstrip(": "))
        fetched.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(program, fetched)


def tool(fetched: Path = FETCHED) -> OptionalTool:
    """Describe it.

    Args:
        fetched: where to keep a fetched one.
    """
    return OptionalTool(
        name="promtool",
        packages=_PACKAGE,
        tests="tests of alerts and dashboard",
        doing="fetching it with apt-get (20 MB)",
        find=lambda: find(fetched),
        fetch=lambda: _fetch(fetched),
    )


if __name__ == "__main__":
    sys.exit(tool().provide_here())
