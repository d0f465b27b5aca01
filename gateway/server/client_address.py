"""What counts as one address when clients are counted or limited by where they come from; and sets of networks.

And the names by which clients on this machine, or near it, call it: found without asking a name server.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final

# A customer of a network gets an IPv6 prefix of this many bits, and may use any address in it.
_PREFIX: Final = 64
_REMEMBERED_HOSTS: Final = 1024

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOSTS: Final = Path("/etc/hosts")

UNIX: Final = "unix:"
"""What stands before the user's id in place of an IP address where a client comes over a Unix-domain socket."""


@lru_cache(_REMEMBERED_HOSTS)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is, without a zone, IPv4-mapped ones as IPv4; None if it is none."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# Several limits and counters ask for the same client.
@lru_cache(_REMEMBERED_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine to itself, IPv4-mapped ones included."""
    address = address_of(host)
    return address is not None and address.is_loopback


@lru_cache(_REMEMBERED_HOSTS)
def network_of(host: str) -> str:
    """The unit that counts as one address: an IPv4 address, an IPv6 network of 64 bits, or a user of this machine."""
    address = address_of(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, _PREFIX), strict=False))
    return host if address is None else str(address)


class Networks:
    """Networks of a configuration. However many there are, an address is looked up once for each length of a prefix."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        # The first addresses, as numbers, by version and mask.
        self._first: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            key = network.version, int(network.netmask)
            self._first.setdefault(key, set()).add(int(network.network_address))

    def __bool__(self) -> bool:
        return bool(self._first)

    def has(self, host: str) -> bool:
        """Whether an IP address is in one of them; an unknown one is not."""
        address = address_of(host)
        if address is None:
            return False
        number = int(address)
        return any(
            version == address.version and number & mask in first for (version, mask), first in self._first.items()
        )


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
