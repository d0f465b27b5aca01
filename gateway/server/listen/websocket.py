"""A WebSocket client's connection: an HTTP request, and then WebSocket frames whose contents are a stream of STOMP.

Contents go to the session as they come, text or binary, whole or in fragments: STOMP ignores where messages begin.
"""

from __future__ import annotations

import asyncio
import codecs
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, cast

from websockets.exceptions import PayloadTooBig, ProtocolError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import OPEN, Event
from websockets.typing import BytesLike

from gateway.config.listener_settings import Listener
from gateway.server.fault_boundary import FaultOwner
from gateway.server.listen.accepted_connection import TLS_HINT, AcceptedConnection
from gateway.server.listen.tls import limit_read_ahead
from gateway.server.listen.websocket_handshake import Handshake, HandshakeResult, StompServerProtocol, message_limit
from gateway.server.listen.websocket_transport import WebSocketTransport
from gateway.server.paced_work import PacedWork

# At level debug the library logs every frame, including passcodes, and at level info each connection.
_LIBRARY_LOG: Final = logging.getLogger("gateway.websocket.library")
_LIBRARY_LOG.setLevel(logging.ERROR)

_FIRST_BYTE_OF_TLS: Final = 0x16

# The time for a refused client to read the answer and to close, in seconds.
_CLOSE_TIMEOUT: Final = 5.0

# Input is taken in slices, because all frames of a slice are in memory at once. Slices are smaller for compressed
# input, of which a byte may expand to a thousand, and for a client whose last slice had many frames, because reading a
# frame costs as much as carrying one out.
_SLICE: Final = 16 << 10
_COMPRESSED_SLICE: Final = 4 << 10
_SMALL_SLICE: Final = 2 << 10
_MANY_FRAMES: Final = 32

# Up to this many bytes, input is taken at once. Clients with more share the time for it.
_LITTLE: Final = 4096

# After this much input, other clients have their turn. Each frame counts as this many bytes in addition: a read may
# have forty thousand of them, and the event loop may read from one client many times in a row.
_MAX_PER_TURN: Final = 64 << 10
_COST_OF_FRAME: Final = 128

_Utf8Decoder: Final = codecs.getincrementaldecoder("utf-8")


class StompProtocol(asyncio.Protocol, ABC):
    """A STOMP client's connection: asyncio's protocol, with what WebSocket needs in addition."""

    @property
    @abstractmethod
    def max_frame_size(self) -> int:
        """The largest STOMP frame that the client may send now, in bytes."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Note a fault of the gateway."""

    @abstractmethod
    def violated(self, reason: str) -> None:
        """Note that the client broke the protocol below STOMP."""


