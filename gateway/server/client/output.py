"""The output side of a client's connection: writing, unsent bytes, closing.

A message under ack:auto is settled when the kernel has taken it, because the gateway's own buffers would be lost with
the gateway (docs/adr/0006-automatic-acknowledgement-in-rounds.md).
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import socket
import struct
import termios
from collections.abc import Callable
from typing import Final, Protocol, cast

from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason
from gateway.pieces import LARGE, Body, gathered
from gateway.server.client.traces import WatchedTransport
from gateway.server.fault_boundary import FaultOwner, guarded
from gateway.server.listen.websocket_transport import WebSocketTransport
from gateway.session.subscription import split_frames

# When this many times `client_buffer` wait, further messages are dropped for requeue until the client catches up. The
# prefetch bounds messages and not bytes, so large messages for a slow client would otherwise fill the memory.
_DROP_AT: Final = 16

# How long a client may take to read its last frame and to close before the gateway aborts the connection, in seconds.
_CLOSE_TIMEOUT: Final = 5.0

# How long automatic acknowledgements are collected, in seconds. A write for each would cost more than the message.
_AUTO_ACK_INTERVAL: Final = 0.01

# If this many bytes wait in the kernel, its buffer may be full.
_FULL: Final = 4096

# From Linux's struct tcp_info: the milliseconds since data last arrived (tcpi_last_data_recv).
_LAST_RECEIVED: Final = struct.Struct("=52xI")


class ClientOutput:
    """Writes to a client, and closes its connection."""

    __slots__ = (
        "_buffer", "_close_timer", "_over_tls", "_paused_at", "is_writable", "slow_consumer_timeout", "transport",
        "websocket",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, *, over_tls: bool) -> None:
        self.transport = transport
        self.websocket = transport if isinstance(transport, WebSocketTransport) else None
        # False while the client reads more slowly than messages arrive.
        self.is_writable = True
        # How long that may last, in seconds.
        self.slow_consumer_timeout = 60.0
        self._paused_at = 0.0
        self._over_tls = over_tls
        self._buffer = 1 << 16
        self._close_timer: asyncio.TimerHandle | None = None

    def watch(self, tell: Callable[[bytes], None] | None) -> None:
        """Call ``tell`` with everything before it is written. None ends that."""
        if isinstance(self.transport, WatchedTransport):
            self.transport = self.transport.transport
        if tell is not None:
            self.transport = cast(asyncio.Transport, WatchedTransport(self.transport, tell))
        if self.websocket is not None:
            self.websocket = cast(WebSocketTransport, self.transport)

    def start(self, virtual_host: VirtualHost) -> None:
        """Apply the settings of the virtual host, after the login."""
        self._buffer = virtual_host.client_buffer
        self.transport.set_write_buffer_limits(high=self._buffer, low=self._buffer // 4)
        self.slow_consumer_timeout = virtual_host.slow_consumer_timeout

    def write(self, output: list[Body]) -> int:
        """Write the frames of a session's output. Returns the number of STOMP bytes. HOT: once per batch.

        The output is emptied first, because the write may call ``pause_writing``, which may change the session.
        """
        if self.websocket is not None:
            frames = split_frames(output)
            output.clear()
            return self.websocket.write_messages(frames)
        # The last piece but one is the body of the last MESSAGE. The other bodies are mostly about as large.
        is_large = len(output) > 1 and len(output[-2]) >= LARGE
        try:
            pieces = gathered(output) if is_large else [b"".join(output)]  # type: ignore[arg-type]
        except TypeError:
            pieces = gathered(output)  # a body is a LargeBody
        output.clear()
        try:
            self.transport.writelines(pieces)
        except RuntimeError:
            # The client has reset the connection. uvloop calls ``connection_lost`` a moment later.
            if not self.transport.is_closing():
                raise
            return 0
        return sum(map(len, pieces))

    def pause(self, now: float) -> None:
        """Note that the transport's buffer is full. ``now`` is in seconds."""
        self.is_writable = False
        self._paused_at = now

    def resume(self) -> None:
        """Note that the client has read most of the buffer."""
        self.is_writable = True

    def is_slow(self, now: float) -> bool:
        """Whether the client has been slow for too long. ``now`` is in seconds."""
        return not self.is_writable and now - self._paused_at > self.slow_consumer_timeout

    @property
    def write_buffer(self) -> int:
        """The number of bytes that wait in the event loop to be written to the client."""
        return self.transport.get_write_buffer_size()

    @property
    def must_drop(self) -> bool:
        """Whether further messages must be dropped for requeue."""
        return not self.is_writable and self.write_buffer > _DROP_AT * self._buffer

    def unsent_bytes(self) -> int:
        """0 if the kernel has taken everything; otherwise a number that changes when the kernel takes more."""
        return self.write_buffer or (_unsent_below_tls(self.transport) if self._over_tls else 0)

    def has_sent_unread(self, seconds: float) -> bool:
        """Whether, according to the kernel, a client that is not being read has sent bytes in the last ``seconds``."""
        connection = self.transport.get_extra_info("socket")
        if connection.fileno() < 0:
            return False
        (waiting,) = struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4)))
        if waiting >= _FULL or connection.family == socket.AF_UNIX or not hasattr(socket, "TCP_INFO"):
            return True
        facts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_RECEIVED.size)
        (milliseconds,) = _LAST_RECEIVED.unpack(facts)
        return bool(milliseconds <= seconds * 1000)

    def close(self, reason: CloseReason | None, *, has_ended: bool, is_reading: bool) -> None:
        """Close after the last frame, and abort if the client does not close soon.

        ``has_ended``: the client has closed its side. ``is_reading``: the transport reads from the client now.
        """
        if self.websocket is not None:
            self.websocket.send_close(reason)
        if has_ended or not self.transport.can_write_eof():
            self.transport.close()
        else:
            # After a full close, the kernel would answer further bytes with a reset, which may overtake the last frame.
            try:
                self.transport.write_eof()
                if not is_reading:
                    self.transport.resume_reading()
            except (OSError, RuntimeError):
                # The client reset the connection at the same moment.
                self.transport.abort()
        self._close_timer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self.transport.abort)

    def connection_lost(self) -> None:
        """Cancel the timer: the connection is closed."""
        if self._close_timer is not None:
            self._close_timer.cancel()


def _unsent_below_tls(transport: asyncio.BaseTransport) -> int:
    """The number of bytes in the kernel's buffer; 0 if it has room.

    Below the event loop's TLS transport is another one, which keeps the bytes for which the kernel has no room.
    """
    descriptor = transport.get_extra_info("socket").fileno()
    if descriptor < 0:
        return 1
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if [event for _, event in poll.poll(0)] == [select.POLLOUT]:
        return 0
    (in_kernel,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    return max(1, int(in_kernel))


class _Settler(FaultOwner, Protocol):
    """A client's connection."""

    def settle(self) -> None: ...


class AutoAckFlusher:
    """Settles the automatic acknowledgements of all clients in rounds, without a timer for each message."""

    def __init__(self) -> None:
        self._waiting: set[_Settler] = set()

    def schedule(self, client: _Settler) -> None:
        """Settle for a client in the next round, once."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_AUTO_ACK_INTERVAL, self._flush)
        self._waiting.add(client)

    def is_scheduled(self, client: _Settler) -> bool:
        """Whether the next round settles for a client."""
        return client in self._waiting

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for client in waiting:
            guarded(client, client.settle)
