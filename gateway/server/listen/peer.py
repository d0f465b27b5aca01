"""Who is at the other end of a client's connection."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from gateway.server.log_rate_limiter import LogRateLimiter


@dataclass(frozen=True, slots=True)
class Peer:
    """An address that a client comes from.

    ``host`` is an IP address as text, IPv6 without its brackets, or empty where there is none; ``port`` is from 0 to
    65535. ``is_proxy`` says that this is a proxy's address, since it did not say for whom it connects.
    """

    host: str
    port: int
    is_proxy: bool = False

    @classmethod
    def of(cls, transport: BaseTransport) -> Peer:
        """The other end of a connection, as the operating system knows it."""
        return cls.named(transport.get_extra_info("peername"))

    @classmethod
    def named(cls, name: object) -> Peer:
        """From the address of a socket, as Python's `getpeername` gives it: a tuple, or anything for none."""
        return cls(str(name[0]), int(name[1])) if isinstance(name, tuple) and name else cls("", 0)

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, over its loopback address; an IPv4 address may be written as an IPv6 one.

        Whoever is behind a proxy that names nobody may be anywhere.
        """
        if self.is_proxy:
            return False
        try:
            address = ip_address(self.host)
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return address.ipv4_mapped.is_loopback
        return address.is_loopback

    def __str__(self) -> str:
        if not self.host:
            return "unknown"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A connection that a listener has let in.

    ``peer`` is where it comes from, None to ask the connection itself; ``since`` is when it was accepted, in seconds on
    the event loop's clock; ``complaints`` bounds what the log says about strangers there; ``leave`` is called, once or
    more, when it is closed.
    """

    peer: Peer | None
    since: float
    complaints: LogRateLimiter
    leave: Callable[[], None] = lambda: None
