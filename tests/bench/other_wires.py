"""The load client over TLS and over WebSocket."""

import socket
import ssl
import struct

from tests.bench.wire import Account, RowError, Wire, excerpt, tcp_socket

_END_OF_BODY = b"xx\0"
_END_OF_RECEIPT = b"\n\n\0"
_CLOSE = b"\x88"
_LARGEST_MESSAGE = 1 << 16
_TWO_BYTES = 126
"""From this size on, the length of a WebSocket message takes more than the second byte."""


class TlsWire(Wire):
    """One STOMP session over TLS. Nobody's certificate is checked: the load client is not what is measured."""

    @classmethod
    def begin(cls, account: Account) -> socket.socket:
        """Open a TLS connection and send CONNECT; return the blocking socket."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        sock = context.wrap_socket(tcp_socket(account))
        sock.sendall(account.connect_frame())
        return sock

    def read(self) -> int:
        """Read what has come, with what TLS has read ahead, of which the poller does not know; the number of bytes."""
        size = super().read()
        assert isinstance(self.sock, ssl.SSLSocket)
        while self.sock.pending():
            size += super().read()
        return size


class WebSocketWire(Wire):
    """One STOMP session over WebSocket. `frames` counts messages, or the RECEIPT of `ask`."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        self.awaited = _END_OF_BODY

    @classmethod
    def begin(cls, account: Account) -> socket.socket:
        """Switch a TCP connection to WebSocket and send CONNECT; return the blocking socket."""
        sock = tcp_socket(account)
        sock.sendall(
            b"GET /ws HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            b"Sec-WebSocket-Protocol: v12.stomp\r\n\r\n"
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            if not (more := sock.recv(1)):
                raise RowError(f"the WebSocket was refused with {excerpt(answer)}")
            answer += more
        sock.sendall(_messages(account.connect_frame()))
        return sock

    def load(self, payload: bytes, allowed: int | None = None) -> None:
        """Take `payload`, as WebSocket messages, as the next thing to write.

        Raises:
            RowError: only a part of it may go at first.
        """
        if allowed is not None:
            raise RowError("a payload that goes out in parts is not encoded for WebSocket")
        super().load(_messages(payload))

    def ask(self, frame: bytes) -> None:
        """Send one frame that has a receipt header and await its RECEIPT."""
        self.awaited = _END_OF_RECEIPT
        super().ask(frame)
        self.awaited = _END_OF_BODY

    def disconnect(self) -> None:
        """End the session. RabbitMQ's plugin closes the WebSocket instead of sending the RECEIPT."""
        try:
            super().disconnect()
        except RowError:
            if self.buffer[: self.filled].find(_CLOSE) < 0:
                raise


def _messages(data: bytes) -> bytes:
    return b"".join(_message(data[at : at + _LARGEST_MESSAGE]) for at in range(0, len(data), _LARGEST_MESSAGE))


def _message(data: bytes) -> bytes:
    """A text message with a mask of zeros, which changes nothing."""
    size = len(data)
    if size < _TWO_BYTES:
        length = bytes((0x80 | size,))
    else:
        length = struct.pack("!BH", 0xFE, size) if size < 1 << 16 else struct.pack("!BQ", 0xFF, size)
    return b"".join((b"\x81", length, bytes(4), data))
