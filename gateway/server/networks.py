"""Sets of networks."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from gateway.server.client_address import address_of


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
