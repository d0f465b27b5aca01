"""Limits for the connections of a listener: in total, by address, before the login, and for handshakes under way.

A connection that waits for its PROXY header or TLS handshake costs a task and, over TLS, 60 kB. If there are
`max_handshakes`, one address must not keep the others out:

* Connections of the address that has the most are ended if they had `_PATIENCE` seconds.
* If that address has more than its share, no other address waits: each connection from elsewhere ends the oldest one of
  this address, and new ones from it are refused, so that the handshakes it has can finish.

Until the PROXY header has come, the address is that of the proxy. The header comes with the connection, so an address
that connects past the proxy and stays silent does not harm the proxy's clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.config.listener_settings import Listener
from gateway.server.client_address import network_of
from gateway.server.counts import Counts, Key
from gateway.server.descriptors import Descriptors
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.log_limits import LogRateLimiter
from gateway.server.stats import Refusal

# Seconds that each handshake has. Header and handshake together seldom take half a second.
_PATIENCE: Final = 2.0

# An address with more than one handshake in this many has more than its share.
_SHARES: Final = 10


class TooManyConnectionsError(Exception):
    """A connection exceeds a limit. ``whose``: a text such as ``The address 192.0.2.1``."""

    def __init__(self, whose: str, most: int) -> None:
        super().__init__(f"{whose} has {most} connections")
        self.whose = whose
        self.most = most


class ConnectionLimits:
    """Counts the connections of one listener. ``refused``: counts refused ones, by `Refusal`.

    ``counts``: shared by all workers, if there are several. ``place``: the listener's name in them.
    """

    def __init__(
        self,
        address: str,
        log_limiter: LogRateLimiter,
        refused: Counter[str],
        counts: Counts | None = None,
    ) -> None:
        self._address = address
        # None if they are not counted.
        self.descriptors: Descriptors | None = None
        self._log_limiter = log_limiter
        self._refused = refused
        self.counts = Counts() if counts is None else counts
        self.place = ""

    def accept(self, settings: Listener, peer: Peer, now: float) -> CountedConnection:
        """Count a connection until it is closed. ``now`` is in seconds.

        Raises:
            TooManyConnectionsError: it exceeds `max_connections`, or the file descriptors for clients.
        """
        key = self._enter("", settings.max_connections, Refusal.LISTENER, "The listener")
        if self.descriptors is not None and not self.descriptors.client_came(self._address):
            self.counts.remove(key)
            self._refused[Refusal.DESCRIPTORS] += 1
            raise TooManyConnectionsError("The gateway", self.descriptors.clients)
        return CountedConnection(peer, now, self._log_limiter, self, [key])

    def admit(self, settings: Listener, accepted: CountedConnection) -> None:
        """Count a connection for its address, and once more until the client has logged in.

        Raises:
            TooManyConnectionsError: it exceeds `max_connections_per_address` or `max_unauthenticated_per_address`.
        """
        address = network_of(accepted.peer.host)
        whose = f"The address {address}"
        most = settings.max_connections_per_address
        if most is not None:
            accepted.keys.append(self._enter(f"all of {address}", most, Refusal.ADDRESS, whose))
        most = settings.max_unauthenticated_per_address
        accepted.key_until_login = self._enter(f"of {address}", most, Refusal.ADDRESS, whose)

    def _enter(self, which: str, most: int | None, reason: Refusal, whose: str) -> Key:
        """Count a connection, of all or of an address, if there are fewer than ``most``. Returns its key."""
        key = self.place, which
        with self.counts.lock:
            if most is None or self.counts.total(key) < most:
                self.counts.add(key)
                return key
        self._refused[reason] += 1
        self._log_limiter.warning("too many connections", address=self._address, whose=whose, most=most)
        raise TooManyConnectionsError(whose, most)


@dataclass(slots=True, eq=False)
class CountedConnection(AcceptedConnection):
    """A connection that is counted while it is open.

    ``keys``: of its listener, and of its address if that has a limit; empty when it is closed.
    """

    _limits: ConnectionLimits
    keys: list[Key]
    key_until_login: Key | None = None
    # Whether the client has links of its own; None before its login.
    _dedicated: bool | None = None

    def on_login(self, dedicated: bool) -> None:
        """Stop counting it among the connections without a login."""
        if self._dedicated is not None:
            return
        self._dedicated = dedicated
        if self.key_until_login is not None:
            self._limits.counts.remove(self.key_until_login)
        if self._limits.descriptors is not None:
            self._limits.descriptors.client_logged_in(dedicated=dedicated)

    def on_closed(self) -> None:
        """Stop counting it."""
        keys, self.keys = self.keys, []
        if not keys:
            return
        self.on_login(False)
        for key in keys:
            self._limits.counts.remove(key)
        if self._limits.descriptors is not None:
            self._limits.descriptors.client_gone(dedicated=bool(self._dedicated))


@dataclass(slots=True)
class _Handshake:
    task: asyncio.Task[None]
    address: str
    since: float


class Handshakes:
    """The handshakes of one listener, with the address ``listener``. ``refused``: see `ConnectionLimits`."""

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

    def begin(self, connection: object, task: asyncio.Task[None], host: str) -> None:
        """Note that a task prepares a connection from an IP address, until ``end``. It may be cancelled before."""
        handshake = _Handshake(task, network_of(host), self._clock())
        self._under_way[connection] = handshake
        self._counts[handshake.address] += 1

    def is_from(self, connection: object, host: str) -> None:
        """Note the address that the PROXY header names."""
        handshake = self._under_way[connection]
        self._uncount(handshake)
        handshake.address = network_of(host)
        self._counts[handshake.address] += 1

    def end(self, connection: object) -> None:
        """Note that a connection is prepared or closed."""
        handshake = self._under_way.pop(connection, None)
        if handshake is not None:
            self._uncount(handshake)
            self._ended.set()

    def _uncount(self, handshake: _Handshake) -> None:
        self._counts[handshake.address] -= 1
        if not self._counts[handshake.address]:
            del self._counts[handshake.address]

    async def has_room(self, most: int, host: str) -> bool:
        """Whether a handshake from an IP address may begin, with at most ``most`` under way.

        If no address has more than its share, this waits until a handshake ends or has had its time.
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
        """The connections of the addresses that have ``count``, the oldest first."""
        return ((key, each) for key, each in self._under_way.items() if self._counts[each.address] == count)

    def _late(self, count: int) -> list[tuple[object, _Handshake]]:
        """The connections of such addresses that had their time."""
        latest = self._clock() - _PATIENCE
        return list(itertools.takewhile(lambda each: each[1].since <= latest, self._of_addresses_with(count)))

    async def _wait(self, until: float) -> None:
        """Wait until a handshake ends, or until this time."""
        self._ended.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - self._clock()):
                await self._ended.wait()

    def _note(self, most: int, largest: int, ended: int) -> None:
        """Count and log how many were ended, of the addresses that have the most."""
        self._refused[Refusal.HANDSHAKES] += ended
        addresses = [address for address, count in self._counts.items() if count == largest]
        self._log_limiter.warning(
            "too many handshakes",
            address=self._listener,
            most=most,
            whose=f"The address {addresses[0]}" if len(addresses) == 1 else f"{len(addresses)} addresses",
            ended=ended,
        )
