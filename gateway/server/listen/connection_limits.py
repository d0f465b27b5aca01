"""How many connections a listener has: all, and by address those that have not logged in."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gateway.config.listener_settings import Listener
from gateway.server.client_address import network_of
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.log_limits import LogRateLimiter

OF_LISTENER = "listener"
"""Why a connection is refused: there are `max_connections`."""

OF_ADDRESS = "address"
"""Why a connection is refused: its address has `max_unauthenticated_per_address`."""

OF_HANDSHAKES = "handshakes"
"""Why a connection is ended: there are `max_handshakes`, most of them from its address."""


class TooManyConnectionsError(Exception):
    """A connection beyond a limit: ``whose`` is a text such as ``The address 192.0.2.1``."""

    def __init__(self, whose: str, most: int) -> None:
        super().__init__(f"{whose} has {most} connections")
        self.whose = whose
        self.most = most


class ConnectionLimits:
    """Counts the connections of one listener. ``refused`` counts those that it refuses, by the reason."""

    def __init__(self, address: str, log_limiter: LogRateLimiter, refused: Counter[str]) -> None:
        self._address = address
        self._log_limiter = log_limiter
        self._refused = refused
        # By connection, its address, which may be empty, while it counts for it: until it has logged in.
        self._connections: dict[object, str | None] = {}
        self._unauthenticated: dict[str, int] = {}

    @property
    def open(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def accept(self, settings: Listener, peer: Peer, now: float) -> AcceptedConnection:
        """Count a connection until it is closed; ``now`` is in seconds.

        Raises:
            TooManyConnectionsError: it is beyond `max_connections`.
        """
        most = settings.max_connections
        if most is not None and len(self._connections) >= most:
            self._refuse(OF_LISTENER, "The listener", most)
        connection = object()
        self._connections[connection] = None
        on_closed, on_login = partial(self._closed, connection), partial(self._logged_in, connection)
        return AcceptedConnection(peer, now, self._log_limiter, on_closed, on_login, connection)

    def admit(self, settings: Listener, accepted: AcceptedConnection) -> None:
        """Count a connection for its address until the client has logged in.

        Raises:
            TooManyConnectionsError: it is beyond `max_unauthenticated_per_address`.
        """
        most, address = settings.max_unauthenticated_per_address, network_of(accepted.peer.host)
        count = self._unauthenticated.get(address, 0)
        if most is not None and count >= most:
            self._refuse(OF_ADDRESS, f"The address {address}", most)
        self._connections[accepted.connection] = address
        self._unauthenticated[address] = count + 1

    def _refuse(self, reason: str, whose: str, most: int) -> None:
        self._refused[reason] += 1
        self._log_limiter.warning("too many connections", address=self._address, whose=whose, most=most)
        raise TooManyConnectionsError(whose, most)

    def _logged_in(self, connection: object) -> None:
        if connection in self._connections:
            self._leave(self._connections[connection])
            self._connections[connection] = None

    def _closed(self, connection: object) -> None:
        self._leave(self._connections.pop(connection, None))

    def _leave(self, address: str | None) -> None:
        if address is not None:
            left = self._unauthenticated.pop(address) - 1
            if left:
                self._unauthenticated[address] = left
