"""How many connections a listener has: all, by address all, and by address those that have not logged in."""

from __future__ import annotations

from collections import Counter

from gateway.config.listener_settings import Listener
from gateway.server.client_address import network_of
from gateway.server.counts import Counts, Key, LocalCounts
from gateway.server.descriptors import Descriptors
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.log_limits import LogRateLimiter

OF_LISTENER = "listener"
"""Why a connection is refused: there are `max_connections`."""

OF_DESCRIPTORS = "descriptors"
"""Why a connection is refused: the process keeps its last file descriptors for links, journal and admin listener."""

OF_ADDRESS = "address"
"""Why a connection is refused: its address has `max_connections_per_address` or `max_unauthenticated_per_address`."""

OF_NETWORK = "network"
"""Why a connection is refused: by the listener's lists of networks."""

LOCKED_OUT = "locked-out"
"""Why a connection is refused: too many logins from its address have failed."""

OF_HANDSHAKES = "handshakes"
"""Why a connection is ended: there are `max_handshakes`, most of them from its address."""


class TooManyConnectionsError(Exception):
    """A connection beyond a limit: ``whose`` is a text such as ``The address 192.0.2.1``."""

    def __init__(self, whose: str, most: int) -> None:
        super().__init__(f"{whose} has {most} connections")
        self.whose = whose
        self.most = most


class ConnectionLimits:
    """Counts the connections of one listener. ``refused`` counts those that it refuses, by the reason.

    ``counts`` are those of all workers, if there are several. For all of them the listener is at ``place``.
    """

    def __init__(
        self,
        address: str,
        log_limiter: LogRateLimiter,
        refused: Counter[str],
        counts: Counts | None = None,
    ) -> None:
        self._address = address
        # Those of this process; None if they are not counted.
        self.descriptors: Descriptors | None = None
        self._log_limiter = log_limiter
        self._refused = refused
        # By connection, what it counts for until it is closed: its listener, and its address if that has a limit.
        self._connections: dict[object, list[Key]] = {}
        # What it counts for until it has logged in, once it is admitted.
        self._not_logged_in: dict[object, Key | None] = {}
        # Those with links of their own.
        self._dedicated: set[object] = set()
        self._counts: Counts = LocalCounts() if counts is None else counts
        self.place = ""

    @property
    def open(self) -> int:
        """Connections of this process that are open."""
        return len(self._connections)

    def accept(self, settings: Listener, peer: Peer, now: float) -> AcceptedConnection:
        """Count a connection until it is closed; ``now`` is in seconds.

        Raises:
            TooManyConnectionsError: it is beyond `max_connections`, or what file descriptors there are for clients.
        """
        counted = _Counted(self)
        key = self._enter("", settings.max_connections, OF_LISTENER, "The listener")
        if self.descriptors is not None and not self.descriptors.client_came(self._address):
            self._counts.remove(key)
            self._refused[OF_DESCRIPTORS] += 1
            raise TooManyConnectionsError("The gateway", self.descriptors.clients)
        self._connections[counted] = [key]
        self._not_logged_in[counted] = None
        return AcceptedConnection(peer, now, self._log_limiter, counted.closed, counted.logged_in, counted)

    def admit(self, settings: Listener, accepted: AcceptedConnection) -> None:
        """Count a connection for its address, and once more until the client has logged in.

        Raises:
            TooManyConnectionsError: it is beyond `max_connections_per_address` or `max_unauthenticated_per_address`.
        """
        address, connection = network_of(accepted.peer.host), accepted.connection
        whose = f"The address {address}"
        most = settings.max_connections_per_address
        if most is not None:
            self._connections[connection].append(self._enter(f"all of {address}", most, OF_ADDRESS, whose))
        most = settings.max_unauthenticated_per_address
        self._not_logged_in[connection] = self._enter(f"of {address}", most, OF_ADDRESS, whose)

    def _enter(self, which: str, most: int | None, reason: str, whose: str) -> Key:
        """Count a connection, of all or of an address, if there are less than so many; what it counts for."""
        key = self.place, which
        with self._counts.lock:
            if most is None or self._counts.total(key) < most:
                self._counts.add(key)
                return key
        self._refused[reason] += 1
        self._log_limiter.warning("too many connections", address=self._address, whose=whose, most=most)
        raise TooManyConnectionsError(whose, most)

    def logged_in(self, connection: object, *, dedicated: bool = False) -> None:
        """A client has logged in, perhaps with links of its own: it counts no longer among those that have not."""
        if connection not in self._not_logged_in:
            return
        key = self._not_logged_in.pop(connection)
        if key is not None:
            self._counts.remove(key)
        if self.descriptors is not None:
            self.descriptors.client_logged_in(dedicated=dedicated)
        if dedicated:
            self._dedicated.add(connection)

    def closed(self, connection: object) -> None:
        """A connection counts no longer."""
        if connection not in self._connections:
            return
        self.logged_in(connection)
        dedicated = connection in self._dedicated
        self._dedicated.discard(connection)
        for key in self._connections.pop(connection):
            self._counts.remove(key)
        if self.descriptors is not None:
            self.descriptors.client_gone(dedicated=dedicated)


class _Counted:
    """A connection that is counted, as long as it is open."""

    __slots__ = ("_limits",)

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits

    def closed(self) -> None:
        self._limits.closed(self)

    def logged_in(self, dedicated: bool) -> None:
        self._limits.logged_in(self, dedicated=dedicated)
