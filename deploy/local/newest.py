"""The newest RabbitMQ that Debian's unstable has, in a folder of its own, beside the one that is installed.

With BROKER=newest in the environment, tests and benchmarks use it. debootstrap fills the folder with a minimal system,
once; `python -m deploy.local.newest` does only that. All of it needs root.

A node of it runs in a mount namespace, where the folder's /usr and /etc take the place of the machine's, except
/etc/hosts. All else is the machine's own: paths, ports and process ids mean the same inside and outside. Nobody else
sees these mounts, and they end with the node.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.child import Child
from deploy.local.datadir import locked
from deploy.local.errors import LocalError
from deploy.local.installation import Installation
from deploy.local.node import shown

DIRECTORY: Final = Path(__file__).parents[2] / "var" / "newest"

_NAMESPACE: Final = ("unshare", "--mount")
# The machine's name has to be found in /etc/hosts: RabbitMQ 4 looks it up for each connection, and waits for DNS if it
# is not there.
_ENTER: Final = (
    'touch "$0/etc/hosts" && mount --bind /etc/hosts "$0/etc/hosts" && '
    'mount --rbind "$0/etc" /etc && mount --bind "$0/usr" /usr && exec "$@"'
)


def provide(say: Callable[[str], None] = lambda _line: None, directory: Path = DIRECTORY) -> Installation:
    """Return the newest RabbitMQ, and make its folder if it is not there.

    Args:
        say: takes a line about the progress.
        directory: the folder.

    Raises:
        LocalError: it cannot be made or used here; the text says why.
    """
    _require_namespaces()
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            if not _tree(directory).is_dir():
                _make(directory, say)
    except OSError as error:
        raise LocalError(f"Cannot write in {directory}: {error.strerror}; check who owns it.") from error
    return _inside(_tree(directory))


def _tree(directory: Path) -> Path:
    return directory / "tree"


def _log(directory: Path) -> Path:
    return directory / "debootstrap.log"


def _require_namespaces() -> None:
    if os.geteuid() != 0:
        raise LocalError("The newest RabbitMQ needs root, who alone may mount: become root, or leave BROKER out.")
    try:
        done = subprocess.run([*_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LocalError("There is no program unshare here: install it (Debian: `apt install util-linux`).") from error
    if done.returncode != 0:
        raise LocalError(
            f"The newest RabbitMQ needs a mount namespace, and the system refuses one ({done.stderr.strip()}): "
            "in a container give it the capability SYS_ADMIN."
        )


def _make(directory: Path, say: Callable[[str], None]) -> None:
    if shutil.which("debootstrap") is None:
        if not debian.can_install():
            raise LocalError("There is no debootstrap here: install it, or use a system with apt-get.")
        say("Installing debootstrap with apt-get")
        debian.install_first(["debootstrap"])
    mirror = debian.mirror()
    unfinished, log = directory / "unfinished", _log(directory)
    shutil.rmtree(unfinished, ignore_errors=True)
    log.unlink(missing_ok=True)
    say(f"Making {shown(_tree(directory))} from Debian's unstable with debootstrap (150 MB to fetch, about a minute)")
    what = ["debootstrap", "--variant=minbase", f"--include={debian.PACKAGE}", "unstable", str(unfinished), mirror]
    # In a namespace, because debootstrap mounts /proc in the tree, where it would stay if it were killed.
    with Child([*_NAMESPACE, *what], env=os.environ | debian.proxies() | {"LC_ALL": "C"}, log=log) as running:
        status = running.wait()
    if status != 0:
        raise LocalError(f"debootstrap failed: {_reason(log)}; {shown(log)} has all that it said.")
    shutil.rmtree(unfinished / "var/cache/apt/archives", ignore_errors=True)
    unfinished.rename(_tree(directory))


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]
    return (errors or lines or ["it did not say why"])[-1]


def _inside(tree: Path) -> Installation:
    found = Installation.find(tree, path="")
    if found is None:
        raise LocalError(f"There is no RabbitMQ in {shown(tree)}: delete {shown(tree.parent)} to have it made anew.")
    return replace(
        found,
        scripts=Path("/", found.scripts.relative_to(tree)),
        epmd=Path("/", found.epmd.relative_to(tree)),
        through=(*_NAMESPACE, "sh", "-c", _ENTER, str(tree)),
    )


def main() -> int:
    """Make the folder, if it is not there, and say what it has.

    Returns:
        The exit code: 0, or 1 after a sentence on standard error.
    """
    try:
        version = provide(lambda line: print(line, flush=True)).version
        made = datetime.fromtimestamp(_log(DIRECTORY).stat().st_mtime, UTC).date()
    except LocalError as error:
        print(f"newest: {error}", file=sys.stderr)
        return 1
    where = shown(DIRECTORY)
    print(f"The newest RabbitMQ is {version}, in {where} since {made}; delete {where} to have it made anew", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
