"""What a client's connection writes to when there is WebSocket between it and the socket.

It looks like any other transport of asyncio. What a stream calls its end is the close frame here: `write_eof` sends
one, and the client's ends what it has to say. The `websockets` library makes and reads all frames, without doing any
input or output (docs/adr/0015-websocket-without-its-sockets.md); this file and `websocket` carry its bytes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.config import Listener
from gateway.errors import CloseReason

# RabbitMQ closes with 1000 whatever happened, unless a frame is malformed; so do we where no other code says more.
_CODES: Final = {
    CloseReason.MALFORMED_FRAME: CloseCode.INVALID_DATA,
    CloseReason.PROTOCOL_ERROR: CloseCode.PROTOCOL_ERROR,
    CloseReason.SLOW_CONSUMER: CloseCode.POLICY_VIOLATION,
    CloseReason.SHUTDOWN: CloseCode.GOING_AWAY,
    CloseReason.INTERNAL_ERROR: CloseCode.INTERNAL_ERROR,
}

# The head of a frame that is a whole message, without a mask (RFC 6455, section 5.2).
_TEXT: Final = 0x80 | Opcode.TEXT.value
_BINARY: Final = 0x80 | Opcode.BINARY.value
_LONG: Final = 126
_VERY_LONG: Final = 1 << 16
_HEAD: Final = struct.Struct("!BB").pack
_LONG_HEAD: Final = struct.Struct("!BBH").pack
_VERY_LONG_HEAD: Final = struct.Struct("!BBQ").pack

Credentials = tuple[bytes, bytes]
"""Login and passcode."""


class WebSocketTransport(asyncio.Transport):
    """Messages of a client, over an open WebSocket.

    Args:
        below: carries the bytes.
        protocol: the library's; its handshake is done.
        listener: where the client came in.
        now: seconds on the clock of ``is_silent``.
    """

    def __init__(self, below: asyncio.Transport, protocol: ServerProtocol, listener: Listener, now: float) -> None:
        super().__init__()
        self._below = below
        self._protocol = protocol
        self._is_text = listener.frame == "text"
        self._ping_interval = listener.ping_interval
        self._idle_timeout = listener.idle_timeout
        self._heard_at = self._pinged_at = now
        self._is_over = False
        # Whether something came since the last look, and whether the client takes bytes as fast as they come.
        self.heard = False
        self.is_congested = False
        self.is_paused = False
        # Whether the client broke the rules of WebSocket.
        self.has_failed = False
        self.resumed: Callable[[], None] = _nothing
        # From the handshake: who the client says that it is.
        self.credentials: Credentials | None = None

    # Messages.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes as one message."""
        self.write_messages([bytes(data)])

    def write_messages(self, contents: list[bytes]) -> int:
        """Send several messages at once.

        HOT: once per batch.

        Args:
            contents: of each.

        Returns:
            How many bytes that was, without those of WebSocket.
        """
        if not self._is_over:
            frames = self._compressed(contents) if self._protocol.extensions else self._plain(contents)
            self._below.write(b"".join(frames))
        return sum(map(len, contents))

    def _plain(self, contents: list[bytes]) -> Iterator[bytes]:
        """Headers and contents. The library makes the same, at several times the price of a MESSAGE (ADR 0015)."""
        is_text = self._is_text
        for octets in contents:
            size = len(octets)
            first = _TEXT if is_text and (octets.isascii() or _is_utf8(octets)) else _BINARY
            if size < _LONG:
                yield _HEAD(first, size)
            elif size < _VERY_LONG:
                yield _LONG_HEAD(first, _LONG, size)
            else:
                yield _VERY_LONG_HEAD(first, _LONG + 1, size)
            yield octets

    def _compressed(self, contents: list[bytes]) -> Iterator[bytes]:
        for octets in contents:
            opcode = Opcode.TEXT if self._is_text and _is_utf8(octets) else Opcode.BINARY
            yield Frame(opcode, octets).serialize(mask=False, extensions=self._protocol.extensions)

    # The end.

    def can_write_eof(self) -> bool:
        """Yes, see above."""
        return True

    def say_why(self, reason: CloseReason | None) -> None:
        """Send the close frame, unless one side has done so."""
        if self._protocol.state is OPEN and not self._is_over:
            code = CloseCode.NORMAL_CLOSURE if reason is None else _CODES.get(reason, CloseCode.NORMAL_CLOSURE)
            self._protocol.send_close(code, "" if reason is None else reason.value)

    def write_eof(self) -> None:
        """Send the close frame, and nothing behind it."""
        self.say_why(None)
        self.flush()
        self._is_over = True

    def close(self) -> None:
        """Answer the client's close frame, or its violation of the protocol, and close the connection."""
        self.say_why(None)
        self.flush()
        self._is_over = True
        if self.has_failed and self._below.can_write_eof():
            # Closing at once would answer what it still sends with a reset, which may overtake the last frame. Whoever
            # closes sees to it that this has an end.
            self._below.write_eof()
            if self.is_paused:
                self.resume_reading()
        else:
            self._below.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._is_over = True
        self._below.abort()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._is_over or self._below.is_closing()

    # Frames of control.

    def flush(self) -> None:
        """Send what the library has to say: pongs, and the close frame."""
        octets = self._protocol.data_to_send()
        if octets and not self._is_over:
            # An empty one asks for the end of the connection, which `close` knows of.
            self._below.write(b"".join(octets))

    def flush_pongs(self) -> None:
        """The same, but for a client that does not read only the last pong is kept (RFC 6455, section 5.5.3)."""
        if not self.is_congested:
            self.flush()
        else:
            del self._protocol.writes[:-1]

    def is_silent(self, now: float) -> bool:
        """Whether the client has been silent for too long; on the way there it is asked for a sign of life.

        Args:
            now: seconds, only going forward.
        """
        if self.heard or self.is_paused or self.is_congested:
            # Whom we do not read we cannot hear; and a ping waits behind everything that the client has not taken.
            self.heard = False
            self._heard_at = self._pinged_at = now
            return False
        if self._idle_timeout and now - self._heard_at >= self._idle_timeout:
            return True
        if self._ping_interval and now - self._pinged_at >= self._ping_interval and self._protocol.state is OPEN:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self.flush()
        return False

    @property
    def idle_timeout(self) -> float:
        """How long the client may be silent, in seconds; 0 for ever."""
        return self._idle_timeout

    # What belongs to the socket.

    def pause_reading(self) -> None:
        """Leave what the client sends where it is."""
        self.is_paused = True
        if not self._below.is_closing():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        """Read again, once what was put off has been taken."""
        self.is_paused = False
        self.resumed()

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel did not take yet."""
        return self._below.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the client counts as slow."""
        self._below.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        """Of the socket, or of TLS."""
        return self._below.get_extra_info(name, default)


def _is_utf8(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True


def _nothing() -> None:
    """No input was put off."""
