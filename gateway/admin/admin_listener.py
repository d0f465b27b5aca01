"""The admin listener of a gateway: metrics, health, the API and the status page over HTTP.

The HTTP library takes a moment to load. It is loaded only if there is such a listener, and when clients can already
connect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import structlog

from gateway import commit
from gateway.config.addresses import SocketAddress, UnixAddress
from gateway.config.listener_settings import AdminSettings, Listener
from gateway.config.model import GatewayConfig
from gateway.config.tls_settings import ListenerTls
from gateway.errors import ListenError
from gateway.server.descriptors import admin_connections
from gateway.server.listen.listener import OpenListener
from gateway.server.process.reload import KEPT_UNTIL_RESTART
from gateway.server.process.served import Served, Service
from gateway.server.tls_contexts import TlsContexts

if TYPE_CHECKING:
    from gateway.admin.access import Guesses
    from gateway.admin.http_server import AdminHttpServer
    from gateway.admin.workers_view import View

log = structlog.get_logger("gateway.admin")

# The seconds that a TLS handshake may take.
_HANDSHAKE_TIMEOUT: Final = 10.0
_BACKLOG: Final = 100


async def view_of(gateway: Any) -> View:  # noqa: ANN401 - a `Gateway`
    """What there is to show of a gateway. The metrics' library is loaded in a thread, so that clients are served."""
    module = await asyncio.to_thread(import_module, "gateway.admin.gateway_view")
    view: View = module.GatewayView(gateway)
    return view


class AdminListener(Service[Served]):
    """Listens while its gateway runs, unless the configuration switches it off.

    ``make_view`` makes what it shows, from what it is started with (default: of one gateway).
    """

    def __init__(self, settings: AdminSettings, make_view: Callable[[Any], View] | None = None) -> None:
        self._make_view = make_view
        # Address and file are those of the start; everything else follows reloads of the configuration.
        self._settings = self._first = settings
        self._listener: OpenListener | None = None
        self._http: AdminHttpServer | None = None
        self._guesses: Guesses | None = None
        self._contexts: TlsContexts | None = None

    async def start(self, gateway: Served) -> None:
        """Listen.

        Raises:
            ListenError: the address cannot be taken, and the configuration names it. If it is the default address,
                the gateway starts without an admin listener.
        """
        address = self._first.address
        if address is None:
            return
        self._contexts = gateway.tls_contexts
        # In a thread, so that clients are served meanwhile.
        await asyncio.to_thread(commit)  # for the API
        access = await asyncio.to_thread(import_module, "gateway.admin.access")
        module = await asyncio.to_thread(import_module, "gateway.admin.http_server")
        clock = asyncio.get_running_loop().time
        guesses: Guesses = access.Guesses(gateway.config.failed_logins, clock, gateway.admin_logins)
        view = await view_of(gateway) if self._make_view is None else self._make_view(gateway)
        http: AdminHttpServer = module.AdminHttpServer(view, self._settings, guesses)
        self._guesses = guesses
        listener_settings = self._listener_settings(self._settings)
        listener = OpenListener(listener_settings, http.connection, gateway.tls_contexts, lock_outs=guesses.lock_outs)
        await http.start()
        self._http = http
        try:
            await listener.bind()
        except OSError as error:
            if self._settings.model_fields_set:
                raise ListenError(str(address), error, "admin") from error
            log.warning(
                "no admin listener", address=str(address), reason=error.strerror or str(error),
                hint="give another address under admin in the configuration, or address: null",
            )  # fmt: skip
            return
        listener.accept()
        self._listener = listener
        scheme = "http" if self._settings.tls is None else "https"
        for host, port in listener.addresses:
            log.info("admin listening", url=f"{scheme}://{SocketAddress(host, port)}/")
        if isinstance(address, UnixAddress):
            log.info("admin listening", url=str(address))

    def prepare(self, config: GatewayConfig) -> object:
        """Make the TLS context of another configuration, to be kept until ``reload``, and look for the socket's file.

        Raises:
            GatewayError: it cannot be used.
        """
        if self._contexts is None:
            return None
        settings = self._listener_settings(config.admin)
        if self._listener is not None:
            self._listener.permit(settings)
        return self._contexts.prepare([settings.tls])

    async def reload(self, config: GatewayConfig) -> dict[str, str]:
        """Use other users, host names and TLS settings. The address stays."""
        self._settings = config.admin
        if self._guesses is not None:
            self._guesses.configure(config.failed_logins)
        if self._http is not None:
            self._http.use(config.admin)
            if self._listener is not None:
                self._listener.change(self._listener_settings(config.admin), self._http.connection)
        return {
            f"admin.{key}": "none" if self._listener is None else str(getattr(self._first, key))
            for key in KEPT_UNTIL_RESTART["admin"]
            if getattr(config.admin, key) != getattr(self._first, key)
        }

    def _listener_settings(self, settings: AdminSettings) -> Listener:
        """The settings of a listener for STOMP clients, so that it withstands the same attacks."""
        tls = settings.tls
        return Listener(
            websocket=self._first.address,
            socket_mode=self._first.socket_mode,
            socket_group=self._first.socket_group,
            tls=None if tls is None else ListenerTls.model_construct(**dict(tls)),
            max_connections=admin_connections(),
            allowed_networks=settings.allowed_networks,
            denied_networks=settings.denied_networks,
            login_timeout=_HANDSHAKE_TIMEOUT,
            backlog=_BACKLOG,
        )

    async def stop(self) -> None:
        """Accept nothing more, answer the requests that have come, and close."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._http is not None:
            await self._http.stop()
            self._http = None
