"""Debian's packages, above all RabbitMQ's, installed without starting their services."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from deploy.local.datadir import locked
from deploy.local.errors import LocalError

PACKAGE = "rabbitmq-server"

_POLICY = Path("/usr/sbin/policy-rc.d")
_REFUSE_TO_START = "#!/bin/sh\n# Temporary: nothing is to be started while a package is being installed.\nexit 101\n"
_SERVICES = ("rabbitmq-server.service", "epmd.service", "epmd.socket")


def can_install() -> bool:
    """Whether this is a Debian-like system and we are root."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def install(say: Callable[[str], None]) -> None:
    """Install Debian's rabbitmq-server, neither started now nor at the next boot.

    Args:
        say: takes a line about what is being done.

    Raises:
        LocalError: apt failed; the text has the last line of its output.
    """
    say(f"RabbitMQ is not installed: installing Debian's package {PACKAGE} with apt-get (35 MB, about a minute)")
    with _uninterrupted():
        install_first([PACKAGE])
        switch_off(_SERVICES)
    say("Installed; its system service stays off, since the node started here is a private one")


def install_first(packages: Sequence[str]) -> None:
    """Install the first of some packages that this release of Debian has, starting nothing. It prints nothing itself.

    Args:
        packages: names, the best one first.

    Raises:
        LocalError: it has none of them, or apt failed; the text has the last line of its output.
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
                _apt("update", "--quiet")  # the lists may name files that are no longer on the mirror
                _install(package)


def switch_off(services: Sequence[str]) -> None:
    """Keep the services of packages from starting at the next boot.

    Args:
        services: names of systemd's units.
    """
    if shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", *services], capture_output=True, check=False)


def download(package: str, directory: Path) -> Path:
    """Download a package without installing it. It prints nothing itself.

    Args:
        package: its name.
        directory: for the file.

    Returns:
        The package's file.

    Raises:
        LocalError: apt failed; the text has the last line of its output.
    """
    with _uninterrupted(), _alone():
        try:
            _apt("download", package, directory=directory)
        except LocalError:
            _apt("update", "--quiet")  # there are no lists, or they name files that are no longer on the mirror
            _apt("download", package, directory=directory)
    return next(directory.glob("*.deb"))


def mirror() -> str:
    """Return the address of the Debian archive that apt uses on this machine.

    Raises:
        LocalError: apt uses none, or its lists cannot be fetched.
    """
    with _uninterrupted(), _alone():
        if not (archives := _archives()):
            _apt("update", "--quiet")
            archives = _archives()
    if not archives:
        raise LocalError("apt uses no archive of Debian here: name one in /etc/apt/sources.list.d.")
    return archives[0]


def proxies() -> dict[str, str]:
    """Return apt's proxies, if it has some, as the environment variables that other programs know."""
    variables = ("http_proxy", "Acquire::http::Proxy", "https_proxy", "Acquire::https::Proxy")
    done = subprocess.run(["apt-config", "shell", *variables], capture_output=True, text=True, check=False)
    found = dict(word.split("=", 1) for word in shlex.split(done.stdout))
    return {name: value for name, value in found.items() if value not in {"", "DIRECT"}}


def _archives() -> list[str]:
    # Label: not those with security fixes only, which have no unstable.
    which = ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *which]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


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
    """Block Ctrl-C and SIGTERM, also in apt-get, which inherits this: an interrupted dpkg must be repaired by hand."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Wait until no other process installs: apt would refuse, and the first to end would remove the other's policy."""
    with locked(_POLICY.parent):
        yield


@contextlib.contextmanager
def services_kept_down(policy: Path = _POLICY) -> Iterator[None]:
    """Keep Debian's packages from starting services, by policy-rc.d. An existing file stays.

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
