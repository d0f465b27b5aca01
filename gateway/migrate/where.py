"""Addresses: where the plugins listen, and where their broker is seen from the gateway."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic_core import PydanticCustomError

from gateway.config import SocketAddress
from gateway.config.scalars import MAX_PORT
from gateway.migrate.remarks import Remarks
from gateway.migrate.settings import Given
from gateway.migrate.terms import Atom, Term, Tuple

EVERY_IPV4: Final = "0.0.0.0"  # noqa: S104 - what the plugin does
EVERY_IPV6: Final = "::"
_BOTH: Final = (EVERY_IPV4, EVERY_IPV6)
_IPV4_PARTS: Final = 4
_IPV6_PARTS: Final = 8
_FAMILIES: Final = ("inet", "inet6")


@dataclass(frozen=True)
class Spot:
    """An address to listen on, and the comment behind it."""

    address: SocketAddress
    comment: str


def spots_of(given: Given, remarks: Remarks) -> list[Spot]:
    """Where an entry of `tcp_listeners` or `ssl_listeners` listens: a port is one on every address."""
    value = given.value
    if isinstance(value, int):
        return _spots(_BOTH, value, given, remarks)
    if isinstance(value, Tuple) and len(value.items) in (2, 3):
        host, port = value.items[:2]
        name = "".join(host_text(host).split())
        if name and isinstance(port, int):
            family = value.items[2].name if len(value.items) > 2 and isinstance(value.items[2], Atom) else None  # noqa: PLR2004
            return _spots(_hosts(name, family, given, remarks), port, given, remarks)
    remarks.mistake(given, 'A port or {"ip", Port} belongs here.')
    return []


def _hosts(name: str, family: str | None, given: Given, remarks: Remarks) -> tuple[str, ...]:
    if name in ("auto", EVERY_IPV6) and family is None:
        return _BOTH
    if name == "auto":
        return (EVERY_IPV4,) if family == "inet" else (EVERY_IPV6,)
    if family in _FAMILIES and not _is_ip(name):
        remarks.note(given, "The gateway listens on every address of a name, IPv4 and IPv6.")
    return (name,)


def _is_ip(name: str) -> bool:
    return ":" in name or name.replace(".", "").isdigit()


def _spots(hosts: Iterable[str], port: int, given: Given, remarks: Remarks) -> list[Spot]:
    comment = str(given.origin)
    return [Spot(found, comment) for host in hosts if (found := checked(host, port, given, remarks)) is not None]


def checked(host: str, port: int, given: Given, remarks: Remarks) -> SocketAddress | None:
    """An address that the gateway can listen on; None for one that nobody can."""
    try:
        return SocketAddress.read(str(SocketAddress(host, port)))
    except PydanticCustomError as error:
        remarks.mistake(given, error.message())
        return None


def host_text(host: Term) -> str:
    """An IP address or a name as text, also if it is Erlang's tuple of numbers; empty for anything else."""
    if isinstance(host, str):
        return host.strip("[]")
    if isinstance(host, bytes):
        return host.decode("utf-8", "replace").strip("[]")
    if isinstance(host, Atom):
        return host.name if host.name == "auto" else ""
    if isinstance(host, Tuple):
        parts = [part for part in host.items if isinstance(part, int)]
        if len(parts) == len(host.items) == _IPV4_PARTS:
            return ".".join(map(str, parts))
        if len(parts) == len(host.items) == _IPV6_PARTS:
            return ":".join(f"{part:x}" for part in parts) if any(parts) else EVERY_IPV6
    return ""


def web_spots(
    parts: Mapping[str, Given], port: int, origin: Given | None, remarks: Remarks, default: str
) -> list[Spot]:
    """Where Web-STOMP listens: without an ip, on every IPv4 address."""
    ip = parts.get("ip")
    given = parts.get("port") or ip or origin
    hosts: tuple[str, ...] = (EVERY_IPV4,)
    if ip is not None:
        name = "".join(host_text(ip.value).split()) if isinstance(ip.value, (str, bytes, Tuple)) else ""
        if not name:
            remarks.mistake(ip, "An IP address belongs here.")
            return []
        hosts = _BOTH if name == EVERY_IPV6 else (name,)
    if given is None:
        return [Spot(SocketAddress(host, port), default) for host in hosts]
    return _spots(hosts, port, given, remarks)


def moved(spot: Spot, offset: int) -> Spot:
    """The same on another port. Port 0 stays, and a port beyond the last one is the caller's to refuse."""
    if not offset or not spot.address.port:
        return spot
    address = SocketAddress(spot.address.host, spot.address.port + offset)
    return Spot(address, f"{spot.comment}, port + {offset}" if offset > 0 else f"{spot.comment}, port - {-offset}")


def fits(spot: Spot) -> bool:
    """Whether its port is one."""
    return 0 <= spot.address.port <= MAX_PORT


def collides(one: SocketAddress, other: SocketAddress) -> bool:
    """Whether two cannot be listened on at once."""
    if one.port != other.port or not one.port:
        return False
    if one.host == other.host:
        return True
    return any(
        wide == (EVERY_IPV6 if ":" in narrow else EVERY_IPV4)
        for wide, narrow in ((one.host, other.host), (other.host, one.host))
    )
