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
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Final

import structlog

from gateway.config.listener_settings import Listener
from gateway.config.model import FailedLoginLimits
from gateway.errors import ListenError
from gateway.server.counts import Counts
from gateway.server.descriptors import Descriptors
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.address_checks import AddressChecks, AddressRefusedError, LockOuts
from gateway.server.listen.connection_limits import ConnectionLimits, Handshakes, TooManyConnectionsError
from gateway.server.listen.listening_sockets import Bind, UnixListeningSocket, WatchedSocket, bound, listen
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header
from gateway.server.listen.tls import handshake_failure
from gateway.server.log_limits import LogRateLimiter
from gateway.server.tls_contexts import HandshakeAlert, TlsContext, TlsContexts
from gateway.session import error_frames

log = structlog.get_logger("gateway.listening")

MakeProtocol = Callable[[AcceptedConnection], asyncio.Protocol]

# How long accepting pauses after one of these errors, in seconds: without file descriptors or memory the next attempt
# would fail, too. Any other error concerns one connection (accept(2): Linux reports its pending errors).
_PAUSE: Final = 1.0
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_Refusal = AddressRefusedError | TooManyConnectionsError
_REFUSALS: Final = (AddressRefusedError, TooManyConnectionsError)

# What a client that is refused may have sent already, such as a CONNECT.
_FIRST_BYTES: Final = 16 << 10

