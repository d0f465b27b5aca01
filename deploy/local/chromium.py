"""A Chromium for the tests that render pages: the one that is there, or Debian's package installed.

`python -m deploy.local.chromium` does so; `make tests` calls it first. Nobody else needs one, and without one those
tests are skipped.
"""

import shutil
import sys
from collections.abc import Callable
from typing import Final

from deploy.local import debian
from deploy.local.errors import LocalError

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
"""What it is called, the best one first."""


def find() -> str | None:
    """The program's path; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def provide(say: Callable[[str], None]) -> str | None:
    """Find a Chromium, or install Debian's if we are root.

    Args:
        say: takes a line about the progress.

    Returns:
        The program's path; None where there is none, which was said then.
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
    """Provide one if possible; always 0, since the tests do without."""
    provide(lambda line: print(line, flush=True))
    return 0


if __name__ == "__main__":
    sys.exit(main())
