"""What counts as one address when clients are counted or limited by where they come from."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

# A customer of a network gets an IPv6 prefix of this many bits, and may use any address in it.
_PREFIX: Final = 64
_REMEMBERED_HOSTS: Final = 1024


@lru_cache(_REMEMBERED_HOSTS)
def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine to itself, IPv4-mapped ones included."""
    try:
        address = ip_address(host)
    except ValueError:
        return False
    # Python 3.13 does this in IPv6Address.is_loopback.
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


# Several limits and counters ask for the same client.
@lru_cache(_REMEMBERED_HOSTS)
def network_of(host: str) -> str:
    """The unit that counts as one address: an IPv4 address, or an IPv6 network of 64 bits."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, _PREFIX), strict=False))
