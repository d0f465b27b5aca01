"""Chromium for the tests that render pages: an installed one, or Debian's package.

`python -m deploy.local.chromium` provides it; `make tests` calls it first. Only those tests need it, and they are
skipped without it.
"""

import shutil
import sys
from typing import Final

from deploy.local import debian
from deploy.local.optional import OptionalTool

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
"""Its possible names, the best first."""


def find() -> str | None:
    """The program's path; None where there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


TOOL: Final = OptionalTool(
    name="Chromium",
    packages="chromium",
    tests="tests that look at pages",
    doing="installing Debian's chromium with apt-get (110 MB to fetch)",
    find=find,
    fetch=lambda: debian.install_first(["chromium"]),
)


if __name__ == "__main__":
    sys.exit(TOOL.provide_here())
