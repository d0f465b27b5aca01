"""The orderly end of a session, on DISCONNECT or when the gateway stops.

The session waits for confirms, closes its channels, and then sends the last frame.
"""

from __future__ import annotations

from gateway.errors import CloseReason, StompError
from gateway.session import ops
from gateway.session.commit import TransactionHandler
from gateway.session.confirms import PublisherConfirms
from gateway.session.context import Hold, SessionContext, State
from gateway.stomp.frame import Frame


class DisconnectHandler:
    """Ends a session in order."""

    __slots__ = ("_confirms", "_context", "_frame", "_transactions", "is_waiting")

    def __init__(self, context: SessionContext, confirms: PublisherConfirms, transactions: TransactionHandler) -> None:
        self._context = context
        self._confirms = confirms
        self._transactions = transactions
        # The client's DISCONNECT; None if the gateway stops.
        self._frame: Frame | None = None
        # True once the session is about to end, so that ``advance`` may have something to do.
        self.is_waiting = False

    def disconnect(self, frame: Frame) -> None:
        """Begin the end that the client asks for. The RECEIPT comes last."""
        self._frame = frame
        self._drain()

    @property
    def is_by_client(self) -> bool:
        """Whether the client's DISCONNECT is under way."""
        return self._context.state is State.DRAINING and self._frame is not None

    def shut_down(self) -> None:
        """See `Session.shut_down`."""
        context = self._context
        if context.state is State.CONNECTED:
            context.holds.add(Hold.STOPPING)
            self.is_waiting = True
            self.advance()
        elif context.state in (State.CONNECTING, State.AUTHENTICATING):
            self._send_shutdown_error()

    def _send_shutdown_error(self) -> None:
        text = "The gateway is stopping; connect again.\n"
        self._context.fail(StompError("Shutting down", text, CloseReason.SHUTDOWN))

    def advance(self) -> None:
        """Take the next step toward the end, if that has begun. Call it after every event."""
        context = self._context
        if context.state is State.CONNECTED:
            # A frame that is being carried out is finished first.
            is_idle = not context.pending.asked and not context.pending.must_retry
            if Hold.STOPPING in context.holds and is_idle and self._transactions.committing is None:
                self._drain()
        elif context.state is State.DRAINING and not context.pending.asked and not self._confirms:
            # Nothing needs a recovery any more: this operation replaces it.
            context.subscriptions.stop_deliveries()
            context.ask(ops.CloseUpstream(), None)

    def _drain(self) -> None:
        self._context.settle_if_writable()
        self._context.move(State.DRAINING)
        self.is_waiting = True
        self.advance()

    def upstream_closed(self, event: ops.UpstreamClosed) -> None:
        """Send the last frame: all channels are closed, and the broker has handled everything on them."""
        if self._frame is None:
            self._send_shutdown_error()
        else:
            self._context.send_receipt(self._frame)
            self._context.close(CloseReason.DISCONNECT)
