"""The transport of a WebSocket client, with the interface of asyncio's transports.

The close frame is the end of the stream: `write_eof` sends one, and the client's ends its input. The `websockets`
library makes and reads the frames without I/O (docs/adr/0015-websocket-without-its-sockets.md).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from gateway.config.listener_settings import Listener
from gateway.errors import CloseReason

# Like RabbitMQ, the gateway closes with 1000 for every other reason.
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
    """Messages of a client, over an open WebSocket on the ``lower`` transport.

    ``on_resumed``: called when the session is read again.
    """

    def __init__(
        self,
        lower: asyncio.Transport,
        protocol: ServerProtocol,
        listener: Listener,
        now: float,
        on_resumed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__()
        # From the Authorization header of the handshake.
        self.credentials: HttpCredentials | None = None
        self._lower = lower
        self._protocol = protocol
        self.on_resumed = on_resumed
        self._is_text = listener.frame == "text"
        self._ping_interval = listener.ping_interval
        self._idle_timeout = listener.idle_timeout
        self._received_at = self._pinged_at = now
        # Whether the close frame was sent, which must be the last frame.
        self._is_over = False
        # Whether bytes came since the last `is_silent`.
        self.has_received = False
        # Whether the write buffer is full, and whether the session is not being read.
        self.is_congested = self.is_paused = False
        # Whether the client broke the rules of WebSocket.
        self.has_failed = False

    # Messages.

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes as one message."""
        self.write_messages([bytes(data)])

    def write_messages(self, contents: list[bytes]) -> int:
        """Send several messages at once. Returns their bytes, without WebSocket's. HOT: once per batch."""
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
        """Always true: the close frame does that."""
        return True

    def send_close(self, reason: CloseReason | None) -> None:
        """Send the close frame, unless either side has sent one."""
        if self._protocol.state is OPEN and not self._is_over:
            code = CloseCode.NORMAL_CLOSURE if reason is None else _CODES.get(reason, CloseCode.NORMAL_CLOSURE)
            self._protocol.send_close(code, "" if reason is None else reason.value)

    def write_eof(self) -> None:
        """Send the close frame as the last one."""
        self.send_close(None)
        self.flush()
        self._is_over = True

    def close(self) -> None:
        """Answer the client's close frame, or its violation of the protocol, and close the connection."""
        self.write_eof()
        if self.has_failed and self._lower.can_write_eof():
            # After a full close the kernel would answer further bytes with a reset, which may overtake the last frame.
            # The caller aborts the transport after a while.
            self._lower.write_eof()
            if self.is_paused:
                self.resume_reading()
        else:
            self._lower.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._is_over = True
        self._lower.abort()

    def connection_lost(self) -> None:
        """Write nothing more. The lower transport is not aborted: asyncio would then report its end twice."""
        self._is_over = True
        # Break a reference cycle, which only a garbage collection would free.
        self.on_resumed = None

    def is_closing(self) -> bool:
        """Whether sending has ended."""
        return self._is_over or self._lower.is_closing()

    # Control frames.

    def flush(self) -> None:
        """Send the library's output: pongs, and the close frame."""
        data = self._protocol.data_to_send()
        if data and not self._is_over:
            # With empty data, the library asks for the end of the connection. `close` does that.
            self._lower.write(b"".join(data))

    def flush_pongs(self) -> None:
        """Send pongs; to a client that does not read, only the last one (RFC 6455, section 5.5.3)."""
        if not self.is_congested:
            self.flush()
        else:
            del self._protocol.writes[:-1]

    def is_silent(self, now: float) -> bool:
        """Whether the client has been silent for too long. Also sends the pings that are due."""
        if self.has_received or self.is_paused or self.is_congested:
            # A client that is not being read sends nothing, and a ping would wait behind the write buffer.
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

    # The lower transport.

    def pause_reading(self) -> None:
        """Stop reading from the client."""
        self.is_paused = True
        if not self._lower.is_closing():
            self._lower.pause_reading()

    def resume_reading(self) -> None:
        """Read again, after the postponed input."""
        self.is_paused = False
        if self.on_resumed is not None:
            self.on_resumed()

    def get_write_buffer_size(self) -> int:
        """The bytes in the event loop's buffer."""
        return self._lower.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """See `asyncio.WriteTransport`."""
        self._lower.set_write_buffer_limits(high=high, low=low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's signature
        """See `asyncio.BaseTransport`."""
        return self._lower.get_extra_info(name, default)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
