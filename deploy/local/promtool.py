"""promtool for the tests of alerts and dashboard: an installed one, or the one in Debian's package of Prometheus.

`python -m deploy.local.promtool` fetches it; `make tests` calls it first. The package is unpacked and not installed, so
no Prometheus starts. Only those tests need it, and they are skipped without it.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.errors import LocalError

FETCHED: Final = Path("var/tools/promtool")
"""The path of a fetched one."""

_PACKAGE: Final = "prometheus"


def find(fetched: Path = FETCHED) -> str | None:
    """The program's path; None where there is none.

    Args:
        fetched: where a fetched one is kept.
    """
    return shutil.which("promtool") or (str(fetched.resolve()) if fetched.is_file() else None)


def provide(say: Callable[[str], None], fetched: Path = FETCHED) -> str | None:
    """Find a promtool, or fetch Debian's if we are root.

    Args:
        say: takes a line about the progress.
        fetched: where to keep it.

    Returns:
        The program's path, or None if there is none, after `say` got the reason.
    """
    found = find(fetched)
    if found is not None:
        return found
    reason = f"install one (Debian: apt install {_PACKAGE}) to have them"
    if debian.can_install():
        say("Tests ask promtool about alerts and dashboard: fetching it with apt-get (20 MB)")
        try:
            _fetch(fetched)
            return find(fetched)
        except LocalError as error:
            reason = str(error)
    say(f"No promtool, so tests of alerts and dashboard are skipped: {reason}")
    return None


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


def main() -> int:
    """Provide one if possible. The exit code is always 0, since the tests can do without."""
    provide(lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
