"""A client's connection: its socket, its clock, and one session between them.

Octets come in, the session runs until it has no more frames or is held, and what came of it goes out: once per read,
in one write to each side. The session decides; this file only reads, writes, waits and closes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, cast

import structlog

from gateway.config import Listener, VirtualHost
from gateway.errors import CloseReason, FrameError, StompError
from gateway.journal.journal import Journal
from gateway.server.bridge import Bridge
from gateway.server.figures import Figures
from gateway.server.limits import Entrance, SessionLimits
from gateway.server.observation import Observation
from gateway.server.peer import Arrival, Peer
from gateway.server.pool import LinkPool
from gateway.server.throttle import Throttle
from gateway.server.tls import login_name
from gateway.server.websocket_transport import WebSocketTransport
from gateway.session import refusals
from gateway.session.conversation import Hold
from gateway.session.session import Session
from gateway.session.settings import Resolve
from gateway.session.transitions import State
from gateway.session.whole_frames import whole_frames
from gateway.stomp.decoder import Decoder, Limits
from gateway.stomp.heartbeat import HeartbeatMonitor

log = structlog.get_logger("gateway.session")

# Automatic acknowledgements wait for the settler's next round, in seconds: a write to the broker for each message would
# cost more than the message.
_SETTLE_WITHIN: Final = 0.01

# Characters of an ERROR's body in the log.
_LOGGED: Final = 300

# With this many times its buffer waiting, a client's further messages go back to their queues until it has caught up.
# The prefetch bounds messages and not octets, so without it large messages for a slow client would fill the memory.
_SHED_AT: Final = 16

TLS_HINT: Final = "give this listener a tls section, or let the client connect without TLS"

# How long a client may take to fetch its last frame and to close before the socket is cut, in seconds.
_LINGER: Final = 5.0


class Settler:
    """Settles automatic acknowledgements of all clients in rounds, so that no message needs a timer of its own.

    Args:
        loop: whose clock is used.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: set[ClientConnection] = set()

    def soon(self, client: ClientConnection) -> None:
        """Settle for a client in the next round."""
        if not self._waiting:
            self._loop.call_later(_SETTLE_WITHIN, self._round)
        self._waiting.add(client)

    def _round(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for client in waiting:
            client.settle()


@dataclass(frozen=True, slots=True)
class Workshop:
    """What all clients of a gateway share.

    ``clock`` gives seconds, only going forward; ``spawn`` starts a background task and keeps hold of it; ``settler``
    settles automatic acknowledgements a moment later; ``journal`` is told of all traffic, ``figures`` of what it comes
    to; ``clients`` holds every open connection, ``handshakes`` those of WebSocket that have no client yet.
    """

    server: bytes
    resolve: Resolve
    find_virtual_host: Callable[[str], VirtualHost | None]
    pool: LinkPool
    clock: Callable[[], float]
    spawn: Callable[..., asyncio.Task[None]]
    settler: Settler
    journal: Journal
    figures: Figures
    limits: SessionLimits
    clients: set[ClientConnection]
    closing: set[ClientConnection]
    handshakes: set[asyncio.Transport] = field(default_factory=set)


class ClientConnection(asyncio.Protocol):
    """One STOMP client, on TCP or, through `WebSocketConnection`, over WebSocket.

    Args:
        workshop: what all clients share.
        listener: where it came in; its limits hold until the client has logged in.
        arrival: where it comes from, and since when.
    """

    def __init__(self, workshop: Workshop, listener: Listener, arrival: Arrival) -> None:
        self._workshop = workshop
        self._listener = listener
        self._arrival = arrival
        limits = Limits(listener.max_frame_size_unauthenticated, listener.max_headers, listener.max_header_length)
        identity = b"session-" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=")
        self.session = Session(identity, workshop.server, workshop.resolve, limits, workshop.clock())
        self.session.authentication.implicit_connect = listener.implicit_connect
        self._decoder = Decoder(limits)
        self._transport: asyncio.Transport = _NO_TRANSPORT
        # The same, where it takes a message for each frame.
        self._websocket: WebSocketTransport | None = None
        self._violation: FrameError | None = None
        self._reading = True
        self._writable = True
        self._shedding = False
        self._settles_soon = False
        self._kept = 0
        self._buffer = 1 << 16
        self._slow_timeout = 60.0
        self._grace = 2.0
        self._ended = False
        self._gone = False
        self._closing = False
        self._started = False
        self._heard = True
        self._spoke = False
        self._full_since = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._clock = workshop.journal.clock
        self.observation = Observation(workshop.figures, workshop.journal, self.session, listener)
        self._bridge: Bridge
        self._entrance: Entrance
        self._throttle = Throttle(self.session, self._resume)

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
            self.session.authentication.credentials = transport.credentials
        self.observation.arrived(peer)
        self.session.authentication.is_local = peer.is_local
        self.session.authentication.certificate_name = login_name(transport, self._listener)
        self.session.observe = self.observation.started
        workshop = self._workshop
        self._entrance = Entrance(workshop.limits, peer.host)
        self._bridge = Bridge(
            self.session, self, workshop.pool, workshop.find_virtual_host, str(peer), workshop.spawn, self._entrance
        )
        workshop.clients.add(self)

    def data_received(self, data: bytes) -> None:
        """Octets from the client. HOT: once per read."""
        if self._closing:
            return
        self._heard = True
        self.observation.octets_in += len(data)
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
        self._stop_timers()
        self._throttle.end()
        self._workshop.closing.discard(self)
        # Nobody takes messages any more, so none may be settled.
        self.session.subscriptions.silence()
        if not self._closing:
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
        self._writable = self.session.client_writable = False
        self._full_since = self._workshop.clock()
        self._bridge.client_writable(False)

    def resume_writing(self) -> None:
        """The client has taken most of what was waiting."""
        self._writable = self.session.client_writable = True
        self.session.holds.discard(Hold.CLIENT_WRITE)
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
            self._throttle.charge(self.observation.octets_in)
            self._flush()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)
        if session.state is State.CLOSED:
            self._close()
        elif self._ended and session.wants_read and (self._gone or not session.publisher.owes_receipts):
            # Nothing is held and the decoder has run dry: that was all the client had to say, and it has its receipts.
            if not self._gone and not self._transport.get_write_buffer_size():
                session.subscriptions.settle_auto()
            if self._violation is None:
                session.client_gone()
            else:
                session.malformed(self._violation)
                self._write_last()
            self._close()
        else:
            self._read_or_pause()
            if not self._started and session.state is State.CONNECTED:
                self._start()

    def _flush(self) -> None:
        session = self.session
        # Settlements that the client asked for go before the receipts that tell of them.
        self._bridge.flush()
        if session.complaints:
            self._log_complaints()
        if session.output:
            if self._gone:
                session.output.clear()
            else:
                self._spoke = True
                self._write()
            if not self._writable and self._transport.get_write_buffer_size() > _SHED_AT * self._buffer:
                self._shedding = True
                self._bridge.shed_deliveries()
                # Nor are more frames read, whose answers would pile up.
                session.holds.add(Hold.CLIENT_WRITE)
        unsettled = session.subscriptions.unsettled
        if unsettled.waiting and self._writable and not self._gone:
            if unsettled.urgent:
                # Not at once: the loop hands octets to the kernel after this round of callbacks.
                unsettled.urgent = False
                asyncio.get_running_loop().call_soon(self.settle)
            elif not self._settles_soon:
                self._settles_soon = True
                self._workshop.settler.soon(self)

    def _write(self) -> None:
        """HOT: once per batch. The output is emptied before the write, which may find the client slow and lead back."""
        output = self.session.output
        if self._websocket is None:
            octets = b"".join(output)
            output.clear()
            self.observation.octets_out += len(octets)
            self._transport.write(octets)
        else:
            frames = whole_frames(output)
            output.clear()
            self.observation.octets_out += self._websocket.write_messages(frames)

    def settle(self) -> None:
        """Tell the broker what was delivered under ack:auto, once the kernel has it: what we hold dies with us."""
        self._settles_soon = False
        if not self._writable or self._closing or self._gone:
            return
        kept = self._transport.get_write_buffer_size()
        if not kept:
            self.session.subscriptions.settle_auto()
            self._bridge.flush()
        elif kept != self._kept:
            self._settles_soon = True
            self._workshop.settler.soon(self)
        # A client that took nothing since the last look is looked at again as time passes.
        self._kept = kept

    def _read_or_pause(self) -> None:
        self.observation.batch_done()
        wanted = self.session.wants_read
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
        virtual_host = self._workshop.find_virtual_host(session.settings.virtual_host)
        if virtual_host is not None:
            self._buffer = virtual_host.client_buffer
            self._transport.set_write_buffer_limits(high=self._buffer, low=self._buffer // 4)
            self._slow_timeout = virtual_host.slow_consumer_timeout
            self._grace = virtual_host.heart_beat_grace
        details = {"heart_beat": session.heartbeats.header.decode()}
        certificate = session.authentication.certificate_name
        if certificate is not None:
            details["certificate"] = certificate
        if self._websocket is not None:
            details["transport"] = self.observation.transport
        self._log("session started", journal=self.observation.journal_name, **details)
        if session.heartbeats.send:
            # What was said before does not count: the first beat is due half an interval from now.
            self._spoke = False
            self._every(session.heartbeats.send / 2, self._beat)
        if session.heartbeats.expect:
            monitor = HeartbeatMonitor()
            # The second look in a row without an octet ends it: one grace after the last octet, or up to a half more.
            self._every(session.heartbeats.expect * self._grace / 2, lambda: self._listen(monitor))
        # A user who is in debt is so with every new session, too.
        self._throttle.start(self._entrance.place)
        self._throttle.charge(self.observation.octets_in)
        self._read_or_pause()

    def failed(self, error: BaseException) -> None:
        """A fault of the gateway: the client learns that there was one, the log learns everything."""
        log.error("internal error", session=self.session.identity.decode(), peer=self.observation.peer, exc_info=error)
        body = "Processing error\n"
        self.session.close(StompError("Processing error", body, close=CloseReason.INTERNAL_ERROR))
        self._write_last()
        self._close()

    # Time.

    def _every(self, seconds: float, action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        place = len(self._timers)

        def fire() -> None:
            self._timers[place] = loop.call_later(seconds, fire)
            action()

        self._timers.append(loop.call_later(seconds, fire))

    def _beat(self) -> None:
        """Send a heart-beat unless something else went out."""
        if not self._spoke and not self._gone:
            self._transport.write(b"\n")
        self._spoke = False

    def _listen(self, monitor: HeartbeatMonitor) -> None:
        """Close a client that promised heart-beats and is silent. One that we do not read cannot be heard."""
        silent = monitor.tick(heard=self._heard or not self._reading)
        self._heard = False
        if silent:
            text = f"Nothing was heard for {self._grace * self.session.heartbeats.expect:g} seconds and more.\n"
            self._end(refusals.closing("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT))

    def time_passed(self, now: float) -> None:
        """Called about once a second: deadlines that need no timer of their own.

        Args:
            now: seconds on the workshop's clock.
        """
        session = self.session
        if self._websocket is not None and self._websocket.is_silent(now):
            text = f"Nothing was heard for {self._listener.idle_timeout:g} seconds, not even a pong.\n"
            self._end(refusals.closing("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT))
            return
        if session.state in (State.CONNECTING, State.AUTHENTICATING):
            if now - self._arrival.since > self._listener.login_timeout:
                text = f"No login within {self._listener.login_timeout:g} seconds.\n"
                self._end(refusals.closing("Login timeout", text, CloseReason.LOGIN_TIMEOUT))
            return
        if session.state is State.CONNECTED and session.renewal.has_expired(time.time()):
            self._end(refusals.token_expired())
            return
        session.time_passed(now)
        self._bridge.time_passed()
        self.observation.time_passed()
        if not self._writable and now - self._full_since > self._slow_timeout:
            text = f"Messages were not taken for {self._slow_timeout:g} seconds.\n"
            self._end(refusals.closing("Slow consumer", text, CloseReason.SLOW_CONSUMER))
        elif session.output:
            self._flush()
        if session.subscriptions.unsettled.waiting and not self._settles_soon:
            self.settle()

    # The end.

    def drain(self) -> None:
        """The gateway is stopping: finish what is under way, then say good-bye."""
        # In the next round of callbacks: until then the loop has offered the kernel all that was written.
        asyncio.get_running_loop().call_soon(self._drain)

    def _drain(self) -> None:
        if self._closing:
            return
        if self._transport.get_write_buffer_size():
            self.session.client_writable = False
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
        self._log_complaints()

    def _close(self) -> None:
        """Close once: give the links back, and throw away what the client says until it closes too."""
        if self._closing:
            return
        self._closing = True
        self._stop_timers()
        self._throttle.end()
        self._bridge.flush()
        self._bridge.release()
        self._workshop.clients.discard(self)
        reason = self.session.close_reason
        self.observation.ended(reason)
        if reason is not CloseReason.TLS_ON_PLAIN_PORT or self._log_tls():
            self._log("session ended", reason=reason.value if reason else "unknown")
        if self._gone:
            return
        self._workshop.closing.add(self)
        if self._websocket is not None:
            self._websocket.say_why(reason)
        if self._ended or not self._transport.can_write_eof():
            self._transport.close()
        else:
            # Closing at once would answer what the client still sends with a reset, which may overtake the last frame.
            self._half_close()
        self._timers.append(asyncio.get_running_loop().call_later(_LINGER, self._transport.abort))

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
        self._end(refusals.closing("Closed by operator", text, CloseReason.OPERATOR))

    @property
    def write_buffer(self) -> int:
        """Octets that wait to be written to the client."""
        return self._transport.get_write_buffer_size()

    def cut(self) -> None:
        """Give up on a client that does not fetch its last octets."""
        self._transport.abort()

    def abort(self) -> None:
        """Cut the connection; what the client was promised is not kept, and it is told so."""
        text = "The gateway is stopping, and not everything could be finished.\n"
        self._end(refusals.closing("Shutting down", text, CloseReason.SHUTDOWN))
        self._transport.close()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _log_complaints(self) -> None:
        complaints, self.session.complaints = self.session.complaints, []
        for error in complaints:
            self.observation.failed(error)
            text = error.body.decode(errors="replace").strip()
            self._log("error sent", message=error.message, text=text[:_LOGGED], closes=error.close is not None)

    def _log_tls(self) -> bool:
        """Complain that the client began with TLS, unless there were too many complaints; whether it was done."""
        left_out = self._arrival.complaints.left_out()
        if left_out is None:
            return False
        address = str(self._listener.address)
        log.info("tls on a plain port", address=address, peer=self.observation.peer, hint=TLS_HINT, left_out=left_out)
        return True

    def _log(self, event: str, **details: object) -> None:
        """One line at a session's start and end. Who never logged in, a health check for instance, is not worth one."""
        session = self.session
        quiet = session.login is None and session.close_reason is CloseReason.CLIENT_GONE
        (log.debug if quiet else log.info)(
            event,
            session=session.identity.decode(),
            peer=self.observation.peer,
            virtual_host=session.settings.virtual_host or None,
            login=session.login.decode(errors="replace") if session.login else None,
            version=session.version.decode() if session.login else None,
            **details,
        )


_NO_TRANSPORT: Final = asyncio.Transport()
