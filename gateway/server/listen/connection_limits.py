"""How many connections a listener has: all, by address all and those that have not logged in; and how many handshakes.

Connections that wait for their PROXY header or TLS handshake have no login yet, and each costs a task and, over TLS, 60
kB. When there are as many as may be, one address must not keep the others out: those of the address that has the most
are ended, if they have had time for an honest handshake. With more than its share an address keeps nobody waiting for
that time: each connection from elsewhere takes the place of its oldest, and its own next ones are refused, so that
those which it has can go on. Before the PROXY header that is the address of the proxy, whose header comes with the
connection; so clients behind it lose nothing to one that connects past it and stays silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, cast

from gateway.config.listener_settings import Listener
from gateway.server.client_address import network_of
from gateway.server.counts import Counts, Key
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


# Seconds that a connection has, however many there are. Half of a second is much for header and handshake together.
_PATIENCE: Final = 2.0

# An address has more than its share with more than one connection in so many.
_SHARES: Final = 10


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
        self.counts = Counts() if counts is None else counts
        self.place = ""
        # Connections of this process that are open.
        self.open = 0

    def accept(self, settings: Listener, peer: Peer, now: float) -> AcceptedConnection:
        """Count a connection until it is closed; ``now`` is in seconds.

        Raises:
            TooManyConnectionsError: it is beyond `max_connections`, or what file descriptors there are for clients.
        """
        key = self._enter("", settings.max_connections, OF_LISTENER, "The listener")
        if self.descriptors is not None and not self.descriptors.client_came(self._address):
            self.counts.remove(key)
            self._refused[OF_DESCRIPTORS] += 1
            raise TooManyConnectionsError("The gateway", self.descriptors.clients)
        self.open += 1
        counted = _Counted(self, [key])
        return AcceptedConnection(peer, now, self._log_limiter, counted.closed, counted.logged_in, counted)

    def admit(self, settings: Listener, accepted: AcceptedConnection) -> None:
        """Count a connection for its address, and once more until the client has logged in.

        Raises:
            TooManyConnectionsError: it is beyond `max_connections_per_address` or `max_unauthenticated_per_address`.
        """
        address, counted = network_of(accepted.peer.host), cast(_Counted, accepted.connection)
        whose = f"The address {address}"
        most = settings.max_connections_per_address
        if most is not None:
            counted.keys.append(self._enter(f"all of {address}", most, OF_ADDRESS, whose))
        most = settings.max_unauthenticated_per_address
        counted.key_until_login = self._enter(f"of {address}", most, OF_ADDRESS, whose)

    def _enter(self, which: str, most: int | None, reason: str, whose: str) -> Key:
        """Count a connection, of all or of an address, if there are less than so many; what it counts for."""
        key = self.place, which
        with self.counts.lock:
            if most is None or self.counts.total(key) < most:
                self.counts.add(key)
                return key
        self._refused[reason] += 1
        self._log_limiter.warning("too many connections", address=self._address, whose=whose, most=most)
        raise TooManyConnectionsError(whose, most)


class _Counted:
    """A connection that is counted as long as it is open, for ``keys``; both methods may be called again."""

    __slots__ = ("_dedicated", "_has_logged_in", "_is_closed", "_limits", "key_until_login", "keys")

    def __init__(self, limits: ConnectionLimits, keys: list[Key]) -> None:
        self._limits = limits
        # What it counts for: its listener, and its address if that has a limit; and until it has logged in.
        self.keys = keys
        self.key_until_login: Key | None = None
        self._has_logged_in = self._dedicated = self._is_closed = False

    def logged_in(self, dedicated: bool) -> None:
        """The client has logged in, perhaps with links of its own: it counts no longer among those that have not."""
        if self._has_logged_in:
            return
        self._has_logged_in, self._dedicated = True, dedicated
        if self.key_until_login is not None:
            self._limits.counts.remove(self.key_until_login)
        if self._limits.descriptors is not None:
            self._limits.descriptors.client_logged_in(dedicated=dedicated)

    def closed(self) -> None:
        """It counts no longer."""
        if self._is_closed:
            return
        self.logged_in(False)
        self._is_closed = True
        self._limits.open -= 1
        for key in self.keys:
            self._limits.counts.remove(key)
        if self._limits.descriptors is not None:
            self._limits.descriptors.client_gone(dedicated=self._dedicated)


@dataclass(slots=True)
class _Handshake:
    task: asyncio.Task[None]
    address: str
    since: float


class Handshakes:
    """Those of one listener, at ``listener``. ``refused`` counts the ones that are ended, or refused, for others."""

    def __init__(
        self, listener: str, clock: Callable[[], float], log_limiter: LogRateLimiter, refused: Counter[str]
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._log_limiter = log_limiter
        self._refused = refused
        # By connection, the oldest first.
        self._under_way: dict[object, _Handshake] = {}
        self._counts: Counter[str] = Counter()
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: object, task: asyncio.Task[None], host: str) -> None:
        """A task prepares a connection from an IP address, until it calls ``end``; it may be cancelled before."""
        handshake = _Handshake(task, network_of(host), self._clock())
        self._under_way[connection] = handshake
        self._counts[handshake.address] += 1

    def is_from(self, connection: object, host: str) -> None:
        """The PROXY header said where a connection comes from."""
        handshake = self._under_way[connection]
        self._uncount(handshake)
        handshake.address = network_of(host)
        self._counts[handshake.address] += 1

    def end(self, connection: object) -> None:
        """A connection is prepared, or closed."""
        handshake = self._under_way.pop(connection, None)
        if handshake is not None:
            self._uncount(handshake)
            self._ended.set()

    def _uncount(self, handshake: _Handshake) -> None:
        self._counts[handshake.address] -= 1
        if not self._counts[handshake.address]:
            del self._counts[handshake.address]

    async def has_room(self, most: int, host: str) -> bool:
        """Whether one from an IP address may begin, with less than so many under way; else it is to be closed.

        Waits until one of them ends, if no address has more than its share; at most for the time that each has.
        """
        while len(self._under_way) >= most:
            largest = max(self._counts.values())
            has_too_many = largest > max(1, most // _SHARES)
            ended = self._late(largest)
            if not ended and has_too_many:
                if self._counts[network_of(host)] == largest:
                    self._note(most, largest, 1)
                    return False
                ended = [next(self._of_addresses_with(largest))]
            self._note(most, largest, len(ended))
            for connection, each in ended:
                self.end(connection)
                each.task.cancel()
            if not ended:
                await self._wait(next(self._of_addresses_with(largest))[1].since + _PATIENCE)
        return True

    def _of_addresses_with(self, count: int) -> Iterator[tuple[object, _Handshake]]:
        """The connections of the addresses that have so many, the oldest first."""
        return ((key, each) for key, each in self._under_way.items() if self._counts[each.address] == count)

    def _late(self, count: int) -> list[tuple[object, _Handshake]]:
        """Those that have had their time."""
        latest = self._clock() - _PATIENCE
        return list(itertools.takewhile(lambda each: each[1].since <= latest, self._of_addresses_with(count)))

    async def _wait(self, until: float) -> None:
        """Wait until a handshake ends, at most until then."""
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - self._clock()):
                await self._ended.wait()

    def _note(self, most: int, largest: int, ended: int) -> None:
        """Count and log how many are ended of the addresses that have the most."""
        self._refused[OF_HANDSHAKES] += ended
        addresses = [address for address, count in self._counts.items() if count == largest]
        self._log_limiter.warning(
            "too many handshakes",
            address=self._listener,
            most=most,
            whose=f"The address {addresses[0]}" if len(addresses) == 1 else f"{len(addresses)} addresses",
            ended=ended,
        )
