"""A client's connection: its socket, its timers, and its session.

After each read the session runs until it has no more frames or is held. Then its output is written, in one write to
each side. The session decides; this module only reads, writes, waits and closes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import chain
from typing import Final, cast

from gateway.config.listener_settings import Listener
from gateway.config.virtual_host import FindVirtualHost
from gateway.errors import CertificateUnreadableError, CloseReason, FrameError, StompError
from gateway.journal.journal import Journal
from gateway.server.broker.link_pool import LinkPool
from gateway.server.client.bridge import Bridge
from gateway.server.client.client_deadlines import ClientDeadlines, HeartbeatTimer
from gateway.server.client.client_log import ClientLog
from gateway.server.client.connection_stats import ConnectionStats
from gateway.server.client.login_handler import LoginHandler
from gateway.server.client.output import AutoAckFlusher, ClientOutput
from gateway.server.client.rechecks import Rechecks
from gateway.server.client.session_limits import RateLimiter, SessionLimits
from gateway.server.client.traces import FrameWatch, Traces, WatchedDecoder
from gateway.server.fault_boundary import guarded
from gateway.server.listen.accepted_connection import AcceptedConnection
from gateway.server.listen.tls import limit_read_ahead, login_name
from gateway.server.listen.websocket import StompProtocol
from gateway.server.log_limits import LogLimits
from gateway.server.paced_work import FULL_READ, PER_ROUND, PacedWork
from gateway.server.stats import GatewayStats
from gateway.session.connect import ClientFacts
from gateway.session.context import Hold, State
from gateway.session.session import Session
from gateway.stomp.decoder import Decoder, FrameLimits

# The most frames of a client's turn.
_MAX_FRAMES_PER_TURN: Final = 1000

# Up to this many bytes, input is handled at once; most messages are smaller. Clients with more input share the time for
# it in each event loop iteration.
_LITTLE: Final = 4096


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The objects that all clients of a gateway share.

    Args:
        product: the gateway's name and version.
        clock: monotonic, in seconds.
        spawn: starts a background task and keeps a reference to it.
        paced: for logins, ends of sessions, and selectors.
        turns: for the input of clients that send much.
        clients: the connections with a session.
        closing: the connections whose session has ended.
    """

    product: bytes
    find_virtual_host: FindVirtualHost
    pool: LinkPool
    clock: Callable[[], float]
    spawn: Callable[..., asyncio.Task[None]]
    journal: Journal
    stats: GatewayStats
    limits: SessionLimits
    log_limits: LogLimits
    paced: PacedWork
    rechecks: Rechecks
    auto_acks: AutoAckFlusher = field(default_factory=AutoAckFlusher)
    turns: PacedWork = field(default_factory=PacedWork)
    traces: Traces = field(default_factory=Traces)
    clients: set[ClientConnection] = field(default_factory=set)
    closing: set[ClientConnection] = field(default_factory=set)


class ConnectionState(Enum):
    """The state of a client's connection.

    ::

        ARRIVED ──▶ STARTED ──▶ AT_WORK
           │           │           │
           └───────────┴───────────┴──┬──▶ FAILED ──┐
                                      └─────────────┴──▶ OVER

    Its session has states of its own (`State`), and is CLOSED before its connection is OVER.
    """

    ARRIVED = "arrived"
    """The client has not logged in."""
    STARTED = "started"
    """It has logged in. Its input is paced work, like before, because a thousand clients may connect at once."""
    AT_WORK = "at-work"
    """The session has needed a channel. Its input is no longer paced work."""
    FAILED = "failed"
    """A fault of the gateway is about to end the session."""
    OVER = "over"
    """The session has ended. The socket may stay open until the client closes it, too."""


# Looking a member up in its class would take longer than the rest of a comparison.
_ARRIVED: Final = ConnectionState.ARRIVED
_AT_WORK: Final = ConnectionState.AT_WORK
_OVER: Final = ConnectionState.OVER


