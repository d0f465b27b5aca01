"""What a client may take only so long for: its login, its messages, signs of life; and what the broker may."""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.config.listener_settings import Listener
from gateway.errors import CloseReason, StompError
from gateway.server.client.operation_deadline import OperationDeadline
from gateway.server.client.output import ClientOutput
from gateway.session import error_frames, ops
from gateway.session.context import State
from gateway.session.session import Session


class ClientDeadlines:
    """Looks at one client about once a second, so that its deadlines need no timers of their own.

    ``accepted_at`` is when the client connected. ``must_wait`` says whether an operation, or a confirm (None), may
    take as long as it wants.
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
            return error_frames.closing("Heart-beat timeout", text, CloseReason.HEART_BEAT_TIMEOUT)
        if session.state in (State.CONNECTING, State.AUTHENTICATING):
            if now - self._accepted_at <= listener.login_timeout:
                return None
            text = f"No login within {listener.login_timeout:g} seconds.\n"
            return error_frames.closing("Login timeout", text, CloseReason.LOGIN_TIMEOUT)
        if session.token_expired(time.time()):
            return error_frames.token_expired()
        if output.is_slow(now):
            text = f"Messages were not taken for {output.slow_consumer_timeout:g} seconds.\n"
            return error_frames.closing("Slow consumer", text, CloseReason.SLOW_CONSUMER)
        return self._operation.missed(now)