class WebSocketConnection(asyncio.Protocol):
    """One client that speaks STOMP over WebSocket.

    After the handshake it has a `StompProtocol`; until then, ``handshakes`` holds its transport. ``turns``: shared by
    all clients that send much.
    """

    def __init__(
        self,
        listener: Listener,
        accepted: AcceptedConnection,
        make_client: Callable[[AcceptedConnection], StompProtocol],
        handshakes: set[asyncio.Transport],
        turns: PacedWork,
    ) -> None:
        self._listener = listener
        self._accepted = accepted
        self._make_client = make_client
        self._handshakes = handshakes
        self._turns = turns
        self._protocol = StompServerProtocol(
            max_size=message_limit(listener.max_frame_size_unauthenticated),
            logger=_LIBRARY_LOG,
        )
        self._transport: asyncio.Transport
        self._websocket: WebSocketTransport
        self._handshake: Handshake | None = Handshake(self._protocol, listener)
        self._timer: asyncio.TimerHandle | None = None
        self._client: StompProtocol | None = None
        # For a text in fragments.
        self._utf8_decoder: codecs.IncrementalDecoder | None = None
        self._violation = ""
        # Input that waits until the session is released, or for its turn. Nothing is read meanwhile.
        self._postponed = b""
        self._waits_for_turn = False
        self._slice = _SLICE

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the HTTP request."""
        accepted_at = self._accepted.accepted_at
        self._transport = cast(asyncio.Transport, transport)
        limit_read_ahead(transport)
        self._websocket = WebSocketTransport(
            self._transport, self._protocol, self._listener, accepted_at, self._reading_resumed
        )
        self._handshakes.add(self._transport)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(accepted_at + self._listener.login_timeout, self._timed_out)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client. HOT: once per read."""
        client = self._client
        if client is not None:
            self._websocket.has_received = True
            self._postponed += data
            if len(self._postponed) > _LITTLE:
                # Now if there is time for it in this round of the event loop, and otherwise later.
                self._ask_for_turn(self._turns.do, client)
            else:
                self._take_slices(client)
        elif self._handshake is not None:
            self._receive_request(self._handshake, data)

    def eof_received(self) -> bool:
        """Note that the client has gone. To end only its side, it would send a close frame."""
        if self._client is not None:
            self._take_postponed(self._client)
            self._protocol.receive_eof()
            self._client.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection is closed, by either side."""
        self._end_handshake()
        self._accepted.on_closed()
        self._websocket.connection_lost()
        if self._client is not None:
            self._take_postponed(self._client)
            self._client.connection_lost(exc)
        # Break reference cycles, which only a garbage collection would free.
        self._client = None
        self._protocol.forget()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than messages arrive."""
        self._websocket.is_congested = True
        if self._client is not None:
            self._client.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read most of the write buffer."""
        self._websocket.is_congested = False
        if self._client is not None:
            if self._protocol.state is OPEN:
                self._websocket.flush_pongs()
            self._client.resume_writing()

    # The handshake.

    def _receive_request(self, handshake: Handshake, data: bytes) -> None:
        if data[0] == _FIRST_BYTE_OF_TLS:
            self._log("tls on a plain port", hint=TLS_HINT)
            self._transport.abort()
            return
        result = handshake.receive(data)
        if result is None:
            return
        self._handshake = None
        if result.refusal is None:
            self._open(result)
            if handshake.rest:
                self.data_received(handshake.rest)
        else:
            origin = {} if result.origin is None else {"origin": result.origin}
            self._log(
                "websocket handshake refused", status=result.response.status_code, reason=result.refusal, **origin
            )
            self._transport.write(result.response.serialize())
            self._close_after_answer()

    def _open(self, result: HandshakeResult) -> None:
        self._end_handshake()
        self._protocol.send_response(result.response)
        self._websocket.credentials = result.credentials
        self._websocket.flush()
        self._client = self._make_client(self._accepted)
        self._client.connection_made(self._websocket)

    def _close_after_answer(self) -> None:
        if self._transport.can_write_eof():
            # After a full close, the kernel would answer further bytes with a reset, which may overtake the answer.
            self._transport.write_eof()
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_CLOSE_TIMEOUT, self._timed_out)
        else:
            self._transport.close()

    def _timed_out(self) -> None:
        if self._handshake is not None:
            self._log("websocket handshake refused", status=None, reason="no whole request came")
        self._transport.abort()

    def _end_handshake(self) -> None:
        self._handshakes.discard(self._transport)
        if self._timer is not None:
            self._timer.cancel()

    def _log(self, event: str, **details: object) -> None:
        address, peer = str(self._listener.address), str(self._accepted.peer)
        self._accepted.log_limiter.info(event, address=address, peer=peer, **details)

    # Messages.

    def _ask_for_turn(self, ask: Callable[[FaultOwner, Callable[[], None]], object], client: StompProtocol) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            ask(client, self._take_turn)
        self._read_or_pause()

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        if self._client is not None and self._postponed and not self._websocket.is_paused:
            self._take_slices(self._client)
        self._read_or_pause()

    def _take_slices(self, client: StompProtocol) -> None:
        """HOT: once per read."""
        websocket, turns, data = self._websocket, self._turns, self._postponed
        largest = _COMPRESSED_SLICE if self._protocol.extensions else _SLICE
        position = taken = 0
        while position < len(data) and taken < _MAX_PER_TURN and not websocket.is_paused:
            if taken and turns.serves(client) and turns.time_left <= 0:
                break
            size = min(self._slice, largest)
            taken += self._take(client, data[position : position + size])
            position += size
        self._postponed = data[position:]
        if (self._postponed or taken >= _MAX_PER_TURN) and not websocket.is_paused:
            self._ask_for_turn(turns.later, client)

    def _take_postponed(self, client: StompProtocol) -> None:
        """Take the rest of the input of a client that has gone."""
        postponed, self._postponed = self._postponed, b""
        # Compressed input is dropped, because it may expand a thousandfold.
        if postponed and not self._protocol.extensions:
            self._take(client, postponed)

    def _reading_resumed(self) -> None:
        """Read again, but not within this call: the session is at work."""
        if self._client is not None and self._postponed:
            self._ask_for_turn(self._turns.later, self._client)
        else:
            self._read_or_pause()

    def _read_or_pause(self) -> None:
        if not self._transport.is_closing():
            if self._postponed or self._waits_for_turn or self._websocket.is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _take(self, client: StompProtocol, data: bytes) -> int:
        """Read WebSocket frames and pass their contents on. Returns their cost, see `_MAX_PER_TURN`. HOT."""
        protocol = self._protocol
        protocol.max_message_size = message_limit(client.max_frame_size)
        protocol.receive_data(data)
        events = protocol.events_received()
        self._slice = _SLICE if len(events) < _MANY_FRAMES else _SMALL_SLICE
        contents = b"".join(self._contents(events))
        if contents:
            client.data_received(contents)
        websocket = self._websocket
        if websocket.has_failed:
            # The client was told. Its further bytes mean nothing.
            pass
        elif protocol.state is OPEN:
            websocket.flush_pongs()
        elif self._violation or protocol.parser_exc is not None:
            websocket.has_failed = True
            client.violated(self._violation or _violation(protocol.parser_exc))
        elif protocol.close_rcvd is None:
            # The close frame was sent; the client's pings before its answer get no pongs.
            websocket.flush()
        elif not client.eof_received():
            websocket.close()
        return _COST_OF_FRAME * len(events) + len(contents)

    def _contents(self, events: list[Event]) -> list[BytesLike]:
        """The contents of the frames, up to the first text that is not UTF-8."""
        contents: list[BytesLike] = []
        for event in events:
            frame = cast(Frame, event)
            opcode = frame.opcode
            if opcode is Opcode.BINARY or (opcode is Opcode.CONT and self._utf8_decoder is None):
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
            if self._utf8_decoder is None and frame.fin:
                if not data.isascii():
                    data.decode()
                return True
            if self._utf8_decoder is None:
                self._utf8_decoder = _Utf8Decoder()
            self._utf8_decoder.decode(data, final=frame.fin)
        except UnicodeDecodeError:
            return False
        if frame.fin:
            self._utf8_decoder = None
        return True


def _violation(error: Exception | None) -> str:
    """The reason in the gateway's own words, because the library's text may contain the client's input."""
    if isinstance(error, PayloadTooBig):
        return "A message of WebSocket is larger than a frame may be"
    if isinstance(error, ProtocolError):
        return "The protocol of WebSocket is broken"
    return "The connection is broken"
