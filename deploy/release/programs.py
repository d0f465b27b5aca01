"""Other programs, and where they work."""

import os
import subprocess
from pathlib import Path
from typing import Final

from deploy.local.errors import LocalError

ROOT: Final = Path(__file__).parents[2]


def run(*command: str | Path) -> str:
    """What a program prints. pip, in whichever program it is, installs the versions of constraints.txt.

    Raises:
        LocalError: it is missing, or failed; the text has what it said at last.
    """
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    environment |= {"PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
    except FileNotFoundError as error:
        raise LocalError(f"There is no program {command[0]} here: a release is made on Debian.") from error
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise LocalError(f"`{' '.join(map(str, command))}` failed:\n" + "\n".join(said[-20:]))
    return done.stdout
