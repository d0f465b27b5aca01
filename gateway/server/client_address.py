"""Client addresses: what counts as one address for limits, sets of networks, and the names of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Final

# A network operator's customer gets an IPv6 prefix of this many bits, and may use any address in it.
_PREFIX: Final = 64
_REMEMBERED_HOSTS: Final = 1024

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_HOSTS: Final = Path("/etc/hosts")

UNIX: Final = "unix:"
"""The prefix of a user's id, which replaces the IP address of a client on a Unix-domain socket."""


@lru_cache(_REMEMBERED_HOSTS)
def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address, without its zone. IPv4-mapped ones become IPv4. None if ``host`` is not an address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


# Cached, because several limits and counters ask about the same client.
@lru_cache(_REMEMBERED_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether an address is a loopback address, perhaps IPv4-mapped."""
    address = address_of(host)
    return address is not None and address.is_loopback


@lru_cache(_REMEMBERED_HOSTS)
def network_of(host: str) -> str:
    """What counts as one address: an IPv4 address, an IPv6 network of 64 bits, or a user of a Unix-domain socket."""
    address = address_of(host)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, _PREFIX), strict=False))
    return host if address is None else str(address)


class Networks:
    """A set of networks. Each lookup takes one step for each length of a prefix, for any number of networks."""

    def __init__(self, networks: Iterable[IPv4Network | IPv6Network]) -> None:
        # The first addresses of the networks as integers, by version and mask.
        self._first: dict[tuple[int, int], set[int]] = {}
        for network in networks:
            key = network.version, int(network.netmask)
            self._first.setdefault(key, set()).add(int(network.network_address))

    def __bool__(self) -> bool:
        return bool(self._first)

    def has(self, host: str) -> bool:
        """Whether an IP address is in one of the networks. False for any other text."""
        address = address_of(host)
        if address is None:
            return False
        number = int(address)
        return any(
            version == address.version and number & mask in first for (version, mask), first in self._first.items()
        )


def local_names(hosts: Path = _HOSTS) -> frozenset[str]:
    """The names of this machine and its loopback interface, found without asking a name server.

    They include the full names in the file ``hosts``.
    """
    name = socket.gethostname()
    short = name.partition(".")[0]
    own = {name, short, *_full_names(short, hosts)} if short else set()
    return frozenset((*_LOOPBACK, *own))


def _full_names(short: str, hosts: Path) -> Iterator[str]:
    """The names with a domain that the file ``hosts``, see hosts(5), has for the machine's short name."""
    try:
        text = hosts.read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        if short in line:
            _, *names = line.partition("#")[0].split() or [""]
            yield from (name for name in names if name.startswith(f"{short}."))
