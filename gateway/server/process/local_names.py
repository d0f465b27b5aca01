"""The names by which clients on this machine, or near it, call it: found without asking a name server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOSTS: Final = Path("/etc/hosts")


def local_names(hosts: Path = _HOSTS) -> frozenset[str]:
    """Names of the loopback interface, and the machine's own: short, and as full as it or ``hosts`` has it."""
    name = socket.gethostname()
    short = name.partition(".")[0]
    own = {name, short, *_full_names(short, hosts)} if short else set()
    return frozenset((*_LOOPBACK, *own))


def _full_names(short: str, hosts: Path) -> Iterator[str]:
    """The names with a domain that the file (hosts(5)) gives to the machine."""
    try:
        text = hosts.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if short in line:
            _, *names = line.partition("#")[0].split() or [""]
            yield from (name for name in names if name.startswith(f"{short}."))
