"""The PROXY protocol, versions 1 and 2: a header in front of a connection that says where it really comes from.

The header is read byte for byte, since what follows belongs to TLS or to STOMP: ``octets_missing`` says how many
bytes surely belong to the header and are still to come, ``claimed_peer`` reads the complete one. Both are functions
of bytes alone. (The PROXY protocol, 2010-2020, sections 2.1 and 2.2.)
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from gateway.errors import GatewayError
from gateway.server.listen.peer import Peer

_LINE_BEGINS: Final = b"PROXY "
_LINE_ENDS: Final = b"\r\n"
_SHORTEST_LINE: Final = len(b"PROXY UNKNOWN\r\n")
_LONGEST_LINE: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_PART: Final = 16
# Of what follows the fixed part. Addresses take 216 at most, and the remarks that proxies add a few hundred.
_MOST_OCTETS: Final = 4096

_TCP_LINE: Final = re.compile(rb"PROXY (TCP[46]) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+) ([0-9]{1,5}) ([0-9]{1,5})\r\n")
_UNKNOWN_LINE: Final = re.compile(rb"PROXY UNKNOWN(?: [^\r\n]*)?\r\n")
_MAX_PORT: Final = 65535

_VERSION_2: Final = 2
_LOCAL, _PROXY = 0, 1
# Bytes of one IP address and of both addresses with their ports, by what stands for family and transport.
_INET: Final = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}
_BOTH_OCTETS: Final = {0x00: 0, 0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}


class ProxyHeaderError(GatewayError):
    """Bytes that are no PROXY header; the text says what is wrong with them."""


def octets_missing(octets: bytes | bytearray) -> int:
    """How many more bytes may be read without reading beyond the header; 0 when it is complete.

    Args:
        octets: what has been read so far.

    Raises:
        ProxyHeaderError: they do not begin a header, whatever follows.
    """
    if _SIGNATURE.startswith(octets[: len(_SIGNATURE)]):
        if len(octets) < _FIXED_PART:
            # Version 1 is the other choice as long as nothing has been read, and its shortest header is shorter.
            return (_FIXED_PART if octets else _SHORTEST_LINE) - len(octets)
        return _FIXED_PART + _stated_length(octets) - len(octets)
    if not _LINE_BEGINS.startswith(octets[: len(_LINE_BEGINS)]):
        raise ProxyHeaderError("the connection does not begin with a PROXY header")
    if len(octets) < _SHORTEST_LINE:
        return _SHORTEST_LINE - len(octets)
    if octets.endswith(_LINE_ENDS):
        return 0
    if len(octets) >= _LONGEST_LINE or b"\n" in octets:
        raise ProxyHeaderError("the PROXY line does not end with CR LF")
    return 1


def claimed_peer(header: bytes) -> Peer | None:
    """Read a complete header.

    Args:
        header: from its first byte to its last one.

    Returns:
        Where the connection comes from; None when the header leaves that to the connection itself, since the proxy
        speaks for itself or does not know.

    Raises:
        ProxyHeaderError: it is malformed.
    """
    return _from_binary(header) if header.startswith(_SIGNATURE) else _from_line(header)


# Version 1: a line of text.


def _from_line(line: bytes) -> Peer | None:
    if _UNKNOWN_LINE.fullmatch(line):
        return None
    found = _TCP_LINE.fullmatch(line)
    if found is None:
        raise ProxyHeaderError("the PROXY line is malformed")
    family, source, destination, source_port, destination_port = (text.decode() for text in found.groups())
    read = IPv4Address if family == "TCP4" else IPv6Address
    try:
        peer = Peer(_text(read(source)), int(source_port))
        read(destination)
    except ValueError:
        raise ProxyHeaderError(f"the PROXY line has an address that is none of {family}") from None
    if max(peer.port, int(destination_port)) > _MAX_PORT:
        raise ProxyHeaderError("the PROXY line has a port above 65535")
    return peer


# Version 2: binary.


def _stated_length(octets: bytes | bytearray) -> int:
    length = int.from_bytes(octets[14:16], "big")
    if length > _MOST_OCTETS:
        raise ProxyHeaderError(f"the PROXY header is longer than {_MOST_OCTETS} octets")
    return length


def _from_binary(header: bytes) -> Peer | None:
    if len(header) < _FIXED_PART or len(header) != _FIXED_PART + _stated_length(header):
        raise ProxyHeaderError("the PROXY header is shorter or longer than it says")
    version, command = divmod(header[12], 16)
    if version != _VERSION_2:
        raise ProxyHeaderError(f"the PROXY header has version {version}")
    if command == _LOCAL:
        # The rest means nothing then (section 2.2).
        return None
    family, addresses = header[13], header[_FIXED_PART:]
    if command != _PROXY or family not in _BOTH_OCTETS:
        raise ProxyHeaderError("the PROXY header has a command or an address family that does not exist")
    if len(addresses) < _BOTH_OCTETS[family]:
        raise ProxyHeaderError("the PROXY header is too short for its addresses")
    size = _INET.get(family)
    if size is None:
        return None
    # Both addresses, then both ports; the proxy's further remarks follow and are passed over.
    port = int.from_bytes(addresses[2 * size : 2 * size + 2], "big")
    return Peer(_text(ip_address(addresses[:size])), port)


def _text(address: IPv4Address | IPv6Address) -> str:
    """An IPv4 address is shown as such, even where the proxy writes it as an IPv6 one."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
