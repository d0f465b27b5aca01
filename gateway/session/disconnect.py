"""DISCONNECT, and the end of the gateway: wait for confirms, close the channels, then send the last frame."""

from __future__ import annotations

from collections.abc import Callable

from gateway.errors import CloseReason
from gateway.session import error_frames, ops
from gateway.session.commit import TransactionHandler
from gateway.session.confirms import PublisherConfirms
from gateway.session.context import Hold, SessionContext, State
from gateway.stomp.frame import Frame


class DisconnectHandler:
    """The orderly end of a session."""

    __slots__ = ("_confirms", "_context", "_on_drained", "_stopping", "_transactions", "is_waiting")

    def __init__(self, context: SessionContext, confirms: PublisherConfirms, transactions: TransactionHandler) -> None:
        self._context = context
        self._confirms = confirms
        self._transactions = transactions
        self._stopping = False
        # Whether the session is about to end, so that ``advance`` may have something to do.
        self.is_waiting = False
        # What happens once everything is confirmed and all channels are closed.
        self._on_drained: Callable[[], None] | None = None

    def disconnect(self, frame: Frame) -> None:
        """DISCONNECT."""

        def on_drained() -> None:
            self._context.send_receipt(frame)
            self._context.close(CloseReason.DISCONNECT)

        self._drain(on_drained)

    @property
    def is_by_client(self) -> bool:
        """Whether the client's DISCONNECT is under way."""
        return self._context.state is State.DRAINING and not self._stopping

    def shut_down(self) -> None:
        """See `Session.shut_down`."""
        context = self._context
        if context.state is State.CONNECTED:
            context.holds.add(Hold.STOPPING)
            self._stopping = self.is_waiting = True
            self.advance()
        elif context.state in (State.CONNECTING, State.AUTHENTICATING):
            self._say_shutting_down()

    def _say_shutting_down(self) -> None:
        text = "The gateway is stopping; connect again.\n"
        self._context.fail(error_frames.closing("Shutting down", text, CloseReason.SHUTDOWN))

    def advance(self) -> None:
        """Take the next step if the session is about to end. Called after everything that the end may wait for."""
        context = self._context
        if context.state is State.CONNECTED:
            # The frame under way is finished first.
            is_idle = not context.pending.asked and not context.pending.must_retry
            if self._stopping and is_idle and self._transactions.committing is None:
                self._drain(self._say_shutting_down)
        elif context.state is State.DRAINING and not context.pending.asked and not self._confirms:
            # This replaces a recovery: nothing is left that needs one.
            context.subscriptions.stop_deliveries()
            context.ask(ops.CloseUpstream(), None)

    def _drain(self, on_drained: Callable[[], None]) -> None:
        self._context.settle_if_writable()
        self._context.move(State.DRAINING)
        self._on_drained = on_drained
        self.is_waiting = True
        self.advance()

    def upstream_closed(self, event: ops.UpstreamClosed) -> None:
        """All channels are closed, and the broker has handled everything sent on them."""
        on_drained, self._on_drained = self._on_drained, None
        if on_drained is not None:
            on_drained()
