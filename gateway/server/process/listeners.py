"""The listeners of a gateway: opened at the start, and changed by a reload."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from gateway import __version__
from gateway.config.addresses import ListenAddress, SocketAddress
from gateway.config.listener_settings import Listener
from gateway.errors import GatewayError, ListenError
from gateway.server.client.connection import ClientConnection, ServerContext
from gateway.server.counts import Counts
from gateway.server.listen.accepted_connection import AcceptedConnection
from gateway.server.listen.listener import MakeProtocol, OpenListener
from gateway.server.listen.listening_sockets import Bind
from gateway.server.listen.websocket import WebSocketConnection
from gateway.server.tls_contexts import TlsContexts

log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class ListenerChanges:
    """The configured addresses of the listeners that `Listeners.change` has opened, changed and closed."""

    opened: tuple[ListenAddress, ...]
    changed: tuple[ListenAddress, ...]
    closed: tuple[ListenAddress, ...]


class Listeners:
    """All listeners of one gateway.

    ``context``: for their clients. ``contexts``: for TLS. ``counts``: count their connections. ``bind``: makes their
    sockets.
    """

    def __init__(self, context: ServerContext, contexts: TlsContexts, counts: Counts, bind: Bind | None = None) -> None:
        self._bind = bind
        self._counts = counts
        self._context = context
        self._contexts = contexts
        # For each, the WebSocket connections that have no client yet.
        self._open: dict[OpenListener, set[asyncio.Transport]] = {}

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every open TCP listener."""
        return [address for listener in self._open for address in listener.addresses]

    @property
    def are_open(self) -> bool:
        """Whether any listener is open."""
        return bool(self._open)

    async def open(self, listeners: Sequence[Listener]) -> list[ListenAddress]:
        """Open these listeners. Returns the configured addresses, without those that this machine cannot have.

        Raises:
            ListenError: one cannot be opened. The others are closed again, and have accepted no client.
        """
        opened: dict[OpenListener, set[asyncio.Transport]] = {}
        # Also if the gateway stops meanwhile, because a name lookup may take long.
        with contextlib.ExitStack() as closing:
            for listener in listeners:
                handshakes: set[asyncio.Transport] = set()
                one = OpenListener(
                    listener,
                    self._maker(listener, handshakes),
                    self._contexts,
                    self._context.log_limits.of_listener(),
                    self._context.stats.connections_refused,
                    bind=self._bind,
                    counts=self._counts,
                    lock_outs=self._context.limits.lock_outs,
                )
                one.share(self._context.pool.descriptors)
                closing.callback(one.close)
                try:
                    await one.bind()
                except OSError as error:
                    if error.errno == errno.EAFNOSUPPORT and is_served_by_ipv4(listener.address, listeners):
                        log.warning("no ipv6", address=str(listener.address))
                        continue
                    raise ListenError(str(listener.address), error) from error
                opened[one] = handshakes
            closing.pop_all()
        self._open |= opened
        for one in opened:
            one.accept()
            for name in one.names:
                log.info("listening", address=name, version=__version__)
        return [one.settings.address for one in opened]

    async def change(self, listeners: Sequence[Listener]) -> ListenerChanges:
        """Open listeners for new addresses, close those whose address is gone, and use the settings of all others.

        Settings are for new connections. Connections of a closed listener continue, except WebSocket handshakes.

        Raises:
            GatewayError: a new listener cannot be opened, a TLS file cannot be used, or a socket cannot be given to its
                group. Nothing has changed.
        """
        left, kept, new = list(self._open), [], []
        for listener in listeners:
            found = next((each for each in left if each.settings.address == listener.address), None)
            if found is None:
                new.append(listener)
            else:
                left.remove(found)
                kept.append((found, listener))
        refuse_moves(new, (one.settings.address for one in left))
        # Held until the listeners use them, so that no file is read below.
        _held = self._contexts.prepare(listener.tls for listener in listeners)
        with contextlib.ExitStack() as on_failure:
            for one, listener in kept:
                on_failure.callback(one.permit, one.settings)
                one.permit(listener)
            opened = await self.open(new)
            on_failure.pop_all()
        changed = [(one, listener) for one, listener in kept if listener != one.settings]
        for one, listener in changed:
            one.change(listener, self._maker(listener, self._open[one]))
        for one in left:
            self._close(one)
        return ListenerChanges(
            tuple(opened),
            tuple(listener.address for _, listener in changed),
            tuple(one.settings.address for one in left),
        )

    def _maker(self, listener: Listener, handshakes: set[asyncio.Transport]) -> MakeProtocol:
        make_client = partial(ClientConnection, self._context, listener)

        def make_websocket(accepted: AcceptedConnection) -> WebSocketConnection:
            return WebSocketConnection(listener, accepted, make_client, handshakes, self._context.turns)

        return make_client if listener.websocket is None else make_websocket

    def _close(self, one: OpenListener) -> None:
        one.close()
        for transport in tuple(self._open.pop(one)):
            transport.abort()

    def close(self) -> None:
        """Accept nothing more. Connections continue, except WebSocket handshakes."""
        for one in tuple(self._open):
            self._close(one)


def is_served_by_ipv4(address: ListenAddress, listeners: Sequence[Listener]) -> bool:
    """Whether the address is ``::`` and there is a listener for 0.0.0.0 on the same port."""
    if not isinstance(address, SocketAddress) or address.host != "::":
        return False
    ipv4 = SocketAddress("0.0.0.0", address.port)  # noqa: S104 - nothing is listened on here
    return any(listener.address == ipv4 for listener in listeners)


def refuse_moves(new: Sequence[Listener], gone: Iterable[ListenAddress]) -> None:
    """Refuse to move a port to another address: the old one would have to be closed first.

    Raises:
        GatewayError: a port would move.
    """
    ports = {address.port: address for address in gone if isinstance(address, SocketAddress) and address.port}
    for address in (listener.address for listener in new):
        if isinstance(address, SocketAddress) and (old := ports.get(address.port)) is not None:
            raise GatewayError(f"the port of {old} can move to {address} only by a restart")
