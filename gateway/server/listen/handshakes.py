"""Connections of a listener that wait for their PROXY header or TLS handshake: how many, and who makes room.

They have no login yet, and each costs a task and, over TLS, 60 kB. When there are as many as may be, one address must
not keep the others out: those of the address that has the most are ended, if they have had time for an honest
handshake. Before the PROXY header that is the address of the proxy, whose header comes with the connection; so clients
behind it lose nothing to one that connects past it and stays silent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.server.client_address import network_of
from gateway.server.listen.connection_limits import OF_HANDSHAKES
from gateway.server.log_limits import LogRateLimiter

# Seconds that every connection has, however many there are. Half of a second is much for header and handshake together.
_PATIENCE: Final = 2.0


@dataclass(slots=True)
class _Handshake:
    task: asyncio.Task[None]
    address: str
    since: float


class Handshakes:
    """Those of one listener, at ``listener``. ``refused`` counts the ones that are ended for others."""

    def __init__(
        self, listener: str, clock: Callable[[], float], log_limiter: LogRateLimiter, refused: Counter[str]
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._log_limiter = log_limiter
        self._refused = refused
        # By connection, the oldest first.
        self._under_way: dict[object, _Handshake] = {}
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, connection: object, task: asyncio.Task[None], host: str) -> None:
        """A task prepares a connection from an IP address, until it calls ``end``; it may be cancelled before."""
        self._under_way[connection] = _Handshake(task, network_of(host), self._clock())

    def is_from(self, connection: object, host: str) -> None:
        """The PROXY header said where a connection comes from."""
        self._under_way[connection].address = network_of(host)

    def end(self, connection: object) -> None:
        """A connection is prepared, or closed."""
        if self._under_way.pop(connection, None) is not None:
            self._ended.set()

    async def wait_for_room(self, most: int) -> None:
        """Wait until there are less than so many; at most for the time that each of them has."""
        while len(self._under_way) >= most:
            seconds = self._make_room(most)
            if seconds > 0:
                self._ended.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await self._ended.wait()

    def _make_room(self, most: int) -> float:
        """End those of the address that has the most which have had their time; the seconds until one will have."""
        counts = Counter(each.address for each in self._under_way.values())
        largest = max(counts.values())
        candidates = [(key, each) for key, each in self._under_way.items() if counts[each.address] == largest]
        now = self._clock()
        late = [(key, each) for key, each in candidates if now - each.since >= _PATIENCE]
        for connection, each in late:
            del self._under_way[connection]
            each.task.cancel()
        self._refused[OF_HANDSHAKES] += len(late)
        addresses = {each.address for _, each in candidates}
        self._log_limiter.warning(
            "too many handshakes",
            address=self._listener,
            most=most,
            whose=f"The address {min(addresses)}" if len(addresses) == 1 else f"{len(addresses)} addresses",
            ended=len(late),
        )
        return 0.0 if late else candidates[0][1].since + _PATIENCE - now
