"""An open listener: accepts connections, and prepares them with the PROXY protocol and TLS if the listener has them.

At most one is accepted in each round of the event loop, so a flood of them keeps nobody waiting. One with a PROXY
header or TLS is prepared in a task of its own: it can stop reading at the end of the header, and log why a handshake
failed. The number of those tasks is bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Final

import structlog

from gateway.config.listener_settings import Listener
from gateway.config.scalars import SocketAddress
from gateway.server.counts import Counts, LocalCounts
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.connection_limits import ConnectionLimits, TooManyConnectionsError
from gateway.server.listen.handshakes import Handshakes
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header
from gateway.server.listen.tls import handshake_failure
from gateway.server.listen.watched_socket import WatchedSocket
from gateway.server.log_limits import LogRateLimiter
from gateway.server.tls_contexts import TlsContext, TlsContexts
from gateway.session import error_frames

log = structlog.get_logger("gateway.listening")

MakeProtocol = Callable[[AcceptedConnection], asyncio.Protocol]

Bind = Callable[[SocketAddress, int], Awaitable[list[socket.socket]]]
"""Listening sockets for an address and a backlog, as `bound` makes them."""

# How long accepting pauses after one of these errors, in seconds: without file descriptors or memory the next attempt
# would fail, too. Any other error concerns one connection (accept(2): Linux reports its pending errors).
_PAUSE: Final = 1.0
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

# How often a client that does not answer is asked whether it is still there.
_PROBES: Final = 4

_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

# A host name may resolve to addresses that this machine does not have, such as the IPv6 one of localhost.
_NOT_HERE: Final = frozenset((errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL))


@dataclass(frozen=True, slots=True)
class _Treatment:
    """What is done with a new connection; one that is in preparation keeps that of its beginning."""

    settings: Listener
    make_protocol: MakeProtocol
    tls: TlsContext | None

    @property
    def awaits_client(self) -> bool:
        """Whether the client has to send something before its session can begin."""
        return self.tls is not None or self.settings.proxy_protocol


class OpenListener:
    """The sockets of one listener.

    ``open`` takes its TLS context from ``contexts``.
    """

    def __init__(
        self,
        listener: Listener,
        make_protocol: MakeProtocol,
        contexts: TlsContexts,
        log_limiter: LogRateLimiter | None = None,
        refused: Counter[str] | None = None,
        *,
        speaks_http: bool = False,
        bind: Bind | None = None,
        counts: Counts | None = None,
    ) -> None:
        # Host and port of every socket.
        self.addresses: list[tuple[str, int]] = []
        self._treatment = _Treatment(listener, make_protocol, None)
        self._contexts = contexts
        self._address = str(listener.address)
        self._name = f"listener {self._address}"
        self._speaks_http = speaks_http
        self._bound = bind or bound
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Their tasks have not run yet.
        self._unbegun: set[socket.socket] = set()
        self._log_limiter = log_limiter or LogRateLimiter(self._loop.time)
        counter: Counter[str] = Counter() if refused is None else refused
        self._handshakes = Handshakes(self._address, self._loop.time, self._log_limiter, counter)
        self._counts: Counts = LocalCounts() if counts is None else counts
        self._limits = ConnectionLimits(self._address, self._log_limiter, counter, self._counts)

    @property
    def settings(self) -> Listener:
        """The settings for new connections."""
        return self._treatment.settings

    @property
    def connections(self) -> int:
        """Connections of this process that are open, or in preparation."""
        return self._limits.open

    async def bind(self) -> None:
        """Bind the address, or each address that the host name resolves to. Clients wait until ``accept``.

        Raises:
            OSError: an address cannot be bound, or a TLS file cannot be used; no socket is left open.
        """
        listener = self.settings
        self._treatment = self._treat(listener, self._treatment.make_protocol)
        sockets = await self._bound(listener.address, listener.backlog)
        self.addresses = [each.getsockname()[:2] for each in sockets]
        self._limits.place = repr(self.addresses)
        self._sockets = sockets
        for each in sockets:
            _listen(each, listener)

    def accept(self) -> None:
        """Accept connections."""
        for each in self._sockets:
            _ = self._spawn(self._accept_all(each), self._accepting)

    def change(self, listener: Listener, make_protocol: MakeProtocol) -> None:
        """Use other settings, for the same address, for new connections. No connection is lost.

        Their TLS context is held by who calls (`TlsContexts.prepare`), so that no file is read here, and nothing fails.
        """
        self._treatment = self._treat(listener, make_protocol)
        for each in self._sockets:
            _listen(each, listener)

    def _treat(self, listener: Listener, make_protocol: MakeProtocol) -> _Treatment:
        return _Treatment(listener, make_protocol, None if listener.tls is None else self._contexts.of(listener.tls))

    def close(self) -> None:
        """Accept no more connections, and drop those in preparation."""
        for task in (*self._accepting, *self._tasks):
            task.cancel()
        for each in self._sockets:
            if self._accepting:
                # Once their tasks have noticed.
                self._loop.call_soon(each.close)
            else:
                each.close()

    def _spawn(self, work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=self._name)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _accept_all(self, listening: socket.socket) -> None:
        watched = WatchedSocket(listening)
        try:
            await self._accept_each(watched)
        finally:
            watched.close()

    async def _accept_each(self, listening: WatchedSocket) -> None:
        while True:
            connection, accepted = await self._accept(listening)
            if not self._treatment.awaits_client:
                await self._connect_plain(connection, accepted, self._treatment)
                continue
            try:
                most = self._counts.share(self.settings.max_handshakes)
                has_room = await self._handshakes.has_room(most, accepted.peer.host)
            except asyncio.CancelledError:
                connection.close()
                raise
            if has_room:
                self._begin(connection, accepted)
            else:
                connection.close()
                accepted.on_closed()

    async def _connect_plain(
        self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment
    ) -> None:
        """Begin a connection that needs no preparation, and no task, which would cost as much as the rest."""
        try:
            self._limits.admit(treatment.settings, accepted)
            await self._make_transport(connection, accepted, treatment, accepted.accepted_at)
        except TooManyConnectionsError as error:
            accepted.on_closed()
            self._refuse(connection, treatment, error)
        except asyncio.CancelledError:
            connection.close()
            accepted.on_closed()
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the listener
            connection.close()
            accepted.on_closed()
            self._loop.call_exception_handler({"message": "a connection could not begin", "exception": error})

    def _begin(self, connection: socket.socket, accepted: AcceptedConnection) -> None:
        preparing = self._prepare(connection, accepted, self._treatment)
        task = self._spawn(preparing, self._tasks)
        self._handshakes.begin(accepted.connection, task, accepted.peer.host)

        self._unbegun.add(connection)

        # Here, since a task that is cancelled before it runs never comes to its own `finally`.
        def done(task: asyncio.Task[None]) -> None:
            self._handshakes.end(accepted.connection)
            if task.cancelled():
                accepted.on_closed()
            if connection in self._unbegun:
                self._unbegun.remove(connection)
                connection.close()

        task.add_done_callback(done)

    async def _accept(self, listening: WatchedSocket) -> tuple[socket.socket, AcceptedConnection]:
        """The next connection that could be accepted."""
        while True:
            try:
                connection, name = await listening.accept()
            except OSError as error:
                is_exhausted = error.errno in _EXHAUSTED
                if is_exhausted:
                    log.error("accept failed", address=self._address, reason=error.strerror or str(error))
                # A pause of 0 still lets other tasks run.
                await asyncio.sleep(_PAUSE if is_exhausted else 0)
            else:
                try:
                    return connection, self._limits.accept(self.settings, Peer.named(name), self._loop.time())
                except TooManyConnectionsError as error:
                    self._refuse(connection, self._treatment, error)

    async def _prepare(self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment) -> None:
        """Read the PROXY header and do the TLS handshake; a failure ends this connection only."""
        self._unbegun.remove(connection)
        deadline = accepted.accepted_at + treatment.settings.login_timeout
        try:
            client = await self._read_proxy_header(connection, accepted, treatment, deadline)
            if client is not None:
                self._limits.admit(treatment.settings, client)
                self._handshakes.is_from(client.connection, client.peer.host)
                await self._make_transport(connection, client, treatment, deadline)
        except TooManyConnectionsError as error:
            accepted.on_closed()
            self._refuse(connection, treatment, error)

    async def _read_proxy_header(
        self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment, deadline: float
    ) -> AcceptedConnection | None:
        """The connection with the address of the client behind the proxy; None if the header is missing or wrong."""
        try:
            if treatment.settings.proxy_protocol:
                async with asyncio.timeout_at(deadline):
                    peer = await self._peer_behind_proxy(connection)
                accepted = replace(accepted, peer=peer or replace(accepted.peer, is_proxy=True))
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

    async def _make_transport(
        self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment, deadline: float
    ) -> None:
        """Make the connection's transport, with TLS after the handshake. It owns the socket from here on."""
        context = None if treatment.tls is None else treatment.tls.context
        timeout = None if context is None else max(deadline - self._loop.time(), 0.001)
        try:
            await self._loop.connect_accepted_socket(
                lambda: treatment.make_protocol(accepted), connection, ssl=context, ssl_handshake_timeout=timeout
            )
        except (OSError, ValueError) as error:
            # The event loop decodes the client's certificate, and lets through what Python says about its texts.
            accepted.on_closed()
            self._log("tls handshake failed", accepted, handshake_failure(error))

    def _refuse(self, connection: socket.socket, treatment: _Treatment, reason: TooManyConnectionsError) -> None:
        """Close, and say why if the client does not expect TLS."""
        error = error_frames.too_many_connections(reason.whose, reason.most)
        speaks_http = self._speaks_http or treatment.settings.websocket is not None
        answer = _UNAVAILABLE if speaks_http else error_frames.encode_error(error, None)
        with connection, contextlib.suppress(OSError):
            connection.send(answer if treatment.tls is None else b"")

    def _log(self, event: str, accepted: AcceptedConnection, reason: str) -> None:
        self._log_limiter.info(event, address=self._address, peer=str(accepted.peer), reason=reason)


class _NothingSentError(Exception):
    """The other end connected and closed, probably a proxy's health check: this is not logged."""


def _listen(listening: socket.socket, settings: Listener) -> None:
    """Let a socket listen, as the settings say. Connections inherit the options of their listening socket."""
    listening.listen(settings.backlog)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    idle = int(settings.tcp_keepalive)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, bool(idle))
    if idle:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, idle // _PROBES))
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)


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
