"""A WebSocket client's socket: the HTTP request first, then frames of WebSocket, whose contents are a stream of STOMP.

The session behind it is a `ClientConnection` like any other. What a message holds goes to it as it comes, whether text
or binary, in fragments or whole: where messages begin and end means nothing to STOMP.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from typing import Final, cast

import structlog
from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Event
from websockets.server import ServerProtocol
from websockets.typing import BytesLike

from gateway.config import Listener
from gateway.server.client.client_log import TLS_HINT
from gateway.server.client.connection import ClientConnection
from gateway.server.listen.peer import Arrival, Peer
from gateway.server.listen.websocket_handshake import Handshake, Verdict, message_limit, select_subprotocol
from gateway.server.listen.websocket_transport import WebSocketTransport
from gateway.server.server_context import ServerContext

log = structlog.get_logger("gateway.listening")

# The library writes what passes by to its log at level debug, passcodes included, and a line for each connection.
_LIBRARY_LOG: Final = logging.getLogger("gateway.websocket.library")
_LIBRARY_LOG.setLevel(logging.ERROR)

_FIRST_OF_TLS: Final = 0x16

# How long somebody who was refused may take to read that and to close, in seconds.
_LINGER: Final = 5.0

# Input is taken in slices, since the frames of one slice are in memory all at once. Those of compressed input are
# smaller: deflate makes up to a thousand bytes of one.
_SLICE: Final = 16 << 10
_COMPRESSED_SLICE: Final = 4 << 10

# When slices have held this much, other clients have their turn before the next: bytes, and for each frame what it
# costs to read. A read may hold forty thousand frames, and the event loop may read one client many times in a row.
_IN_ONE_TURN: Final = 64 << 10
_FOR_A_FRAME: Final = 128
_WITHOUT_END: Final = 1 << 62


class WebSocketConnection(asyncio.Protocol):
    """One client that speaks STOMP over WebSocket.

    Args:
        workshop: what all clients share.
        listener: where it came in.
        arrival: where it comes from, and since when.
    """

    def __init__(self, context: ServerContext, listener: Listener, arrival: Arrival) -> None:
        self._context = context
        self._listener = listener
        self._arrival = arrival
        self._protocol = ServerProtocol(
            select_subprotocol=select_subprotocol,
            max_size=message_limit(listener.max_frame_size_unauthenticated),
            logger=_LIBRARY_LOG,
        )
        self._below: asyncio.Transport = _NO_TRANSPORT
        self._handshake: Handshake | None = Handshake(self._protocol, listener)
        self._timer: asyncio.TimerHandle | None = None
        self._client: ClientConnection | None = None
        self._transport = WebSocketTransport(_NO_TRANSPORT, self._protocol, listener, arrival.since)
        self._is_trusted = False
        # Reads a text that comes in fragments.
        self._text: codecs.IncrementalDecoder | None = None
        self._violation = ""
        # Over TLS nothing is put off for others: what the event loop has not decrypted by then is lost when the client
        # closes without a word.
        self._in_one_turn = _IN_ONE_TURN if listener.tls is None else _WITHOUT_END
        # Input put off, since the session takes no more, or others have their turn. Nothing more is read meanwhile.
        self._rest = b""

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody has connected."""
        self._below = cast(asyncio.Transport, transport)
        self._context.handshakes.add(self._below)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(self._arrival.since + self._listener.login_timeout, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client. HOT: once per read."""
        client = self._client
        if client is not None:
            self._transport.heard = True
            self._take_in_slices(client, self._rest + data)
        elif self._handshake is not None:
            self._shake_hands(self._handshake, data)

    def eof_received(self) -> bool:
        """The client is gone: WebSocket has another way to say that one sends no more."""
        if self._client is not None:
            self._take_what_is_left(self._client)
            self._protocol.receive_eof()
            self._client.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by whichever side."""
        self._let_go()
        self._arrival.leave()
        if self._client is not None:
            # There is nobody to write to.
            self._transport.abort()
            self._take_what_is_left(self._client)
            self._client.connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not take its messages as fast as they come."""
        self._transport.is_congested = True
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of what was waiting."""
        self._transport.is_congested = False
        if self._client is not None:
            if self._protocol.state is OPEN:
                self._transport.flush_pongs()
            self._client.resume_writing()

    # The handshake.

    def _shake_hands(self, handshake: Handshake, data: bytes) -> None:
        if data[0] == _FIRST_OF_TLS:
            self._complain("tls on a plain port", hint=TLS_HINT)
            self._below.abort()
            return
        verdict = handshake.receive(data)
        if verdict is None:
            return
        self._handshake = None
        if verdict.reason is None:
            self._open(verdict)
            if handshake.rest:
                self.data_received(handshake.rest)
        else:
            self._complain("websocket handshake refused", status=verdict.response.status_code, reason=verdict.reason)
            self._below.write(verdict.response.serialize())
            self._hang_up()

    def _open(self, verdict: Verdict) -> None:
        """The client is let in: from here on it is the session's."""
        self._let_go()
        self._protocol.send_response(verdict.response)
        self._transport = WebSocketTransport(self._below, self._protocol, self._listener, self._arrival.since)
        self._transport.credentials = verdict.credentials
        self._transport.resumed = self._resumed
        self._transport.flush()
        self._client = ClientConnection(self._context, self._listener, self._arrival)
        self._client.connection_made(self._transport)

    def _hang_up(self) -> None:
        """Close once the client has read its answer."""
        if self._below.can_write_eof():
            # Closing at once would answer what it still sends with a reset, which may overtake the answer.
            self._below.write_eof()
            self._wait(_LINGER)
        else:
            self._below.close()

    def _too_late(self) -> None:
        if self._handshake is not None:
            self._complain("websocket handshake refused", status=None, reason="no whole request came")
        self._below.abort()

    def _wait(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._too_late)

    def _let_go(self) -> None:
        self._context.handshakes.discard(self._below)
        if self._timer is not None:
            self._timer.cancel()

    def _complain(self, event: str, **details: object) -> None:
        left_out = self._arrival.complaints.left_out()
        if left_out is not None:
            peer = str(self._arrival.peer or Peer.of(self._below))
            log.info(event, address=str(self._listener.address), peer=peer, **details, left_out=left_out)

    # Messages.

    def _take_in_slices(self, client: ClientConnection, data: bytes) -> None:
        """HOT: once per read."""
        transport = self._transport
        size = _COMPRESSED_SLICE if self._protocol.extensions else _SLICE
        position = taken = 0
        while position < len(data) and taken < self._in_one_turn and not transport.is_paused:
            taken += self._take(client, data[position : position + size])
            position += size
        self._rest = data[position:]
        if (self._rest or taken >= self._in_one_turn) and not self._below.is_closing():
            self._below.pause_reading()
            if not transport.is_paused:
                asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._client is not None and self._rest and not self._transport.is_paused:
            self._take_in_slices(self._client, self._rest)
        self._read_on()

    def _take_what_is_left(self, client: ClientConnection) -> None:
        """The client is gone, and there is no other turn; compressed it may hold a thousand times as much."""
        rest, self._rest = self._rest, b""
        if rest and not self._protocol.extensions:
            self._take(client, rest)

    def _resumed(self) -> None:
        """The session takes input again. It is in the middle of something now."""
        if self._rest:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._read_on()

    def _read_on(self) -> None:
        if not self._rest and not self._transport.is_paused and not self._below.is_closing():
            self._below.resume_reading()

    def _take(self, client: ClientConnection, data: bytes) -> int:
        """Read frames of WebSocket, and hand on what they hold.

        HOT: once per read.

        Returns:
            How much that was, as `_IN_ONE_TURN` has it.
        """
        protocol = self._protocol
        if not self._is_trusted and client.session.login is not None:
            self._is_trusted = True
            protocol.max_message_size = message_limit(client.session.settings.max_frame_size)
        protocol.receive_data(data)
        events = protocol.events_received()
        octets = b"".join(self._contents(events))
        if octets:
            client.data_received(octets)
        transport = self._transport
        if transport.has_failed:
            # It has been told, and nothing that follows means anything.
            pass
        elif protocol.state is OPEN:
            transport.flush_pongs()
        elif self._violation or protocol.parser_exc is not None:
            transport.has_failed = True
            client.violated(self._violation or _named(protocol.parser_exc))
        elif protocol.close_rcvd is None:
            # The close frame has gone out; whoever sends pings instead of an answer has no pongs.
            transport.flush()
        elif not client.eof_received():
            transport.close()
        return _FOR_A_FRAME * len(events) + len(octets)

    def _contents(self, events: list[Event]) -> list[BytesLike]:
        """What came of STOMP, up to the first text that is not UTF-8."""
        contents: list[BytesLike] = []
        for event in events:
            frame = cast(Frame, event)
            opcode = frame.opcode
            if opcode is Opcode.BINARY or (opcode is Opcode.CONT and self._text is None):
                contents.append(frame.data)
            elif opcode is Opcode.TEXT or opcode is Opcode.CONT:
                if not self._is_text(frame):
                    self._violation = "A text message of WebSocket is not UTF-8"
                    self._protocol.fail(CloseCode.INVALID_DATA, "not UTF-8")
                    break
                contents.append(frame.data)
        return contents

    def _is_text(self, frame: Frame) -> bool:
        data = bytes(frame.data)
        try:
            if self._text is None and frame.fin:
                if not data.isascii():
                    data.decode()
                return True
            if self._text is None:
                self._text = _UTF_8()
            self._text.decode(data, final=frame.fin)
        except UnicodeDecodeError:
            return False
        if frame.fin:
            self._text = None
        return True


def _named(problem: Exception | None) -> str:
    """What the library found wrong, in our words: its own may hold anything."""
    if isinstance(problem, PayloadTooBig):
        return "A message of WebSocket is larger than a frame may be"
    if isinstance(problem, ProtocolError):
        return "The protocol of WebSocket is broken"
    return "The connection is broken"


_UTF_8: Final = codecs.getincrementaldecoder("utf-8")
_NO_TRANSPORT: Final = asyncio.Transport()
