"""The tap: the socket of one AMQP connection, shared by the AMQP client library and the sessions' data.

The library connects, authenticates and sends heart-beats through a stream pair. The tap splits the broker's bytes first
(``gateway.amqp.splitter``): what belongs to a channel goes to its session, everything else to the library.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from gateway.amqp.splitter import Splitter
from gateway.errors import CodecError
from gateway.server.paced_work import FULL_READ

_HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"

# While channels' frames flow, the library sees no frame and the broker sends no heart-beat, so after three heart-beat
# intervals the library would take the connection for dead. The tap shows it a heart-beat this often, in seconds.
_HEARTBEAT_INTERVAL: Final = 1.0


class _TapCallbacks(Protocol):
    """The link."""

    splitter: Splitter

    @property
    def channels(self) -> int: ...

    def on_read(self) -> None: ...

    def batch_done(self) -> None: ...

    def set_paused(self, paused: bool) -> None: ...

    def bad_amqp(self, error: CodecError) -> None: ...

    def connection_lost(self, exc: Exception | None, *, by_broker: bool) -> None: ...


class LinkWriter(asyncio.StreamWriter):
    """The library's end for writing. It closes a link as a whole, as with TLS.

    The library would end its half first, and only then close. A session that writes in between would get an error.
    """

    def can_write_eof(self) -> bool:
        """Never."""
        return False


class Tap(asyncio.StreamReaderProtocol):
    """The protocol of an AMQP connection's socket; ``reader`` is the library's end of the stream."""

    transport: asyncio.Transport

    def __init__(self, reader: asyncio.StreamReader, callbacks: _TapCallbacks, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._callbacks = callbacks
        self._clock = loop.time
        self._heartbeat_at = loop.time()
        self._has_ended = False
        # Why nothing is read.
        self._pauses: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Split the broker's bytes. HOT: once per read."""
        callbacks = self._callbacks
        callbacks.on_read()
        splitter = callbacks.splitter
        try:
            control_frames = splitter.receive(data)
        except CodecError as error:
            # The bytes are not AMQP. The library sees a closed connection, and sessions get their ERROR.
            callbacks.bad_amqp(error)
            self.transport.abort()
            return
        if control_frames:
            super().data_received(control_frames)
        if splitter.touched:
            callbacks.batch_done()
        now = self._clock()
        if now - self._heartbeat_at > _HEARTBEAT_INTERVAL and callbacks.channels:
            self._heartbeat_at = now
            self.feed_heartbeat()
        if len(data) >= FULL_READ and self.transport.is_reading():
            # Others are read before the rest.
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._pauses and not self.transport.is_reading() and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_reading(self, reason: str) -> None:
        """Read nothing from the broker."""
        self._pauses.add(reason)
        if self.transport.is_reading():
            self.transport.pause_reading()

    def resume_reading(self, reason: str) -> None:
        """Read from the broker again, unless there is another reason not to."""
        self._pauses.discard(reason)
        self._read_on()

    def feed_heartbeat(self) -> None:
        """Show the library a heart-beat."""
        super().data_received(_HEARTBEAT)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        super().pause_writing()
        self._callbacks.set_paused(True)

    def resume_writing(self) -> None:
        """The transport's buffer is below its low-water mark again."""
        super().resume_writing()
        self._callbacks.set_paused(False)

    def eof_received(self) -> bool | None:
        """The broker sends no more."""
        self._has_ended = True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed, by whichever side."""
        super().connection_lost(exc)
        self._callbacks.connection_lost(exc, by_broker=self._has_ended)
