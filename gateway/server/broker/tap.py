"""The tap: one AMQP connection's socket, shared by the AMQP client library and the data plane.

The library dials, authenticates and sends control frames through a stream pair, as it always does. What the broker
sends is split first (``gateway.amqp.splitter``): data of registered channels goes to sessions, everything else is fed
to the library.
"""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError

from gateway.amqp.splitter import Splitter
from gateway.errors import CodecError

if TYPE_CHECKING:
    import ssl

    from yarl import URL

_HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"

# While sessions' data flows the library sees no frame and the broker sends no heart-beat, so the library would take the
# connection for dead after three times its heart-beat interval. It is shown a heart-beat this often, in seconds.
_SIGN_OF_LIFE: Final = 1.0


class TapOwner(Protocol):
    """Who is told what happens on the socket; a link."""

    splitter: Splitter

    def batch_begins(self) -> None:
        """The broker sent something; what comes of it follows at once."""

    def batch_done(self) -> None:
        """Data went to the sinks of the owners in ``splitter.touched``."""

    def writing_paused(self) -> None:
        """The broker does not take bytes as fast as they come."""

    def writing_resumed(self) -> None:
        """The broker took most of what was waiting."""

    def connection_lost(self) -> None:
        """The socket is closed."""


class Tap(asyncio.StreamReaderProtocol):
    """The protocol of an AMQP connection's socket.

    Args:
        reader: the library's end of the stream.
        owner: is told of data and of pressure.
    """

    def __init__(self, reader: asyncio.StreamReader, owner: TapOwner, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._owner = owner
        self._clock = loop.time
        self._alive_at = loop.time()
        self._tapped_transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, to close it when the broker sends what is not AMQP."""
        super().connection_made(transport)
        if isinstance(transport, asyncio.Transport):
            self._tapped_transport = transport

    def data_received(self, data: bytes) -> None:
        """Split what the broker sent. HOT: once per read."""
        owner = self._owner
        owner.batch_begins()
        splitter = owner.splitter
        try:
            others = splitter.receive(data)
        except (CodecError, struct.error, IndexError):
            # Whoever waits for the library sees the connection closed, and sessions get their ERROR.
            if self._tapped_transport is not None:
                self._tapped_transport.abort()
            return
        if others:
            super().data_received(others)
        if splitter.touched:
            owner.batch_done()
            now = self._clock()
            if now - self._alive_at > _SIGN_OF_LIFE:
                self._alive_at = now
                self.show_life()

    def show_life(self) -> None:
        """Let the library see a heart-beat."""
        super().data_received(_HEARTBEAT)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        super().pause_writing()
        self._owner.writing_paused()

    def resume_writing(self) -> None:
        """The transport's buffer is below its low-water mark again."""
        super().resume_writing()
        self._owner.writing_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whichever side."""
        super().connection_lost(exc)
        self._owner.connection_lost()


class TapFactory(TransportFactory):
    """Opens the socket of a link for the AMQP library.

    Args:
        owner: the link.
        high_water: bytes waiting to be written to the broker above which its clients are held.
    """

    def __init__(self, owner: TapOwner, high_water: int) -> None:
        self._owner = owner
        self._high_water = high_water
        self.transport: asyncio.Transport | None = None
        self.tap: Tap | None = None

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:  # noqa: ANN401
        """Open the socket; called by the library.

        Args:
            url: with scheme, host and port.
            **kwargs: the library's; of these only its TLS context is used.

        Raises:
            AMQPConnectionError: when nobody answers.
        """
        loop = asyncio.get_running_loop()
        context: ssl.SSLContext | None = None
        if url.scheme == "amqps":
            context = await kwargs["ssl_context_provider"].get_context()
        reader = asyncio.StreamReader(loop=loop)
        try:
            transport, protocol = await loop.create_connection(
                lambda: Tap(reader, self._owner, loop), url.host or "", url.port or 0, ssl=context
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        transport.set_write_buffer_limits(high=self._high_water)
        self.transport = transport
        self.tap = protocol
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
