"""The tap: the protocol on the socket of one AMQP connection, between the socket and the AMQP library.

The library connects, logs in and sends heart-beats through a stream pair. The tap splits the broker's bytes first
(``gateway.amqp.splitter``): frames of channels go to the sessions, and everything else to the library.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from gateway.amqp.splitter import Splitter
from gateway.errors import CodecError
from gateway.server.paced_work import FULL_READ

_HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"

# While frames of channels flow, the library sees no frame, and the broker sends no heart-beat. After three intervals,
# the library would close the connection. So the tap feeds it a heart-beat this often, in seconds.
_HEARTBEAT_INTERVAL: Final = 1.0


class _TapCallbacks(Protocol):
    """See `Link`."""

    splitter: Splitter

    @property
    def channels(self) -> int: ...

    def on_read(self) -> None: ...

    def batch_done(self) -> None: ...

    def set_writing_paused(self, paused: bool) -> None: ...

    def bad_amqp(self, error: CodecError) -> None: ...

    def connection_lost(self, exc: Exception | None, *, by_broker: bool) -> None: ...


class LinkWriter(asyncio.StreamWriter):
    """The library's writing end of the stream pair. It closes the socket in one step, as with TLS.

    Otherwise the library would first end its half. A session that writes after that would get an error.
    """

    def can_write_eof(self) -> bool:
        """Always false."""
        return False


class Tap(asyncio.StreamReaderProtocol):
    """The protocol of an AMQP connection's socket. ``reader``: the library's reading end of the stream pair."""

    transport: asyncio.Transport

    def __init__(self, reader: asyncio.StreamReader, callbacks: _TapCallbacks, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(reader, loop=loop)
        self._callbacks = callbacks
        self._clock = loop.time
        self._heartbeat_at = loop.time()
        self._has_ended = False
        # The reasons not to read.
        self._pauses: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the stream pair."""
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
            # The bytes are not AMQP. For the library the connection is closed, and sessions get an ERROR.
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
            # Other sockets are read before the rest.
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if not self._pauses and not self.transport.is_reading() and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_reading(self, reason: str) -> None:
        """Stop reading, for this reason."""
        self._pauses.add(reason)
        if self.transport.is_reading():
            self.transport.pause_reading()

    def resume_reading(self, reason: str) -> None:
        """End a reason not to read. Reading resumes when none is left."""
        self._pauses.discard(reason)
        self._read_on()

    def feed_heartbeat(self) -> None:
        """Feed the library a heart-beat."""
        super().data_received(_HEARTBEAT)

    def pause_writing(self) -> None:
        """Hold clients: the transport's buffer is above its high-water mark."""
        super().pause_writing()
        self._callbacks.set_writing_paused(True)

    def resume_writing(self) -> None:
        """Release clients: the transport's buffer is below its low-water mark again."""
        super().resume_writing()
        self._callbacks.set_writing_paused(False)

    def eof_received(self) -> bool | None:
        """Note that the broker has ended its half."""
        self._has_ended = True
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the socket is closed, by either side."""
        super().connection_lost(exc)
        self._callbacks.connection_lost(exc, by_broker=self._has_ended)
