"""Networks as configuration files write them: an IP address, or the first one of a network and its prefix length."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from gateway.config.scalars import VARIABLE_PATTERN, mistake

_PATTERN: Final = r"^[0-9A-Fa-f.:]+(/[0-9]{1,3})?$"
_OF_MAPPED: Final = 96


def _network(value: object) -> IPv4Network | IPv6Network:
    if isinstance(value, (IPv4Network, IPv6Network)):
        return value
    try:
        if not isinstance(value, str) or not re.fullmatch(_PATTERN, value):
            raise ValueError
        address, network = ip_address(value.partition("/")[0]), ip_network(value, strict=False)
    except ValueError:
        sentence = "A network is an IP address, with a slash and the length of its prefix behind it."
        advice = "For example 10.0.0.0/8, '2001:db8::/32', or 192.0.2.7 alone. Names of hosts do not fit here."
        raise mistake(sentence, advice) from None
    if address != network.network_address:
        advice = "The network that 10.1.2.3 is in is written 10.0.0.0/8, and that address alone 10.1.2.3."
        raise mistake("This address has bits that are set behind the prefix.", advice)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    if mapped is None or network.prefixlen < _OF_MAPPED:
        return network
    return IPv4Network((mapped, network.prefixlen - _OF_MAPPED))


Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_network, json_schema_input_type=Annotated[str, Field(pattern=f"{_PATTERN}|{VARIABLE_PATTERN}")]),
]
"""An IPv4-mapped IPv6 network is the IPv4 one."""
