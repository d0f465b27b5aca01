"""Connections of a listener that wait for their PROXY header or TLS handshake: how many, and who makes room.

They have no login yet, and each costs a task and, over TLS, 60 kB. When there are as many as may be, one address must
not keep the others out: those of the address that has the most are ended, if they have had time for an honest
handshake. With more than its share an address keeps nobody waiting for that time: each connection from elsewhere takes
the place of its oldest, and its own next ones are refused, so that those which it has can go on. Before the PROXY
header that is the address of the proxy, whose header comes with the connection; so clients behind it lose nothing to
one that connects past it and stays silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gateway.server.client_address import network_of
from gateway.server.listen.connection_limits import OF_HANDSHAKES
from gateway.server.log_limits import LogRateLimiter

# Seconds that a connection has, however many there are. Half of a second is much for header and handshake together.
_PATIENCE: Final = 2.0

# An address has more than its share with more than one connection in so many.
_SHARES: Final = 10


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
