"""The first step of `make clients`: install the client libraries that pip does not, where that is possible.

Debian's packages need root and apt-get; what npm installs goes into var/. A library that cannot be installed is
named, and its tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from deploy.local import debian
from tests.clients.library import LIBRARIES, NODE, NODE_MODULES, PERL, RUBY, STOMP_PY, STOMPMAN, Library

_MANIFEST: Final = Path(__file__).parent / "node" / "package.json"

_PACKAGES: Final = {
    RUBY.name: ("ruby", "ruby-stomp"),
    PERL.name: ("perl", "libnet-stomp-perl"),
    NODE.name: ("nodejs", "npm"),
}


def main() -> None:
    """Install what is missing, and say what there is."""
    for library in LIBRARIES:
        if library.missing() is not None:
            _install(library)
        print(f"  {library.name}: {library.missing() or _version(library)}", flush=True)


def _install(library: Library) -> None:
    if library in (STOMP_PY, STOMPMAN):
        return
    if library is not NODE or shutil.which("npm") is None:
        _install_with_apt(*_PACKAGES[library.name])
    if library is NODE and shutil.which("npm") is not None:
        _install_with_npm()


def _install_with_apt(*packages: str) -> None:
    if not debian.can_install():
        print(f"  cannot install {' '.join(packages)}: that needs root and apt-get")
        return
    print(f"  installing Debian's {' '.join(packages)} with apt-get", flush=True)
    install = ("install", "--yes", "--no-install-recommends", *packages)
    if not _ran("apt-get", "--quiet", *install):
        # The lists may be missing, or older than the mirror.
        _ran("apt-get", "--quiet", "update")
        _ran("apt-get", "--quiet", *install)


def _install_with_npm() -> None:
    directory = NODE_MODULES.parent
    print(f"  installing the packages of {_MANIFEST.name} with npm", flush=True)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(_MANIFEST, directory)
    # A lock file would name the registry that this machine happens to use; the versions are exact without one.
    _ran("npm", "install", "--prefix", str(directory), "--no-package-lock", "--no-audit", "--no-fund", "--silent")


def _ran(*command: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        print(f"  `{command[0]}` failed: {done.stderr.strip()}")
    return done.returncode == 0


def _version(library: Library) -> str:
    command = [*library.command(), "version"]
    return subprocess.run(
        command, env=library.environment(), capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


if __name__ == "__main__":
    main()
