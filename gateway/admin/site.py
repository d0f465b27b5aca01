"""The admin listener: where operators look into a running gateway.

The HTTP library is loaded only when there is to be such a listener, and after clients can connect already.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Final

import structlog

from gateway.config import AdminListener, Listener, ListenerTls
from gateway.errors import ListenError
from gateway.server.listen.listener import OpenListener

if TYPE_CHECKING:
    from gateway.admin.web import Web
    from gateway.config import SocketAddress
    from gateway.server.process.gateway import Gateway

log = structlog.get_logger("gateway.admin")

# Connections at once, TLS handshakes among them, and the seconds that one of those may take.
_MOST: Final = 64
_TO_SHAKE_HANDS: Final = 10.0
_BACKLOG: Final = 100


class AdminSite:
    """The admin listener of a gateway, beside which it runs.

    Args:
        settings: where it listens, and who may look in.
    """

    def __init__(self, settings: AdminListener) -> None:
        self._settings = settings
        self._door: OpenListener | None = None
        self._web: Web | None = None

    async def start(self, gateway: Gateway) -> None:
        """Listen, unless that is switched off.

        Raises:
            ListenError: when the address cannot be taken, and was asked for in the configuration.
        """
        address = self._settings.address
        if address is None:
            return
        # It takes a moment, which is spent only where somebody may look in, and which nobody else has to wait for.
        library = await asyncio.to_thread(import_module, "gateway.admin.web")
        web: Web = library.Web(gateway, self._settings)
        door = OpenListener(self._listener(address), web.connection)
        await web.start()
        self._web = web
        try:
            await door.open()
        except OSError as error:
            if self._settings.model_fields_set:
                raise ListenError(str(address), error, "admin") from error
            # Nobody asked for it, so nobody should be kept from working by it.
            log.warning(
                "no admin listener", address=str(address), reason=error.strerror or str(error),
                hint="give another address under admin in the configuration, or address: null",
            )  # fmt: skip
            return
        self._door = door
        scheme = "http" if self._settings.tls is None else "https"
        for host, port in door.addresses:
            shown = f"[{host}]" if ":" in host else host
            log.info("admin listening", url=f"{scheme}://{shown}:{port}/")

    def _listener(self, address: SocketAddress) -> Listener:
        """The same as for STOMP clients: strangers are to harm the gateway no more here than there."""
        tls = self._settings.tls
        return Listener(
            tcp=address,
            tls=None if tls is None else ListenerTls.model_construct(**dict(tls)),
            max_connections=_MOST,
            login_timeout=_TO_SHAKE_HANDS,
            backlog=_BACKLOG,
        )

    async def stop(self) -> None:
        """Close it, after what is under way."""
        if self._door is not None:
            self._door.close()
            self._door = None
        if self._web is not None:
            await self._web.stop()
            self._web = None
