"""Resolves the host names of brokers. A name server that hangs delays only its own names.

The event loop's resolver has only a few threads, so two names that hang would delay all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Final

from aiohappyeyeballs import start_connection

# After this many seconds without an answer, the next address of a name is tried, too.
_NEXT_ADDRESS: Final = 0.25

AddressInfo = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[str, int] | tuple[str, int, int, int]]


class HostResolver:
    """Looks names up, each on a thread of its own. Requests for the same name share a lookup."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Future[list[AddressInfo]]] = {}

    async def addresses(self, host: str, port: int) -> list[AddressInfo]:
        """Look up the addresses of a host.

        Raises:
            OSError: the name has no address.
        """
        with contextlib.suppress(socket.gaierror):
            numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
            return _look_up(host, port, numeric)
        key = host, port
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.get_running_loop().create_future()
            # Not a pool's thread: the process joins those at its end, and a lookup cannot be cancelled.
            threading.Thread(target=self._work, args=(key, lookup), name=f"resolve {host}", daemon=True).start()
        return await asyncio.shield(lookup)

    async def connected(self, host: str, port: int) -> socket.socket:
        """Return a socket that is connected to the first address of a host that accepts a connection.

        Raises:
            OSError: the name has no address, or none accepts a connection.
        """
        return await first_connected(await self.addresses(host, port))

    def _work(self, key: tuple[str, int], lookup: asyncio.Future[list[AddressInfo]]) -> None:
        found: list[AddressInfo] | OSError
        try:
            found = _look_up(*key, 0)
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError("the name of the host is not valid")
        with contextlib.suppress(RuntimeError):  # the event loop has ended meanwhile
            lookup.get_loop().call_soon_threadsafe(self._done, key, lookup, found)

    def _done(
        self,
        key: tuple[str, int],
        lookup: asyncio.Future[list[AddressInfo]],
        found: list[AddressInfo] | OSError,
    ) -> None:
        del self._lookups[key]
        if isinstance(found, OSError):
            lookup.set_exception(found)
            # Mark it as retrieved, because all waiting tasks may be cancelled.
            lookup.exception()
        else:
            lookup.set_result(found)


async def first_connected(addresses: Sequence[AddressInfo]) -> socket.socket:
    """Return a socket that is connected to the first of these addresses that accepts a connection.

    Raises:
        OSError: none of them accepts one.
    """
    return await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS)


def _look_up(host: str, port: int, flags: int) -> list[AddressInfo]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)  # type: ignore[return-value]
