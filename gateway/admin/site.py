"""The admin listener: where operators look into a running gateway.

The HTTP library is loaded only when there is such a listener, and after clients can connect already.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING

import structlog

from gateway.config import Admin
from gateway.errors import ListenError
from gateway.server.listening import bound
from gateway.server.tls import listener_tls_context

if TYPE_CHECKING:
    import socket
    import ssl

    from gateway.admin.web import Web
    from gateway.server.gateway import Gateway

log = structlog.get_logger("gateway.admin")

_BACKLOG = 100


class AdminSite:
    """The admin listener of a gateway, beside which it runs.

    Args:
        settings: where it listens, and who may look in.
    """

    def __init__(self, settings: Admin) -> None:
        self._settings = settings
        self._servers: list[asyncio.Server] = []
        self._web: Web | None = None
        self.addresses: list[tuple[str, int]] = []

    async def start(self, gateway: Gateway) -> None:
        """Listen, unless that is switched off.

        Raises:
            ListenError: when the address cannot be taken, and was asked for in the configuration.
        """
        address = self._settings.address
        if address is None:
            return
        try:
            context = None if self._settings.tls is None else listener_tls_context(self._settings.tls)
            doors = await bound(address, _BACKLOG)
        except OSError as error:
            if self._settings.model_fields_set:
                raise ListenError(str(address), error, "admin") from error
            # Nobody asked for it, so nobody should be kept from working by it.
            log.warning(
                "no admin listener", address=str(address), reason=error.strerror or str(error),
                hint="give another address under admin in the configuration, or address: null",
            )  # fmt: skip
            return
        await self._open(gateway, doors, context)
        scheme = "http" if self._settings.tls is None else "https"
        for host, port in self.addresses:
            shown = f"[{host}]" if ":" in host else host
            log.info("admin listening", url=f"{scheme}://{shown}:{port}/")

    async def _open(self, gateway: Gateway, doors: list[socket.socket], context: ssl.SSLContext | None) -> None:
        # It takes a moment, which is spent only where somebody may look in, and which nobody else has to wait for.
        library = await asyncio.to_thread(import_module, "gateway.admin.web")
        web: Web = library.Web(gateway, self._settings)
        self._web = web
        await web.start()
        loop = asyncio.get_running_loop()
        self._servers = [await loop.create_server(web.connection, sock=door, ssl=context) for door in doors]
        self.addresses = [door.getsockname()[:2] for door in doors]

    async def stop(self) -> None:
        """Close it, after what is under way."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        if self._web is not None:
            await self._web.stop()
            self._web = None
