"""Chromium for the tests that render pages: an installed one, or Debian's package.

`python -m deploy.local.chromium` provides it; `make tests` calls it first. Only those tests need it, and they are
skipped without it.
"""

import shutil
import sys
from collections.abc import Callable
from typing import Final

from deploy.local import debian
from deploy.local.errors import LocalError

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
"""Its possible names, the best first."""


def find() -> str | None:
    """The program's path; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def provide(say: Callable[[str], None]) -> str | None:
    """Find a Chromium, or install Debian's if we are root.

    Args:
        say: takes a line about the progress.

    Returns:
        The program's path, or None if there is none, after `say` got the reason.
    """
    found = find()
    if found is not None:
        return found
    reason = "install one (Debian: apt install chromium) to have them"
    if debian.can_install():
        say("Tests look at pages in a browser: installing Debian's chromium with apt-get (110 MB to fetch)")
        try:
            debian.install_first(("chromium",))
            return find()
        except LocalError as error:
            reason = str(error)
    say(f"No Chromium, so tests that look at pages are skipped: {reason}")
    return None


def main() -> int:
    """Provide one if possible. The exit code is always 0, since the tests can do without."""
    provide(lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
