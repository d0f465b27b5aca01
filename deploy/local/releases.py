"""The releases of RabbitMQ that Debian has, each in a folder of its own, beside the one that is installed.

With BROKER=4.0 in the environment, tests and benchmarks use that release; RELEASES has the names. debootstrap fills the
folder with a minimal system, once, which needs root.

A node of it runs in a mount namespace, where the folder's /usr and /etc take the place of the machine's, except
/etc/hosts. All else is the machine's own: paths, ports and process ids mean the same inside and outside. Nobody else
sees these mounts, and they end with the node.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from deploy.local import debian, debian_tree
from deploy.local.errors import LocalError
from deploy.local.installation import Installation
from deploy.local.node import shown

NEWEST: Final = "newest"
RELEASES: Final[Mapping[str, str]] = {"3.10": "bookworm", "4.0": "trixie", NEWEST: "unstable"}
"""What BROKER may be, and the release of Debian that has this RabbitMQ."""

_NAMES: Final = ", ".join(f"`{name}`" for name in RELEASES)
_VAR: Final = Path(__file__).parents[2] / "var"

# The machine's name has to be found in /etc/hosts: RabbitMQ 4 looks it up for each connection, and waits for DNS if it
# is not there.
_ENTER: Final = (
    'touch "$0/etc/hosts" && mount --bind /etc/hosts "$0/etc/hosts" && '
    'mount --rbind "$0/etc" /etc && mount --bind "$0/usr" /usr && exec "$@"'
)


def wanted(environ: Mapping[str, str]) -> str | None:
    """Return the release that BROKER names; None if it names none.

    Raises:
        LocalError: there is no such release.
    """
    name = environ.get("BROKER") or None
    if name is not None and name not in RELEASES:
        raise LocalError(f"BROKER is {name!r}, and may only be one of {_NAMES}: correct it, or unset it.")
    return name


def directory(name: str) -> Path:
    """The folder of a release."""
    return _VAR / name


def provide(name: str, say: Callable[[str], None] = lambda _line: None, where: Path | None = None) -> Installation:
    """Return a release of RabbitMQ, and make its folder if it is not there. An installed one of that release is taken.

    Args:
        name: one of RELEASES.
        say: takes a line about the progress.
        where: the folder; by default that of `directory`.

    Raises:
        LocalError: it cannot be made or used here; the text says why.
    """
    installed = Installation.find()
    if installed is not None and installed.version.startswith(f"{name}."):
        return installed
    purpose = f"RabbitMQ of Debian's {RELEASES[name]} (BROKER={name})"
    return _inside(debian_tree.provide(where or directory(name), RELEASES[name], (debian.PACKAGE,), purpose, say))


def _inside(tree: Path) -> Installation:
    found = Installation.find(tree, path="")
    if found is None:
        raise LocalError(f"There is no RabbitMQ in {shown(tree)}: delete {shown(tree.parent)} to have it made anew.")
    return replace(
        found,
        scripts=Path("/", found.scripts.relative_to(tree)),
        epmd=Path("/", found.epmd.relative_to(tree)),
        through=(*debian_tree.NAMESPACE, "sh", "-c", _ENTER, str(tree)),
    )
