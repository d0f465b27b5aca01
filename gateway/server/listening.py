"""An open listener: from an address to clients' connections, through the PROXY protocol and TLS where they are on.

A plain listener leaves accepting to the event loop. On any other, something must happen before the first octet of
STOMP: there the gateway accepts by itself, one task for each connection until it is let in, so that the PROXY header
is read to its last octet and no further, and so that a failed handshake can be explained in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Final

import structlog

from gateway.config import Listener, SocketAddress
from gateway.server.peer import Peer
from gateway.server.proxy_protocol import ProxyHeaderError, claimed_peer, octets_missing
from gateway.server.tls import handshake_failure, listener_tls_context

log = structlog.get_logger("gateway.listening")

Connect = Callable[[Peer | None], asyncio.Protocol]
"""Makes the protocol of a connection, given where the client comes from; None to ask the connection itself."""

# How long no connection is accepted after accepting failed, in seconds: with no file descriptor left it would go on
# failing without a pause.
_PAUSE: Final = 1.0

# Lines about connections that were not let in: so many in so many seconds, since anybody can cause one.
_LINES: Final = 10
_LINES_WITHIN: Final = 10.0


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
        self._complaints = _Complaints(self._loop.time)
        self.addresses: list[tuple[str, int]] = []

    async def open(self) -> None:
        """Take the address, or each address that its name stands for, and accept connections.

        Raises:
            OSError: it cannot be taken, or a file of TLS cannot be used; nothing is left open then.
        """
        listener = self._listener
        if listener.tls is not None:
            self._context = listener_tls_context(listener.tls)
        doors = await _bound(listener.tcp, listener.backlog)
        self.addresses = [door.getsockname()[:2] for door in doors]
        for door in doors:
            if self._context is None and not listener.proxy_protocol:
                server = await self._loop.create_server(
                    lambda: self._connect(None), sock=door, backlog=listener.backlog
                )
                self._servers.append(server)
            else:
                self._spawn(self._accept(door))

    def close(self) -> None:
        """Accept nobody any more, and drop those who are not let in yet."""
        for server in self._servers:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work, name=f"listener {self._listener.tcp}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, door: socket.socket) -> None:
        with door:
            while True:
                try:
                    caller, name = await self._loop.sock_accept(door)
                except OSError as error:
                    log.error("accept failed", address=str(self._listener.tcp), reason=error.strerror or str(error))
                    await asyncio.sleep(_PAUSE)
                else:
                    self._spawn(self._let_in(caller, Peer.named(name)))

    async def _let_in(self, caller: socket.socket, peer: Peer) -> None:
        """From an accepted connection to its protocol; whatever goes wrong concerns this connection only."""
        deadline = self._loop.time() + self._listener.login_timeout
        claimed: Peer | None = None
        try:
            caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._listener.proxy_protocol:
                async with asyncio.timeout_at(deadline):
                    claimed = await self._proxy_header(caller)
        except (ProxyHeaderError, _NothingSaidError, TimeoutError, OSError) as error:
            caller.close()
            if not isinstance(error, _NothingSaidError):
                reason = str(error) if isinstance(error, ProxyHeaderError) else "no whole PROXY header came"
                self._complain("proxy header refused", peer, reason)
            return
        except BaseException:
            caller.close()
            raise
        try:
            await self._hand_over(caller, claimed, deadline)
        except OSError as error:
            self._complain("tls handshake failed", claimed or peer, handshake_failure(error))

    async def _proxy_header(self, caller: socket.socket) -> Peer | None:
        header = b""
        while missing := octets_missing(header):
            octets = await self._loop.sock_recv(caller, missing)
            if not octets:
                raise ConnectionResetError if header else _NothingSaidError
            header += octets
        return claimed_peer(header)

    async def _hand_over(self, caller: socket.socket, claimed: Peer | None, deadline: float) -> None:
        """Make the connection's transport, which owns the socket from here on; with TLS, once the handshake is done."""
        patience = None if self._context is None else max(deadline - self._loop.time(), 0.001)
        await self._loop.connect_accepted_socket(
            lambda: self._connect(claimed), caller, ssl=self._context, ssl_handshake_timeout=patience
        )

    def _complain(self, event: str, peer: Peer, reason: str) -> None:
        left_out = self._complaints.left_out()
        if left_out is not None:
            log.info(event, address=str(self._listener.tcp), peer=str(peer), reason=reason, left_out=left_out)


class _NothingSaidError(Exception):
    """Somebody connected and closed: a proxy's health check, and not worth a line in the log."""


class _Complaints:
    """How many lines about strangers the log takes.

    Args:
        clock: gives seconds, only going forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._lines = 0
        self._left_out = 0

    def left_out(self) -> int | None:
        """Lines left out before this one, which is to be written; None when it is to be left out too."""
        now = self._clock()
        if now - self._since > _LINES_WITHIN:
            self._since, self._lines = now, 0
        if self._lines >= _LINES:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


async def _bound(address: SocketAddress, backlog: int) -> list[socket.socket]:
    """A listening socket for each address that a host's name stands for."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with contextlib.ExitStack() as opened:
        doors = []
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            try:
                door = socket.create_server(name, family=family, backlog=backlog)
            except OSError as error:
                if error.errno == errno.EAFNOSUPPORT and len(found) > 1:
                    # A name that also stands for an IPv6 address, on a machine without IPv6.
                    continue
                raise
            opened.callback(door.close)
            door.setblocking(False)
            doors.append(door)
        opened.pop_all()
    return doors
