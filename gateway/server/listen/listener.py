"""An open listener: accepts connections, and prepares them with the PROXY protocol and TLS if the listener has them.

On a plain listener the event loop accepts connections. On any other, the gateway accepts them itself and prepares each
in a task of its own: it can stop reading at the end of the PROXY header, and log why a handshake failed. The number of
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
from functools import partial
from typing import Final

import structlog

from gateway.config.listener_settings import Listener
from gateway.config.scalars import SocketAddress
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header
from gateway.server.listen.tls import handshake_failure
from gateway.server.log_limits import LogRateLimiter
from gateway.server.tls_contexts import listener_tls_context

log = structlog.get_logger("gateway.listening")

MakeProtocol = Callable[[AcceptedConnection], asyncio.Protocol]

# How long accepting pauses after one of these errors, in seconds: without file descriptors or memory the next attempt
# would fail, too. Any other error concerns one connection (accept(2): Linux reports its pending errors).
_PAUSE: Final = 1.0
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

# Connections of a listener that wait for their PROXY header or TLS handshake. They have no login yet, and each costs a
# task.
_MAX_PREPARING: Final = 1000

# A host name may resolve to addresses that this machine does not have, such as the IPv6 one of localhost.
_NOT_HERE: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))


class OpenListener:
    """The sockets of one listener."""

    def __init__(
        self, listener: Listener, make_protocol: MakeProtocol, log_limiter: LogRateLimiter | None = None
    ) -> None:
        # Host and port of every socket.
        self.addresses: list[tuple[str, int]] = []
        self._listener = listener
        self._address = str(listener.address)
        self._make_protocol = make_protocol
        self._loop = asyncio.get_running_loop()
        self._context: ssl.SSLContext | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_limiter = log_limiter or LogRateLimiter(self._loop.time)
        self._preparing = asyncio.Semaphore(_MAX_PREPARING)
        self._connections: set[object] = set()

    async def open(self) -> None:
        """Bind the address, or each address that the host name resolves to, and accept connections.

        Raises:
            OSError: an address cannot be bound, or a TLS file cannot be used; no socket is left open.
        """
        listener = self._listener
        if listener.tls is not None:
            self._context = listener_tls_context(listener.tls)
        sockets = await bound(listener.address, listener.backlog)
        self.addresses = [each.getsockname()[:2] for each in sockets]
        for each in sockets:
            if self._context is None and not listener.proxy_protocol:
                server = await self._loop.create_server(self._accepted, sock=each, backlog=listener.backlog)
                self._servers.append(server)
            else:
                self._spawn(self._accept_all(each))

    def close(self) -> None:
        """Accept no more connections, and drop those in preparation."""
        for server in self._servers:
            server.close()
        for task in tuple(self._tasks):
            task.cancel()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work, name=f"listener {self._address}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _accepted(self) -> asyncio.Protocol:
        """Make the protocol of a connection that the event loop has accepted."""
        accepted = self._counted(None)
        return _Refused() if accepted is None else self._make_protocol(accepted)

    def _counted(self, peer: Peer | None) -> AcceptedConnection | None:
        """Count a connection until it is closed; None if it is beyond `max_connections`."""
        most = self._listener.max_connections
        if most is not None and len(self._connections) >= most:
            self._log_limiter.warning("too many connections", address=self._address, most=most)
            return None
        connection = object()
        self._connections.add(connection)
        on_closed = partial(self._connections.discard, connection)
        return AcceptedConnection(peer, self._loop.time(), self._log_limiter, on_closed)

    async def _accept_all(self, listening: socket.socket) -> None:
        with listening:
            while True:
                if self._preparing.locked():
                    self._log_limiter.warning("too many not let in yet", address=self._address)
                await self._preparing.acquire()
                self._spawn(self._prepare(*await self._accept(listening)))

    async def _accept(self, listening: socket.socket) -> tuple[socket.socket, AcceptedConnection]:
        """The next connection that could be accepted."""
        while True:
            try:
                connection, name = await self._loop.sock_accept(listening)
            except OSError as error:
                is_exhausted = error.errno in _EXHAUSTED
                if is_exhausted:
                    log.error("accept failed", address=self._address, reason=error.strerror or str(error))
                # A pause of 0 still lets other tasks run.
                await asyncio.sleep(_PAUSE if is_exhausted else 0)
            else:
                accepted = self._counted(Peer.named(name))
                if accepted is not None:
                    return connection, accepted
                connection.close()

    async def _prepare(self, connection: socket.socket, accepted: AcceptedConnection) -> None:
        """Read the PROXY header and do the TLS handshake; a failure ends this connection only."""
        deadline = accepted.accepted_at + self._listener.login_timeout
        try:
            client = await self._read_proxy_header(connection, accepted, deadline)
            if client is not None:
                await self._make_transport(connection, client, deadline)
        finally:
            self._preparing.release()

    async def _read_proxy_header(
        self, connection: socket.socket, accepted: AcceptedConnection, deadline: float
    ) -> AcceptedConnection | None:
        """The connection with the address of the client behind the proxy; None if the header is missing or wrong."""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._listener.proxy_protocol:
                async with asyncio.timeout_at(deadline):
                    peer = await self._peer_behind_proxy(connection)
                if peer is None and accepted.peer is not None:
                    peer = replace(accepted.peer, is_proxy=True)
                accepted = replace(accepted, peer=peer)
        except (ProxyHeaderError, _NothingSentError, TimeoutError, OSError) as error:
            connection.close()
            accepted.on_closed()
            if not isinstance(error, _NothingSentError):
                reason = str(error) if isinstance(error, ProxyHeaderError) else "no whole PROXY header came"
                self._log("proxy header refused", accepted, reason)
            return None
        except BaseException:
            connection.close()
            raise
        return accepted

    async def _peer_behind_proxy(self, connection: socket.socket) -> Peer | None:
        header = bytearray()
        while missing := bytes_missing(header):
            data = await self._loop.sock_recv(connection, missing)
            if not data:
                raise ConnectionResetError if header else _NothingSentError
            header += data
        return parse_header(bytes(header))

    async def _make_transport(self, connection: socket.socket, accepted: AcceptedConnection, deadline: float) -> None:
        """Make the connection's transport, with TLS after the handshake. It owns the socket from here on."""
        timeout = None if self._context is None else max(deadline - self._loop.time(), 0.001)
        try:
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(accepted), connection, ssl=self._context, ssl_handshake_timeout=timeout
            )
        except OSError as error:
            accepted.on_closed()
            self._log("tls handshake failed", accepted, handshake_failure(error))

    def _log(self, event: str, accepted: AcceptedConnection, reason: str) -> None:
        self._log_limiter.info(event, address=self._address, peer=str(accepted.peer), reason=reason)


class _Refused(asyncio.Protocol):
    """A connection beyond `max_connections`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class _NothingSentError(Exception):
    """The other end connected and closed, probably a proxy's health check: this is not logged."""


async def bound(address: SocketAddress, backlog: int) -> list[socket.socket]:
    """A listening socket for each address of this machine that the host name resolves to.

    Raises:
        OSError: this machine has none of the addresses, or one of them is taken.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    not_here: OSError | None = None
    with contextlib.ExitStack() as opened:
        sockets = []
        for family, name in dict.fromkeys((family, name) for family, _, _, _, name in found):
            try:
                listening = socket.create_server(name, family=family, backlog=backlog)
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    raise
                not_here = error
                continue
            opened.callback(listening.close)
            listening.setblocking(False)
            sockets.append(listening)
        if not_here is not None and not sockets:
            raise not_here
        opened.pop_all()
    return sockets
