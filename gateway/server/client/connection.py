"""A client's connection: its socket, its clock, and one session between them.

Bytes come in, the session runs until it has no more frames or is held, and what came of it goes out: once per read,
in one write to each side. The session decides; this file only reads, writes, waits and closes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import urlsafe_b64encode
from typing import Final, cast

from gateway.config import Listener
from gateway.errors import CloseReason, FrameError, StompError
from gateway.server.broker.bridge import Bridge
from gateway.server.client.client_log import ClientLog
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.client.heartbeat_timer import HeartbeatTimer
from gateway.server.client.rate_limiter import RateLimiter
from gateway.server.client.session_limits import SessionSlot
from gateway.server.listen.peer import Arrival, Peer
from gateway.server.listen.tls import login_name, unsent_bytes
from gateway.server.listen.websocket_transport import WebSocketTransport
from gateway.server.server_context import ServerContext
from gateway.session import error_frames
from gateway.session.connect import ClientFacts
from gateway.session.context import Hold
from gateway.session.session import Session
from gateway.session.subscription import split_frames
from gateway.session.transitions import State
from gateway.stomp.decoder import Decoder, FrameLimits

# Frames of one client that are carried out before others have their turn: a few milliseconds' worth.
_STRIDE: Final = 1000

# With this many times its buffer waiting, a client's further messages go back to their queues until it has caught up.
# The prefetch bounds messages and not bytes, so without it large messages for a slow client would fill the memory.
_DROP_AT: Final = 16

# How long a client may take to fetch its last frame and to close before the socket is cut, in seconds.
_LINGER: Final = 5.0


class ClientConnection(asyncio.Protocol):
    """One STOMP client, on TCP or, through `WebSocketConnection`, over WebSocket.

    Args:
        workshop: what all clients share.
        listener: where it came in; its limits hold until the client has logged in.
        arrival: where it comes from, and since when.
    """

    def __init__(self, context: ServerContext, listener: Listener, arrival: Arrival) -> None:
        self._context = context
        self._listener = listener
        self._arrival = arrival
        limits = FrameLimits(listener.max_frame_size_unauthenticated, listener.max_headers, listener.max_header_length)
        identity = b"session-" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=")
        self.session = Session(identity, context.server, context.resolve, limits, context.clock())
        self._decoder = Decoder(limits)
        self._transport: asyncio.Transport = _NO_TRANSPORT
        # The same, where it takes a message for each frame.
        self._websocket: WebSocketTransport | None = None
        self._violation: FrameError | None = None
        self._reading = True
        self._writable = True
        self._shedding = False
        self._waits_for_turn = False
        self._settles_soon = False
        self._kept = 0
        self._buffer = 1 << 16
        self._slow_timeout = 60.0
        self._grace = 2.0
        self._ended = False
        self._gone = False
        self._closing = False
        self._started = False
        self._full_since = 0.0
        self._cutter: asyncio.TimerHandle | None = None
        self._clock = context.journal.clock
        self.stats = ConnectionStats(context.stats, context.journal, self.session, listener)
        self._log = ClientLog(self.session, self.stats, arrival, str(listener.address))
        self._pulse = HeartbeatTimer(self._beat, lambda: self._reading, self._unheard)
        self._bridge: Bridge
        self._entrance: SessionSlot
        self._throttle = RateLimiter(self.session, self._resume)

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        peer = self._arrival.peer or Peer.of(transport)
        if not peer.host:
            # Reset before it was accepted. Nobody is there to be answered, and nobody knows who it was.
            self._closing = True
            self._transport.abort()
            return
        if isinstance(transport, WebSocketTransport):
            self._websocket = transport
        if transport.get_extra_info("sslcontext") is None:
            # Not with TLS: uvloop loses what a client sent before it closed, if that is not read at once.
            self.session.set_max_frames_per_turn(_STRIDE)
        self.stats.arrived(peer)
        client = ClientFacts(
            is_local=peer.is_local,
            certificate_name=login_name(transport, self._listener),
            credentials=None if self._websocket is None else self._websocket.credentials,
            implicit_connect=self._listener.implicit_connect,
        )
        self.session.set_client(client, observe=self.stats.started)
        context = self._context
        self._entrance = SessionSlot(context.limits, peer.host)
        self._bridge = Bridge(
            self.session, self, context.pool, context.find_virtual_host, str(peer), context.spawn, self._entrance
        )
        context.clients.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client. HOT: once per read."""
        if self._closing:
            return
        self._pulse.heard = True
        self.stats.bytes_in += len(data)
        try:
            self._decoder.feed(data)
        except FrameError as error:
            self.session.malformed(error)
        self._advance()

    def eof_received(self) -> bool:
        """The client sends no more; what it sent is still carried out, and its answers written."""
        self._ended = True
        self._throttle.end()
        if self._closing:
            return False
        self._advance()
        # Nothing can be sent to a client that has ended TLS.
        return self._transport.can_write_eof() and not self._closing

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone; what it sent is still carried out."""
        self._ended = self._gone = True
        self._arrival.leave()
        self._pulse.stop()
        if self._cutter is not None:
            self._cutter.cancel()
        self._throttle.end()
        self._context.closing.discard(self)
        # Nobody takes messages any more, so none may be settled.
        self.session.stop_deliveries()
        if not self._closing:
            self._bridge.client_gone()
            self.session.release(Hold.CLIENT_WRITE)
            self._advance()

    def violated(self, reason: str) -> None:
        """The client broke the protocol below STOMP. What it sent before is carried out, then it is told.

        Args:
            reason: what it did, in a few words.
        """
        self._ended = True
        self._violation = FrameError(reason)
        if self._closing:
            self._transport.close()
        else:
            self._advance()

    def pause_writing(self) -> None:
        """The client does not take its messages as fast as they come."""
        self._writable = False
        self.session.set_client_writable(False)
        self._full_since = self._context.clock()
        self._bridge.client_writable(False)

    def resume_writing(self) -> None:
        """The client has taken most of what was waiting."""
        self._writable = True
        self.session.set_client_writable(True)
        self.session.release(Hold.CLIENT_WRITE)
        self._bridge.client_writable(True)
        if self._shedding:
            self._shedding = False
            self._bridge.resume_deliveries()
        if not self._closing:
            self._advance()

    # The session.

    def _advance(self) -> None:
        """Run the session, write out, and see whether this is the end. HOT: once per read, on either side."""
        session = self.session
        self._clock.tick()
        try:
            session.run(self._decoder)
            self._throttle.charge(self.stats.bytes_in)
            self._flush()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)
        if session.state is State.CLOSED:
            self._close()
        elif self._is_done():
            if not self._gone and not self._unwritten():
                session.settle_auto_acks()
            if self._violation is None:
                session.client_gone()
            else:
                session.malformed(self._violation)
                self._write_last()
            self._close()
        else:
            if session.reached_turn_limit:
                self._wait_for_turn()
            self._read_or_pause()
            if not self._started and session.state is State.CONNECTED:
                self._start()

    def _is_done(self) -> bool:
        """Nothing is held and the decoder has run dry: that was all the client had to say, and it has its receipts."""
        session = self.session
        if not self._ended or not session.wants_read or session.reached_turn_limit:
            return False
        return self._gone or not session.confirms.owes_receipts

    def _flush(self) -> None:
        session = self.session
        # Settlements that the client asked for go before the receipts that tell of them.
        self._bridge.flush()
        self._log.complaints()
        if session.output:
            if self._gone:
                session.output.clear()
            else:
                self._pulse.spoke = True
                self._write()
            if not self._writable and self._transport.get_write_buffer_size() > _DROP_AT * self._buffer:
                self._shedding = True
                self._bridge.drop_deliveries()
                # Nor are more frames read, whose answers would pile up.
                session.hold(Hold.CLIENT_WRITE)
        if session.has_auto_acks and self._writable and not self._gone:
            if session.take_urgency():
                # Not at once: the loop hands bytes to the kernel after this round of callbacks.
                asyncio.get_running_loop().call_soon(self.settle)
            elif not self._settles_soon:
                self._settles_soon = True
                self._context.settler.soon(self)

    def _write(self) -> None:
        """HOT: once per batch. The output is emptied before the write, which may find the client slow and lead back."""
        output = self.session.output
        if self._websocket is None:
            octets = b"".join(output)
            output.clear()
            self.stats.bytes_out += len(octets)
            self._transport.write(octets)
        else:
            frames = split_frames(output)
            output.clear()
            self.stats.bytes_out += self._websocket.write_messages(frames)

    def settle(self) -> None:
        """Tell the broker what was delivered under ack:auto, once the kernel has it: what we hold dies with us."""
        self._settles_soon = False
        if not self._writable or self._closing or self._gone:
            return
        kept = self._unwritten()
        if not kept:
            self.session.settle_auto_acks()
            self._bridge.flush()
        elif kept != self._kept:
            self._settles_soon = True
            self._context.settler.soon(self)
        # A client that took nothing since the last look is looked at again as time passes.
        self._kept = kept

    def _unwritten(self) -> int:
        """Whether the kernel has everything: 0 when it does, more when it does not."""
        return self.write_buffer or (0 if self._listener.tls is None else unsent_bytes(self._transport))

    def _wait_for_turn(self) -> None:
        """Let others have theirs. What is in the decoder comes first then, so nothing is read until that is done."""
        if not self._waits_for_turn:
            self._waits_for_turn = True
            asyncio.get_running_loop().call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._resume()

    def _read_or_pause(self) -> None:
        self.stats.batch_done()
        wanted = self.session.wants_read and not self._waits_for_turn
        if wanted is not self._reading and not self._gone:
            self._reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _resume(self) -> None:
        """A hold that had nothing to do with the session's traffic is over."""
        if not self._closing:
            self._advance()

    def broker_batch_done(self) -> None:
        """The session got data or an event from the broker."""
        if self._closing:
            self.session.output.clear()
        else:
            self._advance()

    def _start(self) -> None:
        """The client has logged in."""
        session = self.session
        self._started = True
        virtual_host = self._context.find_virtual_host(session.settings.virtual_host)
        if virtual_host is not None:
            self._buffer = virtual_host.client_buffer
            self._transport.set_write_buffer_limits(high=self._buffer, low=self._buffer // 4)
            self._slow_timeout = virtual_host.slow_consumer_timeout
            self._grace = virtual_host.heart_beat_grace
        details = {"heart_beat": session.heartbeats.header.decode()}
        certificate = session.certificate_name
        if certificate is not None:
            details["certificate"] = certificate
        if self._websocket is not None:
            details["transport"] = self.stats.transport
        self._log.started(**details)
        self._pulse.start(session.heartbeats, self._grace)
        # A user who is in debt is so with every new session, too.
        self._throttle.start(self._entrance.place)
        self._throttle.charge(self.stats.bytes_in)
        self._read_or_pause()

    def failed(self, error: BaseException) -> None:
        """A fault of the gateway: the client learns that there was one, the log learns everything."""
        self._log.failed(error)
        body = "Processing error\n"
        self.session.close(StompError("Processing error", body, close=CloseReason.INTERNAL_ERROR))
        self._write_last()
        self._close()

    # Time.

    def _beat(self) -> None:
        if not self._gone:
            self.stats.bytes_out += 1
            self._transport.write(b"\n")

    def _unheard(self) -> None:
        """The client promised heart-beats and is silent."""
        text = f"Nothing was heard for {self._grace * self.session.heartbeats.expect:g} seconds and more.\n"
        self._end(error_frames.closing("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT))

    def time_passed(self, now: float) -> None:
        """Called about once a second: deadlines that need no timer of their own.

        Args:
            now: seconds on the workshop's clock.
        """
        session = self.session
        if self._websocket is not None and self._websocket.is_silent(now):
            text = f"Nothing was heard for {self._listener.idle_timeout:g} seconds, not even a pong.\n"
            self._end(error_frames.closing("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT))
            return
        if session.state in (State.CONNECTING, State.AUTHENTICATING):
            if now - self._arrival.since > self._listener.login_timeout:
                text = f"No login within {self._listener.login_timeout:g} seconds.\n"
                self._end(error_frames.closing("Login timeout", text, CloseReason.LOGIN_TIMEOUT))
            return
        if session.token_expired(time.time()):
            self._end(error_frames.token_expired())
            return
        session.time_passed(now)
        self._bridge.time_passed()
        self.stats.time_passed()
        if not self._writable and now - self._full_since > self._slow_timeout:
            text = f"Messages were not taken for {self._slow_timeout:g} seconds.\n"
            self._end(error_frames.closing("Slow consumer", text, CloseReason.SLOW_CONSUMER))
        elif session.output:
            self._flush()
        if session.has_auto_acks and not self._settles_soon:
            self.settle()

    # The end.

    def drain(self) -> None:
        """The gateway is stopping: finish what is under way, then say good-bye."""
        # In the next round of callbacks: until then the loop has offered the kernel all that was written.
        asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        if self._closing:
            return
        if self._unwritten():
            self.session.set_client_writable(False)
        self._throttle.end()
        self.session.shut_down()
        self._advance()

    def _end(self, error: StompError) -> None:
        self.session.close(error)
        self._write_last()
        self._close()

    def _write_last(self) -> None:
        if self._gone:
            self.session.output.clear()
        elif self.session.output:
            self._write()
        self._log.complaints()

    def _close(self) -> None:
        """Close once: give the links back, and throw away what the client says until it closes too."""
        if self._closing:
            return
        self._closing = True
        self._pulse.stop()
        self._throttle.end()
        self._bridge.flush()
        self._bridge.release()
        self._context.clients.discard(self)
        reason = self.session.close_reason
        self.stats.ended(reason)
        self._log.ended(reason)
        if self._gone:
            return
        self._context.closing.add(self)
        if self._websocket is not None:
            self._websocket.say_why(reason)
        if self._ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            # Closing at once would answer what the client still sends with a reset, which may overtake the last frame.
            self._half_close()
        self._cutter = asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)

    def _half_close(self) -> None:
        try:
            self._transport.write_eof()
            if not self._reading:
                self._transport.resume_reading()
        except OSError:
            # Reset by the client at the same moment.
            self._transport.abort()

    def close_by_operator(self, reason: str) -> None:
        """Somebody with the right to do so wants this session to end.

        Args:
            reason: a few words for the client, or nothing.
        """
        text = f"{reason}\n" if reason else "An operator of the gateway has closed this session.\n"
        self._end(error_frames.closing("Closed by operator", text, CloseReason.OPERATOR))

    @property
    def write_buffer(self) -> int:
        """Bytes that wait to be written to the client."""
        return self._transport.get_write_buffer_size()

    def cut(self) -> None:
        """Give up on a client that does not fetch its last bytes."""
        self._transport.abort()

    def abort(self) -> None:
        """Cut the connection; what the client was promised is not kept, and it is told so."""
        text = "The gateway is stopping, and not everything could be finished.\n"
        self._end(error_frames.closing("Shutting down", text, CloseReason.SHUTDOWN))
        self._transport.close()


_NO_TRANSPORT: Final = asyncio.Transport()