_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class _Treatment:
    """What is done with a new connection; one that is in preparation keeps that of its beginning."""

    settings: Listener
    make_protocol: MakeProtocol
    tls: TlsContext | None
    addresses: AddressChecks

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
        bind: Bind | None = None,
        counts: Counts | None = None,
        lock_outs: LockOuts | None = None,
    ) -> None:
        # Host and port of every TCP socket; and every socket's address as text.
        self.addresses: list[tuple[str, int]] = []
        self.names: list[str] = []
        self._contexts = contexts
        self._address = str(listener.address)
        self._name = f"listener {self._address}"
        self._bound = bind or bound
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        # Their tasks have not run yet.
        self._unbegun: set[socket.socket] = set()
        self._log_limiter = log_limiter or LogRateLimiter(self._loop.time)
        self._lock_outs = lock_outs or LockOuts(FailedLoginLimits(), self._loop.time)
        self._treatment = _Treatment(listener, make_protocol, None, AddressChecks(listener, self._lock_outs))
        self._refused: Counter[str] = Counter() if refused is None else refused
        self._handshakes = Handshakes(self._address, self._loop.time, self._log_limiter, self._refused)
        self._counts = Counts() if counts is None else counts
        self._limits = ConnectionLimits(self._address, self._log_limiter, self._refused, self._counts)

    @property
    def settings(self) -> Listener:
        """The settings for new connections."""
        return self._treatment.settings

    @property
    def connections(self) -> int:
        """Connections of this process that are open, or in preparation."""
        return self._limits.open

    def share(self, descriptors: Descriptors) -> None:
        """Accept only as many clients as these leave room for, beside all others of the process."""
        self._limits.descriptors = descriptors

    async def bind(self) -> None:
        """Bind the address, or each address that the host name resolves to. Clients wait until ``accept``.

        Raises:
            OSError: an address cannot be bound, or a TLS file cannot be used; no socket is left open.
        """
        listener = self.settings
        self._treatment = self._treat(listener, self._treatment.make_protocol)
        sockets = await self._bound(listener)
        self.addresses = [each.getsockname()[:2] for each in sockets if each.family != socket.AF_UNIX]
        self.names = [f"{host}:{port}" for host, port in self.addresses] or [self._address]
        self._limits.place = repr(self.names)
        self._sockets = sockets
        for each in sockets:
            listen(each, listener)

    def accept(self) -> None:
        """Accept connections."""
        for each in self._sockets:
            _ = self._spawn(self._accept_all(each), self._accepting)

    def permit(self, listener: Listener) -> None:
        """Give the file of a Unix-domain socket the mode and the group of these settings.

        Raises:
            ListenError: that is not permitted.
        """
        for each in self._sockets:
            if isinstance(each, UnixListeningSocket):
                try:
                    each.permit(listener)
                except OSError as error:
                    raise ListenError(self._address, error) from error

    def change(self, listener: Listener, make_protocol: MakeProtocol) -> None:
        """Use other settings, for the same address, for new connections. No connection is lost.

        Their TLS context is held by who calls (`TlsContexts.prepare`), so that no file is read here, and nothing fails.
        """
        self._treatment = self._treat(listener, make_protocol)
        for each in self._sockets:
            listen(each, listener)

    def _treat(self, listener: Listener, make_protocol: MakeProtocol) -> _Treatment:
        context = None if listener.tls is None else self._contexts.of(listener.tls)
        return _Treatment(listener, make_protocol, context, AddressChecks(listener, self._lock_outs))

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
                accepted.on_closed()
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
        except _REFUSALS as error:
            accepted.on_closed()
            self._refuse(connection, accepted.peer, treatment, error)
        except asyncio.CancelledError:
            connection.close()
            accepted.on_closed()
            raise
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the listener
            accepted.on_closed()
            self._fail(connection, error)

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
                peer = Peer.named(name)
                try:
                    peer = Peer.of_socket(connection, name)
                    self._treatment.addresses.check_accepted(peer)
                    return connection, self._limits.accept(self.settings, peer, self._loop.time())
                except _REFUSALS as error:
                    self._refuse(connection, peer, self._treatment, error)
                except Exception as error:  # noqa: BLE001 - as in `_connect_plain`
                    self._fail(connection, error)

    async def _prepare(self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment) -> None:
        """Read the PROXY header and do the TLS handshake; a failure ends this connection only."""
        self._unbegun.remove(connection)
        peer = accepted.peer
        deadline = accepted.accepted_at + treatment.settings.login_timeout
        try:
            client = await self._read_proxy_header(connection, accepted, treatment, deadline)
            if client is not None:
                peer = client.peer
                if treatment.settings.proxy_protocol:
                    treatment.addresses.check_client(peer)
                self._limits.admit(treatment.settings, client)
                self._handshakes.is_from(client.connection, client.peer.host)
                await self._make_transport(connection, client, treatment, deadline)
        except _REFUSALS as error:
            accepted.on_closed()
            self._refuse(connection, peer, treatment, error)
        except Exception as error:  # noqa: BLE001 - as in `_connect_plain`
            accepted.on_closed()
            self._fail(connection, error)

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
                self._log("proxy header refused", accepted.peer, reason)
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
        # Before there is a transport: what fails here leaves the socket to who called.
        protocol = treatment.make_protocol(accepted)
        context = None if treatment.tls is None else treatment.tls.context
        if context is None:
            try:
                await self._loop.connect_accepted_socket(lambda: protocol, connection)
            except asyncio.CancelledError:
                # The connection has begun. uvloop closes it and does not tell the protocol; asyncio tells it once more.
                protocol.connection_lost(None)
                raise
            return
        alert, timeout = HandshakeAlert(connection), max(deadline - self._loop.time(), 0.001)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=timeout
            )
        except (OSError, ValueError) as error:
            # The event loop decodes the client's certificate, and lets through what Python says about its texts.
            accepted.on_closed()
            self._log("tls handshake failed", accepted.peer, handshake_failure(error))
            await alert.send()
        finally:
            alert.close()

    def _fail(self, connection: socket.socket, fault: Exception) -> None:
        connection.close()
        self._loop.call_exception_handler({"message": "a connection could not begin", "exception": fault})

    def _refuse(self, connection: socket.socket, peer: Peer, treatment: _Treatment, reason: _Refusal) -> None:
        """Close. Where there are too many, say so, if the client does not expect TLS."""
        if isinstance(reason, AddressRefusedError):
            connection.close()
            self._refused[reason.limit] += 1
            self._log("connection refused", peer, str(reason))
            return
        error = error_frames.too_many_connections(reason.whose, reason.most)
        answer = _UNAVAILABLE if treatment.settings.websocket is not None else error_frames.encode_error(error, None)
        with connection, contextlib.suppress(OSError):
            connection.send(answer if treatment.tls is None else b"")
            # Bytes that nobody has read would cost the client the answer: the system would reset the connection.
            connection.shutdown(socket.SHUT_WR)
            _ = connection.recv(_FIRST_BYTES)

    def _log(self, event: str, peer: Peer, reason: str) -> None:
        self._log_limiter.info(event, address=self._address, peer=str(peer), reason=reason)


class _NothingSentError(Exception):
    """The other end connected and closed, probably a proxy's health check: this is not logged."""
