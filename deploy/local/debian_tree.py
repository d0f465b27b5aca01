"""A minimal Debian in a folder of its own, made once, with debootstrap. All of it needs root."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deploy.local import debian
from deploy.local.child import Child
from deploy.local.datadir import locked
from deploy.local.errors import LocalError
from deploy.local.node import shown

NAMESPACE: Final = ("unshare", "--mount")
"""Runs a program with mounts of its own."""

_WITHIN: Final = 'mount --bind "$0/usr" /usr && exec "$@"'

# Valid-Until: a mirror may be weeks behind; that the files are Debian's is still checked.
_ADD: Final = """
set -e
apt="apt-get --quiet --yes -o Acquire::Check-Valid-Until=false"
$apt update
$apt install --no-install-recommends "$@"
rm -rf /var/cache/apt/archives
"""


def provide(
    directory: Path, suite: str, packages: Sequence[str], purpose: str, say: Callable[[str], None] = lambda _line: None
) -> Path:
    """Return the folder with the system, and make it if it is not there.

    Args:
        directory: for that folder, and the log of its making.
        suite: Debian's release, such as bookworm.
        packages: what it has beside what every system has.
        purpose: what needs the system; error messages name it.
        say: takes a line about the progress.

    Raises:
        LocalError: it cannot be made or used here; the text says why.
    """
    _require_namespaces(purpose)
    directory = directory.absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with locked(directory):
            if not _tree(directory).is_dir():
                _make(directory, suite, packages, say)
    except OSError as error:
        raise LocalError(f"Cannot write in {directory}: {error.strerror}; check who owns it.") from error
    return _tree(directory)


def add(directory: Path, packages: Sequence[str]) -> None:
    """Install further packages in the system, which is there.

    Args:
        directory: as for `provide`.
        packages: names, or apt's patterns, which may match none.

    Raises:
        LocalError: apt failed; the text has the last line of its output.
    """
    directory = directory.absolute()
    log = log_in(directory)
    what = [*NAMESPACE, "chroot", str(_tree(directory)), "sh", "-c", _ADD, "sh", *packages]
    env = os.environ | debian.proxies() | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    with locked(directory), Child(what, env=env, log=log) as running:
        if running.wait() != 0:
            raise LocalError(f"apt-get failed: {_reason(log)}; {shown(log)} has all that it said.")


def within(directory: Path) -> tuple[str, ...]:
    """Return a command that runs another with the system's programs and libraries in place of the machine's.

    All but /usr is the machine's, the network's settings and /etc/pip.conf among them.

    Args:
        directory: as for `provide`.
    """
    return (*NAMESPACE, "sh", "-c", _WITHIN, str(_tree(directory.absolute())))


def programs(directory: Path, pattern: str) -> list[Path]:
    """The system's programs whose names match, with their paths as they are `within` it.

    Args:
        directory: as for `provide`.
        pattern: of names in /usr/bin, as in a shell.
    """
    return sorted(Path("/usr/bin") / found.name for found in (_tree(directory) / "usr/bin").glob(pattern))


def log_in(directory: Path) -> Path:
    """All that debootstrap said."""
    return directory / "debootstrap.log"


def _tree(directory: Path) -> Path:
    return directory / "tree"


def _require_namespaces(purpose: str) -> None:
    if os.geteuid() != 0:
        raise LocalError(f"{purpose} needs root, who alone may mount: become root.")
    try:
        done = subprocess.run([*NAMESPACE, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise LocalError("There is no program unshare here: install it (Debian: `apt install util-linux`).") from error
    if done.returncode != 0:
        raise LocalError(
            f"{purpose} needs a mount namespace, and the system refuses one ({done.stderr.strip()}): "
            "in a container give it the capability SYS_ADMIN."
        )


def _make(directory: Path, suite: str, packages: Sequence[str], say: Callable[[str], None]) -> None:
    if shutil.which("debootstrap") is None:
        if not debian.can_install():
            raise LocalError("There is no debootstrap here: install it, or use a system with apt-get.")
        say("Installing debootstrap with apt-get")
        debian.install_first(["debootstrap"])
    mirror = debian.mirror()
    unfinished, log = directory / "unfinished", log_in(directory)
    shutil.rmtree(unfinished, ignore_errors=True)
    log.unlink(missing_ok=True)
    say(
        f"Making {shown(_tree(directory))} of Debian's {suite} with debootstrap (up to 150 MB to fetch, about a minute)"
    )
    what = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", suite, str(unfinished), mirror]
    # In a namespace, because debootstrap mounts /proc in the tree, where it would stay if it were killed.
    with Child([*NAMESPACE, *what], env=os.environ | debian.proxies() | {"LC_ALL": "C"}, log=log) as running:
        status = running.wait()
    if status != 0:
        raise LocalError(f"debootstrap failed: {_reason(log)}; {shown(log)} has all that it said.")
    shutil.rmtree(unfinished / "var/cache/apt/archives", ignore_errors=True)
    unfinished.rename(_tree(directory))


def _reason(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line.removeprefix("E: ") for line in lines if line.startswith("E: ")]
    return (errors or lines or ["it did not say why"])[-1]