class ClientConnection(StompProtocol):
    """One STOMP client, on TCP or, through `WebSocketConnection`, over WebSocket.

    Until the client has logged in, the limits of the listener apply.
    """

    def __init__(self, context: ServerContext, listener: Listener, accepted: AcceptedConnection) -> None:
        self._context = context
        self._listener = listener
        self._accepted = accepted
        limits = FrameLimits(
            frame=listener.max_frame_size_unauthenticated,
            headers=listener.max_headers,
            header=listener.max_header_length,
            lines=listener.max_header_lines,
        )
        identity = b"session-" + urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=")
        self.session = Session(identity, context.product, context.find_virtual_host, limits)
        self._decoder = Decoder(limits)
        self._output: ClientOutput
        self._bridge: Bridge
        self._login: LoginHandler
        self._deadlines: ClientDeadlines
        self.stats = ConnectionStats(context.stats, context.journal, self.session, listener)
        self._log = ClientLog(self.stats, accepted, context.log_limits)
        self._heartbeats = HeartbeatTimer()
        self._rate_limiter = RateLimiter(self.session)
        self._state = _ARRIVED
        # Whether the client has ended its input, and whether its socket is closed.
        self._has_ended = self._is_lost = False
        # Whether the socket is being read.
        self._reading = True
        # True until the client's next turn, after one has ended.
        self._waits_for_turn = False
        # Whether `advance` is queued as paced work. Until it runs, nothing is read, or input would accumulate.
        self._is_queued = False
        # Whether the last read returned as much as a read can, and reading has not paused since.
        self._read_fully = False
        # The result of `ClientOutput.unsent_bytes` in the last round of automatic acknowledgements.
        self._unsent = 0
        # The client's violation of the protocol below STOMP, if any.
        self._violation: FrameError | None = None

    @property
    def max_frame_size(self) -> int:
        """The present frame limit in bytes."""
        if self.session.login is None:
            return self._listener.max_frame_size_unauthenticated
        return self.session.settings.max_frame_size

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        return self._state is _OVER

    @property
    def write_buffer(self) -> int:
        """The number of bytes that wait to be written to the client."""
        return self._output.write_buffer

    # The socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving the client."""
        over_tls = self._listener.tls is not None
        output = self._output = ClientOutput(cast(asyncio.Transport, transport), over_tls=over_tls)
        try:
            self._identify(transport, output)
        except Exception as error:  # noqa: BLE001 - there is no session yet to end
            self._log.failed(error)
            self._state = _OVER
            output.transport.abort()

    def _identify(self, transport: asyncio.BaseTransport, output: ClientOutput) -> None:
        """Tell the session and its parts the client's address and certificate."""
        peer = self._accepted.peer
        if transport.get_extra_info("peername") is None:
            # The client has already reset the connection.
            self._state = _OVER
            output.transport.abort()
            return
        if output.websocket is None:
            limit_read_ahead(transport)
        self.session.max_frames_per_turn = _MAX_FRAMES_PER_TURN
        self.stats.arrived(peer)
        name, is_broken = None, False
        try:
            name = login_name(transport, self._listener)
        except CertificateUnreadableError as error:
            self._log.certificate_unreadable(str(error))
            is_broken = True
        facts = ClientFacts(
            is_local=peer.is_local,
            certificate_name=name,
            is_certificate_broken=is_broken,
            credentials=None if output.websocket is None else output.websocket.credentials,
            implicit_connect=self._listener.implicit_connect,
        )
        self.session.set_client(facts, observe=self.stats.started)
        context, client = self._context, self.stats.peer
        identity = self.session.identity.decode()
        login_until = self._accepted.accepted_at + self._listener.login_timeout
        self._login = LoginHandler(context.pool, context.limits, self._log, peer, identity, login_until)
        self._bridge = Bridge(self.session, self, context.pool, self._login, client, context.spawn)
        self._deadlines = ClientDeadlines(
            self.session, output, self._listener, self._accepted.accepted_at, self._bridge.must_wait
        )
        context.clients.add(self)
        context.traces.arrived(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client. HOT: once per read."""
        if self._state is _OVER or self.session.state is State.CLOSED:
            return
        self._heartbeats.has_received = True
        self.stats.bytes_in += len(data)
        self._read_fully = len(data) >= FULL_READ
        try:
            self._decoder.feed(data)
        except FrameError as error:
            self.session.malformed(error)
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)
        if self._state is _AT_WORK:
            self.advance()
        else:
            self.advance_paced()
            if self._is_queued:
                self._read_or_pause()

    def eof_received(self) -> bool:
        """Note that the client has ended its input. The gateway still handles and answers earlier frames."""
        self._has_ended = True
        self._rate_limiter.stop()
        if not self._output.transport.can_write_eof():
            # A client that has ended TLS can no longer receive.
            self.advance()
            return False
        self.advance_paced()
        return self._state is not _OVER

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the client is gone. The gateway still handles earlier frames."""
        if self._is_lost:
            # uvloop and a listener that closes at that moment may both tell it.
            return
        self._has_ended = self._is_lost = True
        self._context.closing.discard(self)
        for step in (self._accepted.on_closed, self._output.connection_lost, self._heartbeats.stop, self._lost):
            guarded(self, step)

    def _lost(self) -> None:
        self._rate_limiter.stop()
        # Messages that the client cannot receive must not be settled.
        self.session.subscriptions.stop_deliveries()
        if self._state is not _OVER:
            self._bridge.client_gone()
            self.session.holds.discard(Hold.CLIENT_WRITE)
            # Not in this iteration, of which the lines above took much if the session has thousands of subscriptions.
            self.advance_paced(at_once=False)

    def violated(self, reason: str) -> None:
        """Note that the client violated the protocol below STOMP. It gets an ERROR after its earlier frames."""
        self._has_ended = True
        self._violation = FrameError(reason)
        if self._state is _OVER:
            self._output.transport.close()
        else:
            self.advance()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than messages arrive."""
        self._output.pause(self._context.clock())
        guarded(self, self._set_writable, False)

    def resume_writing(self) -> None:
        """Note that the client has read most of the write buffer."""
        self._output.resume()
        self.session.holds.discard(Hold.CLIENT_WRITE)
        guarded(self, self._set_writable, True)
        self.advance()

    def _set_writable(self, writable: bool) -> None:
        self.session.context.client_writable = writable
        if self._state is not _OVER:
            self._bridge.client_writable(writable)

    # The session.

    def advance(self) -> None:
        """Run the session, write to both sides, and close if the session has ended. HOT: once per read."""
        if self._state is _OVER:
            self.session.output.clear()
            return
        if self._decoder.buffered > _LITTLE and self.session.wants_read and not self._begin_or_queue_turn():
            return
        try:
            self._advance()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)

    def _begin_or_queue_turn(self) -> bool:
        """Begin the client's turn, or queue it.

        Returns whether the caller must continue: during the turn with everything, and while the turn is queued only
        with the output. It is False if the whole turn has happened within this call.
        """
        turns = self._context.turns
        if turns.serves(self):
            self.session.set_turn_time(time.monotonic, turns.time_left)
            self._bridge.keep_to_window()
        elif not self._waits_for_turn:
            self._waits_for_turn = True
            return not turns.do(self, self._take_turn)
        return True

    def advance_paced(self, *, at_once: bool = True) -> None:
        """Advance, as paced work. Several calls before that advance only once.

        It is for events that may affect many clients at the same time. ``at_once``: this iteration is allowed.
        """
        if not self._is_queued:
            self._is_queued = True
            paced = self._context.paced
            (paced.do if at_once else paced.later)(self, self._paced_turn)

    def advance_rest(self) -> None:
        """Call ``advance_paced`` if frames of the client are left. It may be called within an ``advance``."""
        if self._has_rest:
            self.advance_paced()

    @property
    def _has_rest(self) -> bool:
        """Whether frames of the client may be left."""
        return bool(self._decoder.buffered) or self.session.has_frame

    def _paced_turn(self) -> None:
        """Advance, because ``advance_paced`` was called. This is not a turn of a client that sends much."""
        self._is_queued = False
        self.advance()
        if self._state is ConnectionState.STARTED and self._bridge.has_parts:
            self._state = _AT_WORK

    def _advance(self) -> None:
        session = self.session
        self._context.journal.clock.tick()
        if not self._waits_for_turn:
            session.run(self._decoder)
            self._rate_limiter.charge(self.stats.bytes_in)
        ends_at = 0.0
        while self._flush() and not self._waits_for_turn:
            ends_at = self._run_on(ends_at)
        if session.state is State.CLOSED:
            self._close()
        elif self._is_done():
            if not self._is_lost and not self._output.unsent_bytes():
                session.subscriptions.settle_auto_acks()
            if self._violation is None:
                session.client_gone()
            else:
                session.malformed(self._violation)
                self._write_output()
            self._close()
        else:
            if (session.reached_turn_limit or self._read_fully) and not self._waits_for_turn:
                # End the turn. Nothing is read until the frames in the decoder are handled.
                self._waits_for_turn = True
                is_rest = session.reached_turn_limit or not session.wants_read
                self._context.turns.later(self, self._take_turn if is_rest else self._read_on)
            self._read_or_pause()
            if self._state is _ARRIVED and session.state is State.CONNECTED:
                self._start()

    def _run_on(self, ends_at: float) -> float:
        """Run the session again after an operation that was answered at once. Returns when this turn must end.

        ``ends_at``: the result of the last call; 0 in the first one.
        """
        now = time.monotonic()
        # The turn also ends if each SEND asks for something, and so ends a call of `Session.run`.
        ends_at = ends_at or now + PER_ROUND
        if now > ends_at:
            self._waits_for_turn = True
            self._context.turns.later(self, self._take_turn)
        else:
            if self._decoder.buffered > _LITTLE:
                # When the turn began, there may have been no channel, so no window.
                self._bridge.keep_to_window()
            self.session.run(self._decoder)
        return ends_at

    def _is_done(self) -> bool:
        """Whether the client has ended its input, all its frames are handled, and it has its receipts."""
        session = self.session
        if not self._has_ended or not session.wants_read or session.operation is not None:
            return False
        if session.reached_turn_limit or self._waits_for_turn or (self._is_queued and self._has_rest):
            return False
        return self._is_lost or not session.confirms.owes_receipts

    def _flush(self) -> bool:
        """Write to both sides. Returns whether the session can continue at once."""
        # The client's settlements reach the broker before their receipts reach the client.
        may_go_on = self._bridge.flush()
        self._write_output()
        return may_go_on

    def flush_batch(self) -> None:
        """Write the output of one read from the broker, and advance the session if it may have waited for this.

        HOT: once per such read. If the client is being read, or waits only for its turn, nothing in the session waits
        for the broker, and it is enough to write.
        """
        is_read = self._reading or self._waits_for_turn
        if self._state is _OVER or self._has_ended or not (is_read and self.session.wants_read):
            self.advance()
            return
        try:
            self._write_output()
            if self.session.holds:
                self._read_or_pause()
            else:
                self.stats.batch_done()
        except Exception as error:  # noqa: BLE001 - a fault of ours must end this session only
            self.failed(error)

    def _write_output(self) -> None:
        session, output = self.session, self._output
        if session.context.unlogged_errors:
            self._log.errors()
        if session.output:
            if self._is_lost:
                session.output.clear()
            else:
                self._heartbeats.has_sent = True
                self.stats.bytes_out += output.write(session.output)
            if output.must_drop:
                self._bridge.drop_deliveries()
                # The client is held, too, because the answers to its frames would accumulate.
                session.holds.add(Hold.CLIENT_WRITE)
        auto_acks = session.subscriptions.auto_acks
        if auto_acks.subscriptions and output.is_writable and not self._is_lost:
            if auto_acks.is_urgent:
                auto_acks.is_urgent = False
                # Not now: the event loop passes the bytes to the kernel after these callbacks.
                asyncio.get_running_loop().call_soon(guarded, self, self.settle)
            else:
                self._context.auto_acks.schedule(self)

    def settle(self) -> None:
        """Settle deliveries under ack:auto if the kernel has them. The gateway's own buffers would be lost with it."""
        if not self._output.is_writable or self._state is _OVER or self._is_lost:
            return
        unsent = self._output.unsent_bytes()
        if not unsent:
            self.session.subscriptions.settle_auto_acks()
            self._bridge.flush()
        elif unsent != self._unsent:
            self._context.auto_acks.schedule(self)
        # If the kernel has taken nothing since the last round, `time_passed` calls this again.
        self._unsent = unsent

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self.advance()

    def _read_on(self) -> None:
        """Read on after others had their turn. All frames are handled, unless something has happened meanwhile."""
        session = self.session
        self._waits_for_turn = False
        if self._has_ended or self._state is _OVER or session.has_frame or not session.wants_read:
            self.advance()
        else:
            guarded(self, self._read_or_pause)

    def _read_or_pause(self) -> None:
        self.stats.batch_done()
        takes_frames = self.session.wants_read or self.session.refuses_sends
        wanted = takes_frames and not self._waits_for_turn and not self._is_queued
        if wanted is not self._reading and not self._is_lost:
            self._reading = wanted
            if wanted:
                self._output.transport.resume_reading()
            else:
                self._read_fully = False
                self._output.transport.pause_reading()

    def _start(self) -> None:
        """Start everything that begins with the login."""
        session = self.session
        self._state = ConnectionState.STARTED
        self._accepted.on_login(session.settings.links == "dedicated")
        self._output.start(session.settings)
        details = {"heart_beat": session.heartbeats.header.decode()}
        if session.certificate_name is not None:
            details["certificate"] = session.certificate_name
        if self._output.websocket is not None:
            details["transport"] = self.stats.transport
        self._log.started(**details)
        self._heartbeats.start(session.heartbeats, session.settings.heart_beat_grace, self)
        # A debt of the user's other sessions holds this one, too.
        self._rate_limiter.start(self._login.rates, self.advance)
        self._rate_limiter.charge(self.stats.bytes_in)
        self._read_or_pause()
        self._context.traces.logged_in(self)
        self._context.rechecks.add(self._bridge, self._login.links, session.settings.recheck)

    def failed(self, error: Exception) -> None:
        """End the session after a fault of the gateway. The client gets an ERROR without details; the log has them."""
        self._log.failed(error)
        if self._state not in {ConnectionState.FAILED, _OVER}:
            self._state = ConnectionState.FAILED
            guarded(
                self, self._end, StompError("Processing error", "Processing error\n", close=CloseReason.INTERNAL_ERROR)
            )
        else:
            # This is a second fault, during the end.
            self._output.transport.abort()
            self._close()

    # Time.

    def send_heartbeat(self) -> None:
        """Send a heart-beat, if nothing else was sent."""
        if not self._is_lost:
            self.stats.bytes_out += 1
            self._output.transport.write(b"\n")

    def has_sent_unread(self, seconds: float) -> bool:
        """Whether a client that is not being read has sent bytes in the last ``seconds``."""
        return not self._reading and self._output.has_sent_unread(seconds)

    def heartbeat_missed(self, silence: float) -> None:
        """End the session of a client that promised heart-beats and was silent for ``silence`` seconds."""
        text = f"The client sent nothing for at least {silence:g} seconds.\n"
        self._end(StompError("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT))

    def time_passed(self, now: float) -> None:
        """Check deadlines and do periodic work. Call it about once a second; ``now`` is in seconds."""
        if self._state is _OVER:
            return
        session = self.session
        missed = self._deadlines.missed(now)
        if missed is not None:
            self._end(missed)
            return
        if session.state in (State.CONNECTING, State.AUTHENTICATING):
            return
        session.time_passed(now)
        self._bridge.time_passed()
        self.stats.time_passed()
        if session.refuses_sends and not self._reading:
            self.advance()
        elif session.output:
            self._flush()
        if session.subscriptions.auto_acks.subscriptions and not self._context.auto_acks.is_scheduled(self):
            self.settle()

    # The end.

    def drain(self) -> None:
        """Finish the work under way, and then end the session, because the gateway is stopping."""
        # Later, because the event loop first passes everything that was written to the kernel.
        asyncio.get_running_loop().call_soon(guarded, self, self._drain)

    def _drain(self) -> None:
        if self._state is _OVER:
            return
        if self._output.unsent_bytes():
            self.session.context.client_writable = False
        self._rate_limiter.stop()
        self.session.shut_down()
        self.advance()

    def _end(self, error: StompError) -> None:
        self.session.close(error)
        self._write_output()
        self._close()

    def _close(self) -> None:
        """Close, once, and give the links back. Later bytes of the client are ignored."""
        if self._state is _OVER:
            return
        self._state = _OVER
        self._context.clients.discard(self)
        # Now, because it no longer counts among the clients, and sums must never decrease.
        guarded(self, self.stats.count_end, self.session.close_reason)
        if not self._is_lost:
            self._context.closing.add(self)
        # At once, unless many sessions end. Logins are paced work, too, so a client that reconnects comes after this.
        paced = self._context.paced
        if paced.serves(self):
            self._clean_up()
        else:
            paced.do(self, self._clean_up)

    def _clean_up(self) -> None:
        # If a step fails, the others must still run.
        for step in (
            self._heartbeats.stop,
            self._rate_limiter.stop,
            self._bridge.flush,
            partial(self._context.rechecks.remove, self._bridge),
            self._bridge.release,
            self._report_end,
            self._close_output,
            self._forget,
        ):
            guarded(self, step)

    def _report_end(self) -> None:
        reason = self.session.close_reason
        self._context.traces.left(self, reason)
        parts = self.stats.journal_end(reason)
        self._log.ended(reason)
        self._end_in_parts(chain(parts, self.session.subscriptions.dismantle()))

    def _forget(self) -> None:
        """Free buffered input, and break the session's reference cycles."""
        self._decoder = Decoder(self._decoder.limits)
        self.session.forget()

    def _end_in_parts(self, parts: Iterator[None]) -> None:
        """Do the first part of the remaining work, such as journal lines, now, and the others as paced work."""
        for _ in parts:
            self._context.paced.do(self, partial(self._end_in_parts, parts))
            return

    def _close_output(self) -> None:
        if not self._is_lost:
            self._output.close(self.session.close_reason, has_ended=self._has_ended, is_reading=self._reading)

    def watch(self, watch: FrameWatch | None) -> None:
        """Copy the bytes of both sides to a watch from now on, for traces. None ends that."""
        decoder = self._decoder
        if watch is None:
            self._decoder = Decoder(decoder.limits)
            self._decoder.take_over(decoder)
        else:
            self._decoder = WatchedDecoder(decoder, watch)
        self._output.watch(None if watch is None else watch.sent)

    def close_by_operator(self, reason: str) -> None:
        """End the session for an operator. The ERROR has the reason, unless that is empty."""
        text = f"{reason}\n" if reason else "An operator of the gateway has closed this session.\n"
        self._end(StompError("Closed by operator", text, CloseReason.OPERATOR))

    def abort(self) -> None:
        """Close at once, with an ERROR if the session has not ended. Outstanding receipts are not sent."""
        if self._state is _OVER:
            self._output.transport.abort()
            return
        text = "The gateway is stopping, and not everything could be finished.\n"
        self._end(StompError("Shutting down", text, CloseReason.SHUTDOWN))
        self._output.transport.close()
