"""Debian's packages, RabbitMQ's above all, installed without letting them start anything of the system's."""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deploy.local.errors import LocalError

PACKAGE = "rabbitmq-server"

_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_TO_START = "#!/bin/sh\n# Temporary: nothing is to be started while a package is being installed.\nexit 101\n"
_SERVICES = ("rabbitmq-server.service", "epmd.service", "epmd.socket")


def can_install() -> bool:
    """Tell whether this is a Debian-like system and we are root."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def install(say: Callable[[str], None]) -> None:
    """Install Debian's rabbitmq-server, neither started now nor at the next boot.

    Args:
        say: takes a line about what is being done.

    Raises:
        LocalError: apt could not do it; the text holds apt's own last word.
    """
    say(f"RabbitMQ is not installed: installing Debian's package {PACKAGE} with apt-get (35 MB, about a minute)")
    with _uninterrupted():
        install_first([PACKAGE])
        if shutil.which("systemctl"):
            subprocess.run(["systemctl", "disable", *_SERVICES], capture_output=True, check=False)
    say("Installed; its system service stays off, since the node started here is a private one")


def install_first(packages: Sequence[str]) -> None:
    """Install the first of some packages that this release of Debian has, starting nothing. It says nothing itself.

    Args:
        packages: names, the best one first.

    Raises:
        LocalError: it has none of them, or apt could not do it; the text holds apt's own last word.
    """
    with _uninterrupted(), _alone():
        known = _first_known(packages)
        if known is None:
            _apt("update", "--quiet")
        package = known or _first_known(packages) or packages[0]
        with services_kept_down():
            try:
                _install(package)
            except LocalError:
                if known is None:
                    raise
                _apt("update", "--quiet")  # the lists that are there may name files that are gone from the mirror
                _install(package)


def download(package: str, directory: Path) -> Path:
    """Download a package without installing it. It says nothing itself.

    Args:
        package: its name.
        directory: where to.

    Returns:
        The package's file.

    Raises:
        LocalError: apt could not do it; the text holds apt's own last word.
    """
    with _uninterrupted(), _alone():
        try:
            _apt("download", package, directory=directory)
        except LocalError:
            _apt("update", "--quiet")  # no lists are there, or they name files that are gone from the mirror
            _apt("download", package, directory=directory)
    return next(directory.glob("*.deb"))


def _first_known(packages: Sequence[str]) -> str | None:
    for package in packages:
        if subprocess.run(["apt-cache", "show", package], capture_output=True, check=False).returncode == 0:
            return package
    return None


def _install(package: str) -> None:
    _apt("install", "--yes", "--quiet", "--no-install-recommends", package)


def _apt(*arguments: str, directory: Path | None = None) -> None:
    done = subprocess.run(
        ["apt-get", *arguments],
        cwd=directory,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode != 0:
        words = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise LocalError(f"`apt-get {arguments[0]}` failed: {words[-1] if words else 'it did not say why'}")


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Put Ctrl-C and SIGTERM off, for apt-get too, which inherits this: an interrupted dpkg wants mending by hand."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until nobody else here installs: apt would refuse, and the end of one would take the other's policy away."""
    descriptor = os.open(_POLICY.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def services_kept_down(policy: Path = _POLICY) -> Iterator[None]:
    """Have Debian's packages start nothing, by the file that Debian provides for it; one that is there stays.

    Args:
        policy: the file.
    """
    if policy.exists() and policy.read_text(errors="replace") != _REFUSE_TO_START:  # equal: an earlier run was killed
        yield
        return
    try:
        policy.write_text(_REFUSE_TO_START)
        policy.chmod(0o755)
        yield
    finally:
        policy.unlink(missing_ok=True)
