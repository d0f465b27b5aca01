"""A connection that a listener has accepted, and its peer."""

from __future__ import annotations

import socket
import struct
from asyncio import BaseTransport
from asyncio.trsock import TransportSocket
from dataclasses import dataclass
from typing import Final

from gateway.server.client_address import UNIX, is_loopback
from gateway.server.log_limits import LogRateLimiter

TLS_HINT: Final = "give this listener a tls section, or let the client connect without TLS"

HTTP_HINT: Final = "browsers need a websocket listener; the status page is on the port of the admin listener"

# SO_PEERCRED of unix(7): the ids of the process at the other end, of its user and of its group.
_CREDENTIALS: Final = struct.Struct("iII")


@dataclass(frozen=True, slots=True)
class Peer:
    """A client's address.

    ``host``: an IP address, IPv6 without brackets; ``unix:uid=1000`` for a client on a Unix-domain socket; empty if
    unknown. ``is_proxy``: this is the address of a proxy that did not name its client. ``process``: shown in place of
    an address for a client on a Unix-domain socket.
    """

    host: str
    port: int
    is_proxy: bool = False
    process: str = ""

    @classmethod
    def of(cls, transport: BaseTransport) -> Peer:
        """The other end of a connection."""
        return cls.of_socket(transport.get_extra_info("socket"), transport.get_extra_info("peername"))

    @classmethod
    def of_socket(cls, connection: socket.socket | TransportSocket | None, name: object) -> Peer:
        """The other end of a socket; ``name`` is the result of `getpeername`."""
        if connection is None or connection.family != socket.AF_UNIX:
            return cls.named(name)
        if not hasattr(socket, "SO_PEERCRED"):
            return cls(UNIX, 0, process=UNIX)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, gid = _CREDENTIALS.unpack(credentials)
        return cls(f"{UNIX}uid={uid}", 0, process=f"{UNIX}pid={pid},uid={uid},gid={gid}")

    @classmethod
    def named(cls, name: object) -> Peer:
        """From the result of `getpeername`: a tuple, or anything else without an address."""
        return cls(str(name[0]), int(name[1])) if isinstance(name, tuple) and name else cls("", 0)

    @property
    def is_local(self) -> bool:
        """Whether the client is on this machine: a process of it, or a loopback address, perhaps IPv4-mapped."""
        # The client behind a proxy may be anywhere.
        return not self.is_proxy and (bool(self.process) or is_loopback(self.host))

    def __str__(self) -> str:
        if self.process:
            return self.process
        if not self.host:
            return "unknown"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(slots=True, eq=False)
class AcceptedConnection:
    """A connection that a listener has accepted, here without limits, so that its methods do nothing.

    ``peer``: until the PROXY header has come, the proxy. ``accepted_at``: in seconds on the event loop's clock.
    ``log_limiter``: the listener's.
    """

    peer: Peer
    accepted_at: float
    log_limiter: LogRateLimiter

    def on_login(self, dedicated: bool) -> None:
        """Note that the client has logged in. ``dedicated``: it has links of its own."""

    def on_closed(self) -> None:
        """Note that the connection is closed."""
