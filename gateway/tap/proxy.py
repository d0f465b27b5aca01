"""Passes bytes from a client to its server and back, unchanged, and then to the `Conversation`.

Each direction has at most one read and one write buffer in memory: while one side does not take its bytes, the other
one is not read. The end of one direction is passed on, and the other direction continues.

The conversation reads a large piece in small parts, so that other connections do not wait. Until it has read everything
that has passed, neither side of the connection is read.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol, cast

import structlog

from gateway.config.addresses import SocketAddress
from gateway.server.paced_work import PacedWork
from gateway.tap.conversation import Conversation

log = structlog.get_logger("gateway.tap")

# While more bytes than this wait for one side, the other one is not read.
_HIGH_WATER: Final = 256 * 1024
# Seconds for the server's answer after the client has ended its direction, which TLS cannot pass on.
_ANSWER_WITHIN: Final = 2.0
# Seconds for one side to take the remaining bytes after the other one is closed.
_REST_WITHIN: Final = 30.0
# A piece of up to this many bytes is read at once: pacing it would cost more.
_SMALL: Final = 1024
# Closing a socket sends a reset.
_LINGER_NOT: Final = struct.pack("ii", 1, 0)


class Ending(asyncio.Protocol):
    """One end of a connection: the client's, or the server's."""

    def __init__(self, connection: TappedConnection, *, is_client: bool) -> None:
        self._connection = connection
        self._is_client = is_client
        self.transport: asyncio.Transport | None = None
        self.other: Ending | None = None
        self.has_ended = False
        self.peer_is_slow = False
        # The bytes that came before the other end was there: one read, because uvloop begins to read in any case.
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        # The transports of uvloop are no subclass of it.
        self.transport = cast("asyncio.Transport", transport)
        self._connection.made(self, self.transport, is_client=self._is_client)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. HOT: once per read."""
        if self.other is None or self.other.transport is None:
            self._kept += data
            if self.transport is not None:
                self.transport.pause_reading()
            return
        self.other.transport.write(data)
        self._connection.heard(data, from_client=self._is_client)

    def join(self, other: Ending) -> None:
        """Use this other end: pass on what came so far, and continue to read."""
        self.other = other
        kept, self._kept = self._kept, b""
        if kept:
            self.data_received(kept)
        if self.has_ended:
            self.eof_received()
        self.read_if_free()

    def read_if_free(self) -> None:
        """Read this end unless the other one is slow, or the conversation has not read everything."""
        transport = self.transport
        if transport is None or transport.is_closing() or self.has_ended:
            return
        if self.peer_is_slow or self._connection.is_behind:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def eof_received(self) -> bool:
        """See `asyncio.Protocol`. Returns whether this end stays open for bytes from the other one."""
        self.has_ended = True
        self._connection.note_end(by_client=self._is_client)
        # With TLS, the end of one direction closes the connection.
        stays = self.transport is not None and self.transport.can_write_eof()
        other = self.other
        if other is None or other.transport is None:
            return stays
        if other.has_ended:
            other.transport.close()
            return False
        if other.transport.can_write_eof():
            other.transport.write_eof()
        elif stays:
            self._connection.at_latest(_ANSWER_WITHIN, other.transport.close)
        else:
            other.transport.close()
        return stays

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: this peer is slow."""
        self._hold_other(True)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._hold_other(False)

    def _hold_other(self, is_slow: bool) -> None:
        if self.other is not None:
            self.other.peer_is_slow = is_slow
            self.other.read_if_free()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._connection.note_end(by_client=self._is_client)
        transport = None if self.other is None else self.other.transport
        if transport is not None:
            # A reset is passed on, too, but not before bytes that still wait.
            if exc is not None and not transport.get_write_buffer_size():
                _reset(transport)
            else:
                transport.close()
                self._connection.at_latest(_REST_WITHIN, transport.abort)
        self._connection.lost()


def _reset(transport: asyncio.Transport) -> None:
    connection = transport.get_extra_info("socket")
    if connection is not None and not transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
    transport.abort()


class TapContext(Protocol):
    """The part of `TapServer` that its connections need."""

    turns: PacedWork

    def begin(self, connection: TappedConnection, host: str) -> Conversation:
        """Connect to the server for a client that has connected from this address. Returns their conversation."""

    def ended(self, connection: TappedConnection) -> None:
        """Note that client and server are gone."""


class TappedConnection:
    """A client, its server, and the conversation of the two."""

    def __init__(self, context: TapContext) -> None:
        self.client = Ending(self, is_client=True)
        self.server: Ending | None = None
        self.peer = ""
        self._context = context
        self._conversation: Conversation | None = None
        self._ended_by_client: bool | None = None
        self._is_stopping = self._has_failed = False
        self._lost = 0
        self._deadline: asyncio.TimerHandle | None = None
        # The work that the conversation still has to do, in order.
        self._left: deque[Iterator[None]] = deque()

    def made(self, ending: Ending, transport: asyncio.Transport, *, is_client: bool) -> None:
        """Note that one end is connected. Bytes are passed on once both are."""
        peer = transport.get_extra_info("peername")
        if peer is None:
            # It is reset already.
            if not is_client:
                self.server = ending
            self.abort()
            return
        transport.set_write_buffer_limits(_HIGH_WATER)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_client:
            host, port, *_ = peer
            self.peer = str(SocketAddress(host, port))
            # Until the server is connected.
            transport.pause_reading()
            self._conversation = self._context.begin(self, host)
            return
        client = self.client
        self.server, ending.other = ending, client
        if client.transport is None or client.transport.is_closing():
            self.abort()
        else:
            client.join(ending)

    def heard(self, data: bytes, *, from_client: bool) -> None:
        """Let the conversation read bytes that were passed on. HOT: once per read."""
        conversation = self._conversation
        if conversation is None:
            return
        try:
            work = conversation.heard(data, from_client=from_client)
            if self._left or len(data) > _SMALL:
                self._do(work)
            else:
                for _ in work:
                    pass
        except Exception as error:  # noqa: BLE001 - the bytes pass in any case
            self.failed(error)

    @property
    def is_behind(self) -> bool:
        """Whether the conversation has not read everything that has passed."""
        return bool(self._left)

    def _do(self, work: Iterator[None]) -> None:
        """Do this after the work that is left, now or in parts."""
        self._left.append(work)
        if len(self._left) == 1:
            self._context.turns.do(self, self._go_on)
        if self._left:
            self._read_if_free()

    def _go_on(self) -> None:
        turns = self._context.turns
        while self._left:
            for _ in self._left[0]:
                if turns.time_left <= 0:
                    turns.later(self, self._go_on)
                    return
            self._left.popleft()
        self._read_if_free()

    def _read_if_free(self) -> None:
        for ending in (self.client, self.server):
            if ending is not None:
                ending.read_if_free()

    def time_passed(self) -> None:
        """Called about once a second."""
        if self._conversation is not None and not self._has_failed:
            self._conversation.time_passed()

    def failed(self, error: Exception) -> None:
        """See `FaultOwner`. After a fault, the conversation reads no more, and bytes are still passed on."""
        log.error("internal error", peer=self.peer, exc_info=error)
        self._has_failed = True
        if self._conversation is not None:
            for side in (True, False):
                self._conversation.give_up(from_client=side, reason="a fault of the tap")
        if self._left:
            self._context.turns.later(self, self._go_on)

    def at_latest(self, seconds: float, act: Callable[[], None]) -> None:
        """Call ``act`` after this time in seconds if the connection is still there. It replaces an earlier call."""
        self._cancel_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, act)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def note_end(self, *, by_client: bool) -> None:
        """Note that one side has ended its direction. The first one counts."""
        if self._ended_by_client is None:
            self._ended_by_client = by_client

    def lost(self) -> None:
        """Note that one end is closed."""
        self._lost += 1
        if self._lost < (1 if self.server is None else 2):
            return
        self._cancel_deadline()
        self._do(self._end())

    def _end(self) -> Iterator[None]:
        try:
            if self._conversation is not None:
                by_client = self._ended_by_client is not False
                yield from self._conversation.ended(by_client=by_client, is_stopping=self._is_stopping)
        finally:
            self._context.ended(self)

    def stop(self) -> None:
        """Read no more, and close each end after the bytes that were read for it."""
        self._is_stopping = True
        for transport in self._transports():
            transport.close()

    def abort(self) -> None:
        """Close both ends at once."""
        for transport in self._transports():
            transport.abort()

    def _transports(self) -> list[asyncio.Transport]:
        endings = (self.client, self.server)
        return [ending.transport for ending in endings if ending is not None and ending.transport is not None]
