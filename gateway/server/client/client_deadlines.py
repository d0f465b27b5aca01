"""Deadlines of a client for its login, for reading its messages and for heart-beats, and those of the broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from gateway.config.listener_settings import Listener
from gateway.errors import CloseReason, StompError
from gateway.server.client.output import ClientOutput
from gateway.server.fault_boundary import FaultOwner, guarded
from gateway.server.paced_work import PeriodicTimer
from gateway.session import error_frames, ops
from gateway.session.context import Hold, State
from gateway.session.session import Session
from gateway.stomp.heartbeat import HeartbeatMonitor, Heartbeats

_FOR_CONFIRMS: Final = frozenset((Hold.COMMIT, Hold.CONFIRM_WINDOW))


class OperationDeadline:
    """The broker's deadline, ``upstream.operation_timeout``. It is checked about once a second, without timers.

    It applies

    * to an operation;
    * to the end of a session (DRAINING) as a whole;
    * to the oldest unconfirmed message, if confirms hold the session, or if an earlier method is unanswered: RabbitMQ
      may never confirm a message for a stream whose leader was lost.

    ``must_wait``: see `Bridge.must_wait`.
    """

    __slots__ = ("_must_wait", "_seen", "_session", "_since")

    def __init__(self, session: Session, must_wait: Callable[[ops.Operation | None], bool]) -> None:
        self._session = session
        self._must_wait = must_wait
        self._seen: object = None
        self._since = 0.0

    def missed(self, now: float) -> StompError | None:
        """The error that ends the session if the broker took too long; ``now`` is in seconds."""
        session = self._session
        is_draining, operation = session.state is State.DRAINING, session.operation
        waits_for: object = State.DRAINING if is_draining else operation or _awaited_confirm(session)
        if isinstance(operation, ops.Recover):
            # A recovery has its own deadline. The time for everything else starts again after it.
            self._seen = None
            return None
        if waits_for is not self._seen or (waits_for and not is_draining and self._must_wait(operation)):
            self._seen, self._since = waits_for, now
            return None
        upstream = session.settings.upstream
        timeout = upstream.operation_timeout
        if not is_draining and (operation is None or _concerns_lasting_queue(operation)):
            # If a queue has no leader or its node is away, RabbitMQ does not answer until that has changed.
            timeout = max(timeout, upstream.ride_through)
        if waits_for is None or now - self._since <= timeout:
            return None
        messages = f"{count} messages" if (count := len(session.confirms)) > 1 else "a message"
        purpose = f"to confirm {messages}" if operation is None else operation.purpose
        return error_frames.operation_timeout(timeout, purpose)


def _awaited_confirm(session: Session) -> object:
    """The oldest unconfirmed message, if confirms hold the session or a method is unanswered; otherwise None."""
    if session.holds.isdisjoint(_FOR_CONFIRMS):
        return next(iter(session.confirms.messages), session) if session.unanswered else None
    return next(iter(session.confirms.messages), None)


def _concerns_lasting_queue(operation: ops.Operation) -> bool:
    """Whether the operation uses a queue that may be on another node, and survives the loss of that node."""
    if isinstance(operation, ops.Subscribe):
        return operation.queue is None or operation.queue.durable
    return isinstance(operation, ops.PreparePublisher) and operation.queue is not None


class ClientDeadlines:
    """All deadlines of one client, checked about once a second, without timers.

    ``accepted_at``: when the client connected, in seconds. ``must_wait``: see `Bridge.must_wait`.
    """

    __slots__ = ("_accepted_at", "_listener", "_operation", "_output", "_session")

    def __init__(
        self,
        session: Session,
        output: ClientOutput,
        listener: Listener,
        accepted_at: float,
        must_wait: Callable[[ops.Operation | None], bool],
    ) -> None:
        self._session = session
        self._output = output
        self._listener = listener
        self._accepted_at = accepted_at
        self._operation = OperationDeadline(session, must_wait)

    def missed(self, now: float) -> StompError | None:
        """The error that ends the session if a deadline is missed; ``now`` is in seconds."""
        session, output, listener = self._session, self._output, self._listener
        if output.websocket is not None and output.websocket.is_silent(now):
            text = f"Nothing was heard for {listener.idle_timeout:g} seconds, not even a pong.\n"
            return StompError("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT)
        if session.state in (State.CONNECTING, State.AUTHENTICATING):
            if now - self._accepted_at <= listener.login_timeout:
                return None
            text = f"No login within {listener.login_timeout:g} seconds.\n"
            return StompError("Login timeout", text, CloseReason.LOGIN_TIMEOUT)
        if session.token_expired(time.time()):
            return error_frames.token_expired()
        if output.is_slow(now):
            text = f"Messages were not taken for {output.slow_consumer_timeout:g} seconds.\n"
            return StompError("Slow consumer", text, CloseReason.SLOW_CONSUMER)
        return self._operation.missed(now)


class _HeartbeatCallbacks(FaultOwner, Protocol):
    """The client's connection."""

    def send_heartbeat(self) -> None: ...

    def heartbeat_missed(self, silence: float) -> None: ...

    def has_sent_unread(self, seconds: float) -> bool: ...


class HeartbeatTimer:
    """Lets the client's connection send heart-beats, and tells it if those of the client are missing."""

    __slots__ = ("_timers", "has_received", "has_sent")

    def __init__(self) -> None:
        # Whether bytes were received and sent since the last tick. Set by the connection.
        self.has_received = True
        self.has_sent = False
        self._timers: list[PeriodicTimer] = []

    def start(self, agreed: Heartbeats, grace: float, client: _HeartbeatCallbacks) -> None:
        """Start after the login. The client may be silent for ``grace`` times its interval."""
        if agreed.send:
            # Earlier bytes do not count: the first heart-beat is due in half an interval.
            self.has_sent = False
            self._timers.append(PeriodicTimer(agreed.send / 2, partial(self._send_unless_busy, client)))
        if agreed.expect:
            silence = agreed.expect * grace
            # The second tick in a row without a byte ends the session, 1 to 1.5 times ``silence`` after the last byte.
            self._timers.append(PeriodicTimer(silence / 2, partial(self._check, client, HeartbeatMonitor(), silence)))

    def stop(self) -> None:
        """Stop sending and expecting heart-beats."""
        for timer in self._timers:
            timer.stop()
        self._timers.clear()

    def _send_unless_busy(self, client: _HeartbeatCallbacks) -> None:
        if not self.has_sent:
            guarded(client, client.send_heartbeat)
        self.has_sent = False

    def _check(self, client: _HeartbeatCallbacks, monitor: HeartbeatMonitor, silence: float) -> None:
        is_silent = monitor.tick(heard=self.has_received or client.has_sent_unread(silence / 2))
        self.has_received = False
        if is_silent:
            guarded(client, client.heartbeat_missed, silence)
