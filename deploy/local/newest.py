"""The newest RabbitMQ that Debian's unstable has, in a folder of its own, beside the one that is installed.

With BROKER=newest in the environment, tests and benchmarks use it. debootstrap fills the folder with a minimal system,
once; `python -m deploy.local.newest` does only that. All of it needs root.

A node of it runs in a mount namespace, where the folder's /usr and /etc take the place of the machine's, except
/etc/hosts. All else is the machine's own: paths, ports and process ids mean the same inside and outside. Nobody else
sees these mounts, and they end with the node.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from deploy.local import debian, debian_tree
from deploy.local.errors import LocalError
from deploy.local.installation import Installation
from deploy.local.node import shown

DIRECTORY: Final = Path(__file__).parents[2] / "var" / "newest"

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
    packages = (debian.PACKAGE,)
    return _inside(debian_tree.provide(directory, "unstable", packages, "The newest RabbitMQ (BROKER=newest)", say))


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


def main() -> int:
    """Make the folder, if it is not there, and say what it has.

    Returns:
        The exit code: 0, or 1 after a sentence on standard error.
    """
    try:
        version = provide(lambda line: print(line, flush=True)).version
        made = datetime.fromtimestamp(debian_tree.log_in(DIRECTORY).stat().st_mtime, UTC).date()
    except LocalError as error:
        print(f"newest: {error}", file=sys.stderr)
        return 1
    where = shown(DIRECTORY)
    print(f"The newest RabbitMQ is {version}, in {where} since {made}; delete {where} to have it made anew", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
