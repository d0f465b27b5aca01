"""A connection that a listener has accepted, and its peer."""

from __future__ import annotations

from asyncio import BaseTransport
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.server.client_address import is_loopback
from gateway.server.log_limits import LogRateLimiter

TLS_HINT: Final = "give this listener a tls section, or let the client connect without TLS"


@dataclass(frozen=True, slots=True)
class Peer:
    """A client's address.

    ``host`` is an IP address as text, IPv6 without brackets, or empty if it is unknown. ``is_proxy``: this is the
    address of a proxy that did not name its client.
    """

    host: str
    port: int
    is_proxy: bool = False

    @classmethod
    def of(cls, transport: BaseTransport) -> Peer:
        """The other end of a connection."""
        return cls.named(transport.get_extra_info("peername"))

    @classmethod
    def named(cls, name: object) -> Peer:
        """From the result of `getpeername`: a tuple, or anything else if there is no address."""
        return cls(str(name[0]), int(name[1])) if isinstance(name, tuple) and name else cls("", 0)

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine: a loopback address, IPv4-mapped ones included."""
        # The client behind a proxy may be anywhere.
        return not self.is_proxy and is_loopback(self.host)

    def __str__(self) -> str:
        if not self.host:
            return "unknown"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """A connection that a listener has accepted.

    ``accepted_at`` is in seconds on the event loop's clock. ``log_limiter`` is the listener's. ``on_closed`` must be
    called when the connection is closed, ``on_login`` when the client has logged in; both may be called again.
    ``connection`` stands for it in the listener's counts.
    """

    peer: Peer
    accepted_at: float
    log_limiter: LogRateLimiter
    on_closed: Callable[[], None] = lambda: None
    on_login: Callable[[], None] = lambda: None
    connection: object = None
