"""An open listener: accepts connections, and prepares those with a PROXY header or TLS.

It accepts at most one connection in each event loop iteration, so a flood of them delays nobody. A connection with a
PROXY header or TLS is prepared in a task of its own. The number of these tasks is bounded.
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

from gateway.config.addresses import SocketAddress
from gateway.config.listener_settings import Listener
from gateway.config.model import FailedLoginLimits
from gateway.server.counts import Counts
from gateway.server.descriptors import Descriptors
from gateway.server.listen.accepted_connection import AcceptedConnection, Peer
from gateway.server.listen.address_checks import AddressChecks, AddressRefusedError, LockOuts
from gateway.server.listen.connection_limits import (
    ConnectionLimits,
    CountedConnection,
    Handshakes,
    TooManyConnectionsError,
)
from gateway.server.listen.listening_sockets import Bind, WatchedSocket, bound, listen, permit
from gateway.server.listen.proxy_protocol import ProxyHeaderError, bytes_missing, parse_header
from gateway.server.listen.tls import handshake_failure
from gateway.server.log_limits import LogRateLimiter
from gateway.server.tls_contexts import HandshakeAlert, TlsContext, TlsContexts
from gateway.session import error_frames

log = structlog.get_logger("gateway.listening")

MakeProtocol = Callable[[AcceptedConnection], asyncio.Protocol]

# The pause in seconds after an error that the next attempt would also meet, for lack of file descriptors or memory. Any
# other error concerns one connection (accept(2): Linux reports its pending errors).
_PAUSE: Final = 1.0
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_Refusal = AddressRefusedError | TooManyConnectionsError
_REFUSALS: Final = (AddressRefusedError, TooManyConnectionsError)

# A refused client may already have sent this many bytes, such as a CONNECT.
_FIRST_BYTES: Final = 16 << 10

_NO_HEADER: Final = "no whole PROXY header came"

_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class _Treatment:
    """How a new connection is treated. A change of settings does not affect connections in preparation."""

    settings: Listener
    make_protocol: MakeProtocol
    tls: TlsContext | None
    addresses: AddressChecks

    @property
    def awaits_client(self) -> bool:
        """Whether the client has to send something before its session can begin."""
        return self.tls is not None or self.settings.proxy_protocol


class OpenListener:
    """The sockets of one listener. It takes its TLS context from ``contexts``."""

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
        self._bound = bind or bound
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._accepting: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._log_limiter = log_limiter or LogRateLimiter(self._loop.time)
        self._lock_outs = lock_outs or LockOuts(FailedLoginLimits(), self._loop.time)
        self._treatment = _Treatment(listener, make_protocol, None, AddressChecks(listener, self._lock_outs))
        self._refused: Counter[str] = Counter() if refused is None else refused
        self._handshakes = Handshakes(self._address, self._loop.time, self._log_limiter, self._refused)
        self._limits = ConnectionLimits(self._address, self._log_limiter, self._refused, counts)

    @property
    def settings(self) -> Listener:
        """The settings for new connections."""
        return self._treatment.settings

    def share(self, descriptors: Descriptors) -> None:
        """Accept only as many clients as the process's file descriptors allow."""
        self._limits.descriptors = descriptors

    async def bind(self) -> None:
        """Bind the address, or each address of the host name. Clients wait until ``accept``.

        Raises:
            OSError: an address cannot be bound, or a TLS file cannot be used. No socket is left open.
        """
        listener = self.settings
        self._treatment = self._treat(listener, self._treatment.make_protocol)
        sockets = await self._bound(listener)
        self.addresses = [each.getsockname()[:2] for each in sockets if each.family != socket.AF_UNIX]
        self.names = [str(SocketAddress(*each)) for each in self.addresses] or [self._address]
        self._limits.place = repr(self.names)
        self._sockets = sockets
        for each in sockets:
            listen(each, listener)

    def accept(self) -> None:
        """Begin to accept connections."""
        for each in self._sockets:
            _ = self._spawn(self._accept_all(each), self._accepting)

    def permit(self, listener: Listener) -> None:
        """See `listening_sockets.permit`."""
        permit(self._sockets, listener)

    def change(self, listener: Listener, make_protocol: MakeProtocol) -> None:
        """Use other settings for new connections on the same address.

        The caller holds their TLS context (`TlsContexts.prepare`), so no file is read here, and nothing fails.
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
                # After their tasks have ended.
                self._loop.call_soon(each.close)
            else:
                each.close()

    def _spawn(self, work: Coroutine[None, None, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = self._loop.create_task(work, name=f"listener {self._address}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _accept_all(self, listening: socket.socket) -> None:
        with contextlib.closing(WatchedSocket(listening)) as watched:
            while True:
                connection, accepted = await self._accept(watched)
                try:
                    if not self._treatment.awaits_client:
                        # Without a task, which would cost as much as the rest.
                        await self._connect(connection, accepted, self._treatment)
                    elif await self._has_room(accepted.peer.host):
                        self._begin(connection, accepted)
                    else:
                        _drop(connection, accepted)
                except asyncio.CancelledError:
                    _drop(connection, accepted)
                    raise

    async def _has_room(self, host: str) -> bool:
        return await self._handshakes.has_room(self._limits.counts.share(self.settings.max_handshakes), host)

    def _begin(self, connection: socket.socket, accepted: CountedConnection) -> None:
        """Prepare a connection in a task."""
        task = self._spawn(self._connect(connection, accepted, self._treatment), self._tasks)
        self._handshakes.begin(accepted, task, accepted.peer.host)

        def done(task: asyncio.Task[None]) -> None:
            self._handshakes.end(accepted)
            if task.cancelled():
                # Not in the task, because a task that is cancelled before it runs never reaches its `finally`.
                _drop(connection, accepted)

        task.add_done_callback(done)

    async def _accept(self, listening: WatchedSocket) -> tuple[socket.socket, CountedConnection]:
        """Wait for a connection that may come in."""
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
                except Exception as error:  # noqa: BLE001 - as in `_connect`
                    self._fail(connection, error)

    async def _connect(self, connection: socket.socket, accepted: CountedConnection, treatment: _Treatment) -> None:
        """Read the PROXY header, do the TLS handshake, and begin. A failure ends this connection only."""
        deadline = accepted.accepted_at + treatment.settings.login_timeout
        try:
            if treatment.settings.proxy_protocol:
                peer = await self._peer_behind_proxy(connection, deadline)
                accepted.peer = peer or replace(accepted.peer, is_proxy=True)
                treatment.addresses.check_client(accepted.peer)
                self._handshakes.is_from(accepted, accepted.peer.host)
            self._limits.admit(treatment.settings, accepted)
            await self._make_transport(connection, accepted, treatment, deadline)
        except ProxyHeaderError as error:
            _drop(connection, accepted)
            if reason := str(error):
                self._log("proxy header refused", accepted.peer, reason)
        except _REFUSALS as error:
            accepted.on_closed()
            self._refuse(connection, accepted.peer, treatment, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the listener
            accepted.on_closed()
            self._fail(connection, error)

    async def _peer_behind_proxy(self, connection: socket.socket, deadline: float) -> Peer | None:
        """Read the PROXY header. Returns the client that it names, or None.

        Raises:
            ProxyHeaderError: without a text if nothing was sent, probably by a proxy's health check.
        """
        header = bytearray()
        try:
            async with asyncio.timeout_at(deadline):
                while missing := bytes_missing(header):
                    data = await self._loop.sock_recv(connection, missing)
                    if not data:
                        raise ProxyHeaderError(_NO_HEADER if header else "")
                    header += data
        except (TimeoutError, OSError):
            raise ProxyHeaderError(_NO_HEADER) from None
        return parse_header(bytes(header))

    async def _make_transport(
        self, connection: socket.socket, accepted: AcceptedConnection, treatment: _Treatment, deadline: float
    ) -> None:
        """Make the transport, with TLS after the handshake. From then on it owns the socket."""
        # Before the transport, so that after a fault the caller still owns the socket.
        protocol = treatment.make_protocol(accepted)
        context = None if treatment.tls is None else treatment.tls.context
        if context is None:
            try:
                await self._loop.connect_accepted_socket(lambda: protocol, connection)
            except asyncio.CancelledError:
                # The connection has begun, and the event loop closes it. Only asyncio's own tells the protocol.
                if not isinstance(self._loop, asyncio.BaseEventLoop):
                    protocol.connection_lost(None)
                raise
            return
        alert, timeout = HandshakeAlert(connection), max(deadline - self._loop.time(), 0.001)
        try:
            await self._loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=context, ssl_handshake_timeout=timeout
            )
        except asyncio.CancelledError:
            # Not raised again, so that nobody else closes the socket: the event loop may still write the end of TLS.
            # The task ends here anyway.
            accepted.on_closed()
        except (OSError, ValueError) as error:
            # ValueError: the event loop decodes the client's certificate, and passes Python's errors about it on.
            accepted.on_closed()
            self._log("tls handshake failed", accepted.peer, handshake_failure(error))
            await alert.send()
        finally:
            alert.close()

    def _fail(self, connection: socket.socket, fault: Exception) -> None:
        connection.close()
        self._loop.call_exception_handler({"message": "a connection could not begin", "exception": fault})

    def _refuse(self, connection: socket.socket, peer: Peer, treatment: _Treatment, reason: _Refusal) -> None:
        """Close. If there are too many connections, say so, unless the client expects TLS."""
        if isinstance(reason, AddressRefusedError):
            connection.close()
            self._refused[reason.limit] += 1
            self._log("connection refused", peer, str(reason))
            return
        error = error_frames.too_many_connections(reason.whose, reason.most)
        answer = _UNAVAILABLE if treatment.settings.websocket is not None else error_frames.encode_error(error, None)
        with connection, contextlib.suppress(OSError):
            connection.send(answer if treatment.tls is None else b"")
            # If bytes were left unread, the system would reset the connection, and the client might lose the answer.
            connection.shutdown(socket.SHUT_WR)
            _ = connection.recv(_FIRST_BYTES)

    def _log(self, event: str, peer: Peer, reason: str) -> None:
        self._log_limiter.info(event, address=self._address, peer=str(peer), reason=reason)


def _drop(connection: socket.socket, accepted: AcceptedConnection) -> None:
    connection.close()
    accepted.on_closed()
