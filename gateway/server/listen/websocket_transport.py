"""The transport of a client that speaks WebSocket.

It looks like any other transport of asyncio. The end of a stream is the close frame here: `write_eof` sends one, and
the client's close frame ends its input. The `websockets` library makes and reads the frames and does no input or output
(docs/adr/0015-websocket-without-its-sockets.md); this file and `websocket` carry its bytes.
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

# RabbitMQ closes with 1000 for every reason but a malformed frame; so do we where no other code says more.
_CODES: Final = {
    CloseReason.MALFORMED_FRAME: CloseCode.INVALID_DATA,
    CloseReason.PROTOCOL_ERROR: CloseCode.PROTOCOL_ERROR,
    CloseReason.SLOW_CONSUMER: CloseCode.POLICY_VIOLATION,
    CloseReason.SHUTDOWN: CloseCode.GOING_AWAY,
    CloseReason.INTERNAL_ERROR: CloseCode.INTERNAL_ERROR,
}

# The header of a frame that is a whole message, without a mask (RFC 6455, section 5.2).
_TEXT: Final = 0x80 | Opcode.TEXT.value
_BINARY: Final = 0x80 | Opcode.BINARY.value
_SIZE_16_BITS: Final = 126
_SIZE_64_BITS: Final = 127
_header: Final = struct.Struct("!BB").pack
_header_16_bits: Final = struct.Struct("!BBH").pack
_header_64_bits: Final = struct.Struct("!BBQ").pack

HttpCredentials = tuple[bytes, bytes]
"""Login and passcode."""


class WebSocketTransport(asyncio.Transport):
    """Messages of a client, over an open WebSocket whose bytes the ``lower`` transport carries.

    ``on_resumed`` is called when the session is read again.
    """

    def __init__(
        self,
        lower: asyncio.Transport,
        protocol: ServerProtocol,
        listener: Listener,
        now: float,
        credentials: HttpCredentials | None = None,
        on_resumed: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        # From the handshake.
        self.credentials = credentials
        self._lower = lower
        self._protocol = protocol
        self._on_resumed = on_resumed
        self._is_text = listener.frame == "text"
        self._ping_interval = listener.ping_interval
        self._idle_timeout = listener.idle_timeout
        self._received_at = self._pinged_at = now
        # Whether the close frame was sent, behind which nothing may follow.
        self._is_over = False
        # Whether anything came since `is_silent` last asked.
        self.has_received = False
        # Whether the write buffer is full, and whether the session is not read.
        self.is_congested = False
        self.is_paused = False
        # Whether the client broke the rules of WebSocket.
        self.has_failed = False

    # Messages.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes as one message."""
        self.write_messages([bytes(data)])

    def write_messages(self, contents: list[bytes]) -> int:
        """Send several messages at once; the bytes in them, without those of WebSocket. HOT: once per batch."""
        if not self._is_over:
            frames = self._compressed(contents) if self._protocol.extensions else self._plain(contents)
            self._lower.write(b"".join(frames))
        return sum(map(len, contents))

    def _plain(self, contents: list[bytes]) -> Iterator[bytes]:
        """Headers and contents. The library makes the same bytes, at several times the cost of a MESSAGE (ADR 0015)."""
        is_text = self._is_text
        for message in contents:
            size = len(message)
            first = _TEXT if is_text and (message.isascii() or _is_utf8(message)) else _BINARY
            if size < _SIZE_16_BITS:
                yield _header(first, size)
            elif size < 1 << 16:
                yield _header_16_bits(first, _SIZE_16_BITS, size)
            else:
                yield _header_64_bits(first, _SIZE_64_BITS, size)
            yield message

    def _compressed(self, contents: list[bytes]) -> Iterator[bytes]:
        for message in contents:
            opcode = Opcode.TEXT if self._is_text and _is_utf8(message) else Opcode.BINARY
            yield Frame(opcode, message).serialize(mask=False, extensions=self._protocol.extensions)

    # The end.

    def can_write_eof(self) -> bool:
        """Yes: the close frame."""
        return True

    def send_close(self, reason: CloseReason | None) -> None:
        """Send the close frame, unless one side has done so."""
        if self._protocol.state is OPEN and not self._is_over:
            code = CloseCode.NORMAL_CLOSURE if reason is None else _CODES.get(reason, CloseCode.NORMAL_CLOSURE)
            self._protocol.send_close(code, "" if reason is None else reason.value)

    def write_eof(self) -> None:
        """Send the close frame, and nothing behind it."""
        self.send_close(None)
        self.flush()
        self._is_over = True

    def close(self) -> None:
        """Answer the client's close frame, or its violation of the protocol, and close the connection."""
        self.send_close(None)
        self.flush()
        self._is_over = True
        if self.has_failed and self._lower.can_write_eof():
            # Bytes that come after a full close are answered with a reset, which may overtake the last frame. The
            # caller aborts the transport after a while.
            self._lower.write_eof()
            if self.is_paused:
                self.resume_reading()
        else:
            self._lower.close()

    def abort(self) -> None:
        """Cut the connection."""
        self._is_over = True
        self._lower.abort()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._is_over or self._lower.is_closing()

    # Control frames.

    def flush(self) -> None:
        """Send what the library has to send: pongs, and the close frame."""
        data = self._protocol.data_to_send()
        if data and not self._is_over:
            # Empty data asks for the end of the connection, which `close` sees to.
            self._lower.write(b"".join(data))

    def flush_pongs(self) -> None:
        """The same, but for a client that does not read only the last pong is kept (RFC 6455, section 5.5.3)."""
        if not self.is_congested:
            self.flush()
        else:
            del self._protocol.writes[:-1]

    def is_silent(self, now: float) -> bool:
        """Whether the client has been silent for too long; before that, it is sent pings."""
        if self.has_received or self.is_paused or self.is_congested:
            # While the client is not read, nothing can come; and a ping waits behind what the client has not taken.
            self.has_received = False
            self._received_at = self._pinged_at = now
            return False
        if self._idle_timeout and now - self._received_at >= self._idle_timeout:
            return True
        if self._ping_interval and now - self._pinged_at >= self._ping_interval and self._protocol.state is OPEN:
            self._pinged_at = now
            self._protocol.send_ping(b"")
            self.flush()
        return False

    # What belongs to the socket.

    def pause_reading(self) -> None:
        """Read nothing from the client."""
        self.is_paused = True
        if not self._lower.is_closing():
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Read again, after the input that was postponed."""
        self.is_paused = False
        self._on_resumed()

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._lower.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """When the client counts as slow."""
        self._lower.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        """What the socket's transport knows."""
        return self._lower.get_extra_info(name, default)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
