"""The PROXY protocol, versions 1 and 2: a header in front of a connection, with the client's address (2.1 and 2.2).

The bytes after the header belong to TLS or STOMP, so the reader must stop at its end: ``bytes_missing`` says how many
bytes are certainly still part of the header.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from gateway.errors import GatewayError
from gateway.server.client_address import address_of
from gateway.server.listen.accepted_connection import Peer

_LINE_BEGINS: Final = b"PROXY "
_LINE_ENDS: Final = b"\r\n"
_SHORTEST_LINE: Final = len(b"PROXY UNKNOWN\r\n")
_LONGEST_LINE: Final = 107
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_FIXED_PART: Final = 16
# Bytes after the fixed part. Addresses take 216 bytes at most, and proxies add TLVs of a few hundred.
_MAX_SIZE: Final = 4096

_TCP_LINE: Final = re.compile(rb"PROXY (TCP[46]) ([0-9A-Fa-f:.]+) ([0-9A-Fa-f:.]+) ([0-9]{1,5}) ([0-9]{1,5})\r\n")
_UNKNOWN_LINE: Final = re.compile(rb"PROXY UNKNOWN(?: [^\r\n]*)?\r\n")
_MAX_PORT: Final = 65535

_VERSION_2: Final = 2
_LOCAL, _PROXY = 0, 1
# Bytes of one IP address, and of both addresses with their ports, by family and transport.
_IP_SIZES: Final = {0x11: 4, 0x12: 4, 0x21: 16, 0x22: 16}
_ADDRESSES_SIZES: Final = {0x00: 0, 0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}


class ProxyHeaderError(GatewayError):
    """The bytes are not a PROXY header; the text says why."""


def bytes_missing(data: bytes | bytearray) -> int:
    """The number of bytes that can be read without reading beyond the header; 0 when it is complete.

    Raises:
        ProxyHeaderError: no header begins like this.
    """
    if _SIGNATURE.startswith(data[: len(_SIGNATURE)]):
        if len(data) < _FIXED_PART:
            # Before the first byte it may still be version 1, whose shortest header is shorter.
            return (_FIXED_PART if data else _SHORTEST_LINE) - len(data)
        return _FIXED_PART + _stated_size(data) - len(data)
    if not _LINE_BEGINS.startswith(data[: len(_LINE_BEGINS)]):
        raise ProxyHeaderError("the connection does not begin with a PROXY header")
    if len(data) < _SHORTEST_LINE:
        return _SHORTEST_LINE - len(data)
    if data.endswith(_LINE_ENDS):
        return 0
    if len(data) >= _LONGEST_LINE or b"\n" in data:
        raise ProxyHeaderError("the PROXY line does not end with CR LF")
    return 1


def parse_header(header: bytes) -> Peer | None:
    """Parse a complete header. Returns the client; None if the proxy itself connects, or does not know its client.

    Raises:
        ProxyHeaderError: the header is malformed.
    """
    return _parse_binary(header) if header.startswith(_SIGNATURE) else _parse_line(header)


def _parse_line(line: bytes) -> Peer | None:
    """Version 1: a line of text."""
    if _UNKNOWN_LINE.fullmatch(line):
        return None
    found = _TCP_LINE.fullmatch(line)
    if found is None:
        raise ProxyHeaderError("the PROXY line is malformed")
    family, source, destination, source_port, destination_port = (text.decode() for text in found.groups())
    address_type = IPv4Address if family == "TCP4" else IPv6Address
    try:
        peer = Peer(_text(address_type(source)), int(source_port))
        address_type(destination)
    except ValueError:
        raise ProxyHeaderError(f"the PROXY line has an address that is none of {family}") from None
    if max(peer.port, int(destination_port)) > _MAX_PORT:
        raise ProxyHeaderError("the PROXY line has a port above 65535")
    return peer


def _stated_size(data: bytes | bytearray) -> int:
    size = int.from_bytes(data[14:16], "big")
    if size > _MAX_SIZE:
        raise ProxyHeaderError(f"the PROXY header is longer than {_MAX_SIZE} bytes")
    return size


def _parse_binary(header: bytes) -> Peer | None:
    """Version 2."""
    if len(header) < _FIXED_PART or len(header) != _FIXED_PART + _stated_size(header):
        raise ProxyHeaderError("the PROXY header is shorter or longer than it says")
    version, command = divmod(header[12], 16)
    if version != _VERSION_2:
        raise ProxyHeaderError(f"the PROXY header has version {version}")
    if command == _LOCAL:
        # The rest must be ignored (section 2.2).
        return None
    family, addresses = header[13], header[_FIXED_PART:]
    if command != _PROXY or family not in _ADDRESSES_SIZES:
        raise ProxyHeaderError("the PROXY header has a command or an address family that does not exist")
    if len(addresses) < _ADDRESSES_SIZES[family]:
        raise ProxyHeaderError("the PROXY header is too short for its addresses")
    size = _IP_SIZES.get(family)
    if size is None:
        return None
    # Both addresses, then both ports; the TLVs that follow are ignored.
    port = int.from_bytes(addresses[2 * size : 2 * size + 2], "big")
    return Peer(_text(ip_address(addresses[:size])), port)


def _text(address: IPv4Address | IPv6Address) -> str:
    """An address as text; an IPv4-mapped one as IPv4."""
    return str(address_of(str(address)))
