"""An open listener: from an address to clients' connections, through the PROXY protocol and TLS where they are on.

A plain listener leaves accepting to the event loop. On any other, something must happen before the first byte of
STOMP: there the gateway accepts by itself, one task for each connection until it is let in, so that the PROXY header
is read to its last byte and no further, and so that a failed handshake can be explained in the log. The number of
those tasks is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Final

import structlog

from gateway.config import Listener, SocketAddress
from gateway.server.listen.peer import Arrival, Peer
from gateway.server.listen.proxy_protocol import ProxyHeaderError, claimed_peer, octets_missing
from gateway.server.listen.tls import handshake_failure, listener_tls_context
from gateway.server.log_rate_limiter import LogRateLimiter

log = structlog.get_logger("gateway.listening")

Connect = Callable[[Arrival], asyncio.Protocol]
"""Makes the protocol of a connection."""

# How long no connection is accepted after one of these errors, in seconds: for want of file descriptors or memory it
# would go on failing. Any other error is that of one connection (accept(2): Linux hands over what went wrong with it).
_PAUSE: Final = 1.0
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

# Connections of a listener that are not let in yet. Nobody has logged in, and each costs a task and maybe a handshake.
_MOST_WAITING: Final = 1000

# A host's name may stand for addresses that this machine does not have: the IPv6 one of localhost, without IPv6.
_NOT_HERE: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))


class OpenListener:
    """A listener that clients connect to.

    Args:
        listener: its address and what holds there.
        connect: called for each connection.
    """

    def __init__(self, listener: Listener, connect: Connect) -> None:
        self._listener = listener
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._context: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = LogRateLimiter(self._loop.time)
        self._room = asyncio.Semaphore(_MOST_WAITING)
        self._places: set[_Place] = set()
        self.addresses: list[tuple[str, int]] = []

    async def open(self) -> None:
        """Take the address, or each address that its name stands for, and accept connections.

        Raises:
            OSError: it cannot be taken, or a file of TLS cannot be used; nothing is left open then.
        """
        listener = self._listener
        if listener.tls is not None:
            self._context = listener_tls_context(listener.tls)
        doors = await bound(listener.address, listener.backlog)
        self.addresses = [door.getsockname()[:2] for door in doors]
        for door in doors:
            if self._context is None and not listener.proxy_protocol:
                self._servers.append(await self._loop.create_server(self._arrived, sock=door, backlog=listener.backlog))
            else:
                self._spawn(self._accept(door))

    def close(self) -> None:
        """Accept nobody any more, and drop those who are not let in yet."""
        for server in self._servers:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _arrived(self) -> asyncio.Protocol:
        """A connection to a plain listener, that the event loop has just accepted."""
        place = self._place()
        if place is None:
            return _TurnedAway()
        return self._connect(Arrival(None, self._loop.time(), self._complaints, place.leave))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work, name=f"listener {self._listener.address}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, door: socket.socket) -> None:
        with door:
            while True:
                if self._room.locked():
                    self._complain_of_no_room()
                await self._room.acquire()
                caller, arrival = await self._accepted(door)
                self._spawn(self._let_in(caller, arrival))

    async def _accepted(self, door: socket.socket) -> tuple[socket.socket, Arrival]:
        """The next connection, whatever happens to others before it."""
        while True:
            try:
                caller, name = await self._loop.sock_accept(door)
            except OSError as error:
                reason = error.strerror or str(error)
                if error.errno in _EXHAUSTED:
                    log.error("accept failed", address=str(self._listener.address), reason=reason)
                # Even without a pause everybody else has a turn before the next attempt.
                await asyncio.sleep(_PAUSE if error.errno in _EXHAUSTED else 0)
            else:
                place = self._place()
                if place is not None:
                    return caller, Arrival(Peer.named(name), self._loop.time(), self._complaints, place.leave)
                caller.close()

    async def _let_in(self, caller: socket.socket, arrival: Arrival) -> None:
        try:
            await self._prepare(caller, arrival)
        finally:
            self._room.release()

    def _place(self) -> _Place | None:
        """A place for another connection; None when `max_connections` are taken."""
        most = self._listener.max_connections
        if most is None or len(self._places) < most:
            return _Place(self._places)
        left_out = self._complaints.left_out()
        if left_out is not None:
            log.warning("too many connections", address=str(self._listener.address), most=most, left_out=left_out)
        return None

    async def _prepare(self, caller: socket.socket, arrival: Arrival) -> None:
        """From an accepted connection to its protocol; whatever goes wrong concerns this connection only."""
        deadline = arrival.since + self._listener.login_timeout
        try:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._listener.proxy_protocol:
                async with asyncio.timeout_at(deadline):
                    arrival = await self._behind_a_proxy(caller, arrival)
        except (ProxyHeaderError, _NothingSaidError, TimeoutError, OSError) as error:
            caller.close()
            arrival.leave()
            if not isinstance(error, _NothingSaidError):
                reason = str(error) if isinstance(error, ProxyHeaderError) else "no whole PROXY header came"
                self._complain("proxy header refused", arrival, reason)
            return
        except BaseException:
            caller.close()
            raise
        try:
            await self._hand_over(caller, arrival, deadline)
        except OSError as error:
            arrival.leave()
            self._complain("tls handshake failed", arrival, handshake_failure(error))

    async def _behind_a_proxy(self, caller: socket.socket, proxy: Arrival) -> Arrival:
        """The arrival of the client that a proxy's header names, or of the proxy for somebody without a name."""
        claimed = await self._proxy_header(caller)
        if claimed is None and proxy.peer is not None:
            claimed = replace(proxy.peer, is_proxy=True)
        return replace(proxy, peer=claimed)

    async def _proxy_header(self, caller: socket.socket) -> Peer | None:
        header = bytearray()
        while missing := octets_missing(header):
            octets = await self._loop.sock_recv(caller, missing)
            if not octets:
                raise ConnectionResetError if header else _NothingSaidError
            header += octets
        return claimed_peer(bytes(header))

    async def _hand_over(self, caller: socket.socket, arrival: Arrival, deadline: float) -> None:
        """Make the connection's transport, which owns the socket from here on; with TLS, once the handshake is done."""
        patience = None if self._context is None else max(deadline - self._loop.time(), 0.001)
        await self._loop.connect_accepted_socket(
            lambda: self._connect(arrival), caller, ssl=self._context, ssl_handshake_timeout=patience
        )

    def _complain(self, event: str, arrival: Arrival, reason: str) -> None:
        left_out = self._complaints.left_out()
        if left_out is not None:
            address, peer = str(self._listener.address), str(arrival.peer)
            log.info(event, address=address, peer=peer, reason=reason, left_out=left_out)

    def _complain_of_no_room(self) -> None:
        left_out = self._complaints.left_out()
        if left_out is not None:
            log.warning("too many not let in yet", address=str(self._listener.address), left_out=left_out)


class _Place:
    """One of the connections that a listener may have at once."""

    def __init__(self, taken: set[_Place]) -> None:
        self._taken = taken
        taken.add(self)

    def leave(self) -> None:
        """It is closed; may be said more than once."""
        self._taken.discard(self)


class _TurnedAway(asyncio.Protocol):
    """A connection beyond `max_connections`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close it, before anything is read."""
        transport.close()


class _NothingSaidError(Exception):
    """Somebody connected and closed: a proxy's health check, and not worth a line in the log."""


async def bound(address: SocketAddress, backlog: int) -> list[socket.socket]:
    """A listening socket for each address that a host's name stands for and that this machine has.

    Raises:
        OSError: none can be had, or one of them is taken.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    not_here: OSError | None = None
    with contextlib.ExitStack() as opened:
        doors = []
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            try:
                door = socket.create_server(name, family=family, backlog=backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
                continue
            opened.callback(door.close)
            door.setblocking(False)
            doors.append(door)
        if not_here is not None and not doors:
            raise not_here
        opened.pop_all()
    return doors
